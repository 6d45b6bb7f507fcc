"""The local tier: saves on the nodes' own disks or memory, more often than the shared storage takes them.

A save is a raw dump of each rank's staged bytes on its node, with a copy on the next node (docs/adr/0012).
`LocalPipeline` makes saves during training, `LocalTier` finds and restores them at the start of an attempt.
"""

from trainer.checkpoint.local.part import Save, layout_hash
from trainer.checkpoint.local.pipeline import LocalPipeline, Seat
from trainer.checkpoint.local.restore import LocalTier, folder_of

__all__ = ["LocalPipeline", "LocalTier", "Save", "Seat", "folder_of", "layout_hash"]

"""The buckets: what each means, and what others call it."""

from __future__ import annotations

from collections.abc import Mapping

BUCKETS: Mapping[str, str] = {
    "productive": "steps whose work is part of the result",
    "lost_work": "steps that were executed again later, and the step under way when a fault struck",
    "checkpoint_blocked": "a step waited for the copy of its state",
    "checkpoint_hidden": "steps slowed down by a save in the background",
    "checkpoint_wait": "waited for the save before, or for the last one at the end",
    "restore": "loading a checkpoint",
    "data_stall": "a step waited for data",
    "init": "from the first pod to the first step",
    "compile": "compilation, where the trainer logs it",
    "detection": "from the fault until somebody noticed",
    "restart_in_process": "restart within the same processes, after detection",
    "restart_in_job": "new processes in the same pods, after detection",
    "node_replacement": "new or other pods, after detection",
    "queue": "no pod had started: before the first one, or between two calls of holdfast run",
    "degraded": "fewer ranks than configured: the share of step time that the missing ones would have saved",
    "other": "the loss on held-out data; shutdown after the last step, and after a final failure",
    "unattributed": "no event says what the job did",
}
"""Name of each bucket and what it means, in the order of the design. All are always present.

A straggler is not in `degraded`: ranks wait for one another inside a step, so the step takes as long on all of them and
no span tells who was slow. What a slow rank costs stays in `productive`.
"""

GOOGLE_NAMES: Mapping[str, str | None] = {
    "productive": "GOODPUT",
    "lost_work": "WASTED_PROGRESS_FROM_DISRUPTION",
    "checkpoint_blocked": "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    # Their step times contain it: they count it as productive.
    "checkpoint_hidden": None,
    "checkpoint_wait": "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "restore": "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    "data_stall": "DATA_LOADING_SYNC",
    "init": "TPU_INITIALIZATION, TRAINING_PREP",
    "compile": "PROGRAM_STARTUP",
    "detection": "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    "restart_in_process": "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    "restart_in_job": "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    "node_replacement": "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    # Their clock starts with the job.
    "queue": None,
    "degraded": "ELASTIC_SLICE_DOWN",
    "other": "OTHER",
    "unattributed": "OTHER",
}
"""What Google's ml-goodput-measurement calls the time in each bucket; None where it has no name for it."""

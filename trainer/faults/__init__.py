"""Faults on purpose: what the trainer can break in itself, at a given rank, step and phase, once in the life of a run.

The catalogue of what each does is in holdfast/config. `Faults` is what the loop sees.
"""

from trainer.faults.faults import Faults
from trainer.faults.rank_acts import InjectedFault, pause

__all__ = ["Faults", "InjectedFault", "pause"]

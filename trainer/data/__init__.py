"""Real text -> tokens -> samples. sources.py finds the text, tokenizer.py and shard.py make a token file on first use,
prepared.py opens what `python -m trainer.data.prepare` has made ahead. order.py and mixture.py say which sample comes
when, dataset.py is what the training loop holds. Nothing here keeps loader state.
"""

from trainer.data.dataset import Dataset
from trainer.data.opening import open_dataset

__all__ = ["Dataset", "open_dataset"]

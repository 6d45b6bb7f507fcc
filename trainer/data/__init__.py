"""Real text -> tokens -> samples. sources.py finds the text, tokenizer.py and shard.py make the token file once,
order.py says which sample comes when, dataset.py is what the training loop holds. Nothing here keeps loader state.
"""

from trainer.data.dataset import Dataset, open_dataset

__all__ = ["Dataset", "open_dataset"]

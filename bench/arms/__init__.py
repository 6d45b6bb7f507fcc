"""The ranks of the checkpoint bench: processes that the driver (bench/checkpoint.py) starts and never imports.

They alone in bench may import torch, NVRx and the trainer. Each arm is one way of saving, written from its authors'
public description and as good as they would make it; the loop around it is the same for all.
"""

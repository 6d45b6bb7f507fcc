"""What runs in a pod: supervisor, training loop, model, data, checkpoints, restart layers, faults.

Imports holdfast, torch, NVRx and transformers; never infra or k8s. Importing this package imports nothing: a rank must
reach its monitor before it pays for torch, so every module here keeps its slow imports for the call that needs them.
"""

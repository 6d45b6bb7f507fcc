"""Scenarios that run the real thing as subprocesses and measure it. Imports holdfast only; the trainer is a subprocess."""

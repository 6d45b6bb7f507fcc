"""Scenarios that run the real thing and measure it. Imports holdfast only; the trainer is a subprocess."""

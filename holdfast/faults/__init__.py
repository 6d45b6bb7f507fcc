"""Schedules of faults on purpose, drawn from the catalogue in holdfast/config; what must become of a run with them."""

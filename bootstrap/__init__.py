"""Makes the virtual environment: `make venv`, or `python3 -m bootstrap`. Standard library only.

Runs under any Python from 3.6, so that a machine with the wrong Python gets a sentence and not a syntax error. It may
be stopped at any moment: only a complete environment gets the stamp that makes the next run return at once, and one
that was cut short is made again.
"""

"""What all rooms share: the config, the launch contract, accounting, the local runner and the command line.

Imports pydantic, PyYAML, numpy and display libraries only. Never torch, aws_cdk or cdk8s: a command that needs them
starts a subprocess, so that `holdfast check` answers in a fraction of a second on a laptop without them.
"""

__version__ = "0.1.0"

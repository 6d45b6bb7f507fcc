"""The one config. A new knob goes into schema.py with its meaning; a check between fields into checks.py; a string that
two packages must agree on into names.py; a fact about a node type into instances.py.
"""

from holdfast.config.load import dump, load_file, load_profile, profile_names, validate
from holdfast.config.problems import EXIT_BAD_CONFIG, ConfigError, Problem
from holdfast.config.schema import RunConfig

__all__ = [
    "EXIT_BAD_CONFIG",
    "ConfigError",
    "Problem",
    "RunConfig",
    "dump",
    "load_file",
    "load_profile",
    "profile_names",
    "validate",
]

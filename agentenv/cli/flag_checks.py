"""Checks of the numbers that flags of several commands take."""

from math import inf

from agentenv.errors import ConfigurationError


def require_at_least_one(**flags: int) -> None:
    """Refuses a number below 1.

    Args:
        **flags: Numbers by the names of their flags, with underscores.

    Raises:
        ConfigurationError: one is smaller.
    """
    for name, value in flags.items():
        if value < 1:
            raise ConfigurationError(f"{_flag(name)} is {value}; it must be at least 1.")


def require_positive(**flags: float) -> None:
    """Refuses a number that is not finite or not above 0.

    Args:
        **flags: Numbers by the names of their flags, with underscores.

    Raises:
        ConfigurationError: there is such a number.
    """
    for name, value in flags.items():
        if not 0 < value < inf:
            raise ConfigurationError(f"{_flag(name)} is {value}; it must be finite and above 0.")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"

"""Asks the user to confirm settings of another author's configuration file that run code or contact a host.

Settings that ship with the package or are given on the command line are trusted. A file is not: before a run of it starts,
the user confirms these settings at the terminal, or gives ``--trust-config``.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentenv.core.io.toml_files import read_toml
from agentenv.core.registry import is_class
from agentenv.errors import ConfigurationError

_OUTWARD = re.compile(
    r"://|(^|[@:,=])\s*(remote|openai|anyllm|web|python|stdio|https?):|^vllm:.*@|(^|[@:])unsafe-local$",
    re.IGNORECASE,
)
_PART_KEY = re.compile(
    r"(^|\.)(env(\.id)?|estimator|estimators\..+|objective|strategy|sampler|scorers?|executor|backend|outcome)$"
)
"""Keys that name a part, whose value may be ``module:name``."""
_MOST_SHOWN_CHARS = 100


def risks(values: Any, above: str = "") -> Iterator[str]:
    """Yields the settings that run code without a sandbox or contact a host, as ``key = value``.

    Control characters in both are escaped, because the user reads them at a terminal.
    """
    if isinstance(values, dict):
        for key, value in values.items():
            yield from risks(value, f"{above}.{key}" if above else str(key))
    elif isinstance(values, list):
        for value in values:
            yield from risks(value, above)
    elif isinstance(values, str) and (
        _OUTWARD.search(values.strip()) or _is_host(above, values) or names_module(above, values)
    ):
        yield f"{repr(above[:_MOST_SHOWN_CHARS])[1:-1]} = {values[:_MOST_SHOWN_CHARS]!r}"


def _is_host(key: str, value: str) -> bool:
    """Whether the key of a setting expects addresses without a scheme, and its value is one."""
    return (key.endswith("cluster.address") and value not in ("", "local")) or key.endswith("engine.urls")


def names_module(key: str, value: str) -> bool:
    """Whether a setting names a part as ``module:name``. Loading it imports a module that may be beside the file."""
    return _PART_KEY.search(key) is not None and is_class(value)


def needs_trust(path: Path) -> bool:
    """Whether a TOML file has settings that the user has to confirm before a run starts."""
    try:
        return path.is_file() and any(risks(read_toml(path)))
    except (ConfigurationError, RecursionError):
        return False


def confirm_file(path: Path, *, trusted: bool) -> None:
    """Asks the user about the settings in a TOML file that run code without a sandbox or contact a host.

    Args:
        path: The file. A missing file is not checked; reading it will fail later.
        trusted: Whether the user has already said that the file is trusted.

    Raises:
        ConfigurationError: there are such settings and the user does not confirm them or cannot be asked, or the file is not
            TOML.
    """
    if trusted or not path.is_file():
        return
    try:
        found = list(dict.fromkeys(risks(read_toml(path))))
    # dotted keys can nest tables more deeply than the parser's recursion limit
    except RecursionError as error:
        raise ConfigurationError(f"{path} nests too deeply to be a configuration.") from error
    if not found:
        return
    named = "; ".join(found)
    if sys.stdin.isatty() and sys.stderr.isatty():
        print(f"{path} runs code without a sandbox or contacts hosts: {named}", file=sys.stderr)
        if input("Go on? [y/N] ").strip().lower() in ("y", "yes"):
            return
    raise ConfigurationError(
        f"{path} runs code without a sandbox or contacts hosts ({named}); give --trust-config, in Python "
        "trust_config=True, where you trust it."
    )

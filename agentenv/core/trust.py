"""Configuration files of other authors: the user confirms what in them runs code without a sandbox or contacts a host.

What is shipped with the package and what stands on the command line is trusted. A file is not: the user who
starts a run of it confirms these settings at the terminal, or gives ``--trust-config``.
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
"""Keys that name a part, which may be ``module:name``."""
_SHOWN = 100


def risks(values: Any, above: str = "") -> Iterator[str]:
    """The settings among plain values that run code without a sandbox or contact a host, as ``key = value``.

    Control characters are shown as escapes in both, because the user reads them at a terminal.
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
        yield f"{repr(above[:_SHOWN])[1:-1]} = {values[:_SHOWN]!r}"


def _is_host(key: str, value: str) -> bool:
    """Whether a setting that holds addresses without a scheme names one."""
    return (key.endswith("cluster.address") and value not in ("", "local")) or key.endswith("engine.urls")


def names_module(key: str, value: str) -> bool:
    """Whether a setting names a part as ``module:name``, which imports a module that may lie beside the file."""
    return _PART_KEY.search(key) is not None and is_class(value)


def needs_trust(path: Path) -> bool:
    """Whether the user who starts a run of a TOML file has to confirm settings in it."""
    try:
        return path.is_file() and any(risks(read_toml(path)))
    except (ConfigurationError, RecursionError):
        return False


def confirm_file(path: Path, *, trusted: bool) -> None:
    """Asks about the settings in a TOML file that run code without a sandbox or contact a host.

    Args:
        path: The file; one that is absent is not checked, and reading it will fail later.
        trusted: Whether the user has said that the file is to be trusted.

    Raises:
        ConfigurationError: there are such settings and the user does not confirm them, or cannot be asked; or the file is
            no TOML.
    """
    if trusted or not path.is_file():
        return
    try:
        found = list(dict.fromkeys(risks(read_toml(path))))
    except RecursionError as error:  # tables of dotted keys nest without the parser's recursion
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

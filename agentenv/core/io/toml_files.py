"""Reads settings files in TOML, which another author may have written."""

import tomllib
from pathlib import Path
from typing import Any

from agentenv.core.io.tables import UTF_8
from agentenv.errors import ConfigurationError


def read_toml(path: Path) -> dict[str, Any]:
    """Parses a TOML file.

    Raises:
        ConfigurationError: the file cannot be read, is not TOML, or is nested too deeply.
    """
    try:
        return tomllib.loads(path.read_text(encoding=UTF_8))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is no TOML: {error}.") from error
    except RecursionError as error:
        raise ConfigurationError(f"{path} nests too deeply to be a configuration.") from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error

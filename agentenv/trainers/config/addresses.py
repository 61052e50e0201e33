"""Addresses of Ray clusters: whether one can be meant, and whether somebody answers there."""

import re
import socket

from agentenv.errors import ConfigurationError

_FORM = re.compile(r"(?:ray://)?(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}")
_ANSWERS_S = 3.0  # in which the head of a cluster must take a connection


def known_address(address: str) -> str:
    """``address``, refused where it is none.

    Raises:
        ConfigurationError: it is neither empty nor ``local`` nor HOST:PORT.
    """
    if address not in ("", "local") and not _FORM.fullmatch(address):
        raise ConfigurationError("the address of a Ray cluster is written HOST:PORT, or is 'local'")
    return address


def refuse_silent(address: str) -> None:
    """Refuses a cluster at whose address nobody answers; one that the run starts itself is taken for granted.

    Raises:
        ConfigurationError: no connection could be made.
    """
    if address in ("", "local"):
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigurationError(f"no Ray cluster answers at {address}: {error}") from error

"""Texts that may lie on disk in encrypted form only (BrowseComp), so that no crawler trains on them.

The cipher is BrowseComp's: UTF-8 bytes, XOR with the SHA-256 digest of a canary string repeated to their
length, base64. It keeps nothing secret from anyone who has the canary; it keeps plain text out of files.
"""

import base64
import binascii
import hashlib
from itertools import cycle


def seal(text: str, canary: str) -> str:
    """``text`` encrypted under ``canary``."""
    return base64.b64encode(_mixed(text.encode(), canary)).decode("ascii")


def unseal(cipher: str, canary: str) -> str:
    """The text of ``cipher``.

    Raises:
        ValueError: it is no base64, or another canary encrypted it.
    """
    try:
        return _mixed(base64.b64decode(cipher, validate=True), canary).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("the text cannot be decrypted with its canary") from None


def _mixed(data: bytes, canary: str) -> bytes:
    key = hashlib.sha256(canary.encode()).digest()
    return bytes(a ^ b for a, b in zip(data, cycle(key), strict=False))

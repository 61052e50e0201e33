"""JSON from files of others: what is no JSON, nested too deeply, or no text is one kind of error."""

import json
import re
from collections import Counter
from typing import Any

_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # the escape of one half of a surrogate pair, or of both


def read_json_text(text: str | bytes, *, distinct: bool = False) -> Any:
    """The value that ``text`` holds.

    Args:
        text: one JSON value; bytes are UTF-8.
        distinct: refuses an object that has a name twice, of which only the last would be read.

    Raises:
        ValueError: it is no JSON, is nested too deeply to be read, or holds half of a surrogate pair, which is no text and
            can be written to no file; the message says which, in words that go behind "because".
    """
    plain = text if isinstance(text, str) else utf8_text(text)
    try:
        value = json.loads(plain.rstrip(), object_pairs_hook=_distinct if distinct else None)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if len(plain.strip().splitlines()) > 1 else ""
        raise ValueError(f"{error.msg} at {line}column {error.colno}") from error
    except RecursionError:
        raise ValueError("it is nested too deeply to be read") from None
    if _HALF.search(plain):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            raise ValueError("it holds half of a surrogate pair, such as \\ud83d, which is no text") from None
    return value


def utf8_text(text: bytes) -> str:
    """``text`` decoded.

    Raises:
        ValueError: it is no UTF-8; the message says where, in words that go behind "because".
    """
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"it is no UTF-8: the byte 0x{text[error.start]:02x} at position {error.start}"
        ) from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"an object has the name {twice!r} twice")
    return found

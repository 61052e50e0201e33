"""Reads JSON from files of other authors. All problems (no JSON, too deep nesting, invalid text) raise the same error."""

import json
import re
from collections import Counter
from typing import Any

_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # the escape of a surrogate


def read_json_text(text: str | bytes, *, distinct: bool = False) -> Any:
    """Parses a JSON text.

    Args:
        text: One JSON value. Bytes are UTF-8.
        distinct: Whether an object with a repeated key is refused. Otherwise only its last value is used.

    Raises:
        ValueError: the text is not JSON, is nested too deeply, or contains a lone surrogate, which cannot be written to a
            file. The message fits after the word "because".
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
    """Decodes ``text``.

    Raises:
        ValueError: it is not UTF-8. The message says where, and fits after the word "because".
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

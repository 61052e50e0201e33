"""JSON from files of others: what is no JSON, nested too deeply, or no text is one kind of error."""

import json
import re
from typing import Any

_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # the escape of one half of a surrogate pair, or of both


def read_json_text(text: str | bytes) -> Any:
    """The value that ``text`` holds.

    Raises:
        ValueError: it is no JSON, is nested too deeply to be read, or holds half of a surrogate pair, which is no text and
            can be written to no file; the message says which, in words that go behind "because".
    """
    try:
        value = json.loads(text.rstrip())
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if len(text.strip().splitlines()) > 1 else ""
        raise ValueError(f"{error.msg} at {line}column {error.colno}") from error
    except RecursionError:
        raise ValueError("it is nested too deeply to be read") from None
    plain = text if isinstance(text, str) else text.decode("utf-8", "replace")
    if _HALF.search(plain):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except (UnicodeEncodeError, RecursionError):
            raise ValueError("it holds half of a surrogate pair, such as \\ud83d, which is no text") from None
    return value

"""A cassette: a file of requests and replies, which are recorded once and replayed byte for byte.

It works for any call with a JSON request and a JSON reply: a search, a judge's verdict, a simulated page. The file has a
header line and then one JSON line for each call. A line is complete or absent, so a killed recording loses its last call at
most.
"""

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self

from agentenv.core.io.files import append_lines, write_text
from agentenv.core.io.strict_json import utf8_text
from agentenv.errors import CassetteMiss, ConfigurationError

FORMAT = 1


class Cassette:
    """Maps requests to replies. Only the first reply to a request is kept; requests may come in any order.

    Create one with `replay` or `record`.

    Args:
        path: The file.
        about: What was recorded, from the header.
        replies: The reply to each request, both as JSON text.
        recording: Whether new replies are written to the file.
    """

    def __init__(
        self, path: Path, about: Mapping[str, Any], replies: dict[str, str], *, recording: bool
    ) -> None:
        self.path = path
        self.about = dict(about)
        self._replies = replies
        self.recording = recording

    @classmethod
    def replay(cls, path: Path) -> Self:
        """Opens a recorded file for reading only.

        Raises:
            ConfigurationError: the file does not exist or is not a cassette.
        """
        about, replies, _ = _read(path)
        return cls(path, about, replies, recording=False)

    @classmethod
    def record(cls, path: Path, about: Mapping[str, Any]) -> Self:
        """Opens a file to which calls are added, or creates it.

        Args:
            path: The file.
            about: What is recorded. An existing file must have the same header.

        Raises:
            ConfigurationError: the file has another header, is not a cassette, or cannot be written.
        """
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_text(path, _text({"cassette": FORMAT, "about": about}) + "\n")
            before, replies, torn = _read(path)
            if _text(before) != _text(about):
                raise ConfigurationError(
                    f"{path} was recorded from {_text(before)}, not from {_text(about)}; give another file."
                )
            # A killed recording left an incomplete line. A complete file may be growing, written by another process.
            if torn is not None:
                os.truncate(path, torn)
            return cls(path, before, replies, recording=True)
        except OSError as error:
            raise ConfigurationError(f"{path} cannot be written: {error.strerror}.") from error

    def __len__(self) -> int:
        return len(self._replies)

    def __contains__(self, request: Any) -> bool:
        return _text(request) in self._replies

    def find(self, request: Any) -> Any:
        """Returns the recorded reply.

        Raises:
            CassetteMiss: this request was not recorded.
        """
        key = _text(request)
        if key not in self._replies:
            raise CassetteMiss(
                f"{self.path} holds no reply to {_short(key)}; record it, or ask what it holds."
            )
        return json.loads(self._replies[key])

    def add(self, request: Any, reply: Any) -> Any:
        """Records a reply; returns the reply that a replay will return, which is an earlier one if there is one."""
        if not self.recording:
            raise ConfigurationError(f"{self.path} was opened to be replayed and cannot record.")
        key, text = _text(request), json.dumps(reply, allow_nan=False)
        if key not in self._replies:
            append_lines(self.path, [f'{{"request": {key}, "reply": {text}}}'])
            self._replies[key] = text
        return json.loads(self._replies[key])

    async def play(self, request: Any, ask: Callable[[], Awaitable[Any]] | None = None) -> Any:
        """Returns the recorded reply; otherwise calls ``ask``, records its result and returns it.

        Raises:
            CassetteMiss: the request was not recorded and ``ask`` is None.
        """
        if ask is None or request in self:
            return self.find(request)
        return self.add(request, await ask())


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str], int | None]:
    """Returns the header, the replies by request, and the offset of an incomplete last line (None without one)."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read: {error.strerror}.") from error
    complete = content.rfind(b"\n") + 1
    head, *lines = content[:complete].split(b"\n")
    try:
        header = _value(head)
        if header["cassette"] != FORMAT:
            raise ConfigurationError(
                f"{path} is a cassette of format {header['cassette']}; this version reads {FORMAT}."
            )
        about = dict(header["about"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"{path} is no cassette: its first line is {_shown(head)}.") from error
    replies: dict[str, str] = {}
    for number, line in enumerate(lines[:-1], start=2):  # the part after the last newline is empty
        try:
            record = _value(line)
            replies.setdefault(_text(record["request"]), json.dumps(record["reply"]))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigurationError(f"{path}, line {number} is no recorded call: {_shown(line)}.") from error
    return about, replies, complete if complete < len(content) else None


def _value(line: bytes) -> Any:
    """Parses a line, which is ASCII if this module wrote it, but a person may have edited it.

    Raises:
        ValueError: the line is not JSON in UTF-8.
    """
    return json.loads(utf8_text(line))


def _shown(line: bytes) -> str:
    """Returns a line for an error message, with the decoding error if it is not text."""
    try:
        return repr(utf8_text(line)[:60])
    except ValueError as error:
        return str(error)


def _text(value: Any) -> str:
    """Writes a request in its canonical form: sorted keys and only ASCII, so that any character survives."""
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."

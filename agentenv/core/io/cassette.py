"""A cassette: calls and their replies in a file, recorded once and played back byte for byte.

It serves any call whose request and reply are JSON: a search, a judge's verdict, a simulated page. The file is one JSON
line a call after a header line; a line is complete or absent, so a killed recording loses at most its last call.
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
    """Replies by request. A request has one reply, the first that was recorded; requests come in any order.

    Make one with `replay` or `record`.

    Args:
        path: the file.
        about: what was recorded, from the header.
        replies: text of each reply by the text of its request.
        recording: whether new replies are written to the file.
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
        """Opens a recorded file, which is never changed.

        Raises:
            ConfigurationError: there is no such file, or it is no cassette.
        """
        about, replies, _ = _read(path)
        return cls(path, about, replies, recording=False)

    @classmethod
    def record(cls, path: Path, about: Mapping[str, Any]) -> Self:
        """Opens a file to add to, or begins one.

        Args:
            path: the file.
            about: what is recorded; a file that exists must be about the same.

        Raises:
            ConfigurationError: the file is about something else, is no cassette, or cannot be written.
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
            # A killed recording left half a line; a whole file may be growing under another process.
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
        """The recorded reply.

        Raises:
            CassetteMiss: the file does not hold this request.
        """
        key = _text(request)
        if key not in self._replies:
            raise CassetteMiss(
                f"{self.path} holds no reply to {_short(key)}; record it, or ask what it holds."
            )
        return json.loads(self._replies[key])

    def add(self, request: Any, reply: Any) -> Any:
        """Records a reply; returns what a replay will return, which is the earlier reply where there is one."""
        if not self.recording:
            raise ConfigurationError(f"{self.path} was opened to be replayed and cannot record.")
        key, text = _text(request), json.dumps(reply, allow_nan=False)
        if key not in self._replies:
            append_lines(self.path, [f'{{"request": {key}, "reply": {text}}}'])
            self._replies[key] = text
        return json.loads(self._replies[key])

    async def play(self, request: Any, ask: Callable[[], Awaitable[Any]] | None = None) -> Any:
        """The recorded reply, or else what ``ask`` returns, recorded.

        Raises:
            CassetteMiss: no such request is recorded and there is nobody to ask.
        """
        if ask is None or request in self:
            return self.find(request)
        return self.add(request, await ask())


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str], int | None]:
    """What the file is about, its replies by request, and where half a last line begins; None where there is none."""
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
    for number, line in enumerate(lines[:-1], start=2):  # after the last newline nothing is left
        try:
            record = _value(line)
            replies.setdefault(_text(record["request"]), json.dumps(record["reply"]))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ConfigurationError(f"{path}, line {number} is no recorded call: {_shown(line)}.") from error
    return about, replies, complete if complete < len(content) else None


def _value(line: bytes) -> Any:
    """What a line holds. It is written in ASCII, and may have been written otherwise by hand.

    Raises:
        ValueError: it is no JSON in UTF-8.
    """
    return json.loads(utf8_text(line))


def _shown(line: bytes) -> str:
    """How an error shows a line, with what is wrong where that is no text."""
    try:
        return repr(utf8_text(line)[:60])
    except ValueError as error:
        return str(error)


def _text(value: Any) -> str:
    """The one spelling of a request: keys sorted, nothing but ASCII, so that any character survives."""
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:117]}..."

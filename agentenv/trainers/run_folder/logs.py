"""The logs of a run folder: lines by step in ``metrics.jsonl`` and ``timings.jsonl``, a question in ``questions.jsonl``.

Every checkpoint has a copy of them, so that a log which was damaged, shortened or deleted comes back as it was at that step.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agentenv.core.io.files import append_lines, write_bytes
from agentenv.core.io.strict_json import read_json_text
from agentenv.errors import ConfigurationError

LOGS = ("metrics", "timings", "questions")
Line = dict[str, Any]


class RunLogs:
    """The logs in the folder ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines: dict[str, list[Line]] = {}  # as they stand on disk

    def append(self, name: str, values: Mapping[str, Any]) -> None:
        """Adds a line to a log."""
        lines, line = self.lines(name), json.dumps(values)
        append_lines(self._file(name), [line])
        lines.append(json.loads(line))

    def lines(self, name: str) -> list[Line]:
        """The complete lines of a log that say which step they are of; the file is read once."""
        if name not in self._lines:
            self._lines[name] = _parsed(_content(self._file(name)))
        return self._lines[name]

    def keep(self, folder: Path) -> None:
        """Copies the logs into ``folder``."""
        for name in LOGS:
            if self._file(name).is_file():
                write_bytes(folder / f"{name}.jsonl", _content(self._file(name)))

    def restore(self, step: int, kept: Path | None, warn: Callable[[str], None]) -> None:
        """Brings the logs back to ``step``.

        Args:
            step: The last step that they are to have.
            kept: Where the copies are; None, or a folder without them, keeps what is readable of the logs themselves.
            warn: Told of each log that was damaged.

        Raises:
            ConfigurationError: a folder lies where a log belongs.
        """
        for name in LOGS:
            path = self._file(name)
            if path.is_dir():
                raise ConfigurationError(f"{path} is a folder, and the run's log belongs there: move it away")
            now, raw = _content(path), path.read_bytes() if path.is_file() else None
            copied = kept is not None and (kept / path.name).is_file()
            wanted = _content(kept / path.name) if kept is not None and copied else _up_to(step, now)
            if copied and not now.startswith(wanted):
                warn(f"{path} was damaged; it is restored from {kept}")
            elif not copied and name == "metrics" and _steps(wanted) != [*range(1, step + 1)]:
                warn(f"{path} lacks lines of steps up to {step}, of which there is no copy; the run goes on")
            # A run without self-play has no log of questions.
            if raw != wanted and (wanted or raw is not None or name != "questions"):
                write_bytes(path, wanted)
            self._lines[name] = _parsed(wanted)

    def _file(self, name: str) -> Path:
        return self.path / f"{name}.jsonl"


def _content(path: Path) -> bytes:
    """The complete lines of a file; empty where there is none."""
    if not path.is_file():
        return b""
    content = path.read_bytes()
    return content[: content.rfind(b"\n") + 1]


def _parsed(content: bytes) -> list[Line]:
    """The lines that are JSON objects with a step; others are left out."""
    lines = []
    for line in content.split(b"\n"):
        try:
            values = read_json_text(line)
        except ValueError:
            continue
        if isinstance(values, dict) and isinstance(values.get("step"), int):
            lines.append(values)
    return lines


def _up_to(step: int, content: bytes) -> bytes:
    kept = (line for line in _parsed(content) if line["step"] <= step)
    return "".join(json.dumps(line) + "\n" for line in kept).encode()


def _steps(content: bytes) -> list[int]:
    return [line["step"] for line in _parsed(content)]

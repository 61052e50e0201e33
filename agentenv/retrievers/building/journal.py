"""The saved state of an interrupted build with checksums, so that only intact parts are used again."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from agentenv.core.io.files import append_lines, write_text
from agentenv.core.io.strict_json import read_json_text
from agentenv.retrievers.indexes import read_index, write_index


class Part(NamedTuple):
    """Vectors that were written together."""

    rows: int  # number of finished rows after this part
    sha256: str  # digest of the vectors of this part


def intact_parts(
    file: BinaryIO, parts: list[Part], row_bytes: int, report: Callable[[int, int], None]
) -> list[Part]:
    """Returns the parts before the first one whose data in the file is not intact."""
    before = 0
    for number, part in enumerate(parts):
        found = file.read((part.rows - before) * row_bytes)
        if hashlib.sha256(found).hexdigest() != part.sha256:
            return parts[:number]
        before = part.rows
        report(part.rows, parts[-1].rows)
    return parts


class BuildJournal:
    """Lists the parts of a file that are on the disk: a line about what is built, then one line per part.

    Lines are only appended, so that a long journal costs no more than a short one. A line that was cut by a kill, and
    everything after it, is ignored, and so is a journal about something else.
    """

    def __init__(self, path: Path, of: list[Any]) -> None:
        self._path, self._of = path, of
        self.parts = self._read()

    @property
    def rows(self) -> int:
        """Number of rows in all parts."""
        return self.parts[-1].rows if self.parts else 0

    def keep(self, parts: list[Part]) -> None:
        """Rewrites the journal with only these parts; removes it if there are none."""
        self.parts = parts
        if not parts:
            self._path.unlink(missing_ok=True)
            return
        lines = [json.dumps(self._of), *(json.dumps(part) for part in parts)]
        write_text(self._path, "".join(f"{line}\n" for line in lines))

    def add(self, part: Part) -> None:
        """Adds a part whose vectors are already on the disk."""
        if not self.parts:
            self.keep([part])
            return
        self.parts.append(part)
        append_lines(self._path, [json.dumps(part)])

    def _read(self) -> list[Part]:
        parts: list[Part] = []
        try:
            with self._path.open(encoding="utf-8") as file:
                if read_json_text(next(file, "null")) != self._of:
                    return []
                for line in file:
                    rows, digest = read_json_text(line)
                    if not (isinstance(rows, int) and rows > (parts[-1].rows if parts else 0)):
                        break
                    parts.append(Part(rows, digest))
        except FileNotFoundError:
            pass
        except (ValueError, TypeError):  # a line was cut off or damaged
            pass
        return parts


class UnfinishedIndex:
    """An unfinished index that was saved, with its checksum in a second file."""

    def __init__(self, path: Path, of: list[Any]) -> None:
        self._path, self._card, self._of = path, path.with_suffix(".json"), of

    def read(self) -> Any:
        """Returns the index; None if there is none, or if its checksum differs."""
        try:
            if read_json_text(self._card.read_text(encoding="utf-8")) == self._state():
                return read_index(self._path, mapped=False)
        except (FileNotFoundError, ValueError):
            pass
        return None

    def write(self, index: Any) -> None:
        """Saves the unfinished index, followed by its checksum."""
        write_index(index, self._path)
        # The checksum is written last: an incomplete index then has the checksum of an older one, and is not used.
        write_text(self._card, json.dumps(self._state()))

    def _state(self) -> dict[str, Any]:
        with self._path.open("rb") as file:
            return {"of": self._of, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}

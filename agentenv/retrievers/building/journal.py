"""What an interrupted build of a retriever left on the disk, with checksums: only what is intact is used again."""

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

    rows: int  # finished with this part and all before it
    sha256: str  # of the vectors of this part


def intact_parts(
    file: BinaryIO, parts: list[Part], row_bytes: int, report: Callable[[int, int], None]
) -> list[Part]:
    """The parts before the first one that is not in the file as it was written."""
    before = 0
    for number, part in enumerate(parts):
        found = file.read((part.rows - before) * row_bytes)
        if hashlib.sha256(found).hexdigest() != part.sha256:
            return parts[:number]
        before = part.rows
        report(part.rows, parts[-1].rows)
    return parts


class BuildJournal:
    """Lists the parts of a file that are safely on the disk: a line on what is built, then a line for each part.

    Lines are only added, so that a journal of many parts costs no more to keep than one of few. A line that was cut off by
    a kill, and whatever follows it, does not count; nor does a journal of something else.
    """

    def __init__(self, path: Path, of: list[Any]) -> None:
        self._path, self._of = path, of
        self.parts = self._read()

    @property
    def rows(self) -> int:
        """Rows in all parts."""
        return self.parts[-1].rows if self.parts else 0

    def keep(self, parts: list[Part]) -> None:
        """Writes the journal anew with only these parts; without any there is none."""
        self.parts = parts
        if not parts:
            self._path.unlink(missing_ok=True)
            return
        lines = [json.dumps(self._of), *(json.dumps(part) for part in parts)]
        write_text(self._path, "".join(f"{line}\n" for line in lines))

    def add(self, part: Part) -> None:
        """Adds a part, whose vectors are on the disk already."""
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
    """An index that is written down as far as it is, with its checksum in a second file."""

    def __init__(self, path: Path, of: list[Any]) -> None:
        self._path, self._card, self._of = path, path.with_suffix(".json"), of

    def read(self) -> Any:
        """The index; None where there is none, or where it is not what was written."""
        try:
            if read_json_text(self._card.read_text(encoding="utf-8")) == self._state():
                return read_index(self._path, mapped=False)
        except (FileNotFoundError, ValueError):
            pass
        return None

    def write(self, index: Any) -> None:
        """Writes the index as far as it is, then its checksum."""
        write_index(index, self._path)
        # The checksum last: an index that was cut off has that of an older one, and is not used.
        write_text(self._card, json.dumps(self._state()))

    def _state(self) -> dict[str, Any]:
        with self._path.open("rb") as file:
            return {"of": self._of, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}

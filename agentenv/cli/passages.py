"""``agentenv retriever passages``: a corpus from documents of your own."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from agentenv.cli.flag_checks import require_at_least_one
from agentenv.core.io.files import replacing
from agentenv.errors import ConfigurationError
from agentenv.retrievers.building.documents import WORDS, DocumentsRead, read_passages
from agentenv.retrievers.storage.corpus import document_line

_NAMED = 3
"""Files of one reason that are named."""


@dataclass(frozen=True)
class Passages:
    """Cuts documents (.txt, .md, .html, .pdf) into passages that a search can find, as a corpus for every other command.

    A passage ends where a sentence ends and never goes over a heading; its title is the headings above it.

    Example: agentenv retriever passages handbook/ --out corpus.jsonl
    """

    documents: tyro.conf.Positional[Path]
    """A file, or a folder whose files are read with those of all folders in it."""
    out: Path
    """The file to write, one passage a line with id, title and text."""
    words: int = WORDS
    """Words of a passage at most."""

    def run(self) -> dict[str, Any]:
        """Writes the corpus and returns what was read."""
        if self.out.exists():
            raise ConfigurationError(f"{self.out} exists already; give a new file.")
        require_at_least_one(words=self.words)
        done = DocumentsRead()
        passages = read_passages(self.documents, self.words, done)
        with replacing(self.out) as part, part.open("wb") as file:
            for passage in passages:
                file.write(document_line(passage))
            if not done.passages:
                reasons = "; ".join(f"{_names(names)}: {reason}" for reason, names in done.left_out.items())
                raise ConfigurationError(
                    f"no document can be read in {self.documents}. {reasons}".rstrip(". ")
                )
        return {
            "out": str(self.out),
            "documents": done.documents,
            "passages": done.passages,
            "left_out": done.left_out,
        }

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints how many passages there are, what was left out, and how to search."""
        read = f"{result['passages']:,} passages of {result['documents']:,} documents"
        console.print(f"{read}: {result['out']}", markup=False)
        for reason, names in result["left_out"].items():
            console.print(f"Left out: {_names(names)}: {reason}", markup=False)
        quoted = shlex.quote(result["out"])
        console.print(
            f"Search it: agentenv retriever build {quoted} --out index --index hybrid", markup=False
        )


def _names(names: list[str]) -> str:
    """The first of the files, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more

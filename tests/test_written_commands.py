"""Every command that a page or an example shows is one that exists, with options that it has and values that fit."""

import contextlib
import importlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentenv.cli.main import COMMANDS, _parse, resolve

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*.toml")),
]
# An indented line, in a page or in the comment at the head of a configuration, and a cell of a table.
LINE = re.compile(r"^(?:    |#   )agentenv ((?:[^\n\\]|\\\n)+)$", re.M)
CELL = re.compile(r"^\| `agentenv ([^`]+)` \|", re.M)
# Its keys are checked in test_docs.py. It reads files and modules already while it parses, which only the reader has.
ELSEWHERE = {"train"}


def commands_of(page: Path) -> Iterator[list[str]]:
    """The words of each whole command that ``page`` shows."""
    text = page.read_text(encoding="utf-8")
    for command in [*LINE.findall(text), *CELL.findall(text)]:
        words = shlex.split(command.replace("\\\n#", " ").replace("\\\n", " "), comments=True)
        if words[0] not in ELSEWHERE and resolve(words)[1]:  # a cell with a name alone explains the command
            yield [word for word in words if word != "--json"]


def complaint(words: list[str]) -> str:
    """What the parser of the command says about ``words``; empty where it takes them."""
    name, arguments = resolve(words)
    module, _, class_name = COMMANDS[name].target.partition(":")
    cls = getattr(importlib.import_module(module), class_name)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            _parse(name, cls, arguments)
        except SystemExit as stop:
            return said.getvalue() if stop.code else ""
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_commands_of_a_page_are_taken(page: Path) -> None:
    refused = {shlex.join(words): said for words in commands_of(page) if (said := complaint(words))}
    assert not refused, refused


def test_commands_are_found_and_mistakes_among_them(tmp_path: Path) -> None:
    found = sum(1 for page in PAGES for _ in commands_of(page))
    assert found > 100
    page = tmp_path / "page.md"
    page.write_text("    agentenv eval --dataset nq \\\n        --polcy tiny --out runs/a  # a comment\n")
    (words,) = commands_of(page)
    assert words == ["eval", "--dataset", "nq", "--polcy", "tiny", "--out", "runs/a"]
    assert "--polcy" in complaint(words)

"""What ``--help`` says above the flags: no line of prose is wider than the terminal, and every example is a line."""

import importlib
import inspect
import re
from itertools import pairwise

import pytest

from agentenv.cli.descriptions import description
from agentenv.cli.main import COMMANDS, main


class Wordy:
    """Does a thing that takes quite some words to describe on a terminal as narrow as this one.

    Example: agentenv wordy --first one
    Example: agentenv wordy --second two
    """


def test_paragraphs_are_filled_and_examples_stand_on_lines_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    lines = description(Wordy).splitlines()
    assert max(map(len, lines)) <= 50
    assert {"Example: agentenv wordy --first one", "Example: agentenv wordy --second two"} <= set(lines)
    assert lines[1] == "describe on a terminal as narrow as this one."


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_shows_its_examples_as_they_stand(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*name.split(), "--help"]) == 0
    out = capsys.readouterr().out.splitlines()
    module, _, cls = COMMANDS[name].target.partition(":")
    doc = inspect.getdoc(getattr(importlib.import_module(module), cls)) or ""
    examples = [line for line in doc.splitlines() if line.lstrip().startswith(("Example: ", "agentenv "))]
    assert examples
    assert set(examples) <= set(out)
    assert any("--json" in line for line in out)
    assert [line for line, after in pairwise(out) if ends_early(line, after)] == []


def ends_early(line: str, after: str) -> bool:
    """Whether ``line`` of a flag's text has room for the first word of the line after it."""
    found = re.fullmatch(r"│( {6,})(\S+).*│", after)
    if found is None:
        return False
    begin = 1 + len(found[1])
    text = line[begin:-2].rstrip()
    follows = line[begin - 1 : begin] == " " and text[:1].strip() != ""
    return follows and begin + len(text) + 1 + len(found[2]) <= len(line) - 2

"""Covers what commands print for people: lines that are never broken, and that no text of somebody else can command."""

import io

import pytest

from agentenv.streams import make_console, visible


@pytest.mark.parametrize("terminal", [False, True])
def test_a_path_or_a_command_is_one_line_whatever_the_width(terminal: bool) -> None:
    out = io.StringIO()
    line = "Report: runs" + "/a long folder" * 20 + "/report.html [b] :smile:"
    make_console(file=out, width=40, force_terminal=terminal, color_system=None).print(line)
    assert out.getvalue() == f"{line}\n"


def test_control_characters_are_shown_and_ends_of_lines_kept() -> None:
    assert visible("a\x1b]52;c;x\x07\x9b\x00\r\n\tb\u00e9") == "a\\x1b]52;c;x\\x07\\x9b\\x00\\x0d\n\tb\u00e9"


def test_no_text_turns_the_direction_of_what_stands_beside_it() -> None:
    assert visible("a\u202eb\u2066c\u05d0") == "a\\u202eb\\u2066c\u05d0"

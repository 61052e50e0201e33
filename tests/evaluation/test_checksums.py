"""Checksums of files of episodes: which changes are refused, in a finished file and in one that still grows."""

import hashlib
from pathlib import Path

import pytest

from agentenv.errors import ConfigurationError
from agentenv.evaluation.checksums import append_digests, remove_digests, verify_digests, write_digests


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of three lines that is known."""
    file = tmp_path / "episodes.jsonl"
    file.write_bytes(b"one\ntwo\nthree\n")
    write_digests(file)
    return file


def test_a_line_has_the_digest_of_its_bytes_without_the_line_feed(path: Path) -> None:
    held = path.with_suffix(".sha256").read_text()
    assert held.splitlines() == [hashlib.sha256(line).hexdigest() for line in (b"one", b"two", b"three")]
    assert held.endswith("\n")
    verify_digests(path)
    verify_digests(path, growing=True)


@pytest.mark.parametrize(
    ("content", "finished", "growing"),
    [
        (b"one\nTWO\nthree\n", "line 2", "line 2"),
        (b"one\ntwo\nthree\nfour\n", "line 4", "line 4"),
        (b"one\ntwo\n", "episodes.jsonl", None),
        (b"two\none\nthree\n", "episodes.jsonl", None),
        (b"one\ntwo\nthr", "line 3", None),  # torn: while it grows, the last line may be
        (b"one\nt\nthr", "line 2", "line 2"),
        (b"one\ntwo\nthree", None, None),
        (b"", "episodes.jsonl", None),
        (None, "episodes.jsonl", None),
    ],
)
def test_what_has_changed_is_refused_by_its_place(
    path: Path, content: bytes | None, finished: str | None, growing: str | None
) -> None:
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    for grows, named in ((False, finished), (True, growing)):
        if named is None:
            verify_digests(path, growing=grows)
        else:
            with pytest.raises(ConfigurationError, match=named):
                verify_digests(path, growing=grows)


def test_lines_that_are_announced_may_be_missing_and_no_others_may_come(path: Path) -> None:
    append_digests(path, b"four\nfive\n")
    verify_digests(path, growing=True)
    with path.open("ab") as file:
        file.write(b"four\n")
    verify_digests(path, growing=True)
    with pytest.raises(ConfigurationError):
        verify_digests(path)
    write_digests(path)
    verify_digests(path)


def test_a_file_is_believed_once_its_checksums_are_forgotten(path: Path) -> None:
    path.write_bytes(b"other\n")
    remove_digests(path)
    remove_digests(path)
    verify_digests(path)

"""What one process at a time works in: who comes second is told, and a claim ends with the process that had it."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.core.io.claims import claim
from agentenv.core.io.files import append_lines, new_folder, write_text
from agentenv.errors import ConfigurationError

HOLDER = """
import sys, time
from pathlib import Path
from agentenv.core.io.claims import claim
with claim(Path(sys.argv[1]), "taken"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_whoever_comes_second_is_told_and_a_killed_process_has_no_claim(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            with (
                pytest.raises(ConfigurationError, match="somebody is here"),
                claim(tmp_path, "somebody is here"),
            ):
                pass
        finally:
            holder.kill()
    with claim(tmp_path, "somebody is here"):
        pass


def test_a_folder_that_was_removed_before_it_was_claimed_is_not_taken_for_the_one_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    place.mkdir()

    def removed(descriptor: int, how: int) -> None:
        place.rmdir()

    monkeypatch.setattr("fcntl.flock", removed)
    with pytest.raises(ConfigurationError, match="taken"), claim(place, "taken"):
        pass


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EIO])
def test_a_file_system_without_locks_keeps_nobody_out(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(descriptor: int, how: int) -> None:
        raise OSError(number, "no")

    monkeypatch.setattr("fcntl.flock", refuses)
    if number == errno.ENOSYS:
        with claim(tmp_path, "taken"):
            return
    with pytest.raises(OSError, match="no"), claim(tmp_path, "taken"):
        pass


@pytest.mark.parametrize("replace", [True, False])
def test_a_folder_that_somebody_is_filling_is_not_emptied_under_them(replace: bool, tmp_path: Path) -> None:
    with new_folder(tmp_path / "made", replace=replace) as part:
        (part / "mine").touch()
        with pytest.raises(ConfigurationError, match="made"), new_folder(tmp_path / "made", replace=replace):
            pass
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["mine"]


def test_a_file_is_opened_for_writing_and_a_folder_for_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS refuses to lock a file that is opened for reading alone (man 2 flock), and nobody can write into a folder."""
    modes = []

    def flock(descriptor: int, how: int) -> None:
        modes.append(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE)

    file = tmp_path / "lock"
    file.touch()
    monkeypatch.setattr("fcntl.flock", flock)
    for place in (file, tmp_path):
        with claim(place, "taken"):
            pass
    assert modes == [os.O_RDWR, os.O_RDONLY]


def test_a_folder_that_somebody_begins_to_fill_meanwhile_is_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They begin after this process has found nobody there, as while it removes what an older one has left."""
    part = tmp_path / "made.part"

    def begun(path: Path) -> None:
        part.mkdir()
        (part / "theirs").touch()

    monkeypatch.setattr("agentenv.core.io.files.recover_folder", begun)
    with pytest.raises(ConfigurationError, match="made"), new_folder(tmp_path / "made", replace=True):
        pass
    assert (part / "theirs").exists()


def test_a_folder_without_a_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="by its name"), new_folder(Path()):
        pass
    assert list(tmp_path.iterdir()) == []


def fill_folder(path: Path) -> None:
    with new_folder(path) as part:
        (part / "made").touch()


WRITERS: dict[str, Callable[[Path], None]] = {
    "a file": lambda path: write_text(path, "mine"),
    "a line": lambda path: append_lines(path, ["mine"]),
    "a folder": fill_folder,
}


@pytest.mark.parametrize("left", ["nothing", "another folder", "a file", "no parent"])
@pytest.mark.parametrize("what", WRITERS)
def test_nothing_is_written_where_a_claimed_folder_was_removed(what: str, left: str, tmp_path: Path) -> None:
    mine = tmp_path / "parent" / "mine"
    mine.mkdir(parents=True)
    with claim(mine, "taken"):
        WRITERS[what](mine / "before")
        shutil.rmtree(mine if left != "no parent" else mine.parent)
        if left == "another folder":
            mine.mkdir()
        elif left == "a file":
            mine.touch()
        there = sorted(tmp_path.rglob("*"))
        with pytest.raises(FileNotFoundError) as caught:
            WRITERS[what](mine / "after")
        assert caught.value.filename == str(mine)
        assert sorted(tmp_path.rglob("*")) == there
        WRITERS[what](tmp_path / "elsewhere")
    mine.parent.mkdir(exist_ok=True)
    if left != "a file":
        mine.mkdir(exist_ok=True)
        WRITERS[what](mine / "after")

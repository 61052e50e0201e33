"""Writing whole or not at all: what a failure leaves, what a kill leaves, and what is on the disk before a rename."""

import ast
import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from agentenv.core.io import files
from agentenv.errors import ConfigurationError


def test_a_file_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        files.write_text(path, "half of the new one, and then \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_names_the_file_and_not_its_sibling(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        files.write_text(tmp_path / "missing" / "a.txt", "new")
    assert caught.value.filename == str(tmp_path / "missing" / "a.txt")


def test_an_error_in_a_folder_names_the_folder_and_not_its_sibling(tmp_path: Path) -> None:
    path = tmp_path / "made"
    with pytest.raises(FileNotFoundError) as caught, files.new_folder(path) as part:
        (part / "missing" / "a.txt").write_text("new")
    assert caught.value.filename == str(path / "missing" / "a.txt")
    long = tmp_path / ("x" * 253)  # with what is added to it the name is too long
    with pytest.raises(OSError, match="long") as refused, files.new_folder(long):
        pass
    assert refused.value.filename == str(long)


def test_a_failed_rename_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "results.json").mkdir()  # a rename onto a folder fails
    with pytest.raises(OSError, match="results"):
        files.write_text(tmp_path / "results.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_of_two_who_write_a_file_at_once_each_puts_a_whole_one_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with files.replacing(path) as first, first.open("wb", buffering=0) as file:
        file.write(b"first, ")
        files.write_text(path, "second")
        file.write(b"and its end")
        assert path.read_text() == "second"
    assert path.read_text() == "first, and its end"
    assert list(tmp_path.iterdir()) == [path]


def test_two_processes_that_write_a_file_again_and_again_never_meet(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    program = "import sys; from pathlib import Path; from agentenv.core.io.files import write_text\n"
    program += "for _ in range(100): write_text(Path(sys.argv[1]), sys.argv[2] * 10_000)"
    both = [subprocess.Popen([sys.executable, "-c", program, str(path), letter]) for letter in "ab"]
    assert [process.wait(60) for process in both] == [0, 0]
    assert path.read_text() in ("a" * 10_000, "b" * 10_000)
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_of_a_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.txt.part").write_text("half of something longer")
    files.write_text(tmp_path / "a.txt", "new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.txt", "new")]


def test_what_is_renamed_is_on_the_disk_before_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rename that reaches the disk before the bytes leaves an empty file after a power failure."""
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        done.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")
        fsync(descriptor)

    def noted_replace(self: Path, target: Path) -> Path:
        done.append(f"rename {self.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    files.write_bytes(tmp_path / "a.bin", b"1")
    assert done == ["sync a.bin.part", "rename a.bin.part", f"sync {tmp_path.name}"]


def test_every_file_of_a_folder_is_synced_before_it_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append(path.name)
        assert (tmp_path / "made").exists() == (path == tmp_path)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    with files.new_folder(tmp_path / "made") as part:
        (part / "inner").mkdir()
        (part / "inner" / "a").write_text("1")
        (part / "b").write_text("2")
    assert set(synced) == {"a", "b", "inner", "made.part", tmp_path.name}


def _folder(path: Path, content: str) -> None:
    with files.new_folder(path, replace=True) as part:
        (part / "a").write_text(content)


@pytest.mark.parametrize("stray", [Path.mkdir, Path.touch])
def test_a_folder_replaces_whatever_stands_there(tmp_path: Path, stray: Callable[[Path], None]) -> None:
    stray(tmp_path / "run")
    stray(tmp_path / "run.part")
    stray(tmp_path / "run.old")
    _folder(tmp_path / "run", "new")
    assert (tmp_path / "run" / "a").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_folder_that_cannot_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "run"
    _folder(path, "old")
    with pytest.raises(UnicodeEncodeError):
        _folder(path, "new, and then \ud800")
    assert (path / "a").read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["run"]


def test_a_folder_is_not_replaced_unasked(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a").touch()
    with pytest.raises(FileExistsError, match="kept"), files.new_folder(tmp_path / "kept"):
        pass
    (tmp_path / "kept" / "a").unlink()
    with files.new_folder(tmp_path / "kept") as part:  # an empty one may be
        (part / "b").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "b"]


def test_a_folder_moved_aside_by_a_killed_process_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "run"
    _folder(path, "old")
    path.rename(tmp_path / "run.old")
    files.recover_folder(path)
    assert (path / "a").read_text() == "old"
    _folder(path, "new")
    assert [one.name for one in tmp_path.iterdir()] == ["run"]


def test_a_folder_whose_removal_was_killed_does_not_come_back(tmp_path: Path) -> None:
    _folder(tmp_path / "replaced", "old")
    (tmp_path / "replaced").rename(tmp_path / "replaced.old")
    (tmp_path / "removed.gone").mkdir()
    (tmp_path / "removed.gone" / "half").touch()
    (tmp_path / "mine.old").touch()
    files.recover_folders(tmp_path, "re*")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.old", "replaced"]
    files.recover_folders(tmp_path / "nowhere", "*")


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log.jsonl"
    files.append_lines(path, ["one"])

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.append_lines(path, ["two"])
    monkeypatch.undo()
    assert path.read_text() == "one\n"
    files.append_lines(path, ["three", "four"])
    assert path.read_text().splitlines() == ["one", "three", "four"]


FULL = """
import errno, resource, signal, sys
from pathlib import Path
from agentenv.core.io.files import append_lines
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, resource.RLIM_INFINITY))
try:
    append_lines(path, ["x" * int(sys.argv[2])])
except OSError as error:
    sys.exit(7)
"""


@pytest.mark.parametrize("length", [15, 9_000])
def test_half_of_a_line_that_fitted_is_taken_back_for_good(tmp_path: Path, length: int) -> None:
    """Once half of it is taken back there is room for the other half, which must not follow when the file is closed."""
    path = tmp_path / "log.jsonl"
    files.append_lines(path, ["one"])
    done = subprocess.run([sys.executable, "-c", FULL, str(path), str(length)], check=False)
    assert done.returncode == 7
    assert path.read_text() == "one\n"


def test_a_library_that_names_the_system_s_error_gives_that_error() -> None:
    """As safetensors 0.7 words it."""
    with pytest.raises(OSError, match="space") as caught, files.os_errors():
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="space"), files.os_errors():
        _as_torch_fails()
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("PRAGMA max_page_count = 1")
        with pytest.raises(OSError, match="space") as caught, files.os_errors():
            connection.execute("CREATE TABLE one (two)")
    assert caught.value.errno == errno.ENOSPC
    full = [("a", "b", str(OSError(errno.ENOSPC, "No space left on device", "b")))]
    with pytest.raises(OSError, match="space") as caught, files.os_errors():
        raise shutil.Error(full)  # as of a tree that is copied
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError, match="else"), files.os_errors():
        raise RuntimeError("something else")


def test_an_error_that_names_what_failed_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"other\.txt"), files.new_folder(tmp_path / "out"):
        _fail_to_read(tmp_path / "other.txt")
    assert not (tmp_path / "out").exists()


def _fail_to_read(path: Path) -> None:
    try:
        path.read_text()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read") from error


def _as_torch_fails() -> None:
    """``torch.save`` into a file that is full fails again while it closes the archive."""
    try:
        raise OSError(errno.ENOSPC, "No space left on device")
    finally:
        raise RuntimeError("unexpected pos 15023552 vs 15023444")


def _renames(path: Path) -> int:
    """Calls in a module of ``Path.rename``, of ``os.rename``, and of ``replace`` with one argument, which is no text's."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    named = [call for call in calls if isinstance(call.func, ast.Attribute) and not call.keywords]
    return sum(
        call.func.attr in ("rename", "renames") or (call.func.attr == "replace" and len(call.args) == 1)
        for call in named
        if isinstance(call.func, ast.Attribute)
    )


def test_nothing_is_renamed_into_place_by_other_means() -> None:
    """A module that renames by itself moves folders that it has synced before."""
    package = Path(files.__file__).parents[2]
    modules = {
        path.relative_to(package).as_posix(): path.read_text()
        for path in package.rglob("*.py")
        if _renames(path)
    }
    modules.pop("core/io/files.py")
    assert [name for name, text in modules.items() if "sync_folder(" not in text] == []


@pytest.mark.parametrize("stray", [Path.mkdir, Path.touch, None], ids=["folder", "file", "nothing"])
def test_a_folder_is_discarded_whole_with_what_an_earlier_attempt_left(
    tmp_path: Path, stray: Callable[[Path], None] | None
) -> None:
    if stray is not None:
        stray(tmp_path / "run.old")
    _folder(tmp_path / "run", "old")
    files.write_text(tmp_path / "beside", "kept")
    files.discard_folder(tmp_path / "run")
    files.discard_folder(tmp_path / "run")  # nothing is there any more
    assert [path.name for path in tmp_path.iterdir()] == ["beside"]


def test_a_folder_whose_removal_stops_halfway_is_gone_from_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _folder(tmp_path / "run", "old")

    def stops(path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr("shutil.rmtree", stops)
    with pytest.raises(OSError, match="Input/output"):
        files.discard_folder(tmp_path / "run")
    monkeypatch.undo()
    assert not (tmp_path / "run").exists()
    _folder(tmp_path / "run", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]

"""Temporary folders: what a killed process left goes with the next one, and what anybody may still use stays."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentenv.core.io import temporary
from agentenv.core.io.temporary import temporary_folder

MAKERS = {
    "an evaluation": """
from agentenv.core.io.temporary import temporary_folder
held = temporary_folder("eval")
(held.__enter__() / "file").touch()
""",
    "databases": "from agentenv.data.sql_tasks import generate_sql_tasks\ngenerate_sql_tasks(2)",
    "a sandbox without walls": """
from agentenv.sandbox.unsafe import executor
held = executor(size=1)
assert held.run("open('left', 'w'); print(1)").stdout == "1\\n"
""",
}
PROCESS = "\nprint('here', flush=True)\nimport time\ntime.sleep(120)"


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's folder of temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def made_elsewhere(code: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has made its temporary folder and goes on."""
    with subprocess.Popen([sys.executable, "-c", code + PROCESS], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("what", MAKERS)
def test_the_next_process_removes_what_a_killed_one_left_and_leaves_the_living_alone(
    what: str, room: Path
) -> None:
    with made_elsewhere(MAKERS[what]) as killed:
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    (left,) = room.iterdir()
    with made_elsewhere(MAKERS[what]):
        (living,) = room.iterdir()
        assert living != left
        with made_elsewhere(MAKERS[what]):
            assert living in room.iterdir()
            assert len(list(room.iterdir())) == 2


def test_a_folder_goes_with_its_block_and_not_with_that_of_a_fork(room: Path) -> None:
    held = temporary_folder("eval")
    folder = held.__enter__()
    if (child := os.fork()) == 0:
        try:
            held.__exit__(None, None, None)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert folder.is_dir()
    with temporary_folder("eval"):
        assert folder.is_dir()
    held.__exit__(None, None, None)
    assert list(room.iterdir()) == []


def left_by_nobody(room: Path) -> Path:
    """A folder as a killed process leaves it."""
    with temporary_folder("eval") as folder:
        name = folder
    name.mkdir()
    return name


def test_folders_of_other_kinds_other_users_and_other_machines_stay(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = left_by_nobody(room)
    with temporary_folder("sql"):
        assert left.is_dir()
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: left.stat().st_uid + 1)
        with temporary_folder("eval"):
            assert left.is_dir()
    with monkeypatch.context() as patch:
        patch.setattr(temporary, "_boot_prefix", lambda: "elsewhere-")
        with temporary_folder("eval"):
            assert left.is_dir()
    aside = room / "aside"
    aside.mkdir()
    link = left.with_name(left.name + "x")
    link.symlink_to(aside)
    with temporary_folder("eval"):
        assert not left.exists()
        assert aside.is_dir()
        assert link.is_symlink()


@pytest.mark.parametrize("lacking", ["a start that is known", "locks"])
def test_nothing_goes_where_it_cannot_be_told_whether_it_is_used(
    lacking: str, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = left_by_nobody(room)
    if lacking == "locks":
        monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    else:
        temporary._boot_prefix.cache_clear()
        monkeypatch.setattr(temporary, "_BOOT_ID", room / "none")
    with temporary_folder("eval"):
        assert left.is_dir()
    temporary._boot_prefix.cache_clear()


def test_a_folder_that_is_swept_before_it_is_claimed_is_made_anew(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Path] = []
    make = tempfile.mkdtemp

    def swept(**places: object) -> str:
        made.append(Path(make(**places)))  # type: ignore[call-overload]
        if len(made) == 1:
            made[0].rmdir()
        return str(made[-1])

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    with temporary_folder("eval") as folder:
        assert folder == made[1]

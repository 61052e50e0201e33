"""``.ci/run``: every check runs, whichever fails, beside the others; the tests have the last word. The tools are fakes."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAKE = """#!/usr/bin/env bash
echo "$*" >>calls
until_there() { for _ in {1..600}; do [[ -e "$1" ]] && return; sleep 0.05; done; echo "$1 did not come"; exit 9; }
case "$*" in
    test) echo $$ >tests; until_there checks; echo "2 passed"; exit TESTS ;;
    -j2*) until_there tests; echo "types are right"; touch checks; exit CHECKS ;;
    docs) touch docs; echo "the site is built"; exit DOCS ;;
    venv) until_there docs; exit VENV ;;
esac
"""


def prepared(folder: Path, *, tests: int = 0, checks: int = 0, docs: int = 0, venv: int = 0) -> list[str]:
    """The script in ``folder``, with a ``make`` whose targets end with these codes; returns the command that runs it."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    tools = folder / "tools"
    tools.mkdir()
    codes = {"TESTS": tests, "CHECKS": checks, "DOCS": docs, "VENV": venv}
    text = MAKE
    for name, code in codes.items():
        text = text.replace(f"exit {name}", f"exit {code}")
    for name in ("make", "chromium", "bwrap", "dockerd"):
        (tools / name).write_text(text if name == "make" else "#!/usr/bin/env bash\nexit 1\n")
        (tools / name).chmod(0o755)
    return ["env", f"PATH={tools}:/usr/bin:/bin", f"TMPDIR={folder}", str(folder / ".ci" / "run")]


@pytest.mark.parametrize(
    "failing", [{}, {"tests": 1}, {"checks": 2}, {"docs": 2}], ids=["nothing", "tests", "checks", "docs"]
)
def test_all_run_and_any_that_fails_is_a_failure(tmp_path: Path, failing: dict[str, int]) -> None:
    done = subprocess.run(
        prepared(tmp_path, **failing), capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode == 0) is (not failing), done.stderr
    said = done.stdout.splitlines()
    assert said[-1] == "2 passed"
    assert {"the site is built", "types are right"} <= set(said)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert set(" ".join(calls).split()) >= {"venv", "docs", "lint", "wheel-smoke", "test-vllm", "test"}
    assert calls.index("test ARGS=-n 0 --collect-only -q") < calls.index(
        "test"
    )  # it compiles for all processes


def test_a_run_that_is_told_to_end_leaves_no_tests_and_no_files(tmp_path: Path) -> None:
    command = prepared(tmp_path)
    make = tmp_path / "tools" / "make"
    make.write_text(make.read_text().replace("touch checks", "sleep 600"))
    with started(command) as running:
        tests = process_in(tmp_path / "tests")
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) != 0
        assert ends(tests)
        assert [path.name for path in tmp_path.glob("tmp.*")] == []


@contextmanager
def started(command: list[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A run in a session of its own, of which nothing is left afterwards."""
    quiet = subprocess.DEVNULL
    running = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def process_in(file: Path) -> Path:
    """The folder in /proc of the process whose number comes to stand in ``file``."""
    end = time.monotonic() + 60
    while not file.exists() or not file.read_text().strip():
        assert time.monotonic() < end
        time.sleep(0.05)
    process = Path("/proc", file.read_text().strip())
    assert process.exists()
    return process


def ends(process: Path) -> bool:
    """Whether a process that was told to end does so: the system removes it a moment after it was killed."""
    end = time.monotonic() + 60
    while process.exists() and time.monotonic() < end:
        time.sleep(0.05)
    return not process.exists()


def test_a_second_run_in_the_same_checkout_is_refused(tmp_path: Path) -> None:
    """Both would install into one environment."""
    command = prepared(tmp_path)
    make = tmp_path / "tools" / "make"
    make.write_text(make.read_text().replace("touch checks", "sleep 600"))
    with started(command):
        process_in(tmp_path / "tests")
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert second.returncode == 1
        assert "another" in second.stderr
        assert (tmp_path / "calls").read_text().split().count("venv") == 1


def test_an_environment_that_cannot_be_made_leaves_no_files(tmp_path: Path) -> None:
    done = subprocess.run(prepared(tmp_path, venv=3), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 3
    assert [path.name for path in tmp_path.glob("tmp.*")] == []


def test_what_does_not_end_when_it_is_told_to_is_killed(tmp_path: Path) -> None:
    """Of the minute that it has nothing is waited for here."""
    command = prepared(tmp_path)
    make, timeout = tmp_path / "tools" / "make", tmp_path / "tools" / "timeout"
    stubborn = "trap '' TERM; echo $$ >stubborn; while true; do sleep 0.1; done"
    make.write_text(make.read_text().replace('echo "the site is built"', stubborn))
    timeout.write_text('#!/usr/bin/env bash\n[[ "$1" == 60 ]] && exit 124\nexec /usr/bin/timeout "$@"\n')
    timeout.chmod(0o755)
    with started(command) as running:
        stubborn_one = process_in(tmp_path / "stubborn")
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) != 0
        assert ends(stubborn_one)
        assert [path.name for path in tmp_path.glob("tmp.*")] == []


def test_the_wheel_is_built_from_a_checkout_of_another_user(tmp_path: Path) -> None:
    """As in a container; git is told that the checkout is somebody else's, and would refuse it."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "wheel-smoke", tmp_path / ".ci" / "wheel-smoke")
    python = tmp_path / "python"
    python.write_text('#!/usr/bin/env bash\nls "${@: -1}"\nexit 7\n')
    python.chmod(0o755)
    own = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c")
    for command in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "All")):
        subprocess.run([*own, *command], check=True, timeout=60)
    told = os.environ | {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1", "PYTHON": str(python)}
    done = subprocess.run(
        [str(tmp_path / ".ci" / "wheel-smoke")],
        capture_output=True,
        text=True,
        env=told,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.split() == ["python"]
    assert done.stderr == ""

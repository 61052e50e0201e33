"""``.ci/run``: every check runs, whichever fails, the suite beside them, its summary last; the tools are stood in for."""

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAKE = """#!/usr/bin/env bash
echo "$*" >>calls
until_there() { for _ in {1..600}; do [[ -e "$1" ]] && return; sleep 0.05; done; echo "$1 did not come"; exit 9; }
case "$*" in
    test) echo $$ >tests; until_there checks; echo "2 passed"; exit TESTS ;;
    -j2*) until_there tests; echo "types are right"; touch checks; exit CHECKS ;;
    docs) echo "the site is built"; exit DOCS ;;
esac
"""


def prepared(folder: Path, *, tests: int = 0, checks: int = 0, docs: int = 0) -> list[str]:
    """The script in ``folder``, with a ``make`` whose targets end with these codes; returns the command that runs it."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    tools = folder / "tools"
    tools.mkdir()
    codes = {"TESTS": tests, "CHECKS": checks, "DOCS": docs}
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
    # The documentation's environment writes metadata of the package, which tests read.
    assert calls.index("docs") < calls.index("test")


def test_a_run_that_is_told_to_end_leaves_no_tests_and_no_files(tmp_path: Path) -> None:
    command = prepared(tmp_path)
    make = tmp_path / "tools" / "make"
    make.write_text(make.read_text().replace("touch checks", "sleep 600"))
    quiet = subprocess.DEVNULL
    running = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        end = time.monotonic() + 60
        while not (tmp_path / "tests").exists() or not (tmp_path / "tests").read_text().strip():
            assert time.monotonic() < end
            time.sleep(0.05)
        tests = Path("/proc", (tmp_path / "tests").read_text().strip())
        assert tests.exists()
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) != 0
        assert not tests.exists()
        assert [path.name for path in tmp_path.glob("tmp.*")] == []
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()

"""``.ci/peers``: a peer whose tests fail or are skipped fails; Python and its tools are stood in for."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYTHON = """#!/usr/bin/env bash
mkdir -p "$3/bin"
cat >"$3/bin/python" <<'INNER'
#!/usr/bin/env bash
echo "$*" >>calls
[[ "$2" == pip ]] && exit 0
for word in "$@"; do
    [[ "$word" == --junitxml=* ]] && echo '<testsuite failures="0" skipped="SKIPPED" tests="4">' >"${word#*=}"
done
exit CODE
INNER
chmod +x "$3/bin/python"
"""


@pytest.mark.parametrize(("code", "skipped", "passes"), [(0, 0, True), (0, 1, False), (1, 0, False)])
def test_a_peer_passes_only_where_every_test_ran(
    code: int, skipped: int, passes: bool, tmp_path: Path
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "peers", tmp_path / ".ci" / "peers")
    python = tmp_path / "python"
    python.write_text(PYTHON.replace("SKIPPED", str(skipped)).replace("CODE", str(code)))
    python.chmod(0o755)
    done = subprocess.run(
        [tmp_path / ".ci" / "peers", "verl"],
        env={"PYTHON": str(python), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode == 0) is passes, done.stderr
    install, test = (tmp_path / "calls").read_text().splitlines()
    # verl imports cachetools and does not declare it; without pytest-timeout the settings of the tests are refused.
    assert {"verl==0.9.1", "cachetools", "pytest-timeout"} <= set(install.split())
    assert "tests/serving/peers/test_verl.py" in test.split()

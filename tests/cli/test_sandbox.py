"""``agentenv sandbox run`` and the doctor's sandbox rows."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.doctor import sandbox_finding
from agentenv.cli.main import main
from agentenv.cli.sandbox import Run
from agentenv.sandbox.backends import unavailable
from agentenv.streams import make_console


@pytest.fixture(scope="module", params=["bwrap", "docker"])
def walled(request: pytest.FixtureRequest) -> str:
    """The name of a backend with walls, where it runs programs."""
    backend: str = request.param
    if reason := unavailable(backend):
        pytest.skip(f"{backend}: {reason}")
    return backend


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["sandbox", "run", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_program_that_runs_and_one_that_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], walled: str
) -> None:
    runs_and_does_not(tmp_path, capsys, walled)


def test_the_same_without_walls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs_and_does_not(tmp_path, capsys, "unsafe-local")


def runs_and_does_not(tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('é')", encoding="utf-8")
    code, shown = run(capsys, "--backend", backend, str(program))
    assert (code, shown["ok"], shown["status"], shown["stdout"]) == (0, True, "ok", "é\n")
    program.write_text("x = 3\nx / 0", encoding="utf-8")
    code, shown = run(capsys, "--backend", backend, str(program))
    assert (code, shown["status"], shown["exit_code"]) == (1, "error", 1)
    assert "Variables on line 2: x = 3" in shown["stderr"]


def test_people_see_the_output_and_how_it_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('[bold]x[/]')", encoding="utf-8")
    assert main(["sandbox", "run", "--backend", "unsafe-local", str(program)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("[bold]x[/]\nok in unsafe-local: ")


def test_no_program_commands_the_terminal_that_it_is_shown_on(tmp_path: Path) -> None:
    """Invisible letters would hide the line on how it ended, and it could print another one; a file gets its bytes."""
    hides = "\x1b[8m\x9b8m\x1b]52;c;AAAA\x1b\\"
    result = {
        "stdout": f"a\tb\n{hides}",
        "stderr": hides,
        "status": "error",
        "backend": "bwrap",
        "fault": hides,
    }
    command = Run(tmp_path / "program.py")
    for terminal in (True, False):
        out = io.StringIO()
        console = make_console(file=out, force_terminal=terminal, color_system="truecolor")
        command.show({**result, "wall_s": 1.0, "memory_mb": 2.0}, console)
        console.print("bold", style="bold")
        said = out.getvalue()
        assert "error in bwrap" in said
        if terminal:
            assert said.startswith("a       b\n\\x1b[8m\\x9b8m\\x1b]52;c;AAAA\\x1b\\")
            assert set(said) & set(map(chr, (*range(32), *range(127, 160)))) == {"\n", "\x1b"}
            # Those of the command itself.
            assert said.count("\x1b") == said.count("\x1b[1mbold\x1b[0m") * 2 == 2
        else:
            assert hides in said


def test_a_missing_file_and_a_wrong_backend_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sandbox", "run", str(tmp_path / "none.py")]) == 1
    assert "none.py" in capsys.readouterr().err
    (tmp_path / "p.py").write_text("1")
    assert main(["sandbox", "run", "--backend", "bwarp", str(tmp_path / "p.py")]) == 1
    assert "'bwrap'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    ["--wall-s nan", "--wall-s inf", "--wall-s -1", "--memory-mb 0", "--memory-mb 99999999999999999999"],
)
def test_a_limit_that_the_system_does_not_take_is_named(
    flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.py").write_text("1")
    assert main(["sandbox", "run", "--backend", "unsafe-local", str(tmp_path / "p.py"), *flags.split()]) == 1
    assert f"{flags.split()[0][2:].replace('-', '_')}=" in capsys.readouterr().err


def test_a_program_that_is_no_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.py").write_bytes(b"\xff\xfe\x00")
    assert main(["sandbox", "run", "--backend", "unsafe-local", str(tmp_path / "p.py")]) == 1
    assert "p.py" in capsys.readouterr().err


def test_unsafe_local_is_never_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "p.py").write_text("1")
    words = ["sandbox", "run", "--backend", "unsafe-local", "--isolation", "strict", str(tmp_path / "p.py")]
    assert main(words) == 1
    assert "'unsafe-local'" in capsys.readouterr().err


def test_the_doctor_names_what_a_backend_keeps(walled: str) -> None:
    found = sandbox_finding(walled)
    assert found.ok, found
    assert "network" in found.value


def test_the_doctor_says_what_is_missing() -> None:
    found = sandbox_finding("no such backend")
    assert not found.ok
    assert "no such backend" in found.value

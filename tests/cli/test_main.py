"""The command line's shell: the table of commands, exit codes, one-sentence errors and ``--json``.

Commands of the table are stood in for by small ones of this file; ``doctor`` runs for real in its own test.
"""

import errno
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agentenv.cli import main as shell
from agentenv.errors import DatasetError, MissingExtra

MODULE = "agentenv_test_commands"


@dataclass(frozen=True)
class Echo:
    """Says what it was given.

    Example:
        agentenv echo --max-turns 3
    """

    max_turns: int = 1
    """Turns, at least 1."""
    fail: str = ""
    """How to fail."""
    out: Path | None = None
    """Where to write."""

    def run(self) -> dict[str, Any]:
        print("chatter on stdout")
        match self.fail:
            case "dataset":
                raise DatasetError("questions.jsonl, line 3:\nno answers")
            case "extra":
                raise MissingExtra.of("faiss", "retrieval")
            case "interrupt":
                raise KeyboardInterrupt
            case "disk":
                raise OSError(errno.ENOSPC, "No space left on device")
            case "missing":
                Path("nowhere/at/all").read_text()
            case "thread":
                raise RuntimeError("can't start new thread")
            case "bug":
                raise ZeroDivisionError("a bug")
        return {"turns": self.max_turns, "name": "Zoë"}

    def show(self, result: dict[str, Any], console: Any) -> None:
        console.print(f"turns: {result['turns']}")


@dataclass(frozen=True)
class Own:
    """Reads its own arguments."""

    words: tuple[str, ...]

    @classmethod
    def parse(cls, argv: Sequence[str]) -> "Own":
        return cls(tuple(argv))

    def run(self) -> dict[str, Any]:
        return {"words": self.words}

    def show(self, result: dict[str, Any], console: Any) -> None:
        console.print(result)


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(MODULE)
    vars(module).update(Echo=Echo, Own=Own)
    monkeypatch.setitem(sys.modules, MODULE, module)
    monkeypatch.setitem(shell.COMMANDS, "echo", shell.Command(f"{MODULE}:Echo", "says"))
    monkeypatch.setitem(shell.COMMANDS, "own", shell.Command(f"{MODULE}:Own", "reads"))


def test_people_get_the_shown_result_and_hyphenated_flags_are_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert shell.main(["echo", "--max-turns", "3"]) == 0
    assert capsys.readouterr().out == "chatter on stdout\nturns: 3\n"


@pytest.mark.parametrize(
    "argv", [["--json", "echo"], ["echo", "--json"], ["echo", "--json", "--max-turns", "1"]]
)
def test_json_anywhere_is_one_document_and_nothing_else(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.main(argv) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == {"turns": 1, "name": "Zoë"}
    assert err == "chatter on stdout\n"


def test_an_error_is_one_sentence_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["echo", "--fail", "dataset"]) == 1
    assert capsys.readouterr().err == "agentenv echo: questions.jsonl, line 3: no answers\n"


def test_an_error_under_json_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["echo", "--fail", "extra", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "MissingExtra"
    assert "agentenv-suite[retrieval]" in document["error"]


def test_interruption_leaves_with_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["echo", "--fail", "interrupt"]) == 130
    assert capsys.readouterr().err == "agentenv echo: interrupted\n"


def test_a_full_disk_names_the_folder_that_the_command_writes_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["echo", "--fail", "disk", "--out", "runs/a"]) == 1
    assert capsys.readouterr().err == "agentenv echo: No space left on device: runs/a\n"


def test_a_missing_file_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["echo", "--fail", "missing"]) == 1
    assert capsys.readouterr().err == "agentenv echo: No such file or directory: nowhere/at/all\n"


def test_a_limit_on_threads_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["echo", "--fail", "thread"]) == 1
    said = capsys.readouterr().err
    assert "ulimit -u" in said
    assert said.count("\n") == 1


def test_bugs_are_loud() -> None:
    with pytest.raises(ZeroDivisionError):
        shell.main(["echo", "--fail", "bug"])


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["trian"], "agentenv: No command 'trian'. Did you mean 'train'?\n"),
        (["retriever", "biuld"], "agentenv: No command 'retriever biuld'. Did you mean 'retriever build'?\n"),
    ],
)
def test_an_unknown_command_names_the_nearest(
    argv: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shell.main(argv) == 2
    assert capsys.readouterr().err == hint


def test_wrong_flags_leave_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["echo", "--maxturn", "3"]) == 2
    assert "--maxturn" in capsys.readouterr().err
    assert shell.main(["echo", "--max-turns", "many", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["kind"] == "usage"


def test_help_shows_the_docstring_with_its_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["echo", "--help"]) == 0
    out = capsys.readouterr().out
    assert "agentenv echo --max-turns 3" in out
    assert "Turns, at least 1." in out


def test_a_command_may_read_its_own_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["own", "preset", "--optimiser.rate", "1e-4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"words": ["preset", "--optimiser.rate", "1e-4"]}


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_help_lists_every_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(argv) == 0
    out = capsys.readouterr().out
    assert all(name in out and command.summary in out for name, command in shell.COMMANDS.items())


@pytest.mark.parametrize("argv", [["retriever"], ["retriever", "--help"]])
def test_a_group_lists_its_members(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(argv) == 0
    out = capsys.readouterr().out
    assert "retriever build" in out
    assert "doctor" not in out


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("agentenv ")
    assert shell.main(["--version", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"version"}


@pytest.mark.parametrize("name", sorted(shell.COMMANDS))
def test_every_command_of_the_table_loads_and_explains_itself(name: str) -> None:
    module, _, class_name = shell.COMMANDS[name].target.partition(":")
    assert importlib.util.find_spec(module), f"{name}: there is no {module}"
    command = getattr(importlib.import_module(module), class_name)
    assert f"agentenv {name}" in (command.__doc__ or ""), f"the docstring of {name} shows no example"
    assert callable(command.run)
    assert callable(command.show)


def test_help_imports_no_command_and_no_parser() -> None:
    code = "import sys; from agentenv.cli.main import main; main(['--help']); print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()[-1]
    assert "'agentenv.cli.main'" in loaded
    assert not any(f"'{name}'" in loaded for name in ("tyro", "torch", "agentenv.cli.doctor"))
    assert done.stderr == ""


def test_the_package_runs_as_a_module() -> None:
    words = [sys.executable, "-m", "agentenv"]
    done = subprocess.run([*words, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"agentenv {importlib.metadata.version('agentenv-suite')}\n"
    wrong = subprocess.run([*words, "trian"], capture_output=True, text=True, check=False)
    assert wrong.returncode == shell.USAGE
    assert "trian" in wrong.stderr


def test_a_closed_pipe_is_no_traceback() -> None:
    # The reader takes one line of far more than a pipe holds, and goes away.
    code = (
        "import sys; from agentenv.cli import main as m; m.help_text = lambda *a: 'line\\n' * 100_000; "
        "sys.exit(m.main(['--help']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


@pytest.mark.parametrize("words", [["--help"], ["list"], ["list", "--json"]])
def test_an_output_that_cannot_be_written_is_one_sentence(words: list[str]) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no device that is always full")
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-c", OWN_PROCESS, *words], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "No space left on device" in done.stderr


def test_a_name_of_bytes_that_are_no_text_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["new", "fine", "--out", "runs/\udcff"]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert r"runs/\udcff" in told


OWN_PROCESS = "import sys; from agentenv.cli.main import main; sys.exit(main())"
STREAMS = """
import os, sys
for number in map(int, sys.argv[1]):
    os.close(number)
    setattr(sys, ("stdin", "stdout", "stderr")[number], None)
from agentenv.cli.standard_streams import complete_streams
complete_streams()
print("out"); print("err", file=sys.stderr); assert sys.stdin.read() == ""
with open(sys.argv[2], "w") as data:
    assert data.fileno() > 2
    os.write(1, b"lost"); os.write(2, b"lost")
"""


@pytest.mark.parametrize("closed", ["0", "1", "2", "01", "12", "012"])
def test_a_closed_stream_leaves_its_number_to_no_file(closed: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STREAMS, closed, str(tmp_path / "data")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout == "") == ("1" in closed)
    assert (done.stderr == "") == ("2" in closed)
    assert (tmp_path / "data").read_text(encoding="utf-8") == ""


@pytest.mark.parametrize("alphabet", ["ascii", "latin-1", "utf-8"])
def test_any_text_is_printed_in_any_alphabet(alphabet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import sys; from agentenv.cli.standard_streams import as_json, complete_streams; complete_streams(); "
        "text = chr(233) + chr(0x4e2d) + chr(0x1f600) + chr(0xdcff); print(as_json(text)); print(text)"
    )
    monkeypatch.setenv("PYTHONIOENCODING", alphabet)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    first = done.stdout.splitlines()[0].decode(alphabet)
    assert json.loads(first) == "\u00e9\u4e2d\U0001f600\udcff"


def test_no_warning_of_a_log_and_no_traceback_in_it_commands_the_terminal() -> None:
    """A server logs the failures of environments, whose messages repeat what a client has written."""
    program = """
import logging
from agentenv.cli.standard_streams import complete_streams
complete_streams()
log = logging.getLogger("agentenv.serving.conversation")
log.warning("said %s", "\\x1b]0;mine\\x07 \\x9b2J \\u202e")
try:
    raise ValueError("\\x1b[2Jgone")
except ValueError:
    log.exception("an environment failed")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", done.stderr)
    assert "\\x1b]0;mine" in done.stderr
    assert "ValueError: \\x1b[2Jgone" in done.stderr
    assert "Traceback" in done.stderr

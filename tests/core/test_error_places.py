"""Where an error was raised: the author's own line, whatever code of the package or of a library it went through."""

import json
import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.env_contract import CHECKS, check_env
from agentenv.core.env_lifecycle import reason_of
from agentenv.core.error_places import place_in, place_of, place_of_thread
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Step, Task
from agentenv.envs.calculator import Calculator


def raised(text: str) -> Exception:
    try:
        json.loads(text)  # LINE
    except ValueError as error:
        return error
    raise AssertionError


def line_of(mark: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


def test_the_place_is_the_last_line_of_the_authors_own_code() -> None:
    error = raised("{")
    wanted = f"test_error_places.py, line {line_of('LINE')}"
    assert place_of(error) == wanted  # the error itself is raised within json
    assert place_in("".join(traceback.format_exception(error))) == wanted


def test_an_error_without_own_code_has_the_last_place_of_all() -> None:
    assert place_of(ValueError("x")) == ""
    assert place_in("KeyError: 'x'") == ""
    assert place_in('  File "<frozen importlib._bootstrap>", line 241, in f\nE: x') == ""
    text = f'  File "{json.__file__}", line 3, in f\n  File "{json.decoder.__file__}", line 7, in g\nE: x'
    assert place_in(text) == "decoder.py, line 7"
    assert place_of(SyntaxError("it says itself where it is")) == ""


def test_what_was_piped_into_an_interpreter_is_named_where_no_file_holds_the_authors_code() -> None:
    typed: dict[str, Any] = {}
    exec(compile("def fail(pairs):\n    raise KeyError(1)\n", "<stdin>", "exec"), typed)
    with pytest.raises(KeyError) as raised_there:
        json.loads("{}", object_hook=typed["fail"])
    error, frames = raised_there.value, raised_there.value.__traceback__
    assert place_of(error.with_traceback(frames and frames.tb_next)) == "<stdin>, line 2"


def test_the_reason_of_an_episode_names_the_line_of_the_environment() -> None:
    text = "".join(traceback.format_exception(raised("{")))
    failed = Trajectory(Task("a", "q"), (), (), 0.0, EndReason.ENV_FAULT, valid=False, error=text)
    assert reason_of(failed).startswith("json.decoder.JSONDecodeError: ")
    assert reason_of(failed).endswith(f"(test_error_places.py, line {line_of('LINE')})")


GATE = threading.Event()


class Hangs(Calculator):
    """Its step waits for what never comes."""

    async def astep(self, action: str) -> Step:
        GATE.wait(30)  # HERE
        return await super().astep(action)

    def step(self, action: str) -> Step:
        GATE.wait(30)  # HERE
        return super().step(action)


def test_after_a_check_that_hangs_the_others_are_not_run() -> None:
    results = check_env(Hangs, seconds=0.5)
    GATE.set()
    assert [result.name for result in results] == list(CHECKS)
    (failed,) = [result for result in results if result.status == "failed"]
    assert failed.name == "gymnasium"
    assert f"test_error_places.py, line {line_of('HERE') + 4}" in failed.detail
    left = results[results.index(failed) + 1 :]
    assert left
    assert all(result.status == "skipped" and "'gymnasium'" in result.detail for result in left)


def test_a_thread_that_runs_no_own_code_has_no_place() -> None:
    thread = threading.Thread(target=threading.Event().wait, args=(5,), daemon=True)
    thread.start()
    assert thread.ident is not None
    assert place_of_thread(thread.ident) == ""


def test_a_line_that_no_file_has_is_no_place() -> None:
    text = f'Traceback (most recent call last):\n  File "/made/up.py", line {"9" * 5000}, in step\nValueError: no'
    assert place_in(text) == ""

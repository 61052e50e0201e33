"""Code-v0: trying out, handing in, what is shown, faults, rollback to the best program, time travel."""

from collections.abc import Iterator
from typing import Any

import pytest

from agentenv.core.env import Env
from agentenv.core.env_contract import EnvContract
from agentenv.core.types import EndReason, Task, ToolStatus
from agentenv.data.code_tasks import generate_code_tasks
from agentenv.envs.code import Code
from agentenv.errors import ConfigurationError, DatasetError, SandboxFault, UnknownName
from agentenv.sandbox.fakes import FakeExecutor
from agentenv.sandbox.grading import CallTest, StdioTest

TASK = Task(
    "t",
    "Write f(x) that doubles x.",
    ("",),
    data={"tests": tuple(CallTest("f", (n,), 2 * n) for n in (1, 2, 5))},
)
RIGHT = "def f(x): return x * 2"
HALF = "def f(x): return 2 if x == 1 else 4"


class TestStateful(EnvContract):
    def make(self) -> Env[Any]:
        return Code(executor=FakeExecutor(), tasks=generate_code_tasks(20))


class TestStateless(EnvContract):
    def make(self) -> Env[Any]:
        return Code(executor=FakeExecutor(), tasks=generate_code_tasks(20), stateful=False)


@pytest.fixture
def env() -> Iterator[Code]:
    made = Code(executor=FakeExecutor(), tasks=[TASK])
    made.reset(seed=0)
    yield made
    made.close()


def test_the_right_program_earns_one(env: Code) -> None:
    step = env.step(f"<submit>```python\n{RIGHT}\n```</submit>")
    assert (step.reward, step.terminated, step.info["end_reason"]) == (1.0, True, EndReason.SUBMITTED)
    assert (step.info["passed"], step.info["tests"]) == (3, 3)


def test_a_half_right_program_earns_nothing_or_its_share() -> None:
    for reward, earned in (("all", 0.0), ("fraction", 2 / 3), (lambda grade: grade.passed - 1.0, 1.0)):
        env = Code(executor=FakeExecutor(), tasks=[TASK], reward=reward)
        env.reset(seed=0)
        assert env.step(f"<submit>{HALF}</submit>").reward == pytest.approx(earned)


def test_a_block_shows_what_it_did(env: Code) -> None:
    step = env.step("<python>x = 3\nprint('seen')\nx + 1</python>")
    assert step.observation[0].text == "\n<output>\nseen\n4\n</output>\n"
    assert step.info["tool_results"][0].status is ToolStatus.OK
    assert "9" in env.step("<python>x * 3</python>").observation[0].text


def test_stateless_blocks_forget() -> None:
    env = Code(executor=FakeExecutor(), tasks=[TASK], stateful=False)
    opening, _ = env.reset(seed=0)
    assert "a program of its own" in opening[0].text
    env.step("<python>x = 3</python>")
    result = env.step("<python>print(x)</python>").info["tool_results"][0]
    assert (result.status, result.error_class) == (ToolStatus.ERROR, "NameError")


def test_an_error_is_an_observation_and_no_fault(env: Code) -> None:
    step = env.step("<python>1 / 0</python>")
    assert "ZeroDivisionError" in step.observation[0].text
    assert step.info["tool_results"][0].error_class == "ZeroDivisionError"
    assert (step.reward, step.terminated) == (0.0, False)


@pytest.mark.parametrize("action", ["", "print(1)", "<python>1", "<submit>", "</submit>"])
def test_h18_an_action_without_a_complete_block_is_corrected(env: Code, action: str) -> None:
    step = env.step(action)
    assert step.info["valid"] is False
    assert step.info["tool_results"][0].status is ToolStatus.FORMAT_ERROR
    assert not step.terminated


@pytest.mark.parametrize("program", ["", "print('PASSED')", "# <submit></submit>", "def f(x): return 0"])
def test_h18_format_without_work_earns_nothing(env: Code, program: str) -> None:
    assert env.step(f"<think></think><submit>{program}</submit>").reward == 0.0


def test_h18_the_earliest_block_decides(env: Code) -> None:
    step = env.step(f"<python>'<submit>'</python><submit>{RIGHT}</submit>")
    assert not step.terminated


def test_the_last_turn_takes_only_a_program() -> None:
    env = Code(executor=FakeExecutor(), tasks=[TASK], max_turns=1)
    env.reset(seed=0)
    env.step("<python>1</python>")
    step = env.step("<python>1</python>")
    assert (step.truncated, step.info["end_reason"], step.reward) == (True, EndReason.TURN_LIMIT, 0.0)


def test_after_a_failed_attempt_the_best_program_counts() -> None:
    env = Code(executor=FakeExecutor(), tasks=[TASK], attempts=3, reward="fraction")
    env.reset(seed=0)
    first = env.step(f"<submit>{HALF}</submit>")
    assert "2 of 3 hidden tests passed" in first.observation[0].text
    second = env.step("<submit>def f(x): return 0</submit>")
    assert "0 of 3" in second.observation[0].text
    assert HALF in second.observation[0].text
    last = env.step("<submit>def f(x): return 1</submit>")
    assert last.terminated
    assert last.reward == pytest.approx(2 / 3)


def test_a_program_that_is_no_better_is_rolled_back_too() -> None:
    env = Code(executor=FakeExecutor(), tasks=[TASK], attempts=3, reward="fraction")
    env.reset(seed=0)
    first, same = "def f(x): return 2 * min(x, 2)", "def f(x): return 2 * min(x, 2) + 0"
    env.step(f"<submit>{first}</submit>")
    text = env.step(f"<submit>{same}</submit>").observation[0].text
    assert text.endswith(f"Your best program so far passed 2; go on from it:\n{first}\n</output>\n")
    assert env.state.best == first


LEAK = "import sys\ndef f(x):\n    print('input', x, file=sys.stderr)\n    raise ValueError(f'input {x}')"
STDIO = Task("s", "Add one.", ("",), data={"tests": (StdioTest("7654\n", "7655"),)})
STDIO_LEAK = "import sys\nx = sys.stdin.read().strip()\nprint('input', x, file=sys.stderr)\nint('input ' + x)"


@pytest.mark.parametrize(("task", "program"), [(TASK, LEAK), (STDIO, STDIO_LEAK)])
def test_of_hidden_tests_only_numbers_are_shown(task: Task, program: str) -> None:
    env = Code(executor=FakeExecutor(), tasks=[task], attempts=2, variables=True)
    env.reset(seed=0)
    count = len(task.data["tests"])
    step = env.step(f"<submit>{program}</submit>")
    shown = f"0 of {count} hidden tests passed ({count} error)."
    assert step.observation[0].text == f"\n<output>\n{shown}\n</output>\n"
    assert "input" not in repr(step.info)


def test_how_tests_failed_is_counted() -> None:
    env = Code(executor=FakeExecutor(), tasks=[TASK], attempts=2)
    env.reset(seed=0)
    program = "def f(x): return 2 if x == 1 else 0 if x == 2 else 1 / 0"
    assert (
        "1 of 3 hidden tests passed (1 error, 1 wrong)."
        in env.step(f"<submit>{program}</submit>").observation[0].text
    )


@pytest.mark.parametrize(
    ("task", "program", "line"),
    [
        (TASK, "def f(x):\n    y = x + 1\n    return y // 0", "Variables on line 3: y = 2\n"),
        (STDIO, "x = input()\nprint(int(x) + one)", "Variables on line 2: x = '7654'\n"),
    ],
)
def test_a_trace_holds_the_variables_and_no_expected_value(task: Task, program: str, line: str) -> None:
    env = Code(executor=FakeExecutor(), tasks=[task], attempts=2, traces=True)
    env.reset(seed=0)
    text = env.step(f"<submit>{program}</submit>").observation[0].text
    assert line in text
    assert text.count("Variables") == 1, "the first error and no other"
    assert "7655" not in text


def test_a_trace_is_bounded() -> None:
    env = Code(executor=FakeExecutor(), tasks=[TASK], attempts=2, traces=True, observation_chars=400)
    env.reset(seed=0)
    program = "def f(x):\n    a = b = c = d = e = 'v' * 10000\n    return int(a + b + c + d + e)"
    text = env.step(f"<submit>{program}</submit>").observation[0].text
    assert "characters left out" in text
    assert len(text) < 470


def test_a_tried_block_shows_its_variables_if_asked() -> None:
    for variables in (True, False):
        env = Code(executor=FakeExecutor(), tasks=[TASK], variables=variables)
        env.reset(seed=0)
        text = env.step("<python>x = [3]\nx[1]</python>").observation[0].text
        assert ("Variables on line 2: x = [3]" in text) is variables


def test_what_a_set_imports_for_its_programs_is_there() -> None:
    task = Task("p", "q", ("",), data={**TASK.data, "prelude": "from math import *\n"})
    env = Code(executor=FakeExecutor(), tasks=[task])
    env.reset(seed=0)
    assert env.step("<submit>def f(x): return x * floor(2.5)</submit>").reward == 1.0


def test_the_best_program_counts_at_the_turn_limit_too() -> None:
    env = Code(executor=FakeExecutor(), tasks=[TASK], attempts=3, max_turns=1, reward="fraction")
    env.reset(seed=0)
    env.step(f"<submit>{HALF}</submit>")
    assert env.step("nothing").reward == pytest.approx(2 / 3)


@pytest.mark.parametrize("action", ["<python>1</python>", f"<submit>{RIGHT}</submit>"])
@pytest.mark.parametrize("stateful", [True, False])
def test_a_fault_of_the_sandbox_is_raised_and_never_scored(action: str, stateful: bool) -> None:
    env = Code(executor=FakeExecutor(faults=1), tasks=[TASK], stateful=stateful)
    env.reset(seed=0)
    with pytest.raises(SandboxFault, match="scripted"):
        env.step(action)


def test_forks_try_different_things(env: Code) -> None:
    env.step("<python>x = [1]</python>")
    left, right = env.fork(2)
    left.step("<python>x.append('l')</python>")
    right.step("<python>x.append('r')</python>")
    shown = [one.step("<python>x</python>").observation[0].text for one in (left, right, env)]
    assert ["[1, 'l']" in shown[0], "[1, 'r']" in shown[1], "[1]" in shown[2]] == [True] * 3
    left.close()
    right.close()


def test_bad_arguments_are_named() -> None:
    for options in (
        {"prompt": "x"},
        {"reward": "some"},
        {"attempts": 0},
        {"max_turns": -1},
        {"observation_chars": 0},
    ):
        with pytest.raises(ConfigurationError):
            Code(executor=FakeExecutor(), **options)
    with pytest.raises(UnknownName, match="bwrap"):
        Code(executor="bwarp")
    with pytest.raises(DatasetError, match="'empty'"):
        Code(executor=FakeExecutor(), tasks=[Task("empty", "q")]).reset(seed=0)

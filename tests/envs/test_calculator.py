"""Calculator: what is arithmetic, what is refused, scoring, and that nothing is ever executed."""

import re

import pytest

from agentenv.core.types import Task, ToolStatus
from agentenv.envs.calculator import Calculator, evaluate


@pytest.mark.parametrize(
    ("text", "value"),
    [("1+2*3", 7), ("(1+2)*3", 9), ("-7 // 2", -4), (" 5 - -5 ", 10), ("999*999-1", 998000), ("0", 0)],
)
def test_values(text: str, value: int) -> None:
    assert evaluate(text) == value


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("2**9", "'2 ** 9'"),
        ("1.5", "'1.5'"),
        ("x", "'x'"),
        ("True", "'True'"),
        ("abs(1)", "'abs(1)'"),
        ("__import__('os')", "__import__"),
        ("1;2", "'1;2'"),
        ("'a'*9", "'a'"),
        ("1 if 1 else 2", "'1 if 1 else 2'"),
        ("+1", "'+1'"),
        ("1" * 201, "201"),
    ],
)
def test_anything_else_is_refused(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=re.escape(named)):
        evaluate(text)


def test_the_policy_s_mistakes_are_typed() -> None:
    env = Calculator()
    env.reset(seed=0)
    call = '<tool_call>{"name": "calculate", "arguments": {"expression": "1//0"}}</tool_call>'
    (result,) = env.step(call).info["tool_results"]
    assert (result.status, result.error_class) == (ToolStatus.ERROR, "ZeroDivisionError")


@pytest.mark.parametrize(
    ("answer", "reward"), [("6", 1.0), (" 6\n", 1.0), ("6.", 0.0), ("", 0.0), ("2 * 3", 0.0)]
)
def test_a_given_task_is_posed_and_scored_exactly(answer: str, reward: float) -> None:
    env = Calculator()
    task = Task("six", "2 * 3", ("6",))
    (message,), info = env.reset(seed=0, options={"task": task})
    assert message.text.endswith("what is 2 * 3?")
    assert info["task_id"] == "six"
    step = env.step(answer)
    assert (step.reward, step.terminated) == (reward, True)

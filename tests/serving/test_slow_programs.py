"""Programs that last longer than the server lets a call take: the policy's own result, and no failure of the server."""

import time
from typing import Any

import pytest

from agentenv.data.code_tasks import generate_code_tasks
from agentenv.envs.code import Code
from agentenv.sandbox.fakes import FakeExecutor
from agentenv.sandbox.grading import StdioTest
from agentenv.sandbox.types import ExecResult, ExecStatus


class Slow(FakeExecutor):
    """Every program takes its time."""

    def run(self, code: str, **_: Any) -> ExecResult:
        time.sleep(0.2)
        return ExecResult(ExecStatus.TIMEOUT, wall_s=0.2)


@pytest.mark.parametrize("count", [12, 200])
def test_a_program_with_many_slow_tests_is_graded_before_the_call_is_late(serving: Any, count: int) -> None:
    (task,) = generate_code_tasks(1)
    slow = type(task)(task.id, task.question, (), "", {"tests": (StdioTest("", "1"),) * count})

    def make() -> Code:
        return Code(executor=Slow(), tasks=[slow], stateful=False)

    with serving(make, call_s=2.0) as served, served.call() as line:
        assert line.ask("reset", seed=0)["type"] == "observation"
        answer = line.ask("step", text="<submit>x</submit>")
        assert (answer["type"], answer["data"].get("reward")) == ("observation", 0.0), answer
        assert answer["data"]["done"]

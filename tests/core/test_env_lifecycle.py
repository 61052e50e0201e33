"""What is said of episodes that were masked; that environments which fail are masked stands in ``test_hostile_envs.py``."""

import traceback
from dataclasses import replace

from agentenv.core.env_lifecycle import reason_of
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Task


def test_the_reason_of_a_failure_is_a_line_that_says_something() -> None:
    """The traceback of a group of exceptions ends in a line of dashes."""
    try:
        raise ExceptionGroup("two at once", [ValueError("no port 99999"), KeyError("x")])
    except ExceptionGroup as error:
        said = "".join(traceback.format_exception(error))
    assert said.strip().endswith("---")
    failed = Trajectory(Task("a", "q"), (), (), 0.0, EndReason.POLICY_FAULT, valid=False, error=said)
    assert reason_of(failed) == "KeyError: 'x'"
    assert reason_of(replace(failed, error="")) == "policy_fault"

"""What is said of episodes that were masked; that environments which fail are masked stands in ``test_hostile_envs.py``."""

import asyncio
import threading
import traceback
from dataclasses import replace
from typing import Any

import pytest

from agentenv.core.env import Env
from agentenv.core.env_lifecycle import (
    close_envs,
    make_envs,
    mask_trajectory,
    reason_of,
    reasons_of,
)
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError, EnvFault


def test_the_reason_of_a_failure_is_a_line_that_says_something() -> None:
    """The traceback of a group of exceptions ends in a line of dashes."""
    try:
        raise ExceptionGroup("two at once", [ValueError("no port 99999"), KeyError("x")])
    except ExceptionGroup as error:
        said = "".join(traceback.format_exception(error))
    assert said.strip().endswith("---")
    failed = Trajectory(Task("a", "q"), (), (), 0.0, EndReason.POLICY_FAULT, valid=False, error=said)
    assert reason_of(failed).startswith("KeyError: 'x' (test_env_lifecycle.py, line ")
    assert reason_of(replace(failed, error="")) == "policy_fault"


def test_a_message_of_several_lines_is_told_whole() -> None:
    """Docker and pydantic end their messages with advice, which says nothing of what failed."""
    message = "no such image: web\n\n  tag: latest\nRun 'docker run --help' for more."
    try:
        raise OSError(message)
    except OSError:
        said = traceback.format_exc()
    whole = "OSError: no such image: web tag: latest Run 'docker run --help' for more."
    assert reason_of(failed(said)).startswith(f"{whole} (test_env_lifecycle.py, line ")
    assert reason_of(failed(message)) == whole.removeprefix("OSError: ")
    long = reason_of(failed("begin" + "x" * 900 + "end"))
    assert long.startswith("beginx")
    assert long.endswith("xend")


def failed(error: str, *, valid: bool = False) -> Trajectory:
    return Trajectory(Task("a", "q"), (), (), 1.0, EndReason.POLICY_FAULT, valid=valid, error=error)


def test_reasons_are_counted_and_the_most_common_stands_first() -> None:
    played = [failed(reason) for reason in ("a", "b", "b", "c", "c", "c", "d")]
    assert reasons_of([*played, failed("", valid=True)]) == "c (3); b (2); a (1)"
    assert reasons_of([failed("x", valid=True)]) == ""
    assert len(reason_of(failed("x" * 900))) == 500


def test_an_episode_is_masked_once_and_by_a_flaw_alone() -> None:
    good, bad = failed("", valid=True), failed("first")
    assert mask_trajectory(good, "") is good
    assert mask_trajectory(bad, "second") is bad
    masked = mask_trajectory(good, "EnvFault: gone")
    assert (masked.valid, masked.reward, masked.end_reason) == (False, 0.0, EndReason.ENV_FAULT)
    assert masked.error == "EnvFault: gone"


class Odd(Env[None]):
    """Fails when it is closed."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.error = error

    def close(self) -> None:
        if self.error is not None:
            raise self.error


class OddThatAwaits(Odd):
    """Is closed on the loop of the environments."""

    @property
    def awaits(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [Odd, OddThatAwaits])
def test_what_goes_wrong_with_each_close_is_told(kind: type[Odd]) -> None:
    envs = [kind(error) for error in (None, KeyError("x"), EnvFault("the pod is gone"))]
    nothing, raised, fault = asyncio.run(close_envs(envs, 5.0))
    assert nothing == ""
    assert raised.startswith("EnvFault: ")
    assert "close raised KeyError: 'x' (test_env_lifecycle.py, line " in raised
    assert fault == "EnvFault: the pod is gone"


def test_what_could_not_be_made_says_why_and_has_the_traits_of_what_could() -> None:
    class Traits(Odd):
        reward_floor, reward_ceiling, stop = -2.0, 3.0, ("</x>",)

    def broken() -> Env[Any]:
        raise ValueError("no port")

    def gone() -> Env[Any]:
        raise EnvFault("no pod")

    first, second, made = asyncio.run(make_envs([broken, gone, lambda: Traits(None)], 5.0))
    assert isinstance(made, Traits)
    for env, named in ((first, "constructor raised ValueError: no port"), (second, "no pod")):
        assert (env.reward_floor, env.reward_ceiling, env.stop) == (-2.0, 3.0, ("</x>",))
        with pytest.raises(EnvFault, match=named):
            env.reset(seed=0)
        with pytest.raises(EnvFault, match=named):
            env.step("x")
    (alone,) = asyncio.run(make_envs([gone], 5.0))
    assert alone.reward_ceiling == Env.reward_ceiling


def test_a_mistake_of_the_user_is_raised_and_what_was_made_is_closed() -> None:
    closed: list[int] = []

    class Counted(Odd):
        def close(self) -> None:
            closed.append(1)

    def wrong() -> Env[Any]:
        raise ConfigurationError("no such option")

    with pytest.raises(ConfigurationError, match="no such option"):
        asyncio.run(make_envs([lambda: Counted(None), wrong, lambda: Counted(None)], 5.0))
    assert closed == [1, 1]


def test_what_is_made_when_whoever_asked_is_cancelled_is_closed() -> None:
    """The first is there at that moment, and the second comes later."""
    go, closed = threading.Event(), []

    class Named(Odd):
        def __init__(self, name: str) -> None:
            super().__init__(None)
            self.name = name

        def close(self) -> None:
            closed.append(self.name)

    def late() -> Env[Any]:
        go.wait(30)
        return Named("late")

    async def run() -> list[str]:
        asked = asyncio.create_task(make_envs([lambda: Named("early"), late], 4.0))
        await asyncio.sleep(3.0)  # the answer of the first is taken from the loop that the second one blocks
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        before = [*closed]
        go.set()
        for _ in range(500):
            if len(closed) == 2:
                break
            await asyncio.sleep(0.01)
        return before

    assert asyncio.run(run()) == ["early"]
    assert closed == ["early", "late"]

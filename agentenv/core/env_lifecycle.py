"""Makes and closes environments under a deadline within a run, and reports failures of doing so.

An environment that cannot be made or closed fails only its own episode, which is masked, counted and named in the report.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from itertools import dropwhile
from typing import Any

from agentenv.core.env import Env
from agentenv.core.env_calls import call, call_plain
from agentenv.core.error_places import place_in, place_of
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Info, Observation, StateCapability, Step
from agentenv.errors import AgentEnvError, EnvFault, Fault

MakeEnv = Callable[[], Env[Any]]

_MOST_REASONS = 3  # number of reasons in one message
_REASON_CHARS = 500  # length of one reason
_BEFORE_MESSAGE = re.compile(r'[ |]*File "| *\+[-+]+ \d+ -')
"""Matches a frame of a traceback, and the lines that separate the exceptions of an exception group."""
_CLOSING_S = 10.0  # time that environments get to close when the run is interrupted


class UnmadeEnv(Env[Any]):
    """Takes the place of an environment that could not be made. Its ``reset`` raises the reason."""

    def __init__(self, reason: EnvFault) -> None:
        super().__init__()
        self._reason = reason
        self.capability = StateCapability.MEMORY  # type: ignore[misc]

    def copy_interface_of(self, other: Env[Any]) -> None:
        """Copies the class attributes that rollout strategies read from an environment that could be made."""
        for name in ("capability", "reward_floor", "reward_ceiling", "no_expert", "call_markers", "stop"):
            setattr(self, name, getattr(other, name))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Raises the reason why there is no environment."""
        raise self._reason

    def step(self, action: str) -> Step:
        """Raises the reason why there is no environment."""
        raise self._reason


async def make_envs(makes: Sequence[MakeEnv], seconds: float) -> list[Env[Any]]:
    """Calls each of ``makes``; an `UnmadeEnv` takes the place of an environment that failed or took too long.

    Raises:
        AgentEnvError: the arguments of an environment are wrong. The environments made before are closed.
    """
    making = [asyncio.ensure_future(_make(make, seconds)) for make in makes]
    try:
        # All results are awaited first. If the first error ended the wait, environments made later would never be closed.
        results = await asyncio.gather(*making, return_exceptions=True)
    except BaseException:
        # The caller was cancelled. Environments made so far are closed here; those made later close themselves (see
        # `_make`).
        made_before = [one for one in making if one.done() and not one.cancelled() and not one.exception()]
        await close_quickly([one.result() for one in made_before], seconds)
        raise
    envs = [result for result in results if not isinstance(result, BaseException)]
    for error in results:
        if isinstance(error, BaseException):
            await close_envs(envs, min(seconds, _CLOSING_S))
            raise error
    made = next((env for env in envs if not isinstance(env, UnmadeEnv)), None)
    for env in envs:
        if isinstance(env, UnmadeEnv) and made is not None:
            env.copy_interface_of(made)
    return envs


async def close_envs(envs: Sequence[Env[Any]], seconds: float) -> list[str]:
    """Closes environments; returns an error message for each, empty if closing succeeded."""
    return await asyncio.gather(*(_close(env, seconds) for env in envs))


async def close_quickly(envs: Sequence[Env[Any]], seconds: float) -> None:
    """Closes environments like `close_envs`, but with a short time limit, because the run is over."""
    await close_envs(envs, min(seconds, _CLOSING_S))


@asynccontextmanager
async def open_envs(makes: Sequence[MakeEnv], seconds: float) -> AsyncIterator[list[Env[Any]]]:
    """Makes environments by `make_envs` for the length of the block, and closes them by `close_quickly` at its end."""
    envs = await make_envs(makes, seconds)
    try:
        yield envs
    finally:
        await close_quickly(envs, seconds)


def mask_trajectory(trajectory: Trajectory, flaw: str) -> Trajectory:
    """Returns ``trajectory`` masked because of ``flaw``; unchanged if ``flaw`` is empty or it is masked already."""
    if not flaw or not trajectory.valid:
        return trajectory
    return replace(trajectory, valid=False, reward=0.0, end_reason=EndReason.ENV_FAULT, error=flaw)


def reason_of(trajectory: Trajectory) -> str:
    """Returns the reason why an episode is masked, in one line, with the line of the environment's code that raised it."""
    return reason_in(trajectory.error, trajectory.end_reason)


def reason_in(error: str, end_reason: str) -> str:
    """Does what `reason_of` does, from the recorded error and the end reason."""
    said = _message_in(error) or str(end_reason)
    if len(said) > _REASON_CHARS:
        half = (_REASON_CHARS - 3) // 2
        said = f"{said[: _REASON_CHARS - 3 - half]} \u2026 {said[-half:]}"
    place = place_in(error)
    return f"{said} ({place})" if place else said


def _message_in(error: str) -> str:
    """Joins the lines of an error message into one, without the traceback before it (or that of an exception group)."""
    lines = error.splitlines()
    before = [number for number, line in enumerate(lines) if _BEFORE_MESSAGE.match(line)]
    if before:
        left = (re.sub(r"^ *\| ?", "", line) for line in lines[before[-1] + 1 :])
        # the source line and its underlining
        lines = list(dropwhile(lambda line: line.startswith(" "), left))
    return " ".join(line.strip() for line in lines if any(map(str.isalnum, line)))


def reasons_of(played: Iterable[Trajectory]) -> str:
    """Lists the reasons why episodes are masked, the most common first; empty if none is masked."""
    counted = Counter(reason_of(trajectory) for trajectory in played if not trajectory.valid)
    return "; ".join(f"{reason} ({count})" for reason, count in counted.most_common(_MOST_REASONS))


async def _make(make: MakeEnv, seconds: float) -> Env[Any]:
    what, late = "the environment's constructor", False

    async def making() -> Env[Any]:
        env = make()
        # The environment was made after the deadline, when the caller had continued without it.
        if late:
            env.close()
        return env

    try:
        return await call(what, seconds, making)
    except EnvFault as error:
        return UnmadeEnv(error)
    except AgentEnvError as error:
        if isinstance(error, Fault):
            return UnmadeEnv(EnvFault(f"{what} failed: {type(error).__name__}: {error}"))
        raise
    except Exception as error:
        return UnmadeEnv(EnvFault(_named(what, error).removeprefix("EnvFault: ")))
    finally:
        late = True


async def _close(env: Env[Any], seconds: float) -> str:
    what = "the environment's close"
    try:
        if env.awaits:  # its resources may be bound to the thread of its event loop
            await call(what, seconds, partial(_closing, env))
        else:
            await call_plain(what, seconds, env.close)
    except Exception as error:
        return f"{type(error).__name__}: {error}" if isinstance(error, Fault) else _named(what, error)
    return ""


async def _closing(env: Env[Any]) -> None:
    env.close()


def _named(what: str, error: Exception) -> str:
    place = place_of(error)
    return f"EnvFault: {what} raised {type(error).__name__}: {error}{f' ({place})' if place else ''}"

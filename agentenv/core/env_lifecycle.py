"""The life of an environment within a run: made and closed under a deadline, and what a failure there means.

One that cannot be made, and one that cannot be closed, is a failure of its own episode: masked, counted and named.
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

_REASONS = 3  # that are told at a time
_REASON_CHARS = 500  # of one
_BEFORE_MESSAGE = re.compile(r'[ |]*File "| *\+[-+]+ \d+ -')
"""A frame of a traceback, and what separates the exceptions of a group."""
_CLOSING_S = 10.0  # for environments to close when the run is ended from outside


class UnmadeEnv(Env[Any]):
    """Stands for an environment that could not be made; its reset raises why."""

    def __init__(self, reason: EnvFault) -> None:
        super().__init__()
        self._reason = reason
        self.capability = StateCapability.MEMORY  # type: ignore[misc]

    def copy_interface_of(self, other: Env[Any]) -> None:
        """Takes over what strategies ask of the environment's class from one that could be made."""
        for name in ("capability", "reward_floor", "reward_ceiling", "no_expert", "call_markers", "stop"):
            setattr(self, name, getattr(other, name))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Raises why there is no environment."""
        raise self._reason

    def step(self, action: str) -> Step:
        """Raises why there is no environment."""
        raise self._reason


async def make_envs(makes: Sequence[MakeEnv], seconds: float) -> list[Env[Any]]:
    """One environment by each of ``makes``; an `UnmadeEnv` in the place of one that failed or took too long.

    Raises:
        AgentEnvError: what was given to an environment cannot be used; those that were made are closed.
    """
    making = [asyncio.ensure_future(_make(make, seconds)) for make in makes]
    try:
        # All results first: if the first error ended the wait, what is made after it would never be closed.
        results = await asyncio.gather(*making, return_exceptions=True)
    except BaseException:
        # The caller is gone. What has been made is closed here; what is made later closes itself (see `_make`).
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
    """Closes environments; for each what went wrong, empty where nothing did."""
    return await asyncio.gather(*(_close(env, seconds) for env in envs))


async def close_quickly(envs: Sequence[Env[Any]], seconds: float) -> None:
    """Closes environments like `close_envs`, but waits only briefly, because the run is over."""
    await close_envs(envs, min(seconds, _CLOSING_S))


@asynccontextmanager
async def open_envs(makes: Sequence[MakeEnv], seconds: float) -> AsyncIterator[list[Env[Any]]]:
    """The environments of `make_envs` for the length of a block, at whose end they are closed by `close_quickly`."""
    envs = await make_envs(makes, seconds)
    try:
        yield envs
    finally:
        await close_quickly(envs, seconds)


def mask_trajectory(trajectory: Trajectory, flaw: str) -> Trajectory:
    """``trajectory`` as one that ``flaw`` made unusable; as it is where there is none, or where it is masked already."""
    if not flaw or not trajectory.valid:
        return trajectory
    return replace(trajectory, valid=False, reward=0.0, end_reason=EndReason.ENV_FAULT, error=flaw)


def reason_of(trajectory: Trajectory) -> str:
    """Why an episode is masked, in one line, and where the code of the environment raised it."""
    return reason_in(trajectory.error, trajectory.end_reason)


def reason_in(error: str, end_reason: str) -> str:
    """`reason_of` an episode, from its recorded error and the reason why it ended."""
    said = _message_in(error) or str(end_reason)
    if len(said) > _REASON_CHARS:
        half = (_REASON_CHARS - 3) // 2
        said = f"{said[: _REASON_CHARS - 3 - half]} \u2026 {said[-half:]}"
    place = place_in(error)
    return f"{said} ({place})" if place else said


def _message_in(error: str) -> str:
    """A message of any number of lines as one line, without the traceback before it, which may be one of a group."""
    lines = error.splitlines()
    before = [number for number, line in enumerate(lines) if _BEFORE_MESSAGE.match(line)]
    if before:
        left = (re.sub(r"^ *\| ?", "", line) for line in lines[before[-1] + 1 :])
        lines = list(dropwhile(lambda line: line.startswith(" "), left))  # the line of code and its marks
    return " ".join(line.strip() for line in lines if any(map(str.isalnum, line)))


def reasons_of(played: Iterable[Trajectory]) -> str:
    """Why episodes are masked, the most common reason first; empty where none is."""
    counted = Counter(reason_of(trajectory) for trajectory in played if not trajectory.valid)
    return "; ".join(f"{reason} ({count})" for reason, count in counted.most_common(_REASONS))


async def _make(make: MakeEnv, seconds: float) -> Env[Any]:
    what, late = "the environment's constructor", False

    async def making() -> Env[Any]:
        env = make()
        # It came after the deadline, and the caller has gone on without it.
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
        if env.awaits:  # what it holds may belong to the thread of its loop
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

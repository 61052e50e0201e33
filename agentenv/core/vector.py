"""Runs many environments concurrently. Each steps when it is given an action; none is reset automatically."""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, ClassVar, TypeVar, cast

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from agentenv.core.env import Env, run_sync
from agentenv.core.types import EndReason, Info, Observation, Step
from agentenv.errors import ConfigurationError, EpisodeOver, Fault

T = TypeVar("T")

Observations = tuple[Observation, ...]
VectorStep = tuple[Observations, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], list[Info]]


class VectorEnv(gymnasium.vector.VectorEnv[Observations, Sequence[str | None], NDArray[Any]]):
    """``num_envs`` environments that step concurrently.

    An environment whose action is None does not step. Infos are one dict for each environment, not a dict of arrays.
    """

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.DISABLED}  # type: ignore[misc]

    def __init__(self, envs: Sequence[Env[Any]]) -> None:
        """Takes ownership of ``envs``, at least one. ``close`` closes them."""
        self.envs = tuple(envs)
        self.num_envs = len(self.envs)
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.render_mode = self.envs[0].render_mode
        self._terminated = np.ones(self.num_envs, dtype=np.bool_)
        self._truncated = np.zeros(self.num_envs, dtype=np.bool_)
        self._turns = np.zeros(self.num_envs, dtype=np.int64)

    def reset(  # type: ignore[override]  # infos are a list, as the class says
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
    ) -> tuple[Observations, list[Info]]:
        """Runs ``areset`` and waits for it."""
        return run_sync(self.areset(seed=seed, options=options))

    async def areset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
    ) -> tuple[Observations, list[Info]]:
        """Starts an episode in each environment.

        Args:
            seed: An int gives environment i the seed ``seed + i``; a sequence gives each its own.
            options: One dict for all, or one for each. In a single dict, the entry ``reset_mask`` (bool[num_envs],
                Gymnasium's name) selects the environments to reset; the others get no observation and an empty info.

        Raises:
            ConfigurationError: a sequence does not have the length ``num_envs``.
        """
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else self._each(seed)
        mask = np.ones(self.num_envs, dtype=np.bool_)
        if isinstance(options, dict):
            options = dict(options)
            mask = np.asarray(options.pop("reset_mask", mask), dtype=np.bool_)
            options = [options] * self.num_envs
        chosen = self._each(options)
        slots = [int(i) for i in np.flatnonzero(mask)]
        begun = await _all(self.envs[i].areset(seed=seeds[i], options=chosen[i]) for i in slots)
        observations: list[Observation] = [()] * self.num_envs
        infos: list[Info] = [{} for _ in self.envs]
        for i, (observation, info) in zip(slots, begun, strict=True):
            observations[i], infos[i] = observation, info
        self._terminated[mask] = self._truncated[mask] = False
        self._turns[mask] = 0
        return tuple(observations), infos

    def step(self, actions: Sequence[str | None]) -> VectorStep:  # type: ignore[override]  # infos are a list
        """Runs ``astep`` and waits for it."""
        return run_sync(self.astep(actions))

    async def astep(self, actions: Sequence[str | None]) -> VectorStep:
        """Steps every environment whose action is not None.

        The others keep their flags and get no observation, no reward and an empty info. A fault truncates only its own
        episode, with reward NaN and ``end_reason`` ``env_fault``.

        Raises:
            EpisodeOver: an episode that has ended was given an action; no environment was stepped.
            ConfigurationError: the number of actions is not ``num_envs``.
        """
        actions = self._each(actions)
        slots = [i for i, action in enumerate(actions) if action is not None]
        if over := [i for i in slots if self._terminated[i] or self._truncated[i]]:
            raise EpisodeOver(f"the episodes {over} are over; reset them or give them None")
        # Incremented before the steps, so that a fault has the number of its own turn.
        self._turns[slots] += 1
        steps = await _all(self._step(i, cast(str, actions[i])) for i in slots)
        observations: list[Observation] = [()] * self.num_envs
        infos: list[Info] = [{} for _ in self.envs]
        rewards = np.zeros(self.num_envs)
        for i, step in zip(slots, steps, strict=True):
            observations[i], rewards[i], self._terminated[i], self._truncated[i], infos[i] = step
        return tuple(observations), rewards, self._terminated.copy(), self._truncated.copy(), infos

    def render(self) -> tuple[Any, ...]:
        """Returns what each environment renders."""
        return tuple(env.render() for env in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes every environment."""
        for env in self.envs:
            env.close()

    async def _step(self, slot: int, action: str) -> Step:
        try:
            return await self.envs[slot].astep(action)
        except Fault as fault:
            info = {"turn": int(self._turns[slot]), "tool_results": (), "valid": False}
            end = {"end_reason": EndReason.ENV_FAULT, "error": str(fault)}
            return Step((), float("nan"), False, True, info | end)

    def _each(self, values: Sequence[T | None] | None) -> Sequence[T | None]:
        values = [None] * self.num_envs if values is None else values
        if isinstance(values, str) or len(values) != self.num_envs:
            raise ConfigurationError(
                f"{values!r} must hold one entry for each of the {self.num_envs} environments"
            )
        return values


async def _all(work: Any) -> list[Any]:
    """Returns every result in order. If one fails, the others finish first, so that nothing keeps running unnoticed."""
    awaitables: list[Awaitable[Any]] = list(work)
    results = await asyncio.gather(*awaitables, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results

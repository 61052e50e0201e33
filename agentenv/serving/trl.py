"""Adapter for TRL: an environment as the ``environment_factory`` of its GRPOTrainer and AsyncGRPOTrainer.

Source of the contract: TRL 1.16. There an environment is a class with ``reset`` and ``get_reward`` whose other public
methods are tools. TRL uses instances again for other episodes, never closes them, and does not tell them when an episode is
over. After a fault, ``get_reward`` returns None, which TRL counts as a completion that cannot be scored. A fault in
``reset`` is not raised either, because that would end the training.
"""

import asyncio
import inspect
import logging
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from agentenv.core.env import Env
from agentenv.core.episodes import cut_reward
from agentenv.core.images import text_alone
from agentenv.core.tools import Tool, ToolEnv
from agentenv.core.types import Task, ToolStatus
from agentenv.errors import AgentEnvError, EpisodeOver, Fault, needs_extra
from agentenv.serving.rows import DatasetRow, Episodes, rows
from agentenv.serving.toolbox import instructions, observation_text, play, toolbox

_log = logging.getLogger(__name__)


class ToolFailed(AgentEnvError, RuntimeError):
    """A tool call that failed; TRL shows the message to the policy and counts the failure."""


@dataclass(frozen=True)
class TRLSpec:
    """Values for the trainer's arguments of the same names."""

    train_dataset: Any
    environment_factory: "EnvFactory"
    reward_funcs: None = None
    """None, because the environment gives the reward."""


def to_trl(env: str, *, tasks: Iterable[Task] = (), seeds: Iterable[int] = (), **arguments: Any) -> TRLSpec:
    """Prepares an environment and its data set for TRL.

    Args:
        env: A registered id, or ``remote:URL``.
        tasks: Questions to ask, one per row.
        seeds: Seeds of episodes whose tasks the environment draws, if there are no tasks.
        **arguments: Constructor arguments of the environment, as JSON values.

    Raises:
        MissingExtra: datasets is not installed.
        ConfigurationError: there are neither tasks nor seeds.
    """
    with needs_extra("interop"):
        from datasets import Dataset
    prompt = [{"role": "user", "content": ""}]  # TRL appends the return value of reset() to it
    posed = tuple(tasks)
    table = [{"prompt": prompt, **row} for row in rows(tasks=posed, seeds=seeds)]
    return TRLSpec(Dataset.from_list(table), EnvFactory(Episodes(env, arguments, posed)))


class EnvFactory:
    """Makes environments of one class; can be pickled, as AsyncGRPO's worker process needs.

    Args:
        episodes: The environment and its arguments.
    """

    def __init__(self, episodes: Episodes) -> None:
        self._episodes = episodes
        self._class: type | None = None

    def __call__(self) -> Any:
        """Makes another instance; all have the same class."""
        env = self._episodes.make()
        if self._class is None:
            tools = {name: _method(tool) for name, tool in toolbox(env).items()}
            name = self._episodes.env.rpartition("/")[2].partition("-v")[0] or "Remote"
            # The class is made only once, because TRL reads its methods as the tools of all instances.
            self._class = type(name, (_TrlEpisode,), tools)
        return self._class(env, self._episodes)

    def __getstate__(self) -> dict[str, Any]:
        return {"_episodes": self._episodes, "_class": None}


class _TrlEpisode:
    """The object that TRL uses: plays one episode after the other in one environment."""

    def __init__(self, env: Env[Any], episodes: Episodes) -> None:
        self._env, self._episodes = env, episodes
        # TRL declares the tools, so the opening does not explain how to call them.
        env.native = isinstance(env, ToolEnv)
        self._reward: float | None = None
        self._over = False
        self._turn = asyncio.Lock()  # TRL runs the calls of one turn concurrently

    def reset(self, **row: Any) -> str:
        """Begins the episode of a row and returns its opening text.

        Raises:
            ConfigurationError: the row does not describe a playable episode.
        """
        episode = DatasetRow.read(row)
        self._reward, self._over = None, False  # a reset that fails leaves no reward
        options = self._episodes.options(self._env, episode)
        try:
            observation, _ = self._env.reset(seed=episode.seed, options=options)
        except Exception as error:
            if not _is_infrastructure_failure(error):
                raise
            _log.warning("an episode could not begin and has no reward: %s: %s", type(error).__name__, error)
            return "The environment could not begin this episode."
        self._reward = 0.0
        return instructions(self._env, text_alone(observation, "the adapter of TRL", opens=True))

    def get_reward(self) -> float | None:
        """Returns the sum of the rewards, with the cut reward of an unfinished episode; None after a fault."""
        if self._reward is None or self._over:
            return self._reward
        try:
            return self._reward + cut_reward(self._env)
        except Exception as error:
            _log.warning("an episode that was cut has no reward: %s: %s", type(error).__name__, error)
            return None

    async def _call(self, name: str, arguments: dict[str, Any]) -> str:
        async with self._turn:
            if self._reward is None:
                raise EpisodeOver("a fault has ended this episode")
            # The reward is None during the call, so that it stays None after any failure that is not the policy's.
            reward, self._reward = (self._reward, None)
            try:
                step = await play(self._env, name, arguments)
                reward += step.reward
            except AgentEnvError as error:
                if not _is_infrastructure_failure(error):
                    self._reward = reward
                raise
            self._reward, self._over = reward, step.terminated or step.truncated
        text = observation_text(self._env, step)
        if any(result.status is not ToolStatus.OK for result in step.info["tool_results"]):
            raise ToolFailed(text)
        return text

    def __del__(self) -> None:
        # TRL never closes an instance, so this closes it; at interpreter exit, parts of the environment may be gone.
        try:
            self._env.close()
        except Exception:
            return


def _is_infrastructure_failure(error: Exception) -> bool:
    """Tells whether it is an infrastructure failure, rather than a mistake of the policy or the configuration."""
    return isinstance(error, Fault) or not isinstance(error, AgentEnvError)


def _method(tool: Tool) -> Callable[..., Any]:
    """Makes a method that TRL reads as this tool: with its name, annotations and docstring."""

    async def method(self: _TrlEpisode, **arguments: Any) -> str:
        return await self._call(tool.name, arguments)

    parameters = list(inspect.signature(tool.function).parameters.values())[tool.takes_self :]
    hints = typing.get_type_hints(tool.function, include_extras=True)
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    typed = [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters]
    named = {parameter.name: hints[parameter.name] for parameter in parameters}
    vars(method).update(__signature__=inspect.Signature([me, *typed], return_annotation=str))
    method.__name__ = method.__qualname__ = tool.name
    method.__annotations__ = {**named, "return": str}
    method.__doc__ = inspect.getdoc(tool.function)
    return method

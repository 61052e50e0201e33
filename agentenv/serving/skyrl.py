"""Adapter for SkyRL-gym: an agentenv environment as one of its text environments.

Call `register` with the environment and its arguments in the entry point of SkyRL's workers. Each row of the data set has
``env_class="agentenv"`` and, in its extra columns, those of `rows.rows`. The opening of the environment replaces the row's
prompt. A fault is raised and never returned, because a step of SkyRL cannot say that there is no reward.
"""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from agentenv.core.env import Env
from agentenv.core.episodes import cut_reward
from agentenv.core.types import Task
from agentenv.errors import needs_extra
from agentenv.serving.rows import DatasetRow, Episodes, as_messages
from agentenv.serving.toolbox import readable, sound


def register(
    env: str, arguments: Mapping[str, Any] | None = None, *, tasks: Iterable[Task] = (), id: str = "agentenv"
) -> None:
    """Registers an environment with SkyRL-gym in this process; it replaces one with the same ``id``.

    Args:
        env: A registered id of agentenv, or ``remote:URL``.
        arguments: Constructor arguments of the environment.
        tasks: Questions of your own that rows may name by id.
        id: The ``env_class`` of the rows for this environment.

    Raises:
        MissingExtra: SkyRL-gym is not installed.
    """
    with needs_extra("skyrl"):
        import skyrl_gym
        from skyrl_gym.envs.registration import registry
    # The old entry is removed first, so that a worker that registers twice uses the newer configuration.
    registry.pop(id, None)
    episodes = Episodes(env, arguments, tasks)
    skyrl_gym.register(id=id, entry_point="agentenv.serving.skyrl:SkyRLEnv", kwargs={"episodes": episodes})


def __getattr__(name: str) -> Any:
    if name == "SkyRLEnv":
        return _make_adapter()
    raise AttributeError(name)


@functools.cache
def _make_adapter() -> type:
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

    class SkyRLEnv(BaseTextEnv):  # type: ignore[misc,unused-ignore]
        """Plays the episode that ``extras`` describes."""

        def __init__(
            self, episodes: Episodes, env_config: Any = None, extras: Mapping[str, Any] | None = None
        ) -> None:
            super().__init__()
            extras = extras or {}
            self._episodes, self._row = episodes, DatasetRow.read(extras)
            self._env: Env[Any] = episodes.make()
            self._invalid = 0
            self._truncated = False
            self.max_turns = extras.get("max_turns") or 0

        def init(self, prompt: Any) -> tuple[list[dict[str, str]], dict[str, Any]]:
            """Begins the episode; its opening replaces ``prompt``."""
            options = self._episodes.options(self._env, self._row)
            observation, info = self._env.reset(seed=self._row.seed, options=options)
            self.turns, self._invalid, self._truncated = 0, 0, False
            return as_messages(observation), info

        def step(self, action: str) -> BaseTextEnvStepOutput:
            """Takes one step; SkyRL's limit of turns may end the episode before the environment does.

            Raises:
                EpisodeOver: the episode has ended or was never started.
                Fault: the environment broke.
            """
            step = sound(self._env.step(readable(self._env, action)))
            self.turns += 1
            self._invalid += not step.info["valid"]
            over = step.terminated or step.truncated
            # Reaching SkyRL's limit is a truncation as well, unless the episode ended in this step.
            cut = not over and 0 < self.max_turns <= self.turns
            self._truncated = step.truncated or cut
            facts = {name: step.info.get(name) for name in ("turn", "valid", "end_reason")}
            return BaseTextEnvStepOutput(
                observations=as_messages(step.observation),
                reward=float(step.reward) + (cut_reward(self._env) if cut else 0.0),
                done=over or self._truncated,
                metadata={**facts, "terminated": step.terminated, "truncated": self._truncated},
                postprocessed_action=None,
            )

        def close(self) -> None:
            """Closes the environment."""
            self._env.close()

        def get_metrics(self) -> dict[str, Any]:
            """Returns number of turns, number of invalid turns and whether the episode was truncated."""
            return {"turns": self.turns, "invalid_turns": self._invalid, "truncated": float(self._truncated)}

    return SkyRLEnv

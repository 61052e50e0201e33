"""Adapter for verifiers (v1): agentenv environments as a taskset, with the environment that plays it.

Put these two lines into a module of your own; the name of that module is the id of the taskset::

    from agentenv.serving.verifiers import AgentenvEnv, AgentenvTaskset
    __all__ = ["AgentenvEnv", "AgentenvTaskset"]

The environment answers each reply of the policy turn by turn; the sum of all rewards goes to the trace. A fault fails the
episode and leaves no reward (verifiers retries it if configured to).
"""

import functools
from collections.abc import Iterator
from typing import Any

from pydantic import Field

from agentenv.core.episodes import cut_reward
from agentenv.core.images import text_alone
from agentenv.core.types import Observation, Step
from agentenv.errors import needs_extra
from agentenv.serving.rows import DatasetRow, Episodes
from agentenv.serving.toolbox import act_by_text
from agentenv.serving.wire import options_in

__all__ = ["AgentenvEnv", "AgentenvTaskset"]  # noqa: F822  # made on demand: verifiers is optional


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _make_classes()[name]
    raise AttributeError(name)


def _text(observation: Observation, *, opens: bool = False) -> str:
    return text_alone(observation, "the adapter of verifiers", opens=opens)


async def _play(task: Any, player: Any, episodes: Episodes) -> None:
    env, row = episodes.make(), task.data.row
    try:
        opening, _ = await env.areset(seed=row.seed, options=episodes.options(env, row))
        steps: list[Step] = []
        async with player.interaction(task) as interaction:
            segment = await interaction.turn(_text(opening, opens=True))
            while not segment.terminated:
                steps.append(await act_by_text(env, segment.last_reply))
                if steps[-1].terminated or steps[-1].truncated:
                    interaction.trace.stop(str(steps[-1].info["end_reason"]))
                    break
                segment = await interaction.turn(_text(steps[-1].observation))
            # The trace is taken within the block and scored after it, because it is complete only when the interaction has
            # ended.
            trace = interaction.trace
        going = bool(steps) and not (steps[-1].terminated or steps[-1].truncated)
        earned = sum(step.reward for step in steps) + (cut_reward(env) if going else 0.0)
        trace.record_reward("agentenv", earned)
        trace.record_metric("turns", len(steps))
        trace.record_metric("invalid_turns", sum(not step.info["valid"] for step in steps))
    finally:
        # This also runs after a fault, which leaves the trace without a reward.
        env.close()


@functools.cache
def _make_classes() -> dict[str, type]:
    with needs_extra("verifiers"):
        import verifiers.v1 as vf

    class AgentenvData(vf.TaskData):  # type: ignore[misc,unused-ignore]
        row: DatasetRow
        """The episode; the environment gives the prompt."""

    class AgentenvTask(vf.Task[AgentenvData]):  # type: ignore[misc,unused-ignore]
        """An episode as a task of verifiers."""

    class AgentenvConfig(vf.TasksetConfig):  # type: ignore[misc,unused-ignore]
        env: str
        """A registered id, or ``remote:URL``."""
        arguments: dict[str, Any] = Field(default_factory=dict)
        """Constructor arguments of the environment."""
        seeds: list[int] = Field(default_factory=lambda: [0])
        """Seeds of the episodes, one each, if there are no tasks."""
        tasks: list[dict[str, Any]] = Field(default_factory=list)
        """Questions to ask, each with id, question, answers, split and data."""

    class AgentenvTaskset(vf.Taskset[AgentenvTask, AgentenvConfig]):  # type: ignore[misc,unused-ignore]
        """Episodes of an agentenv environment."""

        def load(self) -> Iterator[AgentenvTask]:
            """Yields one task per episode."""
            config = self.config
            posed = [{"task": task} for task in config.tasks] or [{"seed": seed} for seed in config.seeds]
            for number, fields in enumerate(posed):
                row = DatasetRow.read(fields)
                data = AgentenvData(name=f"{config.env}#{number}", prompt=None, row=row)
                yield AgentenvTask(data, config.task)

        def episodes(self) -> Episodes:
            """The configured environment; the tasks of the configuration are trusted with all their data."""
            tasks = [options_in({"task": task}) or {} for task in self.config.tasks]
            return Episodes(self.config.env, self.config.arguments, [task["task"] for task in tasks])

    class AgentenvEnvConfig(vf.EnvConfig):  # type: ignore[misc,unused-ignore]
        player: vf.AgentConfig = vf.AgentConfig()
        """The policy that plays."""

    class AgentenvEnv(vf.Env[AgentenvEnvConfig]):  # type: ignore[misc,unused-ignore]
        """Answers each reply of the player."""

        async def run(self, task: Any, agents: Any) -> None:
            """Plays one episode; a fault of the environment is raised, so that the trace has no reward."""
            await _play(task, agents.player, self.taskset.episodes())

    return {"AgentenvEnv": AgentenvEnv, "AgentenvTaskset": AgentenvTaskset}

"""Recorded episodes in the tokens and the chat format of another policy than the one that played them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.core.action_turns import action_text
from agentenv.core.assistant_turns import AssistantTurn, DeclaredTool, ToolForm
from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.env import Env
from agentenv.core.env_lifecycle import open_envs
from agentenv.core.grammar import shortened
from agentenv.core.native_format import NativeFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, never_fitted, opening_of
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Info, Observation, Step, Task
from agentenv.data.sources import Source
from agentenv.errors import ConfigurationError, Fault
from agentenv.evaluation.recorded_conversations import (
    native_turn,
    observation_after,
    recorded_opening,
    why_not_restorable,
)
from agentenv.evaluation.records import EpisodeRecord
from agentenv.evaluation.task_env import EnvConfig, TaskEnv, open_tasks
from agentenv.policies.hf import HFPolicy
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.loop.parts import make_chat_format, rollout_config
from agentenv.trainers.strategies.demonstrations import Action, spell
from agentenv.trainers.strategies.rollout_context import RolloutContext

TOO_LONG = "are longer than the budgets of the run"
_OTHER_FORM = (
    "were played in another chat format, whose opening and calls are others (the teacher of a run with format='native' is "
    "evaluated with --format native, and any other one without; evaluations of earlier versions do not say that they were "
    "native)"
)
_UNWRITABLE = "have a turn that the chat template of the learner has no way to write"


@dataclass
class _Played:
    """How far a recorded episode has been played again."""

    turns: int = 0


class RecordedEpisode(Env[_Played]):
    """Shows what a recorded episode showed, whatever is done; so it is spelt in other tokens by the episode loop itself.

    An action that is not the recorded one, because a budget cut it, ends the episode.

    Args:
        record: The episode.
        actions: What its policy did: texts, or natively the turns.
        tools: The declared ones, in OpenAI's form.
    """

    refuses_half_escapes = True

    def __init__(
        self, record: EpisodeRecord, actions: Sequence[Action], tools: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        super().__init__()
        self.record, self.actions, self.tools = record, actions, tools
        self.state = _Played()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """The recorded opening."""
        super().reset(seed=seed, options=options)
        self.state = _Played()
        return recorded_opening(self.record), {"task_id": self.record["id"]}

    def step(self, action: str) -> Step:
        """What was shown after the turn; the last one ends the episode."""
        place = self.state.turns
        self.state.turns += 1
        if action != self.record["turns"][place]["action"]:
            return self.result((), end=EndReason.PARSE_ERROR)
        last = self.state.turns == len(self.record["turns"])
        return self.result(observation_after(self.record, place), end=EndReason.ANSWERED if last else None)

    def native_tools(self) -> Sequence[ToolForm]:
        """The tools of the environment."""
        return [DeclaredTool(tool) for tool in self.tools]

    def native_action(self, turn: AssistantTurn) -> str:
        """The recorded text where ``turn`` does as it does, and otherwise the text of ``turn``."""
        place = self.state.turns
        meant = self.actions[place]
        same = isinstance(meant, AssistantTurn) and turn.closed and turn.same_content_and_calls(meant)
        return self.record["turns"][place]["action"] if same else action_text(turn)

    def turn_stop(self, stop: tuple[str, ...]) -> tuple[str, ...]:
        """The stop strings that ended the recorded turn; one within it did not."""
        action = self.record["turns"][self.state.turns]["action"]
        return tuple(one for one in stop if action.find(one) == len(action) - len(one))


class Speller:
    """Writes recorded episodes in the tokens of a learner, in its chat format and within its budgets.

    Args:
        context: The learner, its chat format and the budgets.
        tools: Those that the environment declares in the chat format ``native``, in OpenAI's form.
    """

    def __init__(self, context: RolloutContext, tools: Sequence[Mapping[str, Any]]) -> None:
        self._context, self._tools = context, tools
        self._native = isinstance(context.chat, NativeFormat)

    @classmethod
    def of(cls, run: TrainConfig, policy: HFPolicy) -> "Speller":
        """For the learner ``policy`` of ``run``, which names the format, the budgets and the environment.

        Raises:
            ConfigurationError: the format does not serve, or the tools cannot be declared.
        """
        chat = make_chat_format(run.format, run.chat, policy)
        config = rollout_config(run.rollout, run.env, temperature=0.0)
        context = RolloutContext(policy, chat, config, policy.tokenizer.decode, name="recorded")
        return cls(context, declared_tools(run, config) if isinstance(chat, NativeFormat) else ())

    def spelt(self, record: EpisodeRecord, family: str) -> Trajectory | str:
        """The episode, or why it cannot be learned.

        Args:
            record: The episode.
            family: The form in which its turns stand: that of a model family, ``ENDPOINT``, or empty for text alone.
        """
        if why := _OTHER_FORM if self._native != bool(family) else why_not_restorable(record):
            return why
        actions = [self._action(turn["action"], family) for turn in record["turns"]]
        env = RecordedEpisode(record, actions, self._tools)
        spec = EpisodeSpec(env, task_of(record), seed=0)
        found = run_to_completion(spell(spec, self._context, lambda _: actions))
        if found.valid and found.end_reason is EndReason.ANSWERED:
            return found
        if not (found.valid or never_fitted(found)):
            return f"cannot be played again ({shortened(found.error.strip().splitlines()[-1], 200)})"
        return _UNWRITABLE if found.end_reason is EndReason.PARSE_ERROR and found.error else TOO_LONG

    def _action(self, action: str, family: str) -> Action:
        """A recorded action, natively as the turn that it is."""
        if not family:
            return action
        return native_turn(action, family, self._tools)


def declared_tools(run: TrainConfig, config: RolloutConfig) -> list[dict[str, Any]]:
    """The tools that the environment of ``run`` declares to a model in its native form when it poses its first task.

    Raises:
        ConfigurationError: it cannot pose it.
    """
    return run_to_completion(_declared(open_tasks(run.train, run.search, run.env), run.env, config))


async def _declared(source: Source, env_config: EnvConfig, config: RolloutConfig) -> list[dict[str, Any]]:
    # Nothing is searched, so that no index has to be opened.
    async with open_envs([TaskEnv(source, None, env_config, len).make_env], config.deadline_s) as (env,):
        env.native = True
        try:
            await opening_of(EpisodeSpec(env, source.tasks[0], seed=0), config)
        except Fault as error:
            raise ConfigurationError(
                f"{env_config.id} cannot pose its first task, to declare its tools: {error}"
            ) from error
        return [tool.to_openai() for tool in env.native_tools()]


def task_of(record: EpisodeRecord) -> Task:
    """The question of a recorded episode, as far as the record says it."""
    return Task(record["id"], record["question"], tuple(record["answers"]))

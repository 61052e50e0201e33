"""Demonstrations: what the expert of an environment does, or an episode recorded elsewhere, in the tokens of the policy."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from agentenv.core.action_turns import action_text, expert_turn
from agentenv.core.assistant_turns import AssistantTurn
from agentenv.core.native_format import NativeFormat
from agentenv.core.protocols import ChatFormat
from agentenv.core.rollout import EpisodeSpec, EpisodeState, play
from agentenv.core.trajectory import Origin, SegmentKind, Trajectory
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import ConfigurationError, PolicyFault
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.trainers.strategies.hinted_episodes import ask_expert
from agentenv.trainers.strategies.rollout_context import RolloutContext

Played = list[Trajectory]
Action = str | AssistantTurn
"""What is done in a turn: text as an expert writes it, or what the turn of another policy held."""


async def play_demonstration(spec: EpisodeSpec, context: RolloutContext) -> Played:
    """What the environment's expert does, spelt in the policy's tokens; none where it does not succeed within the budgets.

    Raises:
        ConfigurationError: the environment has no expert for the task, or the policy shows no tokenizer.
    """
    demonstration = await spell(spec, context, expert_actions)
    lost = demonstration.valid and demonstration.reward < spec.env.reward_ceiling
    return [] if lost or was_cut(demonstration) else [demonstration]


def was_cut(demonstration: Trajectory) -> bool:
    """Whether a turn did not fit into its budget of tokens, after which the script of the others leads nowhere."""
    return any(turn.cut for turn in demonstration.turns)


async def spell(
    spec: EpisodeSpec, context: RolloutContext, actions: Callable[[EpisodeSpec], Sequence[Action]]
) -> Trajectory:
    """The episode in which ``actions`` are taken, in the policy's tokens, as a demonstration.

    Args:
        spec: The start of the episode in which the actions are taken.
        context: Gives the policy and the chat format.
        actions: Returns the actions; called after the reset.

    Raises:
        ConfigurationError: the policy shows no tokenizer.
    """
    episode = f"{context.episode(0)}-demonstration"
    tokenizer = getattr(context.policy, "tokenizer", None)
    if tokenizer is None:
        raise ConfigurationError(
            f"{type(context.policy).__name__} has no tokenizer, which demonstrations are written with: take hf:PATH"
        )
    state = await context.open(spec, episode)
    taken = await ask_expert(state, context.config.deadline_s, partial(actions, spec))
    script: ScriptedPolicy
    if isinstance(context.chat, NativeFormat):
        script = _NativeScript(taken or (), tokenizer, state, context.chat)
    else:
        texts = {} if taken is None else {episode: [_as_text(action) for action in taken]}
        script = _Script(texts, tokenizer)
    demonstration = await play(state, script, context.chat, context.config)
    segments = [
        replace(s, context_mismatch=True, version=context.policy.version)
        if s.kind is SegmentKind.POLICY
        else s
        for s in demonstration.segments
    ]
    return replace(
        demonstration,
        segments=tuple(segments),
        origin=Origin.DEMONSTRATION,
        group_id=f"{spec.group_id}/{episode}",
        info=demonstration.info | {"strategy": {"demonstrations": 1, "sampled_tokens": 0}},
    )


class _Script(ScriptedPolicy):
    """Plays written actions, whatever images are shown."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None, **images: Any
    ) -> Completion:
        """As `ScriptedPolicy`."""
        return await super().generate(prompt_ids, sampling, episode=episode)


class _NativeScript(ScriptedPolicy):
    """Plays written actions in one episode, each as a model of its family would have written it."""

    def __init__(
        self, script: Sequence[Action], tokenizer: Any, state: EpisodeState, chat: NativeFormat
    ) -> None:
        super().__init__({}, tokenizer)
        self._script, self._state, self._chat = script, state, chat

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None, **images: Any
    ) -> Completion:
        """The next action, cut after ``max_tokens``.

        Raises:
            PolicyFault: the script is exhausted.
            Unrenderable: the model has no way to write the action.
        """
        turn = len(self._state.turns)
        if turn >= len(self._script):
            raise PolicyFault(f"the script has {len(self._script)} actions, not {turn + 1}")
        ids = encoded_action(self._script[turn], self._state, self._chat, self.tokenizer)
        cut = len(ids) > sampling.max_tokens
        said = ids[: sampling.max_tokens] if cut else ids[:-1]
        finish = FinishReason.LENGTH if cut else FinishReason.EOS
        sampled = tuple(said if cut else ids)
        return Completion(sampled, self.tokenizer.decode(said), (0.0,) * len(sampled), finish, self.version)


def encoded_action(action: Action, state: EpisodeState, chat: ChatFormat, tokenizer: Any) -> list[int]:
    """The ids by which the policy would write ``action`` next; natively with the token that ends its turn.

    Raises:
        Unrenderable: the model has no way to write it.
    """
    if isinstance(chat, NativeFormat) and (conversation := state.conversation) is not None:
        turn = action if isinstance(action, AssistantTurn) else expert_turn(action, conversation.tools)
        return chat.encode_turn(conversation, turn)
    ids: list[int] = tokenizer.encode(_as_text(action), add_special_tokens=False)
    return ids


def _as_text(action: Action) -> str:
    return action_text(action) if isinstance(action, AssistantTurn) else action


def expert_actions(spec: EpisodeSpec) -> Sequence[str]:
    """What the expert does in the present episode.

    Raises:
        ConfigurationError: there is no expert for the task.
    """
    actions = spec.env.expert()
    if actions is None:
        raise ConfigurationError(
            f"{type(spec.env).__name__} has no expert for task {spec.task.id!r}: {spec.env.no_expert}"
        )
    return actions

"""Episodes that begin with the first turns of a recorded one, token by token, and are trained from there on (ReST-RL)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentenv.core.protocols import Policy
from agentenv.core.rollout import EpisodeSpec
from agentenv.core.trajectory import Origin, SegmentKind, Trajectory
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import PolicyFault
from agentenv.policies.wrapper import PolicyWrapper
from agentenv.trainers.credit.step_selection import without_turns
from agentenv.trainers.strategies.rollout_context import RolloutContext


class PrefixPolicy(PolicyWrapper):
    """Answers the first turns of an episode with what is recorded of them, and the others by ``policy``.

    Args:
        policy: Answers the later turns.
        prefix: The record, cut behind its last turn that counts; of one row.
    """

    def __init__(self, policy: Policy, prefix: Trajectory) -> None:
        super().__init__(policy)
        self._prefix = prefix
        self._turn = 0

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None, **images: Any
    ) -> Completion:
        """The next recorded turn, or what the policy samples.

        Raises:
            PolicyFault: the environment's observation differs from the record, or the engine failed.
            ContextTooSmall: the prompt alone fills the context.
        """
        turn = self._turn
        if turn >= len(self._prefix.turns):
            return await self.policy.generate(prompt_ids, sampling, episode=episode, **images)
        self._turn += 1
        before = [
            i
            for s in self._prefix.segments
            if s.turn < turn or (s.turn == turn and s.kind is SegmentKind.PROMPT)
            for i in s.ids
        ]
        if before != list(prompt_ids):
            raise PolicyFault(
                f"the replay of the recorded episode shows another prompt at turn {turn} than the record"
            )
        own = [s for s in self._prefix.segments if s.turn == turn and s.kind is SegmentKind.POLICY]
        return Completion(
            ids=tuple(i for s in own for i in s.ids),
            text=self._prefix.turns[turn].action,
            logprobs=tuple(p for s in own for p in s.logprobs),
            finish=FinishReason.STOP,
            version=own[-1].version if own else self.version,  # a turn may have no tokens
            versions=tuple(s.version for s in own for _ in s.ids),
        )


async def play_from(spec: EpisodeSpec, context: RolloutContext, episode: str) -> Trajectory:
    """The episode that goes on from ``spec.prefix``; only what the policy sampled now is trained."""
    assert spec.prefix is not None
    prefix = spec.prefix
    context = replace(context, policy=PrefixPolicy(context.policy, prefix))
    played = await context.run(spec, f"{episode}-continued")
    count = len(prefix.turns)
    continued = without_turns(played, range(count))
    sampled = sum(len(s.ids) for s in continued.segments if s.kind is SegmentKind.POLICY and s.trained)
    return replace(
        continued,
        origin=Origin.RETRY,
        parent_id=prefix.id,
        fork_turn=count,
        info=played.info | {"strategy": {"continued": 1, "sampled_tokens": sampled}},
    )

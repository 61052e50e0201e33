"""Tree decoding: one answer out of several that share what they did first (ReEx-SQL), chosen by what their answers give.

It is meant for evaluations, where an episode is one start and one trajectory (``evaluation.strategy``).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentenv.core.env import Env
from agentenv.core.env_lifecycle import close_quickly
from agentenv.core.rollout import EpisodeSpec, EpisodeState, act_on, fork, sample
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.core.types import Completion
from agentenv.errors import ConfigurationError
from agentenv.trainers.strategies.rollout_context import RolloutContext, gather_slots


@dataclass(frozen=True, kw_only=True)
class TreeDecodeStrategy:
    """Plays a tree of episodes from each start and keeps the one whose answer gives what most of the others' give.

    ReEx-SQL, Dai et al. 2025, arXiv:2505.12768; its width and its rule of choice were not found and are this project's.
    Before each turn ``width`` actions are sampled; equal ones are one branch, and the environment is forked for the others.
    What branches share is sampled and executed once. The branches of a start are played one after the other in its slot, so
    tokens and executions are saved and batches are those of plain play.
    """

    width: int = 2
    """Actions that are sampled before each turn while the start may still have more leaves."""
    leaves: int = 8
    """Most episodes of one start; a branch divides what it has left among the branches that leave it."""
    temperature: float = 0.8
    """Sampling temperature where the run's own is 0, as in evaluations; equal branches would say nothing."""

    def __post_init__(self) -> None:
        if self.width < 2 or self.leaves < 1 or self.temperature <= 0:
            raise ConfigurationError(
                "tree decoding needs width of at least 2, leaves of at least 1 and a temperature above 0, not "
                f"{self.width}, {self.leaves} and {self.temperature}"
            )

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """One trajectory for each start, in their order."""
        warm = context.with_settings(temperature=context.config.temperature or self.temperature)

        async def decode(state: EpisodeState) -> Trajectory:
            decoder = _Decoder(self, warm)
            leaves = await decoder.grow(state, self.leaves)
            return _with_metrics(leaves, decoder.sampled)

        return await gather_slots(specs, context, decode)


@dataclass
class _Decoder:
    """The tree of one start while it grows, branch after branch."""

    strategy: TreeDecodeStrategy
    context: RolloutContext
    sampled: int = 0
    """Tokens that were sampled."""

    async def grow(self, state: EpisodeState, room: int) -> list[Trajectory]:
        """The leaves behind ``state``, at most ``room``."""
        while state.ended is None:
            drafts = await self._drafts(state, min(self.strategy.width, room))
            if len(drafts) > 1:
                return await self._branch(drafts, room)
            state, completion = drafts[0]
            await self._act(state, completion)
        return [state.ended]

    async def _drafts(self, state: EpisodeState, count: int) -> list[tuple[EpisodeState, Completion | None]]:
        """Copies of ``state``, each with another next action; without an action where the context is full."""
        drafts: dict[str, tuple[EpisodeState, Completion | None]] = {}
        for attempt in range(max(count, 1)):
            draft = state.copy()
            completion = await sample(draft, self.context.policy, self.context.config, attempt=attempt)
            if completion is None:
                return [*drafts.values()] or [(draft, None)]
            self.sampled += len(completion.ids)
            drafts.setdefault(completion.text, (draft, completion))
        return list(drafts.values())

    async def _branch(
        self, drafts: Sequence[tuple[EpisodeState, Completion | None]], room: int
    ) -> list[Trajectory]:
        """The leaves behind each of ``drafts``, in environments of their own; the first stays in that of the branch."""
        envs: list[Env[Any]] = await fork(drafts[0][0], len(drafts) - 1, self.context.config.deadline_s)
        parts = len(envs) + 1
        shares = [room * (place + 1) // parts - room * place // parts for place in range(parts)]
        leaves: list[Trajectory] = []
        try:
            places = zip(drafts, [None, *envs], shares, strict=False)  # fewer where nothing could be forked
            for (draft, completion), env, share in places:
                state = draft if env is None else replace(draft, spec=replace(draft.spec, env=env))
                if state.ended is None:
                    await self._act(state, completion)
                leaves += await self.grow(state, share)
        finally:
            await close_quickly(envs, self.context.config.deadline_s)
        return leaves

    async def _act(self, state: EpisodeState, completion: Completion | None) -> None:
        if completion is not None:
            await act_on(completion, state, self.context.chat, self.context.config)


def vote_of(trajectory: Trajectory) -> str | None:
    """What an episode votes for: ``info["vote"]``, or else its answer; None where it failed or handed nothing in."""
    if not trajectory.valid:
        return None
    vote = trajectory.info.get("vote", trajectory.info.get("answer"))
    return None if vote is None else str(vote)


def mean_logprob(trajectory: Trajectory) -> float:
    """Mean log-prob of what was sampled; -inf where nothing was, or where it is not known."""
    found = [value for s in trajectory.segments if s.kind is SegmentKind.POLICY for value in s.logprobs]
    mean = sum(found) / len(found) if found else -math.inf
    return -math.inf if math.isnan(mean) else mean


def elected(leaves: Sequence[Trajectory]) -> tuple[Trajectory, int]:
    """The leaf that is kept and the number of leaves that vote as it does.

    The votes of the majority win, of several majorities the one with the likeliest leaf; among equal votes the leaf with the
    highest mean log-prob is kept. Where nobody votes, it is the likeliest episode without an infrastructure failure.
    """
    votes = Counter(vote for leaf in leaves if (vote := vote_of(leaf)) is not None)

    def rank(leaf: Trajectory) -> tuple[bool, int, float]:
        vote = vote_of(leaf)
        return leaf.valid, votes[vote] if vote is not None else 0, mean_logprob(leaf)

    best = max(leaves, key=rank)
    return best, rank(best)[1]


def _with_metrics(leaves: Sequence[Trajectory], sampled: int) -> Trajectory:
    """The leaf that is kept, with what its tree took."""
    best, votes = elected(leaves)
    metrics = {
        "sampled_tokens": sampled,
        "tree_leaves": len(leaves),
        "tree_votes": votes,
        "tree_saved_tokens": sum(leaf.response_tokens for leaf in leaves) - sampled,
    }
    return replace(best, info=best.info | {"strategy": metrics})

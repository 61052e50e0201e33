"""VM-MCTS, the second half of ReST-RL: a tree search over turns that is guided by a value model (arXiv:2508.19576).

A state is an episode between two turns, an action is a turn. It is meant for evaluations, where an episode is one start and
one trajectory (``evaluation.strategy``): the value model alone decides, and no reward of the environment is looked at. With
the verifier in the place of the model it is the training phase, which collects the states that a value model learns from.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, Literal

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.env import Env
from agentenv.core.env_lifecycle import close_quickly
from agentenv.core.rollout import (
    EpisodeSpec,
    EpisodeState,
    act_on,
    fork,
    sample,
)
from agentenv.core.trajectory import Trajectory, Turn
from agentenv.errors import ConfigurationError
from agentenv.policies.value_model import ValueModel, load_value_model, state_pieces
from agentenv.trainers.strategies.rollout_context import RolloutContext, Round, run_rounds
from agentenv.trainers.strategies.value_records import STATES, Expansion, state_records

VERIFIER = "verifier"
"""The value of a continuation is its reward."""

_MOST_SAMPLES = 1000  # each has a seed of its own, in the bits above those of its turn
_CONTINUATIONS = 1 << 32  # slots of continuations begin here, beyond those of all starts


def uct(value: float, visits: int, parent_visits: int, *, exploration: float, smoothing: float) -> float:
    """V + c sqrt((1 + ln N_parent) / (eps + N)): which child is looked at next, the largest (ReST-RL, VM-MCTS).

    Args:
        value: V, the mean value over the visits of the child.
        visits: N.
        parent_visits: N_parent, at least 1.
        exploration: c.
        smoothing: eps.
    """
    return value + exploration * math.sqrt((1 + math.log(parent_visits)) / (smoothing + visits))


@dataclass(frozen=True, kw_only=True)
class ValueSearchStrategy:
    """Searches the turns that an episode may take, guided by a value model, and keeps the best complete episode.

    VM-MCTS of ReST-RL, 2025, arXiv:2508.19576. In its test phase a value model is asked. Of the states that were reached
    one is chosen by ``uct`` from the start on, and the policy goes on from it to the end ``samples`` times. Distinct first
    actions make the next states. A new state has the value that the model predicts and one visit, an action that is
    repeated one visit more; sums and visits are added to those of the states before it. The best ``children`` of a state
    stay open. After ``iterations`` the complete episode with the highest predicted value is kept. With one iteration this is
    the best of ``samples``.

    In its training phase, with ``verifier`` for a value, a continuation is worth the reward that it earned: each one is a
    visit of the first state that it led to, with that reward. The episode with the highest reward is kept, so that no
    evaluation may play it, and the states with their values stand in its ``info``. ``scores="outcomes"`` searches in this
    way by a model that judges complete episodes.
    """

    value: str = "tiny"
    """The value model: a file that ``agentenv value`` wrote, or ``tiny``, which is shipped for the shipped policy and
    questions like those of its worlds. ``verifier`` is the reward of the environment: the training phase."""
    scores: Literal["states", "outcomes"] = "states"
    """What the value model is asked about: each new state, or, as an outcome reward model, each complete continuation, whose
    value then counts as a visit of the first state that it led to."""
    iterations: int = 20
    """States from which the policy goes on, one after the other, those that end the episode included."""
    samples: int = 5
    """Complete continuations from each."""
    children: int = 3
    """Next states that stay open."""
    exploration: float = 0.2
    """c of ``uct``."""
    smoothing: float = 0.1
    """eps of ``uct``."""
    temperature: float = 0.7
    """Sampling temperature where the run's own is 0, as in evaluations; equal continuations would say nothing."""

    def __post_init__(self) -> None:
        counts = (self.iterations, self.samples, self.children)
        if min(counts) < 1 or self.iterations * self.samples > _MOST_SAMPLES:
            raise ConfigurationError(
                f"vm_mcts needs iterations, samples and children of at least 1 and at most {_MOST_SAMPLES} continuations, "
                f"not {counts}"
            )
        numbers = (self.exploration, self.smoothing, self.temperature)
        if not all(map(math.isfinite, numbers)) or self.exploration < 0 or min(numbers[1:]) <= 0:
            raise ConfigurationError(
                f"vm_mcts needs an exploration of at least 0, and smoothing and temperature above 0, not {numbers}"
            )
        if not self.value:
            raise ConfigurationError("vm_mcts needs a value model: 'tiny', or a file of `agentenv value`")

    @property
    def reads_rewards(self) -> bool:
        """Whether rewards decide which episode is kept."""
        return self.value == VERIFIER

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """One trajectory for each start, in their order.

        Raises:
            CheckpointMismatch: there is no such value model.
        """
        model = None if self.reads_rewards else load_value_model(self.value)
        warm = context.with_settings(temperature=context.config.temperature or self.temperature)
        searches = [_Search(self, model, spec, place, warm) for place, spec in enumerate(specs)]
        return await gather_all(search.run() for search in searches)


@dataclass
class _Node:
    """A state of the search."""

    state: EpisodeState
    parent: "_Node | None" = None
    total: float = 0.0
    """Sum of the values over the visits."""
    visits: int = 0
    goes_on: bool = False
    """Whether the environment of ``state`` stands here, to be forked; not at the end of an episode, where it could not be
    forked, and where the policy has gone on from here already."""
    children: "dict[str, _Node]" = field(default_factory=dict)
    """By the action that leads there."""
    open: "list[_Node]" = field(default_factory=list)
    """Children of this state that may be chosen."""

    @property
    def value(self) -> float:
        return self.total / self.visits if self.visits else 0.0

    def count(self, total: float, visits: int) -> None:
        """Adds visits to this state and to those before it."""
        node: _Node | None = self
        while node is not None:
            node.total, node.visits, node = node.total + total, node.visits + visits, node.parent


@dataclass
class _Continuation:
    """What came of going on from a state."""

    ended: Trajectory | None = None
    """The complete episode; None where nothing was played."""
    action: str | None = None
    """The first one, empty where there was no room for one; None where the environment could not be forked."""
    after: EpisodeState | None = None
    """The state that this action led to."""
    goes_on: bool = False
    """Whether an environment stands there."""


@dataclass
class _Search:
    """The search of one start; continuations of a state are played at once, each in a slot and an environment of its own.

    An environment that stands at a state is never stepped: what is played is a fork of it.
    """

    strategy: ValueSearchStrategy
    model: ValueModel | None
    """None in the training phase."""
    spec: EpisodeSpec
    place: int
    context: RolloutContext
    left: int = 0
    """States that may still be chosen."""
    root: _Node | None = None
    node: _Node | None = None
    """The state that the policy goes on from now."""
    forked: list[Env[Any]] = field(default_factory=list)
    """Environments that stand at states."""
    expanded: list[tuple[_Node, list[Trajectory]]] = field(default_factory=list)
    """States that the policy went on from, with the complete episodes that came of it, in the training phase."""
    idle: list[Env[Any]] = field(default_factory=list)
    """Those of ``forked`` from which nothing is played any more."""
    best: tuple[float, Trajectory] | None = None
    """The complete episode with the highest predicted value; one that an infrastructure failure ended has -inf."""
    metrics: Counter[str] = field(default_factory=Counter)
    random: Random = field(default_factory=Random)
    forking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while an environment is forked, which only one may do at a time."""

    @property
    def episode(self) -> str:
        return self.context.episode(self.place)

    @property
    def by_outcome(self) -> bool:
        """Whether a state has the values of the episodes that went on from it, and not one that the model gives it."""
        return self.model is None or self.strategy.scores == "outcomes"

    async def run(self) -> Trajectory:
        """The episode that is kept."""
        samples = self.strategy.samples
        first = _CONTINUATIONS + (self.context.first + self.place) * samples
        self.random, self.left = Random(f"vm_mcts {self.spec.seed}"), self.strategy.iterations
        try:
            await run_rounds(replace(self.context, first=first), samples, self._open, self._next)
        finally:
            await close_quickly(self.forked, self.context.config.deadline_s)
        assert self.best is not None  # the first continuation, whatever came of it
        kept, states = self.best[1], {}
        if self.model is None:
            expansions = [
                Expansion(len(node.state.turns), node.value, tuple(episodes))
                for node, episodes in self.expanded
            ]
            states = {STATES: state_records(self.spec.task.question, expansions)}
        return replace(kept, id=self.episode, info=kept.info | states | {"strategy": dict(self.metrics)})

    async def _open(self, slot: int) -> _Continuation:
        """Begins the episode, in one slot; nothing is played where it ends at once."""
        if slot == 0:
            state = await self.context.open(self.spec, f"{self.episode}-0")
            self.root = _Node(state, goes_on=state.ended is None)
            return _Continuation(state.ended)
        return _Continuation()

    def _next(self, rounds: list[list[_Continuation]]) -> Round[_Continuation] | None:
        """Takes up what was played last, and goes on from the state that is looked at next, if there is one."""
        assert self.root is not None
        if self.node is not None:
            self._grow(self.node, rounds[-1])
        elif self.root.state.ended is not None:
            self._keep(self.root.state.ended, self._outcome_value(self.root.state.ended))
            return None
        while self.left > 0:
            self.left -= 1
            self.node = node = self._chosen(self.root)
            if node.goes_on:
                return partial(self._continue, node, self.metrics["search_episodes"])
            node.count(node.value, 1)
        return None

    def _chosen(self, root: _Node) -> _Node:
        """The state that is looked at next: by ``uct`` from the start to one without open children, ties at random."""
        node, how = root, {"exploration": self.strategy.exploration, "smoothing": self.strategy.smoothing}
        while node.open:
            scores = [uct(child.value, child.visits, node.visits, **how) for child in node.open]
            ties = [child for child, score in zip(node.open, scores, strict=True) if score == max(scores)]
            node = self.random.choice(ties)
        return node

    async def _continue(self, node: _Node, played: int, slot: int) -> _Continuation:
        """One continuation of ``node`` to its end, in a fork of its environment.

        Args:
            node: Where it begins.
            played: Episodes that were played before this round.
            slot: Which of the round.
        """
        if slot == 0:
            await self._close_idle()
        draft = replace(node.state.copy(), episode=f"{self.episode}-{slot}")
        env = await self._fork(draft)
        if env is None and (draft.ended is not None or node is not self.root or slot):
            return _Continuation(draft.ended)
        if env is not None:  # else the start cannot be forked and is played once, as it stands
            draft = replace(draft, spec=replace(self.spec, env=env))
        try:
            action = await self._turn(draft, played + slot)
            after, there = draft.copy(), None
            if env is not None and draft.ended is None:
                there = await self._fork(draft)
                self.forked += [there] if there is not None else []
                after = replace(after, spec=replace(self.spec, env=there or env))
            while draft.ended is None:
                await self._turn(draft, played + slot)
        finally:
            self.context.policy.release(draft.episode)
            if env is not None:
                await close_quickly([env], self.context.config.deadline_s)
        return _Continuation(draft.ended, action, after, there is not None)

    async def _fork(self, state: EpisodeState) -> Env[Any] | None:
        """A fork of the environment of ``state``; None where there can be none, also where a failure ended the episode."""
        async with self.forking:
            return next(iter(await fork(state, 1, self.context.config.deadline_s)), None)

    async def _close_idle(self) -> None:
        idle, self.idle = self.idle, []
        self.forked = [env for env in self.forked if all(env is not other for other in idle)]
        await close_quickly(idle, self.context.config.deadline_s)

    def _leave(self, state: EpisodeState) -> None:
        """Nothing is played from ``state`` any more; the environment of the start belongs to others."""
        self.idle += [env for env in self.forked if env is state.spec.env]

    async def _turn(self, state: EpisodeState, attempt: int) -> str:
        """One turn; the action, which is empty where there was no room for one."""
        completion = await sample(state, self.context.policy, self.context.config, attempt=attempt)
        if completion is None:
            return ""
        self.metrics["sampled_tokens"] += len(completion.ids)
        await act_on(completion, state, self.context.chat, self.context.config)
        return completion.text

    def _grow(self, node: _Node, continuations: Sequence[_Continuation]) -> None:
        """Takes up the continuations of ``node`` in the order of their slots; their first actions lead to its children."""
        node.goes_on = False
        self._leave(node.state)
        if self.model is None:
            ended = [one.ended for one in continuations if one.ended is not None and one.ended.valid]
            self.expanded.append((node, ended))
        for one in continuations:
            if one.ended is None:
                continue
            outcome = self._outcome_value(one.ended)
            self._keep(one.ended, outcome)
            if one.action is None or one.after is None:  # the environment failed, and the search ends
                self.left = 0
                return
            self.metrics["search_episodes"] += 1
            if self.by_outcome and not one.ended.valid:  # says nothing, as no reward of it is one
                self._leave(one.after)
            else:
                self._visit(node, one.action, one.after, one.goes_on, outcome)
        ranked = sorted(node.children.values(), key=lambda child: -child.value)
        node.open = ranked[: self.strategy.children]
        for child in ranked[self.strategy.children :]:
            self._leave(child.state)
        node.count(sum(child.total for child in ranked), sum(child.visits for child in ranked))

    def _visit(self, node: _Node, action: str, after: EpisodeState, goes_on: bool, outcome: float) -> None:
        """A first action makes a child, or visits the one that it has made before.

        Args:
            node: Where the action was taken.
            action: What was written.
            after: The state that it led to.
            goes_on: Whether an environment stands there.
            outcome: Value of the complete continuation that began with it.
        """
        known = node.children.get(action)
        if known is not None:
            known.total += outcome if self.by_outcome else known.value
            known.visits += 1
            self._leave(after)
        elif after.ended is None or after.ended.valid:
            value = outcome if self.by_outcome else self._value(after.spec.task.question, after.turns)
            node.children[action] = _Node(after, node, value, 1, goes_on)
            self.metrics["search_states"] += 1

    def _value(self, question: str, turns: Sequence[Turn]) -> float:
        """What the value model expects after ``turns``."""
        assert self.model is not None
        return self.model.values(state_pieces(question, turns))[-1]

    def _outcome_value(self, ended: Trajectory) -> float:
        """Of a complete episode: its reward in the training phase, else what the value model says of it."""
        if not ended.valid:
            return -math.inf
        return ended.reward if self.model is None else self._value(ended.task.question, ended.turns)

    def _keep(self, ended: Trajectory, value: float) -> None:
        """Takes up a complete episode, if its value is above those of all before."""
        if self.best is None or value > self.best[0]:
            self.best = value, ended

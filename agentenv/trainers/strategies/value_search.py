"""VM-MCTS, the second half of ReST-RL: a tree search over turns that is guided by a value model (arXiv:2508.19576).

A state is an episode between two turns, an action is a turn. It is meant for evaluations, where an episode is one start and
one trajectory (``evaluation.strategy``): the value model alone decides, and no reward of the environment is looked at.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

from agentenv.core.rollout import (
    EpisodeSpec,
    EpisodeState,
    RolloutConfig,
    act,
    capture,
    observe,
    release,
    rewind,
    sample,
)
from agentenv.core.snapshot import Snapshot
from agentenv.core.trajectory import Trajectory, Turn
from agentenv.errors import ConfigurationError
from agentenv.policies.value_model import ValueModel, load_value_model, state_pieces
from agentenv.trainers.strategies.rollout_context import RolloutContext, gather_slots

_MOST_SAMPLES = 1000  # each has a seed of its own, in the bits above those of its turn


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

    VM-MCTS of ReST-RL, 2025, arXiv:2508.19576, its test phase. Of the states that were reached, one is chosen by ``uct``
    from the start on, and the policy goes on from it to the end ``samples`` times. The distinct first actions make the next
    states. A new state has the value that the model predicts and one visit, an action that is repeated one visit more; sums
    and visits are added to those of the states before it. The best ``children`` of a state stay open. After ``iterations``
    the complete episode with the highest predicted value is kept. With one iteration this is the best of ``samples``.
    """

    value: str = "tiny"
    """The value model: a file that ``agentenv value`` wrote, or ``tiny``, which is shipped for the shipped policy and
    questions like those of its worlds."""
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

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """One trajectory for each start, in their order.

        Raises:
            CheckpointMismatch: there is no such value model.
        """
        model = load_value_model(self.value)
        warm = context.config.temperature or self.temperature
        config = context.config.model_copy(update={"temperature": warm})

        async def search(state: EpisodeState) -> Trajectory:
            if state.ended is not None:
                return state.ended
            return await _Search(self, model, context, config).run(state)

        return await gather_slots(specs, context, search)


@dataclass
class _Node:
    """A state of the search."""

    state: EpisodeState
    parent: "_Node | None" = None
    total: float = 0.0
    """Sum of the values over the visits."""
    visits: int = 0
    snapshot: Snapshot | None = None
    """Of the environment; None where the policy does not go on from here: at the end of an episode, where the environment
    could not be captured, and where that has been done."""
    children: "dict[str, _Node]" = field(default_factory=dict)
    """By the action that leads there."""
    open: "list[_Node]" = field(default_factory=list)
    """Those of them that may be chosen."""

    @property
    def value(self) -> float:
        return self.total / self.visits if self.visits else 0.0

    def count(self, total: float, visits: int) -> None:
        """Adds visits to this state and to those before it."""
        node: _Node | None = self
        while node is not None:
            node.total, node.visits, node = node.total + total, node.visits + visits, node.parent


@dataclass
class _Search:
    """The search of one start; its continuations are played one after the other, in its slot and its environment."""

    strategy: ValueSearchStrategy
    model: ValueModel
    context: RolloutContext
    config: RolloutConfig
    held: list[Snapshot] = field(default_factory=list)
    best: tuple[float, Trajectory] | None = None
    """The complete episode with the highest predicted value; one that an infrastructure failure ended has -inf."""
    figures: Counter[str] = field(default_factory=Counter)

    async def run(self, state: EpisodeState) -> Trajectory:
        """The episode that is kept."""
        random = Random(f"vm_mcts {state.spec.seed}")
        try:
            root = _Node(state.copy(), snapshot=await self._capture(state))
            if root.snapshot is None:
                await self._play_on(state)
            for _ in range(self.strategy.iterations if root.snapshot is not None else 0):
                node = self._chosen(root, random)
                if node.snapshot is None:
                    node.count(node.value, 1)
                elif not await self._expand(node, node.snapshot):
                    break
        finally:
            for snapshot in [*self.held]:
                await self._free(snapshot)
        assert self.best is not None  # the first continuation, whatever came of it
        kept = self.best[1]
        return replace(kept, info=kept.info | {"strategy": dict(self.figures)})

    def _chosen(self, root: _Node, random: Random) -> _Node:
        """The state that is looked at next: by ``uct`` from the start to one without open children, ties at random."""
        node, how = root, {"exploration": self.strategy.exploration, "smoothing": self.strategy.smoothing}
        while node.open:
            scores = [uct(child.value, child.visits, node.visits, **how) for child in node.open]
            ties = [child for child, score in zip(node.open, scores, strict=True) if score == max(scores)]
            node = random.choice(ties)
        return node

    async def _expand(self, node: _Node, snapshot: Snapshot) -> bool:
        """Plays on from ``node``; its first actions lead to its children. Whether the environment could be brought back."""
        node.snapshot = None
        for _ in range(self.strategy.samples):
            draft = node.state.copy()
            await rewind(draft, snapshot, self.config)
            if draft.ended is not None:
                self._keep(draft.ended)
                return False
            await self._continue(node, draft)
        await self._free(snapshot)
        ranked = sorted(node.children.values(), key=lambda child: -child.value)
        node.open = ranked[: self.strategy.children]
        for child in ranked[self.strategy.children :]:
            await self._free(child.snapshot)
        node.count(sum(child.total for child in ranked), sum(child.visits for child in ranked))
        return True

    async def _continue(self, node: _Node, draft: EpisodeState) -> None:
        """One continuation of ``node`` to its end; the first action makes a child, or visits the one that it made before."""
        attempt = self.figures["search_episodes"]
        action = await self._turn(draft, attempt)
        known = node.children.get(action)
        if known is not None:
            known.total, known.visits = known.total + known.value, known.visits + 1
        elif draft.ended is None or draft.ended.valid:
            value = self._value(draft.spec.task.question, draft.turns)
            child = _Node(draft.copy(), node, value, 1)
            child.snapshot = await self._capture(draft)
            node.children[action] = child
            self.figures["search_states"] += 1
        await self._play_on(draft)

    async def _play_on(self, state: EpisodeState) -> None:
        """The episode to its end."""
        attempt = self.figures["search_episodes"]
        while state.ended is None:
            await self._turn(state, attempt)
        self.figures["search_episodes"] += 1
        self._keep(state.ended)

    async def _turn(self, state: EpisodeState, attempt: int) -> str:
        """One turn; the action, which is empty where there was no room for one."""
        completion = await sample(state, self.context.policy, self.config, attempt=attempt)
        if completion is None:
            return ""
        self.figures["sampled_tokens"] += len(completion.ids)
        observation = await act(state, completion.text, self.config, completion.turn)
        if observation is not None:
            observe(state, self.context.chat, observation, self.config.context_tokens)
        return completion.text

    def _value(self, question: str, turns: Sequence[Turn]) -> float:
        return self.model.values(state_pieces(question, turns))[-1]

    def _keep(self, ended: Trajectory) -> None:
        """Takes up a complete episode, if its predicted value is above those of all before."""
        value = self._value(ended.task.question, ended.turns) if ended.valid else -math.inf
        if self.best is None or value > self.best[0]:
            self.best = value, ended

    async def _capture(self, state: EpisodeState) -> Snapshot | None:
        snapshot = await capture(state, self.config) if state.ended is None else None
        self.held += [snapshot] if snapshot is not None else []
        return snapshot

    async def _free(self, snapshot: Snapshot | None) -> None:
        if snapshot is not None:
            self.held = [other for other in self.held if other is not snapshot]
            await release(snapshot, self.config)

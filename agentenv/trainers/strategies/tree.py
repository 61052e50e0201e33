"""Trees: episodes fork at chosen turns, so that their leaves share a past that was played once (BranchGRPO, for turns)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal

from agentenv.core.concurrency.tasks import task_group
from agentenv.core.env import Env
from agentenv.core.env_lifecycle import close_envs, close_quickly, mask_trajectory
from agentenv.core.images import image_kwargs
from agentenv.core.rollout import (
    EpisodeSpec,
    EpisodeState,
    RolloutConfig,
    act,
    capture,
    fork,
    observe,
    release,
    rewind,
    sample,
)
from agentenv.core.snapshot import Snapshot
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.core.types import Completion
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.step_selection import without_turns
from agentenv.trainers.strategies.branch_windows import (
    BranchWindow,
    EntropyTemperatures,
    on_line,
    window_start,
)
from agentenv.trainers.strategies.expert_progress import expert_progress, expert_script, with_progress
from agentenv.trainers.strategies.rollback import has_failed
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.token_forks import (
    AlternativeToken,
    Lookahead,
    Schedule,
    alternatives_of,
    share_at,
    top_two_of,
)
from agentenv.trainers.strategies.tree_branches import (
    Branch,
    begin_turn,
    labelled,
    shares,
    trained_once,
)


@dataclass(frozen=True, kw_only=True)
class TreeStrategy:
    """Plays ``roots`` episodes and forks them at turns or at tokens, until the group has no slot left.

    BranchGRPO, Li et al. 2025, arXiv:2509.06040; forks at tokens: LATR, Xing et al. 2025, arXiv:2510.24302;
    windows: Dynamic-TreeRPO, 2025, arXiv:2509.23352.
    A group of n slots has at most n leaves. A fork at turn t continues in ``width`` branches from the state before t; no
    turn is executed twice. Each leaf is a trajectory of its whole path, with ``parent_id`` and ``fork_turn``. A turn that
    several leaves share is trained in one of them, as is the shared beginning of a turn that was forked at a token. The
    token at which a turn was forked is trained in none of them. The estimators ``tree`` and ``sibling`` expect this;
    ``shared`` may train each leaf as a whole instead. The remaining slots are divided among the branches when a fork is
    made, so that nothing depends on which branch is faster; slots that a branch has left when it ends early are not played.
    """

    roots: int = 2
    """Independent episodes at the start; with one, the first turn has nothing to be compared with."""
    fork_at: Literal["every_turn", "surprise", "failure", "token"] = "every_turn"
    """``every_turn`` but the first of each branch; a turn whose sampled tokens had a mean -log p above ``surprise``, an
    estimate of the entropy there; a turn in which a tool call failed; or a ``token`` that the policy nearly did not write,
    in any turn (LATR; the policy's engine must tell the two most likely tokens). The last three fork where the policy acted
    in a certain way, so that ``sibling`` is no longer exactly unbiased."""
    width: int = 2
    """Number of branches that leave a fork, including the one that was there before; always 2 at a token."""
    depth: int = 2
    """Largest number of forks on one path."""
    surprise: float = 1.0
    """Threshold in nats per token; see ``fork_at``."""
    min_probability: float = 0.15
    """Smallest probability of the second most likely token, for a fork at that token (LATR)."""
    max_gap: float = 0.25
    """Largest difference between the probabilities of the two most likely tokens (LATR)."""
    windows: tuple[int, ...] = (20, 30, 50)
    """Tokens from a fork at a token on, after each of which a branch is compared with the one that it left (LATR)."""
    max_suffix_match: float = 0.2
    """A branch is dropped if the end of one window, of more than this share of it, stands in the other window (LATR)."""
    max_rouge_l: float = 0.5
    """A branch is dropped if the ROUGE-L of both windows is above this (LATR)."""
    min_edit_distance: float = 0.0
    """A branch is dropped if the edit distance of both windows is below this share of the window; 0 drops none (LATR)."""
    max_similarity: float = 0.8
    """Where a turn ends before the first window does, a branch is dropped if the rest of its turn is at least so similar to
    the rest of the other one; a value above 1 drops none."""
    last_fork: int = 1024
    """Tokens that an episode has sampled after which it no longer forks at a token (LATR)."""
    share: Schedule = ((0, 1.0),)
    """Share of the slots that are played as trees, by (first step, share); the others play an episode each (LATR lets it
    fall: 1, .75, .5 and .25 from steps 0, 100, 200 and 300 on)."""
    shared: Literal["once", "each"] = "once"
    """``once`` trains a turn that several leaves share in one of them, ``each`` in every leaf, with that leaf's credit; then
    the token of a fork is trained as well (LATR)."""
    window: int = 0
    """Number of turns of the window, outside of which the tree neither branches nor is trained (Dynamic-TreeRPO); 0 is
    no window."""
    stride: int = 1
    """Turns by which the window then moves."""
    hold: int = 20
    """Training steps after which the window, or the range of pruned turns, moves."""
    turns: int = 4
    """Turns of a usual episode, over which the window moves. Give the median over episodes; it is not measured."""
    temperatures: tuple[float, float] = (1.2, 0.8)
    """Temperatures of the first and of the last turn of the window. What is sampled at another temperature than
    ``rollout.temperature`` carries ``context_mismatch``, because its log-probs are those of another distribution."""
    outside_temperature: float = 0.0
    """Temperature of the turns outside the window; 0 takes the most likely token."""
    entropies: tuple[float, ...] = ()
    """Entropies of the first and of the last turn of the window, in nats a token, to which the temperatures are led, from
    step to step and within .5 and 1.5; none named leaves the temperatures as they are."""
    entropy_rate: float = 0.1
    """How fast a temperature follows: it is multiplied by exp(rate (wanted - measured entropy)) after each step."""
    progress: bool = False
    """Whether it is measured, after each turn of the window, how likely the expert's next turn is (LayerTuning), for
    ``reward_shaping.progress``; it costs one more reading of the context by the policy."""
    keep: float = 1.0
    """Share of the leaves that are trained, the best and the worst in equal numbers; the others count in the statistics."""
    pruned: int = 0
    """Turns that are not trained, from one that moves by ``stride`` every ``hold`` steps within ``turns`` (BranchGRPO's
    pruning of depths by a sliding window); they count in the statistics. The estimator's ``skip_depths`` never move."""

    def __post_init__(self) -> None:
        if self.roots < 1 or self.width < 2 or self.depth < 0 or not 0 < self.keep <= 1:
            raise ConfigurationError(
                "a tree needs roots of at least 1, width of at least 2, depth of at least 0 and keep above 0 and at most "
                f"1, not {self.roots}, {self.width}, {self.depth} and {self.keep}"
            )
        numbers = (self.window, self.stride, self.hold - 1, self.turns - 1)
        if min(numbers) < 0 or min(*self.temperatures, self.outside_temperature) < 0:
            raise ConfigurationError(
                "a window of a tree needs window and stride of at least 0, hold and turns of at least 1 and temperatures of "
                f"at least 0, not {self.window}, {self.stride}, {self.hold}, {self.turns}, {list(self.temperatures)} and "
                f"{self.outside_temperature}"
            )
        if len(self.entropies) not in (0, 2) or ((self.entropies or self.progress) and not self.window):
            raise ConfigurationError(
                "entropies of a tree are none or two, and they and progress are those of a window, not "
                f"entropies={list(self.entropies)}, progress={self.progress} and window={self.window}"
            )
        if not 0 <= self.pruned < self.turns or (self.pruned and self.window):
            raise ConfigurationError(
                f"pruned={self.pruned} of a tree must be at least 0, below turns={self.turns}, or nothing of an episode of "
                f"so many turns is trained, and 0 with window={self.window}, which moves over the turns as well"
            )
        steps = [first for first, _ in self.share]
        if not steps or steps != sorted(set(steps)) or not all(0 <= share <= 1 for _, share in self.share):
            raise ConfigurationError(
                f"option 'share' of the strategy 'tree' must list shares within [0, 1] by their first steps in order, not "
                f"{[list(pair) for pair in self.share]}"
            )
        if any(window < 1 for window in self.windows):
            raise ConfigurationError(
                f"option 'windows' of the strategy 'tree' must hold numbers of at least 1, not {list(self.windows)}"
            )

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """The leaves, in the order of their slots."""
        if self.fork_at == "token" and top_two_of(context.policy) is None:
            raise ConfigurationError(
                f"fork_at='token' needs to know what else the policy might have written, and "
                f"{type(context.policy).__name__} does not tell: take hf:PATH, or fork at turns"
            )
        builder = _TreeBuilder(self, specs, context)
        grown = round(len(specs) * share_at(self.share, context.step))
        trees = shares(range(grown), self.roots) if grown else []
        alone = [range(slot, slot + 1) for slot in range(grown, len(specs))]
        try:
            async with task_group() as tasks:
                for slots in (*trees, *alone):
                    tasks.create_task(builder.root(slots, tasks))
        finally:
            await close_quickly(builder.forked, context.config.deadline_s)
        leaves = trained_once(builder.collect_leaves(), keep=self.keep, shared=self.shared)
        return [without_turns(leaf, self.pruned_at(context.step)) for leaf in leaves]

    def pruned_at(self, step: int) -> range:
        """The turns that are not trained in a training step; none unless some are pruned."""
        start = window_start(step, hold=self.hold, stride=self.stride, turns=self.turns, width=self.pruned)
        return range(start, start + self.pruned)

    def window_at(self, step: int, temperatures: tuple[float, ...] = ()) -> BranchWindow | None:
        """The window of a training step, at ``temperatures`` or its usual ones; None where the whole tree branches."""
        if not self.window:
            return None
        start = window_start(step, hold=self.hold, stride=self.stride, turns=self.turns, width=self.window)
        usual = on_line(self.temperatures, self.window)
        return BranchWindow(start, temperatures or usual, self.outside_temperature)

    def temperature_control(self) -> EntropyTemperatures | None:
        """What sets the temperatures of the window through a run; None where they stay as they are."""
        if not self.entropies:
            return None
        wanted = on_line(self.entropies, self.window)
        return EntropyTemperatures(on_line(self.temperatures, self.window), wanted, self.entropy_rate)

    @property
    def lookahead(self) -> Lookahead:
        """When a branch that left another at a token is dropped."""
        return Lookahead(
            self.windows,
            self.max_suffix_match,
            self.max_rouge_l,
            self.min_edit_distance,
            self.max_similarity,
        )


@dataclass
class _TreeBuilder:
    """The trees of one group while they grow."""

    strategy: TreeStrategy
    specs: Sequence[EpisodeSpec]
    context: RolloutContext
    leaves: dict[int, Trajectory] = field(default_factory=dict)
    forked: list[Env[Any]] = field(default_factory=list)
    """Environments of branches that are not over."""
    dropped: int = 0
    """Branches that were dropped."""
    wasted: int = 0
    """Tokens that these sampled."""
    progress: dict[str, dict[int, float]] = field(default_factory=dict)
    """Of each leaf, where it is measured."""

    @property
    def window(self) -> BranchWindow | None:
        """The window of this step."""
        return self.strategy.window_at(self.context.step, self.context.temperatures)

    def collect_leaves(self) -> list[Trajectory]:
        """The leaves in the order of their slots; metrics of the dropped branches are with the first."""
        leaves = [self.leaves[place] for place in sorted(self.leaves)]
        ceiling = self.specs[0].env.reward_ceiling
        first, *others = (
            with_progress(leaf, self.progress[leaf.id], leaves, ceiling) if leaf.id in self.progress else leaf
            for leaf in leaves
        )
        if not self.dropped:
            return [first, *others]
        metrics = first.info["strategy"]
        counted = {"sampled_tokens": metrics["sampled_tokens"] + self.wasted, "tree_dropped": self.dropped}
        return [replace(first, info=first.info | {"strategy": metrics | counted}), *others]

    async def root(self, slots: range, tasks: asyncio.TaskGroup) -> None:
        context, spec = self.context, self.specs[slots.start]
        async with context.slot(slots.start):
            episode = context.episode(slots.start)
            state = await context.open(spec, episode)
            script = await expert_script(state, context) if self.strategy.progress else ()
            await self._grow(Branch(state, slots, self.strategy.depth, script=script), tasks)

    async def _play_child(self, branch: Branch, tasks: asyncio.TaskGroup) -> None:
        """A branch that has just left another one, in a slot and an environment of its own."""
        async with self.context.slot(branch.slots.start):
            await self._grow(branch, tasks)
        env = branch.record.spec.env
        self.forked = [other for other in self.forked if other is not env]
        (flaw,) = await close_envs([env], self.context.config.deadline_s)
        if branch.slots.start in self.leaves:
            self.leaves[branch.slots.start] = mask_trajectory(self.leaves[branch.slots.start], flaw)

    async def _grow(self, branch: Branch, tasks: asyncio.TaskGroup) -> None:
        try:
            while branch.record.ended is None and not branch.dropped:
                await self._turn(branch, tasks)
        finally:
            self.context.policy.release(branch.record.episode)
        if branch.record.ended is not None:
            leaf = self.leaves[branch.slots.start] = labelled(branch.record.ended, branch)
            if branch.script:
                self.progress[leaf.id] = branch.progress

    async def _turn(self, branch: Branch, tasks: asyncio.TaskGroup) -> None:
        """One turn, with the fork of the state before it where there is to be one."""
        config, state, before = self.context.config, branch.record, branch.record.copy()
        room = config.model_copy(update={"turn_tokens": max(config.turn_tokens - len(branch.head), 1)})
        completion = await self._sample(branch, room)
        if completion is None or self._drops(branch, completion):
            return
        action = self.context.decode(branch.head) + completion.text
        if branch.may_fork and self._forks_at(branch, before, completion):
            await self._fork(branch, before, tasks)
        if branch.may_fork and self.strategy.fork_at == "token":
            await self._fork_at_tokens(branch, before, tasks, completion)
        branch.head = ()
        watched = branch.may_fork and self.strategy.fork_at == "failure"
        snapshot = await capture(state, config.deadline_s) if watched else None
        if state.ended is not None:
            return
        try:
            observation = await act(state, action, config)
            if observation is None:
                return
            if snapshot is not None and has_failed(state.turns[-1]):
                await self._fork_back(branch, before, snapshot, tasks)
            if state.ended is None:
                observe(state, self.context.chat, observation, config.context_tokens)
                await self._note_progress(branch)
        finally:
            if snapshot is not None:
                await release(snapshot, config.deadline_s)

    async def _sample(self, branch: Branch, room: RolloutConfig) -> Completion | None:
        """The next action; where there is a window, at its temperature, and trained within it alone."""
        state = branch.record
        window, turn = self.window, len(state.turns)
        if window is None:
            return await sample(state, self.context.policy, room)
        heat, written = window.temperature(turn), len(state.segments)
        completion = await sample(state, self.context.policy, room.model_copy(update={"temperature": heat}))
        state.segments[written:] = [
            replace(s, context_mismatch=heat != room.temperature, trained=turn in window)
            for s in state.segments[written:]
        ]
        if completion is not None and turn in window and self.strategy.entropies:
            logprobs = completion.logprobs
            branch.layers.append((turn - window.start, len(logprobs), -sum(logprobs)))
        return completion

    async def _note_progress(self, branch: Branch) -> None:
        """How likely the expert's next turn is after a turn of the window."""
        state, window = branch.record, self.window
        turn = len(state.turns) - 1
        if state.ended is not None or window is None or turn not in window:
            return
        found = await expert_progress(state, branch.script, self.context)
        if found is not None:
            branch.progress[turn] = found

    def _drops(self, branch: Branch, completion: Completion) -> bool:
        """Whether the branch is dropped for the turn that it has just written."""
        own = (*branch.head[-1:], *completion.ids)
        branch.dropped = bool(branch.alternative) and self.strategy.lookahead.drops(own, branch.alternative)
        branch.alternative = ()
        self.dropped += branch.dropped
        self.wasted += branch.dropped * len(completion.ids)
        return branch.dropped

    async def _fork_at_tokens(
        self, branch: Branch, before: EpisodeState, tasks: asyncio.TaskGroup, completion: Completion
    ) -> None:
        """Forks at the tokens of the turn just written that were nearly others, the first of them first, while it may."""
        top_two = top_two_of(self.context.policy)
        if top_two is None:
            return
        ids = [*before.ids, *completion.ids]
        temperature = self.context.config.temperature
        ranked = await top_two(ids, len(before.ids), temperature=temperature, **image_kwargs(before.images))
        limits = {"min_probability": self.strategy.min_probability, "max_gap": self.strategy.max_gap}
        written = sum(len(s.ids) for s in before.segments if s.kind is SegmentKind.POLICY)
        for alternative in alternatives_of(completion.ids, ranked, **limits):
            late = written + alternative.place >= self.strategy.last_fork
            if late or not branch.may_fork or branch.record.ended is not None:
                return
            await self._fork(branch, before, tasks, completion, alternative)

    def _forks_at(self, branch: Branch, before: EpisodeState, completion: Completion) -> bool:
        """Whether to fork before the environment has acted."""
        window, turn = self.window, len(before.turns)
        if window is not None and turn not in window:
            return False
        if self.strategy.fork_at == "every_turn":
            first = window is not None and branch.parent is None  # a root branches from its first turn on
            return first or turn > branch.turn  # that of its own fork had its branches
        surprise = -fmean(completion.logprobs) if completion.logprobs else 0.0
        return self.strategy.fork_at == "surprise" and surprise > self.strategy.surprise

    async def _fork(
        self,
        branch: Branch,
        before: EpisodeState,
        tasks: asyncio.TaskGroup,
        completion: Completion | None = None,
        alternative: AlternativeToken | None = None,
    ) -> None:
        """Branches from ``before``, whose state is the environment's present one, or from a token written since."""
        width = min(2 if alternative else self.strategy.width, len(branch.slots))
        envs = await fork(branch.record, width - 1, self.context.config.deadline_s)
        own, *others = shares(branch.slots, len(envs) + 1)
        branch.slots = own
        branch.forks -= bool(envs)
        branch.made += len(envs)
        self.forked += envs
        for slots, env in zip(others, envs, strict=True):
            spec = replace(self.specs[slots.start], env=env)
            state = replace(before.copy(), spec=spec, episode=self.context.episode(slots.start))
            child = Branch(state, slots, branch.forks, branch.record.episode, len(before.turns))
            child.script, child.progress = (
                branch.script,
                {turn: value for turn, value in branch.progress.items() if turn < len(before.turns)},
            )
            if alternative and completion:
                trained = self.strategy.shared == "each"
                begin_turn(child, branch.head, completion, alternative, trained=trained)
            tasks.create_task(self._play_child(child, tasks))
        await asyncio.sleep(0)  # they take their slots before this branch can leave its own

    async def _fork_back(
        self, branch: Branch, before: EpisodeState, snapshot: Snapshot, tasks: asyncio.TaskGroup
    ) -> None:
        """Branches from ``before``, whose state is in ``snapshot``; the environment comes back to where it is."""
        config, state = self.context.config, branch.record
        kept = await capture(state, config.deadline_s)
        if kept is None:
            return
        try:
            await rewind(state, snapshot, config.deadline_s)
            if state.ended is None:
                await self._fork(branch, before, tasks)
            if state.ended is None:
                await rewind(state, kept, config.deadline_s)
        finally:
            await release(kept, config.deadline_s)

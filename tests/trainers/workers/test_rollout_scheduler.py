"""Rollouts ahead of the learner: which groups a batch takes, how far ahead they begin, what an interruption leaves.

Covered: the rule of the batch by hand and, with hypothesis, that the bound holds and can always be kept; a slow group is
waited for only at the bound; episodes that span versions; state and its resumption; staleness 0 gives the records that the
groups give when they are played by themselves, and so does a worker pool; a step that fails can be begun again.
"""

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.core.chat import InlineFormat
from agentenv.core.concurrency.batching import DeterministicBatcher
from agentenv.core.env import AsyncEnv
from agentenv.core.env_lifecycle import make_envs
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Trajectory, to_record
from agentenv.core.types import Completion, EndReason, Info, Message, Observation, Sampling, Step, Task
from agentenv.errors import ConfigurationError, Fault, WorkerLost
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.hf import HFPolicy
from agentenv.policies.scripted import complete
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.strategies.branch_windows import EntropyTemperatures
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups
from agentenv.trainers.task_sampling.samplers import GatedSampler, Group, TaskDraw, get_sampler
from agentenv.trainers.task_sampling.training_tasks import TrainedEnvironment, TrainingTasks
from agentenv.trainers.workers.group_runner import GroupRunner
from agentenv.trainers.workers.inflight import InflightGroup, choose_batch
from agentenv.trainers.workers.recorded_policy import RecordedPolicy
from agentenv.trainers.workers.rollout_scheduler import RolloutScheduler
from agentenv.trainers.workers.worker_pool import Weights, WorkerPool

TOKENIZER = ByteTokenizer()
TASKS = [Task(f"t{i}", f"Count to {i}.", ("x",)) for i in range(9)]
QUESTIONS, SIZE, TURNS = 2, 2, 2


@dataclass
class Count:
    """Turns taken."""

    turns: int = 0


class Counting(AsyncEnv[Count]):
    """Ends after ``TURNS`` turns, whatever is said; the reward tells episodes of one task apart."""

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed)
        assert options is not None
        self.task: Task = options["task"]
        self.state = Count()
        if self.task.id == "broken":
            raise ConfigurationError("this task cannot be posed")
        return (Message("user", self.task.question),), {"task_id": options["task"].id} if options else {}

    async def astep(self, action: str) -> Step:
        self.state.turns += 1
        if self.state.turns < TURNS:
            return self.result((Message("tool", f"{self.state.turns}"),))
        return self.result((), reward=float(self.np_random.integers(2)), end=EndReason.ANSWERED)


class Doors:
    """A policy that says one word a turn; an episode that is held gets no answer until it is let go."""

    def __init__(self) -> None:
        self.tokenizer = TOKENIZER
        self.version = 0
        self.model = torch.nn.Linear(1, 1)
        self.held: set[tuple[str, int]] = set()  # start of the episode's id, turn
        self.asked: Counter[str] = Counter()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        assert episode is not None
        turn = TOKENIZER.decode(prompt_ids).count("word")
        self.asked[episode] += 1
        while any(episode.startswith(start) and turn == when for start, when in self.held):
            await asyncio.sleep(0.001)
        said = complete(f"word {sampling.seed % 97}", TOKENIZER, sampling)
        return Completion(said.ids, said.text, said.logprobs, said.finish, self.version)

    def release(self, episode: str) -> None: ...

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        return [0.0] * len(ids)


def config(staleness: int, **changes: Any) -> TrainConfig:
    rollout = {"questions": QUESTIONS, "group_size": SIZE, "deterministic": staleness == 0}
    ahead = {name: changes.pop(name, 0) for name in ("concurrent", "abort")} | {"staleness": staleness}
    values = {"asynchronous": ahead, "rollout": rollout | changes, "optimizer": {"steps": 5}}
    return parse_config(values, "test")


@contextmanager
def rollouts(
    policy: Any,
    staleness: int,
    tasks: Sequence[Task] = TASKS,
    sampler: str = "uniform",
    *,
    worker_pool: WorkerPool | None = None,
    temperatures: EntropyTemperatures | None = None,
    **changes: Any,
) -> Iterator[RolloutScheduler]:
    """The rollouts of ``policy`` over ``tasks``, closed at the end."""
    run, field = config(staleness, **changes), task_env(tasks)
    limits = RolloutConfig(context_tokens=200, turn_tokens=10, deterministic=run.rollout.deterministic)
    drawing = get_sampler(sampler)
    gate = drawing.gate if isinstance(drawing, GatedSampler) else None
    made = RolloutScheduler(
        worker_pool or group_runner(run, limits, policy, field, gate=gate),
        policy,
        drawing,
        tasks,
        run.rollout,
        seed=run.seed,
        steps=run.optimizer.steps,
        staleness=staleness,
        concurrent=run.concurrent_groups,
        abort=run.asynchronous.abort,
        temperatures=temperatures,
    )
    try:
        yield made
    finally:
        made.close()


def group_runner(
    run: TrainConfig, limits: RolloutConfig, policy: Any, field: Any, **options: Any
) -> GroupRunner:
    """Who plays the groups of ``run``."""
    chat, steps = InlineFormat(TOKENIZER), run.optimizer.steps
    training = TrainingTasks([TrainedEnvironment("env", 1.0, field, limits, {})])
    return GroupRunner(run.rollout, policy, chat, training, seed=run.seed, steps=steps, **options)


def task_env(tasks: Sequence[Task] = TASKS) -> Any:
    """Where ``Counting`` poses ``tasks``."""
    field = SimpleNamespace(source=SimpleNamespace(tasks=tasks), retriever=None, make_env=Counting)
    field.varied = lambda **options: field
    return field


class Nearby:
    """A cluster, and its only worker, in this process."""

    def __init__(self, policy: Any, staleness: int) -> None:
        run = config(staleness)
        limits = RolloutConfig(context_tokens=200, turn_tokens=10, deterministic=run.rollout.deterministic)
        self.player = group_runner(run, limits, policy, task_env())
        self.gone = False

    async def open(self) -> None:
        if self.gone:
            raise WorkerLost("the machine is gone")

    async def play(
        self, order: Mapping[str, Any], weights: Weights
    ) -> tuple[list[Trajectory], dict[str, Any]]:
        await self.open()
        self.load_weights(weights)
        inflight = InflightGroup.of(order, self.player.policy)
        deterministic_batcher = DeterministicBatcher() if self.player.rollout.deterministic else None
        return await self.player.play(inflight, deterministic_batcher), inflight.policy.state_dict()

    def load_weights(self, weights: Weights) -> None:
        self.player.policy.version = weights.version

    def end(self) -> None: ...

    def put(self, weights: Mapping[str, Any]) -> None: ...

    def worker(self) -> "Nearby":
        return self

    def close(self) -> None: ...


def records(batch: Any) -> list[dict[str, Any]]:
    return [to_record(trajectory) for group in batch.played for trajectory in group]


def steps_of(batch: Any) -> list[str]:
    """The step that each group of a batch was drawn for, from the ids of its episodes."""
    return [group[0].id.split("-")[1] for group in batch.trained]


def until(holds: Callable[[], bool]) -> None:
    """Waits for what is sure to come; fails after 10 s."""
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


class Outcome:
    """Stands for the task of a group."""

    def __init__(self, members: Sequence[Any]) -> None:
        self.over = False
        self.members = members

    def done(self) -> bool:
        return self.over

    def result(self) -> Sequence[Any]:
        return self.members


def drawn(
    step: int, start_version: int | None = None, *, complete: bool = False, valid: bool = True
) -> InflightGroup:
    made = InflightGroup(
        step=step,
        draw=TaskDraw(0, 2),
        group=Group(0, 0),
        slot=0,
        seeds=[],
        policy=RecordedPolicy(Doors()),
        start_version=start_version,
    )
    made.task = Outcome([SimpleNamespace(valid=valid)])  # type: ignore[assignment]
    made.task.over = complete  # type: ignore[union-attr]
    return made


def test_a_batch_is_what_is_complete_first_unless_something_would_grow_too_old() -> None:
    slow, waits = drawn(1, start_version=0), drawn(3)
    quick = [
        drawn(1, start_version=0, complete=True),
        drawn(2, start_version=1, complete=True),
        drawn(2, start_version=1, complete=True),
    ]
    inflight = [slow, quick[2], *quick[:2], waits]
    take = partial(choose_batch, inflight, staleness=2)
    assert take([2, 2, 2], version=1) == [quick[0], quick[2]]  # by their beginning, then by their draw
    assert take([4, 2, 2], version=1) is None  # three are complete
    assert take([2, 2, 2], version=2) is None  # slow would be 3 versions old in the next batch
    assert choose_batch(inflight, [2, 2, 2, 2], version=2, staleness=3) == [quick[0], quick[2]]
    assert choose_batch([*quick], [2], version=2, staleness=2) == quick[:2]
    assert choose_batch([], [0], version=0, staleness=0) == []


def test_the_learner_looks_ahead() -> None:
    """Three of one age, two of them slow, one place in each of three steps: leaving both would make one too old."""
    inflight = [
        drawn(1, start_version=0),
        drawn(2, start_version=0),
        drawn(3, start_version=0, complete=True),
        drawn(4, start_version=1, complete=True),
    ]
    assert choose_batch(inflight[:3], [1, 1, 1], version=0, staleness=2) == [inflight[2]]
    del inflight[2]
    assert choose_batch(inflight, [1, 1, 1], version=1, staleness=2) is None
    assert choose_batch(inflight, [1, 2, 1], version=1, staleness=2) == [inflight[2]]


def test_a_batch_of_failures_alone_waits_for_a_group_that_has_something() -> None:
    failed = [drawn(1, start_version=0, complete=True, valid=False) for _ in range(3)]
    slow, waits = drawn(2, start_version=0), drawn(2)
    take = partial(choose_batch, counts=[2, 3], version=0, staleness=1)
    assert take([*failed, slow, waits]) is None
    assert take([*failed, drawn(2, start_version=0, complete=True), waits])[1].failed is False  # type: ignore[index]
    assert take([*failed, waits]) is None  # it has no place yet
    assert take(failed) == failed[:2]  # everything failed
    good = [drawn(1, start_version=0, complete=True) for _ in range(3)]
    # Two are due and one is left.
    assert choose_batch([*failed[:1], *good], [2, 2], version=1, staleness=1) is None
    assert choose_batch([*failed[:1], *good[:2]], [2, 1], version=1, staleness=1) == good[:2]


@given(
    staleness=st.integers(0, 4),
    counts=st.lists(st.integers(0, 4), min_size=6, max_size=6),
    slots=st.integers(1, 12),
    seed=st.integers(0, 1 << 16),
    failing=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
)
@settings(max_examples=60, deadline=None)
def test_the_bound_holds_and_can_always_be_kept(
    staleness: int, counts: list[int], slots: int, seed: int, failing: float
) -> None:
    """Groups end in any order, well or not; every batch can be made once all that run have ended, none holds an older one.

    A batch has something to train in it unless all that are drawn have failed.
    """
    rng = random.Random(seed)
    inflight: list[InflightGroup] = []
    opened = 0
    for step in range(1, len(counts) + 1):
        version = step - 1
        while opened < min(step + staleness, len(counts)):
            opened += 1
            inflight += [drawn(opened, valid=rng.random() >= failing) for _ in range(counts[opened - 1])]
        while (
            batch := choose_batch(inflight, counts[version:opened], version=version, staleness=staleness)
        ) is None:
            running = [p for p in inflight if p.start_version is not None and p.members is None]
            for waiting in [p for p in inflight if p.start_version is None][: slots - len(running)]:
                waiting.start_version = version
                running.append(waiting)
            rng.choice(running).task.over = True  # type: ignore[union-attr]
        assert len(batch) == counts[version]
        assert all(version - (p.start_version or 0) <= staleness for p in batch if not p.failed)
        assert not batch or any(not p.failed for p in batch) or all(p.failed for p in inflight)
        inflight = [p for p in inflight if p not in batch]
    assert not inflight


def test_the_learner_waits_for_a_slow_group_only_at_the_bound() -> None:
    """Of four groups under way the first is held: two batches are made without it, the third has it, of three versions."""
    policy = Doors()
    policy.held = {("step-1-0", 1), ("step-1-1", 1)}
    with rollouts(policy, 2, concurrent=4) as ahead:
        first, policy.version = ahead.batch(1), 1
        assert steps_of(first) == ["1", "2"]
        second, policy.version = ahead.batch(2), 2
        assert steps_of(second) == ["2", "3"]
        assert second.metrics["staleness_max"] <= 1
        threading.Timer(0.05, policy.held.clear).start()
        third = ahead.batch(3)
        assert steps_of(third)[0] == "1"
        late = third.trained[0]
        assert [t.id for t in late] == ["step-1-0", "step-1-1"]
        for member in late:
            versions = member.policy_version[member.loss_mask]
            assert versions.min() == 0
            assert versions.max() == 2
            assert (np.diff(versions) >= 0).all()
        assert third.metrics["spanning_episodes"] >= 2
        assert third.metrics["staleness_max"] == 2


def test_groups_begin_no_further_ahead_than_the_bound_and_no_more_at_once_than_wanted() -> None:
    policy = Doors()
    policy.held = {("step-1-2", 0), ("step-2", 0), ("step-3", 0)}
    with rollouts(policy, 1, concurrent=2) as ahead, ThreadPoolExecutor(1) as learner:
        batch = learner.submit(ahead.batch, 1)
        until(lambda: len(policy.asked) == 3 * SIZE)  # two groups at once, one of which has ended
        # 3 is for version 1.
        assert {name.rpartition("-")[0] for name in policy.asked} == {"step-1", "step-2"}
        assert not batch.done()
        policy.held.clear()
        assert len(batch.result(10).trained) == QUESTIONS


class Crowd(Doors):
    """Doors that count the episodes between their first answer and their end."""

    def __init__(self) -> None:
        super().__init__()
        self.live: set[str] = set()
        self.most = 0

    async def generate(self, *args: Any, episode: str | None = None, **kwargs: Any) -> Completion:
        assert episode is not None
        self.live.add(episode)
        self.most = max(self.most, len(self.live))
        return await super().generate(*args, episode=episode, **kwargs)

    def release(self, episode: str) -> None:
        self.live.discard(episode)


def test_a_slow_episode_keeps_one_worker_and_no_other() -> None:
    """Of two workers one is held by the first episode; on the other one the groups behind it are played and trained."""
    policy = Crowd()
    policy.held = {("step-1-0", 0)}
    with rollouts(policy, 2, workers=2) as ahead:
        first, policy.version = ahead.batch(1), 1
        assert steps_of(first) == ["1", "2"]
        assert "step-1-0" in policy.live
        policy.held.clear()
        until(lambda: "step-1-0" not in policy.live)
        second, policy.version = ahead.batch(2), 2
        third = ahead.batch(3)
    assert "step-1-0" in [t.id for group in (*second.trained, *third.trained) for t in group]
    assert policy.most == 2


def test_a_group_begins_with_its_first_worker() -> None:
    """The only worker is held by the first group of the second step; the group behind it is not any version old."""
    policy = Crowd()
    policy.held = {("step-2-0", 0)}
    with rollouts(policy, 1, workers=1) as ahead:
        assert steps_of(ahead.batch(1)) == ["1", "1"]
        until(lambda: policy.live == {"step-2-0"})
        assert [inflight["start_version"] for inflight in ahead.state_dict()["inflight"]] == [0, None]
    assert policy.most == 1


def test_workers_are_shared_where_batches_are_not_formed_by_index() -> None:
    with pytest.raises(ConfigurationError, match=r"rollout\.workers.*\b0\b"):
        config(0, workers=2)
    run = config(2, workers=3)
    assert run.concurrent_groups == 3 * QUESTIONS * SIZE  # no bound of their own
    assert config(2, workers=3, concurrent=5).concurrent_groups == 5
    assert config(2).concurrent_groups == 2 * QUESTIONS


def test_an_interrupted_run_asks_for_nothing_again() -> None:
    """Two groups under way have answered one turn; rollouts begun from their state ask for the second turn only."""
    policy = Doors()
    policy.held = {("step-2", 1), ("step-3", 1)}
    with rollouts(policy, 2, concurrent=6) as ahead:
        ahead.batch(1)
        until(lambda: sum(policy.asked.values()) == 6 * SIZE * TURNS)  # two groups have ended, four are held
        state = ahead.state_dict()
    assert [len(inflight["answers"]) for inflight in state["inflight"]] == [SIZE] * 4
    again = Doors()
    again.version = 1
    with rollouts(again, 2, concurrent=6) as resumed:
        resumed.load_state_dict(state)
        batch = resumed.batch(2)
        resumed.batch(3)
    assert steps_of(batch) == ["2", "2"]
    for member in chain.from_iterable(batch.trained):
        versions = member.policy_version[member.loss_mask]
        assert (versions[0], versions[-1]) == (0, 1)
        assert again.asked[member.id] == 1
    undisturbed = Doors()
    with rollouts(undisturbed, 2, concurrent=6) as whole:
        whole.batch(1)
        undisturbed.version = 1
        same = whole.batch(2)
    assert [[t.ids.tolist() for t in g] for g in same.trained] == [
        [t.ids.tolist() for t in g] for g in batch.trained
    ]


class Late(Doors):
    """The first weights answer nobody else before the first group is in its second turn."""

    first = ("step-1-0", "step-1-1")

    async def generate(self, *args: Any, episode: str | None = None, **kwargs: Any) -> Completion:
        while (
            self.version == 0
            and episode not in self.first
            and any(self.asked[name] < TURNS for name in self.first)
        ):
            await asyncio.sleep(0.001)
        return await super().generate(*args, episode=episode, **kwargs)


def test_groups_that_a_batch_leaves_are_stopped_and_go_on_from_what_they_have() -> None:
    """APRIL in synchronous steps. Four groups are under way at once; the first is held in its second turn.

    Later steps are held, so that the second batch is what the first one has left, however fast the machine is.
    """
    policy, later = Late(), {("step-3", 0), ("step-4", 0)}
    policy.held = {(name, 1) for name in policy.first} | later
    with rollouts(policy, 2, concurrent=4, abort=True) as made:
        first = made.batch(1)
        assert first.metrics["aborted_groups"] >= 1
        asked = policy.asked.copy()
        time.sleep(0.05)
        assert policy.asked == asked  # nothing is sampled while the learner learns
        saved = made.state_dict()
        policy.version, policy.held = 1, later
        second = made.batch(2)
        late = [t for t in chain.from_iterable(second.played) if t.id in ("step-1-0", "step-1-1")]
        assert [t.valid for t in late] == [True, True]
        for trajectory in late:
            # Its first turn is not sampled again, the held one is.
            assert policy.asked[trajectory.id] == TURNS + 1
            versions = [
                set(trajectory.policy_version[trajectory.turn_index == turn]) for turn in range(TURNS)
            ]
            assert [max(mine) for mine in versions] == [0, 1]
        again = Late()
        again.version, again.held = 1, later
        with rollouts(again, 2, concurrent=4, abort=True) as resumed:
            resumed.load_state_dict(saved)
            played = chain.from_iterable(resumed.batch(2).played)
            same = [to_record(t) for t in played if t.id in ("step-1-0", "step-1-1")]
            assert same == [to_record(t) for t in late]


def groups_of(asked: Counter[str]) -> set[tuple[str, int]]:
    """Step and place of the groups of which some episode has asked the policy."""
    places = (name.removeprefix("step-").split("-") for name in asked)
    return {(step, int(slot) // SIZE) for step, slot, *_ in places}


def test_a_step_that_stops_groups_begins_no_more_than_it_may() -> None:
    """Four of six groups begin, and the first step trains two.

    The first pair waits, and so does one of the second pair for a while. Nobody takes the place of the other one.
    """

    class Slow(Doors):
        async def generate(self, *args: Any, episode: str | None = None, **kwargs: Any) -> Completion:
            if str(episode) in ("step-2-2", "step-2-3"):
                await asyncio.sleep(0.05)
            return await super().generate(*args, episode=episode, **kwargs)

    policy, four = Slow(), {("1", 0), ("1", 1), ("2", 0), ("2", 1)}
    policy.held = {(f"step-1-{slot}", 1) for slot in range(2 * SIZE)}
    with rollouts(policy, 2, concurrent=4, abort=True) as made:
        assert steps_of(made.batch(1)) == ["2", "2"]
        assert groups_of(policy.asked) == four
        # The two that were stopped go on first, and two of the four that wait begin.
        policy.version, policy.held = 1, {("step-3", 0), ("step-4", 0)}
        assert steps_of(made.batch(2)) == ["1", "1"]
        assert len(groups_of(policy.asked) - four) <= 2


def test_a_step_that_stops_groups_begins_as_many_as_it_trains() -> None:
    with rollouts(Doors(), 2, concurrent=1, abort=True) as made:
        assert len(made.batch(1).trained) == QUESTIONS


def test_a_step_that_stops_groups_begins_others_where_those_that_it_may_begin_have_failed() -> None:
    class Partly(Doors):
        async def generate(self, *args: Any, episode: str | None = None, **kwargs: Any) -> Completion:
            if str(episode).startswith(("step-1-", "step-2-")):
                raise OSError("the engine is gone")
            return await super().generate(*args, episode=episode, **kwargs)

    with rollouts(Partly(), 2, concurrent=4, abort=True) as made:
        played = chain.from_iterable(made.batch(1).played)
        assert any(trajectory.valid for trajectory in played)


class Deaf:
    """Plays groups; the first one of the first step does not end when it is cancelled, until it is let go."""

    def __init__(self, runner: Any) -> None:
        self.runner, self.let_go, self.begun = runner, False, 0

    async def play(
        self, inflight: InflightGroup, deterministic_batcher: DeterministicBatcher | None
    ) -> list[Trajectory]:
        if (inflight.step, inflight.slot) == (1, 0):
            self.begun += 1
            while not self.let_go:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.001)
            return []
        played: list[Trajectory] = await self.runner.play(inflight, deterministic_batcher)
        return played


def test_a_group_that_does_not_stop_is_not_begun_a_second_time() -> None:
    """The step ends as a fault instead, and another process can begin it again."""
    with rollouts(Doors(), 2, concurrent=4, abort=True, deadline_s=0.05) as made:
        made._runner = deaf = Deaf(made._runner)  # type: ignore[assignment]
        try:
            with pytest.raises(Fault, match=r"\b0\.05 s\b.*\bstep 1\b"):
                made.batch(1)
            assert deaf.begun == 1
            state = made.state_dict()
        finally:
            deaf.let_go = True
    with rollouts(Doors(), 2, concurrent=4, abort=True) as resumed:
        resumed.load_state_dict(state)
        assert len(resumed.batch(1).trained) == QUESTIONS


def test_an_error_of_a_group_ends_the_run_and_faults_of_all_do() -> None:
    with (
        rollouts(Doors(), 1, [Task("broken", "?", ())]) as ahead,
        pytest.raises(ConfigurationError, match="posed"),
    ):
        ahead.batch(1)

    class Down(Doors):
        async def generate(self, *_: Any, **__: Any) -> Completion:
            raise OSError("the engine is gone")

    with (
        rollouts(Down(), 1) as ahead,
        pytest.raises(Fault, match=r"(?s)step 1\b.*engine is gone"),
    ):
        ahead.batch(1)


def test_groups_that_fail_do_not_end_a_run_whose_other_groups_are_fine() -> None:
    """Both groups of the first step fail at once; those of the second are under way."""

    class Half(Doors):
        async def generate(self, *args: Any, episode: str | None = None, **kwargs: Any) -> Completion:
            if str(episode).startswith("step-1-"):
                raise OSError("the engine is gone")
            await asyncio.sleep(0.02)
            return await super().generate(*args, episode=episode, **kwargs)

    policy = Half()
    with rollouts(policy, 1, concurrent=4) as ahead:
        first, policy.version = ahead.batch(1), 1
        second = ahead.batch(2)
    for batch in (first, second):
        assert sum(t.valid for group in batch.played for t in group) == SIZE
        assert len(batch.played) == QUESTIONS


def test_later_waves_are_played_at_once() -> None:
    """DAPO's second round stands in for groups of zero variance; its members join the batch within its budget."""
    with rollouts(Doors(), 1, sampler="dapo", questions=4) as ahead:
        batch = ahead.batch(1)
    assert batch.metrics["rollouts"] + batch.metrics["unspent_rollouts"] == 4 * SIZE
    assert batch.metrics["rounds"] > 1


@pytest.mark.parametrize("strategy", ["plain", "reflect_retry"])
def test_without_staleness_records_are_those_of_the_groups_played_by_themselves(
    strategy: str, qwen: Callable[..., Any]
) -> None:
    """The reference draws, seeds and plays as the trainer did before there were rollouts ahead."""
    torch.set_num_threads(1)
    policy = HFPolicy(qwen(), TOKENIZER)
    with rollouts(policy, 0, strategy=strategy) as made:
        for step in (1, 2):
            expected = reference(policy, step, strategy)
            batch = made.batch(step)
            assert [to_record(t) for g in batch.played for t in g] == expected
            assert not {"staleness_max", "groups_under_way"} & set(batch.metrics)
            assert made.state_dict()["inflight"] == []
            policy.set_weights()


def test_a_group_whose_environments_are_made_late_is_in_the_first_batch_all_the_same(
    qwen: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers differ in the last digits with who shares a batch, so that a busy machine would change a run."""
    torch.set_num_threads(1)
    policy, sizes, asked = HFPolicy(qwen(), TOKENIZER), list[int](), list[int]()
    run = policy._run

    def counted(requests: Any) -> Any:
        sizes.append(len(requests))
        return run(requests)

    async def late(makes: Any, seconds: float) -> Any:
        asked.append(len(makes))
        await asyncio.sleep(0.2 * (len(asked) - 1))
        return await make_envs(makes, seconds)

    policy._run = counted  # type: ignore[method-assign]
    monkeypatch.setattr("agentenv.trainers.workers.group_runner.make_envs", late)
    with rollouts(policy, 0) as rolled:
        rolled.batch(1)
    assert asked == [SIZE] * QUESTIONS
    assert sizes[0] == QUESTIONS * SIZE


def test_temperatures_follow_the_entropy_of_the_step_before_also_after_a_resume() -> None:
    """Every token has log-prob 0 and .5 nats are wanted, so each step multiplies by exp(.1 times .5) = 1.051271."""

    class Heated(Doors):
        async def generate(
            self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
        ) -> Completion:
            self.asked[f"{sampling.temperature:.4f}"] += 1
            return await super().generate(prompt_ids, sampling, episode=episode)

    options = {"window": 1, "temperatures": [1.2, 1.2], "entropies": [0.5, 0.5], "roots": 1}
    tree: dict[str, Any] = {"strategy": "tree", "strategy_options": options | {"outside_temperature": 0.7}}

    def control() -> EntropyTemperatures:
        return EntropyTemperatures((1.2,), (0.5,), 0.1)

    policy = Heated()
    with rollouts(policy, 0, temperatures=control(), **tree) as made:
        metrics = made.batch(1).metrics
        assert metrics["tree_entropy_0"] == 0.0
        assert metrics["tree_temperature_0"] == pytest.approx(1.2 * 1.051271, abs=1e-6)
        assert {heat for heat in policy.asked if "." in heat} == {"1.2000", "0.7000"}
        state = made.state_dict()
    later = Heated()
    with rollouts(later, 0, temperatures=control(), **tree) as made:
        made.load_state_dict(state)
        made.batch(2)
        assert {heat for heat in later.asked if "." in heat} == {"1.2615", "0.7000"}
    with rollouts(Doors(), 0) as made:
        assert "temperatures" not in made.state_dict()


def reference(policy: HFPolicy, step: int, strategy: str) -> list[dict[str, Any]]:
    import uuid

    rng = np.random.default_rng([0, step])
    places = rng.choice(np.arange(len(TASKS)), size=QUESTIONS, replace=False)
    groups = []
    for i, place in enumerate(places):
        group_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"0/{step}/{i * SIZE}"))
        seeds = [int(rng.integers(1 << 31)) for _ in range(SIZE)]
        groups.append([EpisodeSpec(Counting(), TASKS[place], seed, group_id) for seed in seeds])
    limits = RolloutConfig(context_tokens=200, turn_tokens=10)
    context = RolloutContext(policy, InlineFormat(TOKENIZER), limits, TOKENIZER.decode, name=f"step-{step}")
    played = asyncio.run(play_groups(groups, get_strategy(strategy), context))
    return [to_record(trajectory) for group in played for trajectory in group]


def test_what_a_crew_plays_are_the_records_of_this_process() -> None:
    mine, elsewhere = Doors(), Doors()
    worker_pool = WorkerPool(Nearby(elsewhere, 0), 1, start_s=30, deadline_s=30)
    with rollouts(Doors(), 0, worker_pool=worker_pool) as apart, rollouts(mine, 0) as here:
        for step in (1, 2, 3):
            played, expected = apart.batch(step), here.batch(step)
            assert records(played) == records(expected)
            assert played.metrics.items() >= {"workers": 1, "lost_workers": 0, "lost_episodes": 0}.items()
            mine.version = apart._policy.version = step
            apart.sync_weights()
    assert mine.asked == elsewhere.asked
    assert elsewhere.version == 3


def test_ahead_of_the_learner_an_episode_of_a_crew_is_that_of_this_process() -> None:
    """Which groups are complete first depends on time; what an episode is does not."""
    worker_pool = WorkerPool(Nearby(Doors(), 1), 1, start_s=30, deadline_s=30)
    played: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    with rollouts(Doors(), 1, worker_pool=worker_pool) as apart, rollouts(Doors(), 1) as here:
        for step in (1, 2, 3):
            played |= {record["id"]: record for record in records(apart.batch(step))}
            expected |= {record["id"]: record for record in records(here.batch(step))}
    both = played.keys() & expected.keys()
    assert len(both) >= 2 * QUESTIONS * SIZE  # of three steps; at most those of one more are ahead
    assert [played[name] for name in both] == [expected[name] for name in both]


def test_where_nobody_is_left_the_step_can_be_begun_again() -> None:
    nearby = Nearby(Doors(), 0)
    with rollouts(Doors(), 0, worker_pool=WorkerPool(nearby, 1, start_s=0.2, deadline_s=30)) as apart:
        apart.batch(1)
        nearby.gone = True
        with pytest.raises(Fault, match=r"\b0\.2\b.*the machine is gone"):
            apart.batch(2)
        state = apart.state_dict()
    with rollouts(Doors(), 0) as resumed, rollouts(Doors(), 0) as undisturbed:
        resumed.load_state_dict(state)
        undisturbed.batch(1)
        assert records(resumed.batch(2)) == records(undisturbed.batch(2))


@pytest.mark.parametrize("sampler", ["uniform", "dapo", "dots"])
def test_a_step_whose_episodes_all_fail_can_be_begun_again(sampler: str) -> None:
    """What the sampler learned and what was drawn is as before the step, whatever round it failed in."""

    class Down(Doors):
        async def generate(self, *given: Any, **named: Any) -> Completion:
            if self.version:
                raise OSError("the engine is gone")
            return await super().generate(*given, **named)

    down = Down()
    with rollouts(down, 0, sampler=sampler) as failing:
        failing.batch(1)
        before, down.version = failing._sampler.state_dict(), 1
        with pytest.raises(Fault, match=r"\b2\b"):
            failing.batch(2)
        after = failing._sampler.state_dict()
        for state in (before, after):
            state.pop("ahead", None)  # of the tasks that dots draws for several steps this one's are drawn
        assert after == before
        state = failing.state_dict()
    with (
        rollouts(Doors(), 0, sampler=sampler) as resumed,
        rollouts(Doors(), 0, sampler=sampler) as undisturbed,
    ):
        resumed._sampler.load_state_dict(before)
        resumed.load_state_dict(state)
        undisturbed.batch(1)
        assert records(resumed.batch(2)) == records(undisturbed.batch(2))

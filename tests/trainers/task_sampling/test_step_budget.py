"""The budget of a step and the loop over its rounds, for every sampler in the registry: made-up episodes, no policy."""

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.core.trajectory import Origin, Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.trainers.credit.estimators import ESTIMATORS, get_estimator
from agentenv.trainers.learner.learner import rows_of
from agentenv.trainers.loop.metrics import rollout_metrics
from agentenv.trainers.task_sampling.samplers import (
    SAMPLERS,
    Batch,
    Group,
    StatelessSampler,
    StepBudget,
    TaskDraw,
    TaskSampler,
    collect,
    get_sampler,
)
from agentenv.trainers.task_sampling.step_budget import effective_group_count

DOCS = Path(__file__).resolve().parents[3] / "docs" / "sampling.md"
TASKS = [Task(f"t{i}", f"Who made thing {i}?", ("x",), data={"hops": 1 + i % 3}) for i in range(12)]
Chance = Callable[[int], float]
each_sampler = pytest.mark.parametrize("name", SAMPLERS)


def made(name: str) -> TaskSampler:
    """A sampler of the registry with options under which it does what it is for."""
    options: dict[str, dict[str, Any]] = {"curriculum": {"hops": [[0, 2]], "max_turns": [[1, 2]]}}
    return get_sampler(name, options.get(name))


def played(task: int, reward: float, *, valid: bool = True) -> Trajectory:
    """An episode of two sampled tokens behind a prompt that names its task."""
    segments = (
        Segment(SegmentKind.PROMPT, (task,), 0),
        Segment(SegmentKind.POLICY, (5, 6), 0, logprobs=(-0.25, -0.5), version=1),
    )
    end = EndReason.ANSWERED if valid else EndReason.ENV_FAULT
    turns = (Turn("a", reward=reward),)
    return Trajectory(TASKS[task], segments, turns, reward, end, valid=valid, id=f"{task}")


def step_of(
    sampler: TaskSampler, step: int, chance: Chance = lambda task: 0.5, *, questions: int = 4, size: int = 4
) -> tuple[Batch, list[list[TaskDraw]]]:
    """One step in which a task succeeds with its chance; below 0 is an infrastructure failure. Also every round's draws."""
    step_budget, rounds = StepBudget(step, TASKS, np.random.default_rng([0, step]), questions, size), []

    def play(
        draws: Sequence[TaskDraw], groups: Sequence[Group], step_budget: StepBudget
    ) -> list[list[Trajectory]]:
        rounds.append(list(draws))
        return [
            [
                played(
                    draw.task,
                    float(step_budget.rng.random() < chance(draw.task)),
                    valid=chance(draw.task) >= 0,
                )
                for _ in range(draw.rollouts)
            ]
            for draw in draws
        ]

    return collect(sampler, step_budget, play), rounds


def own_members(group: list[Trajectory]) -> list[Trajectory]:
    """Those that were played; a sampler may have added replayed ones."""
    return [member for member in group if member.origin is not Origin.REPLAY]


def fingerprint(batch: Batch) -> list[list[tuple[str, float]]]:
    return [[(t.task.id, t.reward) for t in group] for group in (*batch.played, *batch.trained)]


@each_sampler
@settings(max_examples=15, deadline=None)
@given(
    chances=st.lists(st.sampled_from([-1.0, 0.0, 0.3, 0.5, 1.0]), min_size=12, max_size=12),
    questions=st.integers(1, 14),
    size=st.integers(2, 6),
)
def test_the_budget_holds_and_what_is_trained_was_played(
    name: str, chances: list[float], questions: int, size: int
) -> None:
    sampler = made(name)
    for step in (1, 2, 3):
        batch, rounds = step_of(sampler, step, chances.__getitem__, questions=questions, size=size)
        asked = sum(draw.rollouts for wave in rounds for draw in wave)
        assert 0 < asked <= questions * size
        assert batch.metrics["rollouts"] == asked == sum(map(len, batch.played))
        assert batch.metrics["unspent_rollouts"] == questions * size - asked
        assert batch.metrics["rounds"] == len(rounds)
        own = len(batch.trained) - int(batch.metrics["replayed_groups"])
        assert all(own_members(group) in batch.played for group in batch.trained[:own])
        assert batch.metrics["dropped_groups"] == len(batch.played) - own
        assert all(len({t.task.id for t in group}) == 1 for group in batch.played)


@each_sampler
def test_a_saved_state_goes_on_as_if_nothing_had_happened(name: str) -> None:
    """What is saved is plain: it survives JSON, floats to the bit."""
    whole, first, second = made(name), made(name), made(name)
    for step in (1, 2):
        step_of(whole, step, lambda task: task / 12)
        step_of(first, step, lambda task: task / 12)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for step in (3, 4):
        expected, _ = step_of(whole, step, lambda task: task / 12)
        resumed, _ = step_of(second, step, lambda task: task / 12)
        assert fingerprint(resumed) == fingerprint(expected)
        assert resumed.metrics == expected.metrics
    assert json.dumps(second.state_dict()) == json.dumps(whole.state_dict())


@each_sampler
def test_an_empty_state_is_the_beginning(name: str) -> None:
    new, emptied = made(name), made(name)
    emptied.load_state_dict({})
    assert fingerprint(step_of(emptied, 1)[0]) == fingerprint(step_of(new, 1)[0])


def test_uniform_draws_are_those_of_earlier_runs() -> None:
    """One choice of tasks, then the seeds of all episodes, from one generator of run and step."""
    rng = np.random.default_rng([7, 3])
    tasks = rng.choice(12, size=5, replace=False).tolist()
    seeds = [int(rng.integers(1 << 31)) for _ in range(20)]
    step_budget = StepBudget(3, TASKS, np.random.default_rng([7, 3]), 5, 4)
    drawn: list[int] = []

    def play(
        draws: Sequence[TaskDraw], groups: Sequence[Group], step_budget: StepBudget
    ) -> list[list[Trajectory]]:
        drawn.extend(int(step_budget.rng.integers(1 << 31)) for draw in draws for _ in range(draw.rollouts))
        assert [group.first for group in groups] == [0, 4, 8, 12, 16]
        return [[played(draw.task, 0.0)] * draw.rollouts for draw in draws]

    batch = collect(get_sampler("uniform"), step_budget, play)
    assert [group[0].task.id for group in batch.played] == [f"t{task}" for task in tasks]
    assert drawn == seeds
    assert batch.trained == batch.played


def test_more_questions_than_tasks_repeat_some() -> None:
    batch, _ = step_of(get_sampler("uniform"), 1, questions=30)
    assert len(batch.played) == 30


@pytest.mark.parametrize(
    "draws",
    [[TaskDraw(0, 17)], [TaskDraw(0, 8), TaskDraw(1, 9)], [TaskDraw(0, 0)]],
    ids=["one", "together", "nothing"],
)
def test_a_draw_that_does_not_fit_is_refused(draws: list[TaskDraw]) -> None:
    class Greedy(StatelessSampler):
        def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
            return draws

    with pytest.raises(ConfigurationError, match=re.escape(str([draw.rollouts for draw in draws]))):
        step_of(Greedy(), 1)


def test_a_second_wave_joins_the_groups_that_stand() -> None:
    class Twice(StatelessSampler):
        def draw(self, step_budget: StepBudget) -> list[TaskDraw]:
            if step_budget.rounds == 0:
                return [TaskDraw(3, 2), TaskDraw(5, 2)]
            return [TaskDraw(5, 3, group=1), TaskDraw(7, 2)] if step_budget.rounds == 1 else []

    batch, _ = step_of(Twice(), 1)
    assert [[t.task.id for t in group] for group in batch.played] == [["t3"] * 2, ["t5"] * 5, ["t7"] * 2]
    assert (batch.metrics["rollouts"], batch.metrics["unspent_rollouts"]) == (9, 7)


def test_the_effective_number_of_groups() -> None:
    assert effective_group_count([8, 8]) == 2.0
    assert effective_group_count([12, 4]) == 256 / 160
    assert effective_group_count([]) == 0.0


def test_effective_groups_count_those_that_teach() -> None:
    """Tasks 0 to 5 always fail; of the others two in three succeed."""
    batch, _ = step_of(get_sampler("uniform"), 1, lambda task: 0.0 if task < 6 else 2 / 3, questions=12)
    differ = [group for group in batch.played if len({t.reward for t in group}) == 2]
    assert batch.metrics["effective_groups"] == pytest.approx(len(differ))
    assert 0 < len(differ) <= 6


@pytest.mark.parametrize("name", ESTIMATORS)
def test_groups_of_unequal_size_reach_the_learner(name: str) -> None:
    """A group of five with a fault, one of two, one of one: credit, rows, totals and figures take them as they are."""
    sizes = {5: [1.0, 0.0, 0.0, 1.0, 0.0], 2: [0.0, 1.0], 1: [1.0]}
    groups = [[played(size, reward) for reward in rewards] for size, rewards in sizes.items()]
    groups[0].append(played(5, 0.0, valid=False))
    estimate = get_estimator(name)
    for group in groups:
        valid = [trajectory for trajectory in group if trajectory.valid]
        credit = estimate(valid)
        assert [len(values) for values in credit] == [3] * len(valid)
        assert all(np.isfinite(values).all() for values in credit)
        assert len(rows_of(valid, credit)) <= len(valid)
    figures = rollout_metrics(groups)
    assert figures["faults"] == 1
    assert figures["sampled_tokens"] == 18  # two of each of nine episodes
    assert figures["reward_mean"] == 0.5  # 4 of 8 valid episodes
    assert figures["zero_variance_share"] == pytest.approx(1 / 3)


def test_names_and_options_are_checked() -> None:
    with pytest.raises(UnknownName, match=r"'vad'.*'vade'"):
        get_sampler("vad")
    with pytest.raises(UnknownName, match=r"'vade'.*'decai'.*'decay'"):
        get_sampler("vade", {"decai": 0.5})
    with pytest.raises(ConfigurationError, match="'decay'"):
        get_sampler("vade", {"decay": 1.5})
    with pytest.raises(ConfigurationError, match=r"'weighting'.*'dars'"):
        get_sampler("dars", {"weighting": "soft"})


def test_the_documents_list_every_sampler_and_their_example_works(monkeypatch: pytest.MonkeyPatch) -> None:
    text = DOCS.read_text(encoding="utf-8")
    _, table, *_ = text.split("\n## ")
    assert re.findall(r"^\| `(\w+)` \| ", table, flags=re.MULTILINE) == list(SAMPLERS)
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    ((name, row),) = re.findall(r'`"(\w+)": "([\w.]+:\w+)",`', text)
    module = ModuleType(row.partition(":")[0])
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(code, vars(module))
    monkeypatch.setitem(SAMPLERS, name, row)
    batch, rounds = step_of(
        get_sampler("second_chance", {"bar": 0.0}), 1, lambda task: task % 2, questions=12
    )
    assert len(rounds) == 2
    assert {(group[0].reward, len(group)) for group in batch.played} == {(0.0, 4), (1.0, 2)}

"""Difficulty targets and replay: predictions and draws by hand, and what a replayed episode keeps."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.core.trajectory import Origin, Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, Task
from agentenv.errors import ConfigurationError
from agentenv.trainers.config.config_files import override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.credit.outcome import group_relative
from agentenv.trainers.learner.learner import Learner, Objective, rows_of
from agentenv.trainers.task_sampling.replay import (
    TargetedReplay,
    predicted_rewards,
    sample_without_replacement,
)
from agentenv.trainers.task_sampling.step_budget import Group, StepBudget

WORDS = ("river", "river", "river", "tower", "tower", "tower")
TASKS = [Task(f"t{i}", f"Which {word} is this?") for i, word in enumerate(WORDS)]


def step_budget_of(outcomes: dict[int, list[float]], *, step: int = 1, questions: int = 2) -> StepBudget:
    """A step whose groups, by task, have these outcomes."""
    step_budget = StepBudget(step, TASKS, np.random.default_rng(step), questions, 2)
    for place, rewards in outcomes.items():
        members = [episode(TASKS[place], reward) for reward in rewards]
        step_budget.groups.append(Group(place, step_budget.reserved, members))
    return step_budget


def episode(task: Task, reward: float, *, valid: bool = True) -> Trajectory:
    segments = (
        Segment(SegmentKind.PROMPT, (0,), 0),
        Segment(SegmentKind.POLICY, (1, 0), 0, logprobs=(-0.1, -0.30000000000000004), version=3),
        Segment(SegmentKind.ENV, (1,), 0),
        Segment(SegmentKind.POLICY, (1,), 1, logprobs=(-1.7,), version=3, context_mismatch=True),
    )
    turns = (Turn("a", reward=0.0, anchor_key="k"), Turn("b", reward=reward))
    return Trajectory(task, segments, turns, reward, EndReason.ANSWERED, group_id=task.id, valid=valid)


def test_predictions_are_means_of_like_tasks() -> None:
    """Likeness log(3) apart: weights 3 : 1 at bandwidth 1; equal likeness: the mean; a small bandwidth: the nearest."""
    similarities = np.array([[np.log(3), 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(predicted_rewards(similarities, [1.0, 0.0], bandwidth=1.0), [0.75, 0.5])
    np.testing.assert_allclose(predicted_rewards(similarities, [1.0, 0.0], bandwidth=1e-3), [1.0, 0.5])


def test_draws_without_replacement_follow_the_softmax() -> None:
    """Chances 1/2, 1/3, 1/6; the second place after the first has 1/2 (1/3 / (1 - 1/2)) + 1/6 (1/3 / (1 - 1/6)) = .4."""
    rng, logits = np.random.default_rng(0), np.log([3.0, 2.0, 1.0])
    drawn = np.array([sample_without_replacement(logits, 2, rng) for _ in range(4000)])
    assert (drawn[:, 0] != drawn[:, 1]).all()
    first = np.bincount(drawn[:, 0], minlength=3) / 4000
    np.testing.assert_allclose(first, [1 / 2, 1 / 3, 1 / 6], rtol=0, atol=0.04)  # 5 standard errors
    assert np.mean(drawn[:, 1] == 1) == pytest.approx(0.4, abs=0.04)


def test_far_logits_still_give_as_many_as_are_asked() -> None:
    """At temperature .001 all chances but one underflow."""
    drawn = sample_without_replacement(np.array([0.0, -300.0, -500.0]), 3, np.random.default_rng(0))
    assert drawn.tolist() == [0, 1, 2]


def test_tasks_like_those_that_were_half_solved_are_played() -> None:
    sampler = TargetedReplay(predictor="similar")
    sampler.select(step_budget_of({0: [0, 1], 3: [0, 0]}))
    assert {draw.task for draw in sampler.draw(step_budget_of({}, step=2, questions=3))} == {0, 1, 2}


def test_tasks_are_drawn_for_several_steps_at_once() -> None:
    """Six tasks, two a step: three steps of them are one draw without repetition, which a checkpoint keeps."""
    sampler = TargetedReplay(predictor="similar", every=3)
    sampler.select(step_budget_of({0: [0, 1], 3: [0, 0]}))
    first = sampler.draw(step_budget_of({}, step=2))
    again = TargetedReplay(predictor="similar", every=3)
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    assert len(again.state_dict()["ahead"]) == 4
    drawn = [*first, *again.draw(step_budget_of({}, step=3)), *again.draw(step_budget_of({}, step=4))]
    assert sorted(draw.task for draw in drawn) == [0, 1, 2, 3, 4, 5]
    assert again.state_dict()["ahead"] == []


def test_the_learned_predictor_survives_a_checkpoint() -> None:
    def stepped(sampler: TargetedReplay, step: int) -> list[int]:
        sampler.select(step_budget_of({0: [0, 1], 1: [1, 1], 3: [0, 0], 4: [0, 0]}, step=step))
        return [draw.task for draw in sampler.draw(step_budget_of({}, step=step))]

    whole, first, second = TargetedReplay(every=1), TargetedReplay(every=1), TargetedReplay(every=1)
    assert stepped(whole, 1) == stepped(first, 1)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert json.dumps(second.state_dict()) == json.dumps(first.state_dict())
    assert stepped(whole, 2) == stepped(second, 2)
    assert second.state_dict()["predictor"] == whole.state_dict()["predictor"]


def test_groups_that_differ_come_back_as_they_were() -> None:
    """Three fresh groups at ``fresh`` .75 are joined by one. Flat groups and faults never are."""
    sampler = TargetedReplay(fresh=0.75, predictor="similar")
    step_budget = step_budget_of({0: [0, 1], 1: [1, 1], 2: [0, 0]})
    step_budget.groups[0].members.append(episode(TASKS[0], 0.0, valid=False))
    first = sampler.select(step_budget)
    assert (list(first.replayed), first.metrics) == ([], {"replay_buffer": 1})
    second = sampler.select(step_budget_of({3: [1, 1], 4: [1, 1], 5: [0, 0]}, step=2))
    (group,) = second.replayed
    assert [t.origin for t in group] == [Origin.REPLAY] * 2
    for again, original in zip(group, step_budget.groups[0].members, strict=False):
        assert again.segments == original.segments
        assert [(t.reward, t.anchor_key) for t in again.turns] == [
            (t.reward, t.anchor_key) for t in original.turns
        ]
        assert (again.task, again.reward, again.group_id) == (
            original.task,
            original.reward,
            original.group_id,
        )


def test_a_share_of_one_replays_none_and_the_oldest_leave_first() -> None:
    sampler = TargetedReplay(fresh=1.0, buffer=2)
    for task in (0, 1, 2):
        selection = sampler.select(step_budget_of({task: [0, 1]}, step=task + 1))
    assert list(selection.replayed) == []
    assert [task for task, _ in sampler.state_dict()["kept"]] == [1, 2]
    nothing = TargetedReplay(buffer=0)
    nothing.select(step_budget_of({0: [0, 1]}))
    assert nothing.state_dict()["kept"] == []


def test_the_reference_is_what_was_played_last() -> None:
    sampler = TargetedReplay(reference=2)
    sampler.select(step_budget_of({0: [0, 1], 1: [1, 1], 2: [0, 0]}))
    assert sampler.state_dict()["known"] == [(1, 1.0), (2, 0.0)]


def test_the_reference_may_be_a_fixed_set_that_a_part_of_each_step_plays() -> None:
    """Three of six tasks at most; one of four questions plays them in turn, and the others are never of the set."""
    sampler = TargetedReplay(predict_from="set", reference=9, predictor="similar", fresh=0.5)
    probed = []
    for step in (1, 2, 3, 4):
        draws = [draw.task for draw in sampler.draw(step_budget_of({}, step=step, questions=4))]
        probed.append(draws[0])
        # All differ in outcome, so that each could be replayed; the task of the set is neither trained nor replayed.
        outcomes = {task: [0.0, float(step != 1)] for task in draws}
        selection = sampler.select(step_budget_of(outcomes, step=step, questions=4))
        trained = {group.task for group in selection.trained}
        assert trained == set(draws[1:])
        replayed = {TASKS.index(group[0].task) for group in selection.replayed}
        chosen = set(sampler.state_dict()["set"])
        assert len(chosen) == 3
        assert not chosen & (trained | replayed)
    assert set(probed[:3]) == chosen
    assert probed[3] == probed[0]
    # The newest outcome of each: the first task of the set was failed first and half solved later.
    assert sampler.state_dict()["known"] == [(task, 0.5) for task in probed[1:]]
    again = TargetedReplay(predict_from="set", reference=9, predictor="similar", fresh=0.5)
    again.load_state_dict(json.loads(json.dumps(sampler.state_dict())))
    next_step = [one.draw(step_budget_of({}, step=5, questions=4)) for one in (sampler, again)]
    assert next_step[0] == next_step[1]
    assert next_step[0][0].task == probed[1]


def test_predictions_come_from_the_set_alone() -> None:
    """Rivers are half solved and towers never, as far as the set says; what else was played says the opposite."""
    sampler = TargetedReplay(predict_from="set", predictor="similar", fresh=1.0)
    sampler.load_state_dict({"set": [0, 3], "known": [(0, 0.5), (3, 0.0)]})
    sampler.select(step_budget_of({1: [1, 1], 2: [1, 1], 4: [0, 1], 5: [0, 1]}, questions=4))
    draws = sampler.draw(step_budget_of({}, step=2, questions=3))
    assert draws[0].task == 0
    assert {draw.task for draw in draws[1:]} == {1, 2}


def test_a_fixed_set_needs_a_part_of_each_step() -> None:
    with pytest.raises(ConfigurationError, match=r"predict_from='set'.*questions=1"):
        TargetedReplay(predict_from="set").draw(step_budget_of({}, questions=1))
    with pytest.raises(ConfigurationError, match=r"reference_share.*1\.0"):
        TargetedReplay(reference_share=1.0)


def test_the_stored_log_probs_are_the_denominator(table: Callable[..., Any]) -> None:
    """The loss of a replayed group is that of ratios against what was stored, and not that of the present weights."""
    sampler = TargetedReplay()
    sampler.select(step_budget_of({0: [0, 1]}))
    (group,) = sampler.select(step_budget_of({1: [1, 1]}, step=2)).replayed
    rows = rows_of(group, group_relative(group), version=5)
    assert [set(row.age[row.mask]) for row in rows if row.age is not None] == [{2}, {2}]
    model = table(4)
    metrics = Learner(model, Objective(), learning_rate=0.1).accumulate(rows)
    with torch.no_grad():
        now = [model.logprob([0], 1).item(), model.logprob([0, 1], 0).item()]
    stored = [-0.1, -0.30000000000000004]
    # The third sampled token is of another context and has ratio 1: three tokens a row, two rows.
    expected = sum(old - new for old, new in zip(stored, now, strict=True)) / 3
    assert metrics["approx_kl"] == pytest.approx(expected, abs=1e-6)
    assert abs(expected) > 0.01


def test_replay_needs_the_stored_log_probs_or_a_correction() -> None:
    base = override(TrainConfig(), ["--rollout.sampler", "dots"])
    wrong = ["--loss.proximal", "recompute"]
    with pytest.raises(ConfigurationError, match="'dots'"):
        override(base, wrong)
    override(base, [*wrong, "--rollout.sampler_options.fresh", "1.0"])
    override(base, [*wrong, "--loss.correction.mode", "truncate"])

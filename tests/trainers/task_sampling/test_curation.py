"""DART's data curation: counts, turns and the pool by hand, what a stored success is worth, and a run of the preset."""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.cli.main import main
from agentenv.core.trajectory import Origin, Segment, SegmentKind, Trajectory, Turn, to_record
from agentenv.core.types import EndReason, Task
from agentenv.envs.domsim.env import DomSim
from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import random_policy
from agentenv.trainers.config.config_files import load_config, override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.credit.outcome import group_relative
from agentenv.trainers.learner.learner import Learner, Objective, rows_of
from agentenv.trainers.learner.settings import CorrectionSettings
from agentenv.trainers.task_sampling.curation import AdaptiveCuration, rollout_count
from agentenv.trainers.task_sampling.step_budget import Batch, Group, StepBudget, collect
from agentenv.trainers.warmstart.expert_pool import record_expert

TASKS = [Task(f"t{i}", f"Do thing {i}.") for i in range(4)]
STORED = (-0.1, -1.7)


def episode(place: int, reward: float, *, turns: int = 1, group: str = "g", **changes: Any) -> Trajectory:
    segments = (
        Segment(SegmentKind.PROMPT, (0,), 0),
        Segment(SegmentKind.POLICY, (1, 0), 0, logprobs=STORED, version=3),
    )
    played = Trajectory(
        TASKS[place], segments, (Turn("a"),) * turns, reward, EndReason.ANSWERED, group_id=group
    )
    return replace(played, **changes)


def step_budget_of(*groups: list[Trajectory], step: int = 1, questions: int = 2, size: int = 8) -> StepBudget:
    step_budget = StepBudget(step, TASKS, np.random.default_rng(step), questions, size)
    for members in groups:
        step_budget.groups.append(Group(TASKS.index(members[0].task), 0, members, step))
    return step_budget


def settled(sampler: AdaptiveCuration, *groups: list[Trajectory], step: int = 1) -> Batch:
    """The batch of a step whose groups stand; the budget is spent."""
    step_budget = step_budget_of(*groups, step=step)
    step_budget.reserved = step_budget.remaining
    return collect(sampler, step_budget, lambda *_: [])


def test_rollouts_fall_from_a_success_rate_of_six_tenths() -> None:
    """Eight up to .6 and two at 1: at .7 a quarter of the way, 8 - 1.5 rounded up; at .8 half of it."""
    rates = [0.0, 0.6, 0.7, 0.8, 1.0]
    assert [rollout_count(rate, 8) for rate in rates] == [8, 8, 7, 5, 2]
    assert [rollout_count(rate, 2) for rate in rates] == [2] * 5
    assert rollout_count(1.0, 2, min_rollouts=4) == 2
    assert rollout_count(0.5, 4, easy=0.0, min_rollouts=2) == 3


def test_what_easy_tasks_leave_goes_to_further_tasks() -> None:
    """Of sixteen rollouts an unknown task takes eight; three that always succeed take two each, then the first again."""
    sampler = AdaptiveCuration()
    unknown = sampler.draw(step_budget_of())
    assert [draw.rollouts for draw in unknown] == [8, 8]
    settled(sampler, *([episode(place, 1.0)] * 8 for place in (0, 1, 2)))
    draws = sampler.draw(step_budget_of(step=2, questions=3))
    assert {draw.task: draw.rollouts for draw in draws[:4]} == {0: 2, 1: 2, 2: 2, 3: 8}
    assert sum(draw.rollouts for draw in draws) == 24
    (odd,) = sampler.draw(step_budget_of(questions=1, size=3))
    assert odd.rollouts in (2, 3)  # the one that is left would be no group


def test_the_success_rate_is_that_of_the_latest_outcomes() -> None:
    sampler = AdaptiveCuration(memory=2)
    settled(sampler, [episode(0, 1.0), episode(0, 1.0), episode(0, 0.0)])
    assert sampler.state_dict()["outcomes"] == [[0, [True, False]]]


def test_turns_are_bounded_by_the_longest_success() -> None:
    sampler = AdaptiveCuration(turns="max_steps", longest=6)
    settled(sampler, [episode(0, 1.0, turns=2), episode(0, 1.0, turns=4), episode(0, 0.0, turns=5)])
    settled(sampler, [episode(0, 1.0, turns=3)], [episode(1, 1.0, turns=9)])
    draws = sampler.draw(step_budget_of(step=2, questions=4))
    assert {draw.task: dict(draw.env) for draw in draws} == {
        0: {"max_steps": 4},
        1: {"max_steps": 6},
        2: {"max_steps": 6},
        3: {"max_steps": 6},
    }


def test_a_stored_success_joins_a_group_without_one() -> None:
    sampler = AdaptiveCuration()
    first, won = episode(0, 1.0, turns=2), episode(0, 1.0, turns=3, id="won")
    before = settled(sampler, [first, won, episode(0, 0.0)], [episode(1, 0.5)])
    assert [len(group) for group in before.trained] == [3, 1]
    assert before.metrics["lost_groups"] == 1
    failed = [[episode(place, 0.0, group=f"late-{place}") for _ in range(2)] for place in (0, 1)]
    batch = settled(sampler, *failed, step=2)
    joined, alone = batch.trained
    assert batch.played == failed
    assert alone == failed[1]  # nothing is stored of this task
    assert joined[:2] == failed[0]
    guest = joined[2]
    assert (guest.id, guest.origin, guest.group_id) == ("won", Origin.REPLAY, "late-0")
    assert (guest.segments, guest.reward, len(guest.turns)) == (won.segments, 1.0, 3)
    assert batch.metrics["rescued_groups"] == 1
    assert batch.metrics["effective_groups"] == 1
    assert batch.metrics["rollouts"] == 4
    values = [credit[1] for credit in group_relative(joined)]
    assert values == pytest.approx([-(3**-0.5), -(3**-0.5), 2 / 3**0.5], abs=1e-5)  # deviation 1 / sqrt(3)
    assert sampler.state_dict()["outcomes"][0] == [0, [True, True, False, False, False]]  # without the guest


def test_what_was_helped_or_failed_through_us_is_not_stored() -> None:
    sampler = AdaptiveCuration()
    helped = episode(0, 1.0, origin=Origin.RETRY, parent_id="p")
    struck = episode(0, 1.0, valid=False)
    settled(sampler, [helped, struck, episode(0, 0.0)])
    assert sampler.state_dict()["stored"] == []
    nobody = settled(sampler, [struck])
    assert nobody.metrics["lost_groups"] == 0


def test_a_stored_success_is_weighed_by_its_own_log_probs(table: Callable[..., Any]) -> None:
    """DART's weight min(p(now) / p(stored), 1) of each token; the failures, sampled by the present weights, have 1."""
    sampler, model = AdaptiveCuration(), table(4)
    with torch.no_grad():
        now = [model.logprob([0], 1).item(), model.logprob([0, 1], 0).item()]
    settled(sampler, [episode(0, 1.0)])
    fresh = Segment(SegmentKind.POLICY, (1, 0), 0, logprobs=tuple(now), version=5)
    lost = episode(0, 0.0)
    lost = replace(lost, segments=(lost.segments[0], fresh))
    (group,) = settled(sampler, [lost, lost], step=2).trained
    objective = Objective(proximal="recompute", correction=CorrectionSettings(mode="truncate", high=1.0))
    metrics = Learner(model, objective, learning_rate=0.1).accumulate(rows_of(group, group_relative(group)))
    weights = [min(np.exp(new - old), 1.0) for new, old in zip(now, STORED, strict=True)]
    assert metrics["behaviour_weight"] == pytest.approx((4 + sum(weights)) / 6, abs=1e-6)
    assert min(weights) < 0.99


def test_the_pool_begins_with_what_was_collected_before(tmp_path: Path) -> None:
    records = [
        episode(0, 1.0, id="old"),
        episode(0, 1.0, turns=7),
        episode(1, 0.0),
        episode(2, 1.0, id="shown"),
    ]
    records[3] = replace(records[3], origin=Origin.DEMONSTRATION)
    stranger = to_record(replace(episode(3, 1.0), task=Task("elsewhere", "?")))
    lines = [json.dumps(record) + "\n" for record in [*map(to_record, records), stranger]]
    (tmp_path / "a.jsonl").write_text("".join(lines[:2]))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress("".join(lines[2:]).encode()))
    sampler = AdaptiveCuration(pool=str(tmp_path))
    draws = sampler.draw(step_budget_of(questions=4))
    assert {draw.task: draw.env["max_turns"] for draw in draws} == {0: 7, 1: 30, 2: 1, 3: 30}
    stored = {place: record["id"] for place, record in sampler.state_dict()["stored"]}
    assert stored == {0: records[1].id, 2: "shown"}  # the last one of a task


POOLS = {
    "missing": None,
    "nonsense": "nonsense",
    "empty": "",
    "brackets": "[" * 100_000,
    "number": "5",
    "list as id": '{"task": {"id": []}}',
    "number as segments": '{"task": {"id": "t0"}, "segments": 5}',
}


@pytest.mark.parametrize("text", POOLS.values(), ids=POOLS)
def test_a_pool_of_nothing_is_refused(text: str | None, tmp_path: Path) -> None:
    path = tmp_path / "pool.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"pool\.jsonl"):
        AdaptiveCuration(pool=str(path)).draw(step_budget_of())


def test_a_stored_success_needs_its_log_probs() -> None:
    words = "--rollout.sampler dart --loss.proximal recompute --loss.correction.mode none"
    with pytest.raises(ConfigurationError, match="'dart'"):
        override(TrainConfig(), words.split())


SMALL = """
--threads 1 --train.limit 2 --dev.limit 1 --test.limit 1 --evaluation.every 0 --evaluation.bounds false
--optimizer.steps 2 --rollout.questions 1 --rollout.group_size 2 --rollout.workers 2 --rollout.turn_tokens 60
--rollout.context_tokens 3000 --asynchronous.staleness 1 --rollout.sampler_options.longest 2 --checkpoint_every 2
--trajectories_every 1
"""


def test_the_preset_trains_on_what_the_expert_did_where_the_policy_never_succeeds(tmp_path: Path) -> None:
    """A random policy on the desktop: no group has a success, the pool has one for each, and the gradient is theirs."""
    desktop = DomSim(prompt="{goal}")
    tasks = desktop.make_tasks(2, seed=1, split="train")
    texts: list[str] = []
    for task in tasks:
        opening, _ = desktop.reset(seed=0, options={"task": task})
        texts += [opening[0].text, *desktop.expert()]
    random_policy(tmp_path / "policy", texts, context=3000)
    pool = tmp_path / "pool.jsonl"
    words = ["--policy", f"hf:{tmp_path / 'policy'}", *SMALL.split(), "--env.options.prompt", "{goal}"]
    assert record_expert(override(load_config("dart"), words), pool) == 2
    words += ["--rollout.sampler_options.pool", str(pool)]
    assert main(["train", "dart", "--out", str(tmp_path / "out"), "--json", *words]) == 0
    for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines():
        metrics: Mapping[str, float] = json.loads(line)
        assert (metrics["reward_mean"], metrics["faults"]) == (0, 0)
        assert (metrics["lost_groups"], metrics["rescued_groups"], metrics["success_pool"]) == (1, 1, 2)
        assert metrics["rollouts"] == 2
        assert metrics["grad_norm"] > 0
    shown = [json.loads(record) for record in pool.read_text().splitlines()]
    assert [(record["reward"], record["origin"]) for record in shown] == [(1, Origin.DEMONSTRATION)] * 2

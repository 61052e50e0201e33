"""The pool, duplicates, frames, diversity, difficulty; weaknesses; setups of the sampler."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import EndReason, Message, Task, ToolResult, ToolStatus
from agentenv.envs.search.self_play import GameSetup
from agentenv.errors import ConfigurationError
from agentenv.trainers.selfplay.question_pool import (
    PooledQuestion,
    QuestionPool,
    depth,
    difficulty,
    diversity,
    frame,
    overlap,
)
from agentenv.trainers.selfplay.sampler import SelfPlaySampler
from agentenv.trainers.selfplay.weaknesses import (
    failed_kinds,
    is_failed,
    is_failed_by_test,
    is_failed_or_flat,
    slope,
    weaknesses,
)
from agentenv.trainers.task_sampling.samplers import get_sampler
from agentenv.trainers.task_sampling.step_budget import Group, StepBudget

RNG = np.random.default_rng


def test_overlap_counts_words_in_common() -> None:
    """Words of where was ada born / where was bob born: 3 common words of 5. Articles and marks do not count."""
    assert overlap("Where was Ada born?", "Where was Bob born?") == pytest.approx(3 / 5)
    assert overlap("Who led the Guild?", "who led guild") == 1.0
    assert overlap("one", "two") == 0.0


def test_a_duplicate_brings_the_rate_up_to_date_and_joins_no_second_time() -> None:
    pool = QuestionPool(similar=0.9)
    assert pool.add(PooledQuestion("Where was Ada born?", "Bay", 0.5))
    assert not pool.add(PooledQuestion("where was Ada born", "Bay", 1.0))
    assert pool.add(PooledQuestion("Where was Bob born?", "Bay", 0.0))
    assert [entry.rate for entry in pool.entries] == [1.0, 0.0]


def test_only_questions_below_the_threshold_are_drawn() -> None:
    pool = QuestionPool(
        entries=[
            PooledQuestion("one?", "1", 1.0),
            PooledQuestion("two?", "2", 0.4),
            PooledQuestion("three?", "3", 0.6),
        ]
    )
    drawn = {entry.question for seed in range(20) if (entry := pool.draw(RNG(seed), 0.5))}
    assert drawn == {"two?"}
    assert pool.draw(RNG(0), 0.3) is None
    assert {t.question for s in range(20) if (t := pool.draw(RNG(s), 1.0))} == {"one?", "two?", "three?"}


def test_the_pool_is_cleared_every_so_many_steps_but_for_the_newest_share() -> None:
    """Of four entries a quarter is one: three go, the newest stays. With 0 steps it only grows."""
    entries = [PooledQuestion(f"{name}?", "x", 0.0) for name in ("one", "two", "three", "four")]
    pool = QuestionPool(clear_every=10, keep_ratio=0.25, entries=list(entries))
    assert [pool.clear(step) for step in (1, 9, 10)] == [0, 0, 3]
    assert pool.entries == entries[3:]
    assert QuestionPool(clear_every=0, entries=list(entries)).clear(10) == 0
    with pytest.raises(ConfigurationError, match=r"keep_ratio.*\b1\.5\b"):
        QuestionPool(keep_ratio=1.5)


def test_the_frame_of_a_question_is_what_is_left_without_names_and_numbers() -> None:
    assert frame("Where was Ada Lovelace born?") == "Where was _ born?"
    assert frame("Who led the Pobra Guild directly after Rug Zat?") == "Who led the _ directly after _?"
    assert frame("What happened in 1961?") == frame("What happened in 1,930?")


def test_diversity_by_hand() -> None:
    """Two frames in shares 2/3 and 1/3: entropy 0.918 bits. Pairs of words: 3 + 3 + 2, of which (where was) is twice."""
    found = diversity(["Where was Ada born?", "Where was Bob born?", "Who made Kov?"])
    assert found["unique_share"] == 1.0
    assert found["distinct_2"] == pytest.approx(7 / 8)
    assert found["frame_entropy"] == pytest.approx(-(2 / 3) * np.log2(2 / 3) - (1 / 3) * np.log2(1 / 3))
    assert found["overlap"] == pytest.approx((3 / 5 + 0 + 0) / 3)
    assert diversity([]) == {}


@given(st.lists(st.text("abc AB?", min_size=1), min_size=1, max_size=6))
def test_diversity_is_least_for_one_question_asked_again(questions: list[str]) -> None:
    same = diversity([questions[0]] * len(questions))
    assert same["frame_entropy"] == 0.0
    assert same["unique_share"] == pytest.approx(1 / len(questions))
    assert all(np.isfinite(value) for value in diversity(questions).values())


def test_difficulty_by_hand() -> None:
    assert difficulty([0.0, 0.5, 1.0, 1.0]) == {
        "solved_mean": 0.625, "solved_never": 0.25, "solved_always": 0.5, "solved_sometimes": 0.25,
    }  # fmt: skip
    assert difficulty([]) == {}


def test_depth_by_hand() -> None:
    assert depth([1, 2, 2, 1, 1, 1]) == {"searches_mean": pytest.approx(8 / 6)}
    assert depth([]) == {}


def test_weaknesses_are_kinds_that_are_failed_in_shares_of_their_failures() -> None:
    """Born: failure (1 + .5)/2 = .75; made: 1; seat: .1, no weakness; a single task of a kind says nothing. 1.75 in all."""
    rates = {
        "Where was Ada born?": 0.0, "Where was Bob born?": 0.5, "Who made Kov?": 0.0, "Who made Zed?": 0.0,
        "What seat has Kov?": 1.0, "What seat has Zed?": 0.8, "When did Pim end?": 0.0,
    }  # fmt: skip
    found = weaknesses(rates)
    assert [(w.kind, w.tasks, w.failure_rate) for w in found] == [
        ("Who made _?", 2, 1.0),
        ("Where was _ born?", 2, 0.75),
    ]
    assert [w.share for w in found] == [pytest.approx(1 / 1.75), pytest.approx(0.75 / 1.75)]
    assert found[1].example == "Where was Ada born?"
    assert weaknesses({}) == []


def test_the_slope_of_accuracies_by_hand() -> None:
    assert slope([0.4, 0.3, 0.2]) == pytest.approx(-0.1)
    assert slope([0.0, 0.0, 0.3]) == pytest.approx(0.15)
    assert slope([0.3]) == slope([0.2, 0.2]) == 0.0


@pytest.mark.parametrize(
    ("accuracies", "worse", "flat", "tested"),
    [
        ([0.4, 0.3, 0.1], True, True, True),  # 6.4 of 24, so 6: P(X > 6 of 25) = .993
        ([0.0, 0.0], False, True, True),  # the hardest are not failed by the published rule
        ([0.5, 0.0], False, False, True),  # half solved once; 4 of 16: P(X > 4 of 17) = .975
        ([0.1, 0.4], False, False, True),
        ([0.25], False, True, False),  # 2 of 8: P(X > 2 of 9) = 1 - 46 / 512 = .910
        ([0.125], False, True, True),  # 1 - 10 / 512 = .980
        ([1.0, 1.0], False, False, False),
    ],
    ids=str,
)
def test_when_a_question_is_failed(accuracies: list[float], worse: bool, flat: bool, tested: bool) -> None:
    found = is_failed(accuracies), is_failed_or_flat(accuracies), is_failed_by_test(accuracies, 8)
    assert found == (worse, flat, tested)


def test_kinds_in_shares_of_their_failure_ratios() -> None:
    """Born: one of two is failed; made: two of three; a single question of a kind says nothing. .5 and .667 of 1.167."""
    history = {
        "Where was Ada born?": [0.4, 0.2], "Where was Bob born?": [0.2, 0.9], "Who made Kov?": [0.4, 0.0],
        "Who made Zed?": [0.3, 0.1], "Who made Oro?": [1.0, 1.0], "When did Pim end?": [0.4, 0.0],
    }  # fmt: skip
    made, born = failed_kinds(history, "slope", attempts=8)
    assert (made.kind, made.tasks) == ("Who made _?", 3)
    assert made.failure_rate == pytest.approx(2 / 3)
    assert [made.share, born.share] == pytest.approx([4 / 7, 3 / 7])
    assert (made.example, born.example) == ("Who made Kov?", "Where was Ada born?")
    latest = {question: rates[-1] for question, rates in history.items()}
    assert failed_kinds(history, "mean", attempts=8) == weaknesses(latest)
    assert failed_kinds({}, "flat", attempts=8) == []


def test_the_sampler_remembers_how_a_question_went() -> None:
    sampler = SelfPlaySampler(reference_share=1.0, references="weak", failed="slope")
    for step, rate in ((1, 0.4), (2, 0.2)):
        settled(
            sampler,
            step,
            *(story(f"Who made {name}?", rate) for name in ("Kov", "Zed")),
            story("Where?", 1.0),
        )
    assert sampler.rates["Who made Kov?"] == [0.4, 0.2]
    setups = [draw.env["setup"] for draw in sampler.draw(step_budget(3))]
    assert {setup["reference"] for setup in setups} <= {"Who made Kov?", "Who made Zed?"}


def episode(
    reward: float, *, searches: int, page: str, hops: int = 1, end: EndReason = EndReason.ANSWERED
) -> Trajectory:
    turn = Turn("a", (Message("tool", page),), (ToolResult("search", ToolStatus.OK),))
    task = Task("t", "q?", ("Bay",), data={"hops": hops})
    return Trajectory(task, (), (turn,) * searches or (Turn("a"),), reward, end)


def step_budget(step: int, questions: int = 4) -> StepBudget:
    tasks = [Task(f"topic-{i}", f"Thing {i}") for i in range(9)]
    return StepBudget(step, tasks, RNG([0, step]), questions, 2)


def story(question: str, rate: float | None, *, pooled: bool = False, admitted: bool = True) -> Trajectory:
    game = {
        "task": Task("x", question, ("Bay",), data={"searches": 1}),
        "pooled": pooled,
        "rate": rate,
        "attempts": 2,
        "admitted": admitted,
    }
    return replace(episode(0, searches=1, page=""), info={"game": game})


def settled(sampler: SelfPlaySampler, step: int, *members: Trajectory) -> dict[str, Any]:
    book = step_budget(step)
    book.groups = [Group(place, 0, [member]) for place, member in enumerate(members)]
    return dict(sampler.select(book).metrics)


def test_accepted_questions_come_back_as_spares_references_and_duplicates() -> None:
    sampler = SelfPlaySampler(clear_every=0, reference_share=1.0)
    empty = sampler.draw(step_budget(1))
    assert [GameSetup(**draw.env["setup"]) for draw in empty] == [GameSetup()] * 4
    figures = settled(
        sampler, 1, story("Where was Ada born?", 0.5), story("Who made Kov?", None, admitted=False)
    )
    assert (figures["pool"], figures["pool_added"], figures["valid_share"]) == (1, 1, 1.0)
    (setup, *_) = [draw.env["setup"] for draw in sampler.draw(step_budget(2))]
    question = "Where was Ada born?"
    assert setup == {"spare": (question, "Bay"), "reference": question, "known": ("where was ada born",)}
    settled(sampler, 2, story("Where was Ada born?", 1.0, pooled=True, admitted=False))
    assert [entry.rate for entry in sampler.pool.entries] == [1.0]


def test_references_of_the_weak_kinds_follow_the_failures() -> None:
    sampler = SelfPlaySampler(reference_share=1.0, references="weak")
    settled(
        sampler,
        1,
        story("Who made Kov?", 0.0),
        story("Who made Zed?", 0.0),
        story("Where was Ada born?", 1.0),
    )
    setups = [draw.env["setup"] for draw in sampler.draw(step_budget(2))]
    assert {setup["reference"] for setup in setups} == {"Who made Kov?"}


def test_references_come_from_the_pool_while_no_kind_is_failed_and_a_figure_says_so() -> None:
    """One question of a kind says nothing; the second one makes the kind count. Without ``weak`` there is no such figure."""
    sampler = SelfPlaySampler(clear_every=0, reference_share=1.0, references="weak", failed="flat")
    assert (
        settled(sampler, 1, story("Who made Kov?", 0.0), story("Where was Ada born?", 1.0))["weak_kinds"] == 0
    )
    setups = [draw.env["setup"] for questions in range(2, 9) for draw in sampler.draw(step_budget(questions))]
    assert {setup["reference"] for setup in setups} == {"Who made Kov?", "Where was Ada born?"}
    assert settled(sampler, 2, story("Who made Zed?", 0.0))["weak_kinds"] == 1
    setups = [draw.env["setup"] for draw in sampler.draw(step_budget(3))]
    assert {setup["reference"] for setup in setups} == {"Who made Kov?"}
    assert "weak_kinds" not in settled(SelfPlaySampler(), 1, story("Who made Kov?", 0.0))


def test_the_test_of_a_failed_question_counts_the_attempts_that_were_made() -> None:
    """None of 2 solved: P(X > 0 of 3 coins) = 7 / 8, below .95; none of 4: 31 / 32."""
    assert not is_failed_by_test([0.0], 2)
    assert is_failed_by_test([0.0, 0.0], 2)
    sampler = SelfPlaySampler(reference_share=1.0, references="weak", failed="test")
    settled(sampler, 1, story("Who made Kov?", 0.0), story("Who made Zed?", 0.0))
    assert failed_kinds(sampler.rates, "test", attempts=sampler.attempts) == []
    again = SelfPlaySampler(reference_share=1.0, references="weak", failed="test")
    again.load_state_dict(sampler.state_dict())
    assert again.attempts == 2


def test_what_the_sampler_has_learned_is_taken_up_again() -> None:
    first, second = (SelfPlaySampler(clear_every=0, seeds=("Which town is oldest?",)) for _ in range(2))
    settled(first, 1, story("Where was Ada born?", 0.5))
    second.load_state_dict(first.state_dict())
    assert [d.env for d in first.draw(step_budget(2))] == [d.env for d in second.draw(step_budget(2))]
    assert [entry.question for entry in second.pool.entries] == [
        "Which town is oldest?",
        "Where was Ada born?",
    ]
    with pytest.raises(ConfigurationError, match=r"'reference_share'.*\b2\.0\b"):
        get_sampler("self_play", {"reference_share": 2.0})

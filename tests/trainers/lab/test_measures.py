"""What comparisons measure, by hand: costs of a right answer, agreement, sign flips, proposals, the Pareto front."""

from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import ConfigurationError
from agentenv.trainers.lab.lab import MeasureName
from agentenv.trainers.lab.measures import (
    MEASURES,
    agreement,
    cost_per_right,
    pareto_front,
    proposals,
    reached,
    sign_flips,
    with_strategy,
)


def test_an_experiment_may_name_every_measure_and_no_other() -> None:
    assert set(MeasureName.__args__) == set(MEASURES)  # type: ignore[attr-defined]
    page = (Path(__file__).resolve().parents[3] / "docs" / "lab.md").read_text(encoding="utf-8")
    assert [name for name in MEASURES if f"`{name}`" not in page] == []


@pytest.mark.parametrize(
    ("mean", "cost", "each"),
    [
        (0.5, 1.5, 3.0),  # 10 questions: 15 searches for 5 right answers
        (1.0, 1.5, 1.5),
        (0.1, 2.0, 20.0),  # 20 for one
        (0.0, 2.0, 20.0),  # 20 for none, as for one
    ],
)
def test_what_a_right_answer_costs(mean: float, cost: float, each: float) -> None:
    assert cost_per_right({"mean": mean, "n": 10, "searches": cost}, "searches") == pytest.approx(each)


@pytest.mark.parametrize("after", [{"mean": 1.0, "n": 2}, {"mean": 1.0, "n": 2, "searches": None}])
def test_a_cost_that_was_not_counted_is_no_zero(after: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="searches"):
        cost_per_right(after, "searches")


def test_agreement_over_wordings() -> None:
    # Two of three agree, as SQuAD normalises them: 1 of 3 pairs. The second question: 1 of 1. A single wording says nothing.
    assert agreement([["The Vell", "vell.", "Iria"], ["x", "x"], ["alone"]]) == pytest.approx((1 / 3 + 1) / 2)
    assert agreement([[None, None], ["x", None]]) == 0.0
    with pytest.raises(ConfigurationError, match="two wordings"):
        agreement([["alone"], []])


@pytest.mark.parametrize(
    ("rewards", "advantages", "value", "found"),
    [
        # A question worth .5 whose episodes got .4 and 0: against their mean of .2 the .4 is pushed up, and should go down.
        ([0.4, 0.0], [0.2, -0.2], 0.5, (1, 2)),
        ([0.4, 1.0], [-0.3, 0.3], 0.5, (0, 2)),
        ([0.5, 1.0], [-0.25, 0.25], 0.5, (0, 1)),  # as good as the mean: nothing to flip
        ([0.4, 0.0], [0.0, -0.4], 0.5, (0, 2)),  # an advantage of 0 pushes nowhere
    ],
)
def test_sign_flips_of_a_group(
    rewards: list[float], advantages: list[float], value: float, found: tuple[int, int]
) -> None:
    assert sign_flips(rewards, advantages, value) == found


def test_what_became_of_proposals() -> None:
    asked = [
        {"question": "q1", "answer": "right", "outcome": "accepted"},
        {"question": "q2", "answer": "wrong", "outcome": "accepted"},
        {"question": "q3", "answer": "right", "outcome": "unverified"},
        {"question": "", "answer": "", "outcome": "format"},
        {"question": "q4", "answer": "right", "outcome": "pooled"},
    ]
    assert proposals(asked, lambda question, answer: answer == "right") == {
        "proposed": 4, "accepted": 0.5, "accepted_true": 0.25, "true_of_accepted": 0.5
    }  # fmt: skip
    assert set(proposals([], lambda question, answer: True).values()) == {0}


def test_the_front_of_cost_against_worth() -> None:
    points = {
        "free": (2.0, 0.5),
        "cheap": (1.0, 0.5),
        "dear": (0.0, 0.1),
        "bad": (1.5, 0.4),
        "twin": (1.0, 0.5),
    }
    assert pareto_front(points) == ["dear", "cheap", "twin"]
    assert pareto_front(points | {"best": (0.0, 0.9)}) == ["best"]
    assert pareto_front({}) == []


def test_where_a_score_is_reached() -> None:
    lines = [
        {"step": step, "sampled_tokens": 10, "dev_score": score}
        for step, score in ((1, 0.2), (2, 0.7), (3, 0.5))
    ]
    run = {"name": "r", "metrics": lines}
    assert reached(run, 0.5) == (2, 20)
    assert reached(run, 0.8) is None
    assert MEASURES["steps_to"].of(run, 0.8) == 3  # all of them


def test_of_several_environments_the_score_in_the_own_one_counts() -> None:
    mixed = {"step": 1, "sampled_tokens": 10, "dev_score": 0.9, "dev_score/env": 0.4, "dev_score/sums": 1.0}
    # No episode of the other environment could be played in step 2.
    alone = {"step": 2, "sampled_tokens": 10, "dev_score/env": 0.6}
    run = {"name": "r", "metrics": [mixed, alone]}
    assert reached(run, 0.5) == (2, 20)
    assert MEASURES["dev_mean"].of(run, 0.0) == 0.5


def test_the_score_with_the_strategy_is_the_plain_one_where_no_strategy_is_named() -> None:
    plain = {"before": {"mean": 0.1}, "after": {"mean": 0.4}}
    both = plain | {"before-judge": {"mean": 0.2}, "after-judge": {"mean": 0.6}}
    measure = MEASURES["after_with_strategy"]
    assert (measure.of(plain, 0.0), measure.of(both, 0.0)) == (0.4, 0.6)
    assert (with_strategy(plain, "before")["mean"], with_strategy(both, "before")["mean"]) == (0.1, 0.2)

"""Histories of ``benchmarks/weak_kinds.py``: their accuracies are those asked for, and shares are counted by hand."""

from collections.abc import Callable
from statistics import fmean
from typing import Any

import numpy as np
import pytest


@pytest.fixture
def weak_kinds(script: Callable[[str], Any]) -> Any:
    return script("weak_kinds")


def test_a_history_has_the_accuracies_that_were_asked_for(weak_kinds: Any) -> None:
    kinds = {"first": (0.0, 0.0), "learns": (0.3, 0.8)}
    made = weak_kinds.history(kinds, np.random.default_rng(0), 400)
    assert len(made) == 2 * weak_kinds.QUESTIONS
    assert all(one == [0.0, 0.0] for question, one in made.items() if "first" in question)
    learned = [one for question, one in made.items() if "learns" in question]
    assert fmean(one[0] for one in learned) == pytest.approx(0.3, abs=0.1)
    assert fmean(one[1] for one in learned) == pytest.approx(0.8, abs=0.1)
    assert all(
        late > early for early, late in learned
    )  # a harder question stays harder than its kind, and improves


def test_the_share_of_the_lacking_kinds_is_counted_by_hand(weak_kinds: Any) -> None:
    # One of two questions of the first kind falls below a half, both of the second, and one of two of a kind that is held.
    falling, solved = [0.25, 0.125], [0.9, 0.9]
    accuracies = {
        "what does it first in 1?": falling,
        "what does it first in 2?": solved,
        "what does it second in 1?": falling,
        "what does it second in 2?": falling,
        "what does it half in 1?": falling,
        "what does it half in 2?": solved,
    }
    found = weak_kinds.found_by("slope", accuracies, 8)
    assert found["share"] == pytest.approx((0.5 + 1.0) / (0.5 + 1.0 + 0.5))
    assert found["nothing"] == 0
    never = {question: [0.0, 0.0] for question in accuracies}
    assert weak_kinds.found_by("slope", never, 8) == {"share": 0.4, "both_first": 0.0, "nothing": 1.0}

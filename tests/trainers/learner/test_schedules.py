"""Step sizes over a run, against numbers worked out by hand."""

import pytest

from agentenv.trainers.learner.schedules import Schedule, batch_scale, learning_rate_share


def shares(steps: int, warmup: int, schedule: Schedule, final: float = 0.0) -> list[float]:
    return [
        learning_rate_share(step, steps=steps, warmup=warmup, schedule=schedule, final=final)
        for step in range(1, steps + 1)
    ]


def test_a_warm_up_rises_to_the_full_size_and_a_constant_schedule_stays_there() -> None:
    assert shares(6, 4, "constant") == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_a_line_leads_to_nothing_one_step_after_the_last() -> None:
    assert shares(4, 0, "linear") == [1.0, 0.75, 0.5, 0.25]
    assert shares(6, 2, "linear") == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_the_step_size_follows_the_root_of_the_batch() -> None:
    """BroRL: 128 questions of 512 in place of 512 of 16 are eight times as many episodes."""
    assert batch_scale(128 * 512, 512 * 16) == pytest.approx(8**0.5)
    assert batch_scale(64, 64) == 1.0
    assert batch_scale(64, 0) == 1.0


def test_half_a_cosine() -> None:
    """Cos of 0, 60, 120 degrees is 1, 1/2, -1/2."""
    assert shares(3, 0, "cosine") == pytest.approx([1.0, 0.75, 0.25])


def test_the_final_share_is_what_is_led_to() -> None:
    """0.2 + 0.8 (1, 3/4, 1/4), and 0.2 + 0.8 (1, 1/2)."""
    assert shares(3, 0, "cosine", 0.2) == pytest.approx([1.0, 0.8, 0.4])
    assert shares(2, 0, "linear", 0.2) == pytest.approx([1.0, 0.6])


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_run_that_goes_on_beyond_its_steps_or_is_all_warm_up(schedule: Schedule) -> None:
    assert learning_rate_share(9, steps=3, schedule=schedule, final=0.1) == (
        1.0 if schedule == "constant" else pytest.approx(0.1)
    )
    assert shares(2, 5, schedule) == [0.2, 0.4]

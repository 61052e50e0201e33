"""The item response model of a question: its curve and its inverse by hand, and what a few rounds make of it."""

import math

import pytest

from agentenv.trainers.strategies.item_response import ItemResponse, fitted_response


def test_the_curve_and_its_inverse() -> None:
    """Guess .2, middle .4, slope 10: p(.4) = .2 + .8 / 2 = .6; p(x) = .5 where the odds (.5 - .2) / (1 - .5) are .6."""
    model = ItemResponse(10.0, 0.4, 0.2)
    assert model.chance(0.4) == pytest.approx(0.6)
    assert model.chance(0.5) == pytest.approx(0.2 + 0.8 / (1 + math.exp(-1)))
    assert model.share(0.5) == pytest.approx(0.4 + math.log(0.6) / 10)
    assert model.chance(model.share(0.5)) == pytest.approx(0.5)


def test_a_chance_that_no_hint_gives_has_the_nearest_share() -> None:
    model = ItemResponse(10.0, 0.4, 0.2)
    assert model.share(0.2) == 0.0  # guessing is enough
    assert model.share(1.0) == 1.0
    assert ItemResponse(10.0, 1.4, 0.0).share(0.5) == 1.0
    assert ItemResponse(10.0, -0.4, 0.0).share(0.5) == 0.0


def test_many_episodes_find_the_model() -> None:
    model = ItemResponse(16.0, 0.7, 0.1)
    shares = [tenth / 10 for tenth in range(11)]
    found = fitted_response(shares, [round(1000 * model.chance(share)) for share in shares], [1000] * 11)
    assert found == pytest.approx(model)


@pytest.mark.parametrize(
    ("shares", "successes", "least", "most"),
    [
        ([0.0], [0], 0.4, 0.7),  # as the priors have it, a little more
        ([0.0], [2], 0.0, 0.0),
        ([0.0], [1], 0.0, 0.15),  # about right already
        ([0.0, 0.5], [0, 2], 0.2, 0.4),
        ([0.0, 0.5], [0, 0], 0.7, 0.9),
        ([0.0, 0.5], [0, 1], 0.45, 0.55),
        ([0.0, 0.3, 0.6], [1, 1, 1], 0.2, 0.4),  # many guesses are unlikely
        ([0.0, 0.6, 0.9], [0, 0, 0], 1.0, 1.0),
        ([0.0, 0.6, 0.9], [0, 0, 2], 0.65, 0.8),
    ],
)
def test_few_episodes_move_the_hint_the_right_way(
    shares: list[float], successes: list[int], least: float, most: float
) -> None:
    """Rounds of two episodes, of which one should succeed."""
    found = fitted_response(shares, successes, [2] * len(shares)).share(0.5)
    assert least <= found <= most


def test_rounds_without_an_episode_say_nothing() -> None:
    assert fitted_response([0.0, 0.3], [0, 0], [2, 0]) == fitted_response([0.0], [0], [2])

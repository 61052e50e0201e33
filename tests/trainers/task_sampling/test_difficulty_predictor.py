"""DOTS's predictor: its attention and its calibration by hand, that it learns, and that a checkpoint holds all of it."""

import json
import math

import numpy as np
import pytest
import torch

from agentenv.trainers.task_sampling.difficulty_predictor import DifficultyPredictor, attended, calibrated


def test_attention_weighs_the_rewards_of_the_references() -> None:
    """H = 4: products 2 ln 3 and 0 over sqrt(4) are ln 3 and 0, weights 3/4 and 1/4. A hidden reference has none."""
    queries, references = torch.tensor([[2 * math.log(3), 0.0, 0.0, 0.0]]), torch.eye(4)[:2]
    rewards = torch.tensor([1.0, 0.0])
    shown, first_hidden = torch.tensor([[False, False]]), torch.tensor([[True, False]])
    assert attended(queries, references, rewards, shown).item() == pytest.approx(0.75)
    assert attended(queries, references, rewards, first_hidden).item() == 0.0


def test_calibration() -> None:
    """logit(.75) = ln 3; halved by a temperature of 2 and moved by ln 2 it is ln(2 sqrt 3)."""
    odds = 2 * math.sqrt(3)
    found = calibrated(torch.tensor([0.75]), torch.tensor([2.0]), torch.tensor([math.log(2)]))
    assert found.item() == pytest.approx(odds / (1 + odds))
    # What is certain is bounded: logit(1 - 1e-4) = 9.2102; the temperature is at most 10.
    bounded = calibrated(torch.tensor([1.0]), torch.tensor([99.0]), torch.tensor([0.0]))
    assert bounded.item() == pytest.approx(1 / (1 + math.exp(-0.92102)), abs=1e-5)


def test_it_begins_uncalibrated() -> None:
    """Equal rewards of .3 are predicted as .3 whatever the weights."""
    vectors = np.random.default_rng(0).normal(size=(5, 8))
    np.testing.assert_allclose(
        DifficultyPredictor(8).predict(vectors[:2], vectors, [0.3] * 5), 0.3, atol=1e-6
    )


def world() -> tuple[np.ndarray, np.ndarray]:
    """Forty questions: eight of sixteen coordinates are noise, and the sign of the first decides."""
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(40, 16)).astype(np.float32)
    vectors[:, 0] = np.where(np.arange(40) % 2, 3.0, -3.0)
    return vectors, (np.arange(40) % 2).astype(np.float32)


def test_it_learns_which_references_tell() -> None:
    vectors, rewards = world()
    known, asked = slice(0, 30), slice(30, 40)
    predictor = DifficultyPredictor(16)
    before = np.abs(predictor.predict(vectors[asked], vectors[known], rewards[known]) - rewards[asked]).mean()
    for _ in range(20):
        predictor.learn(vectors[known], rewards[known])
    after = np.abs(predictor.predict(vectors[asked], vectors[known], rewards[known]) - rewards[asked]).mean()
    assert before > 0.3
    assert after < 0.1


def test_what_no_other_reference_tells_cannot_be_learned() -> None:
    """Rewards by chance: whoever saw the reward itself would soon be certain."""
    rng = np.random.default_rng(3)
    predictor = DifficultyPredictor(16, dropout=0.0, passes=200)
    predictor.learn(rng.normal(size=(12, 16)), np.arange(12) % 2)
    seen = DifficultyPredictor(16, dropout=0.0)
    vectors, rewards = world()
    for _ in range(40):
        seen.learn(vectors, rewards)
    assert predictor.loss > 2 * seen.loss


def test_too_few_references_teach_nothing() -> None:
    vectors, rewards = world()
    predictor, untouched = DifficultyPredictor(16), DifficultyPredictor(16)
    predictor.learn(vectors[:2], rewards[:2])
    assert predictor.state_dict() == untouched.state_dict()


def test_a_saved_predictor_goes_on_to_the_bit() -> None:
    vectors, rewards = world()
    whole, first, second = (DifficultyPredictor(16, passes=3) for _ in range(3))
    whole.learn(vectors, rewards)
    first.learn(vectors, rewards)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.state_dict() == first.state_dict()
    whole.learn(vectors, rewards)
    torch.rand(3)  # what others draw does not matter
    second.learn(vectors, rewards)
    assert second.state_dict() == whole.state_dict()

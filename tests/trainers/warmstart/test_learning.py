"""How examples are learned: steps and epochs by hand, who learns with which optimiser, and the step sizes of fine-tuning."""

import copy
import json
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from agentenv.cli.main import main
from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import ByteTokenizer, random_model
from agentenv.policies.hf import HFPolicy
from agentenv.progress import SilentDisplay
from agentenv.trainers.learner.settings import MemorySettings
from agentenv.trainers.warmstart import learning, supervised
from agentenv.trainers.warmstart.learning import LearningSettings, draws, learn
from agentenv.trainers.warmstart.supervised import (
    TrainingExample,
    fit,
    in_batches,
    in_micro_batches,
    sample_batches,
)


def examples(count: int = 5) -> list[TrainingExample]:
    """Rows of 4, 5, 6 ... tokens, all but the first two of them own."""
    return [([65 + place] * (4 + place), [False, False] + [True] * (2 + place)) for place in range(count)]


def policy() -> HFPolicy:
    return HFPolicy(random_model(257, seed=0, context=64), ByteTokenizer())


def weights_of(policy: HFPolicy) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in policy.model.state_dict().items()}


@pytest.mark.parametrize(
    ("settings", "count", "steps"),
    [
        (LearningSettings(), 7, 100),
        (LearningSettings(steps=3), 7, 3),
        (LearningSettings(epochs=2, batch=3), 7, 6),  # 3, 3 and 1, twice
        (LearningSettings(epochs=2, batch=64), 128, 4),
        (LearningSettings(epochs=1, batch=128), 2111, 17),  # HDS-QA
    ],
)
def test_steps_by_hand(settings: LearningSettings, count: int, steps: int) -> None:
    assert settings.steps_on(count) == steps


def test_an_epoch_is_every_example_once() -> None:
    shown = examples(7)
    drawn = list(draws(shown, LearningSettings(epochs=2, batch=3), Random(0)))
    assert [len(rows) for rows in drawn] == [3, 3, 1, 3, 3, 1]
    seen = [row[0][0] for rows in drawn for row in rows]
    assert sorted(seen[:7]) == sorted(seen[7:]) == [row[0][0] for row in shown]
    assert seen[:7] != seen[7:]


def test_parts_of_a_step_hold_at_most_so_many_tokens() -> None:
    """Rows of 4, 5, 6, 7 and 8 tokens, at most 12 of them with padding: 4 and 5 pad to 10, 6 and 6 would be 14 with 7."""
    parts = in_micro_batches(examples(), 12)
    assert [tuple(ids.shape) for ids, _ in parts] == [(2, 5), (1, 6), (1, 7), (1, 8)]
    assert len(in_micro_batches(examples(), 3)) == 5  # a row that is longer is a part of its own
    whole = in_batches(examples(), 0.0)
    assert sum(weights.sum() for _, weights in parts) == sum(weights.sum() for _, weights in whole)


def test_a_small_model_learns_as_before_where_nothing_is_said() -> None:
    first, second = policy(), policy()
    found = learn(
        first, examples(), LearningSettings(steps=3, batch=2), MemorySettings(), Random(4), SilentDisplay()
    )
    asked = sample_batches(examples(), 2, 0.0, Random(4))
    assert found == {
        "tokens": fit(second, asked, 3, 0.25, SilentDisplay()),
        "passes": 3 * 2 / len(examples()),
    }
    for name, value in weights_of(first).items():
        assert torch.equal(value, weights_of(second)[name])


def test_a_large_model_is_fine_tuned_at_a_rate_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    model = policy().model
    count = sum(weight.numel() for weight in model.parameters())
    assert LearningSettings().rate_of(model) is None
    assert LearningSettings(rate=3e-5).rate_of(model) == 3e-5
    monkeypatch.setattr(learning, "SMALL", count - 1)
    assert LearningSettings().rate_of(model) == 1e-5
    assert LearningSettings(rate=3e-5).rate_of(model) == 3e-5


def test_step_sizes_warm_up_over_a_twentieth_and_fall_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 40 steps two warm up: half, whole; then (1 + cos(pi u)) / 2 with u = 0, 1/38, ... 37/38."""
    rates: list[float] = []

    class Noting(torch.optim.AdamW):
        def step(self, closure: Any = None) -> Any:
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    def make(weights: Any, memory: Any, *, learning_rate: float, weight_decay: float) -> Any:
        return Noting(weights, lr=learning_rate, weight_decay=weight_decay)

    monkeypatch.setattr(supervised, "make_optimizer", make)
    settings = LearningSettings(steps=40, batch=2, rate=2e-4)
    learn(policy(), examples(), settings, MemorySettings(), Random(0), SilentDisplay())
    cosine = [(1 + math.cos(math.pi * place / 38)) / 2 for place in range(38)]
    assert rates == pytest.approx([2e-4 * share for share in (0.5, 1.0, *cosine)])


def test_how_a_step_is_cut_into_passes_does_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """By plain gradient descent, so that the weights move by the gradient itself."""

    def make(weights: Any, memory: Any, *, learning_rate: float, weight_decay: float) -> Any:
        return torch.optim.SGD(weights, lr=learning_rate)

    monkeypatch.setattr(supervised, "make_optimizer", make)
    moved = []
    for tokens in (8, 10_000):
        one, start = policy(), weights_of(policy())
        settings = LearningSettings(epochs=1, batch=5, rate=0.1)
        memory = MemorySettings(micro_tokens=tokens)
        found = learn(one, examples(), settings, memory, Random(0), SilentDisplay())
        assert found == {"tokens": 2 + 3 + 4 + 5 + 6, "passes": 1.0, "rate": 0.1, "batch": 5, "steps": 1}
        steps = [(value - start[name]).flatten() for name, value in weights_of(one).items()]
        moved.append(torch.cat(steps))
    assert moved[0].norm() > 0
    assert (moved[0] - moved[1]).norm() < 0.02 * moved[0].norm()


def test_weights_that_are_not_trained_stay(tmp_path: Path) -> None:
    frozen = policy()
    for weight in frozen.model.model.layers.parameters():
        weight.requires_grad_(False)
    before = copy.deepcopy(weights_of(frozen))
    settings = LearningSettings(steps=2, batch=2, rate=1e-2)
    learn(frozen, examples(), settings, MemorySettings(), Random(0), SilentDisplay())
    moved = {name for name, value in weights_of(frozen).items() if not torch.equal(value, before[name])}
    assert moved
    assert not any("layers" in name for name in moved)


def test_how_often_each_example_is_learned() -> None:
    """300 steps of 32 on 796 episodes: 9600 / 796. A step has no example twice, so that of 5 it takes 5."""
    assert LearningSettings(steps=300).passes_over(796) == pytest.approx(12.06, abs=0.005)
    assert LearningSettings(steps=7).passes_over(5) == 7
    assert LearningSettings(epochs=2).passes_over(796) == 2


@pytest.mark.parametrize(
    "changes", [{"steps": 0}, {"epochs": 0}, {"batch": 0}, {"rate": 0.0}, {"rate": math.nan}], ids=str
)
def test_numbers_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(changes))):
        LearningSettings(**changes)


def test_the_command_learns_at_the_rate_that_it_is_given(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """ConvSearch-R1's first stage: 2 epochs, its batch and its step size; the card says so."""
    words = ["warmstart", "--imitate", str(small), "--trust-config", "--json"]
    words += ["--epochs", "2", "--batch", "4", "--rate", "1e-5"]
    assert main([*words, "--out", str(tmp_path / "policy")]) == 0
    result = json.loads(capsys.readouterr().out)
    shown = result["demonstrations"]
    assert (result["rate"], result["batch"], result["steps"]) == (1e-5, 4, 2 * math.ceil(shown / 4))
    written = json.loads((tmp_path / "policy" / "warmstart.json").read_text())
    assert written["rate"] == 1e-5

"""The learner on a device that refuses tensors of the processor: figures, weights and moments are those of the CPU.

Every objective, corrections, penalties towards a reference, entropy, rows behind one prompt; adapters with one objective of
each kind; and a state that one device wrote and the other goes on from.
"""

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.policies.loading import moved
from agentenv.policies.lora import adapt, on_host
from agentenv.trainers.learner.learner import Learner, Objective, TrainingRow
from agentenv.trainers.learner.losses import OBJECTIVES
from agentenv.trainers.learner.packing import _sent
from agentenv.trainers.learner.settings import CorrectionSettings

Make = Callable[..., Any]
WEIGHED = CorrectionSettings(mode="truncate", off_context="weight", ess_base=1.0, reject_above=4.0)
REFERENCE = {"kl_coefficient": 0.1, "kl": "k3_corrected", "ace_alpha": 1.0, "entropy_coefficient": 0.01}
RECOMPUTED: list[dict[str, Any]] = [
    {"proximal": "recompute", "correction": WEIGHED.model_copy(update={"level": level, "reduce": reduce})}
    for level, reduce in (("token", "max"), ("sequence", "sum"), ("geometric", "mean"))
]
INTERPOLATED = {
    "proximal": "interpolate",
    "correction": WEIGHED.model_copy(update={"mode": "mask", "low": 0.5}),
}
ROUNDED = {"aggregation": "sequence_mean", "precision": "bfloat16"}
WHOLE: list[dict[str, Any]] = [
    *({"objective": name} for name in OBJECTIVES),
    *(REFERENCE, *RECOMPUTED, INTERPOLATED, ROUNDED),
]
ADAPTED: list[dict[str, Any]] = [{}, REFERENCE, RECOMPUTED[0], ROUNDED]
"""The formula of an objective does not depend on which weights are trained."""


def rows() -> list[TrainingRow]:
    """Ten rows behind two prompts, of unequal length and age, some with a token of another context."""
    rng, made = np.random.default_rng(0), []
    prompts = rng.integers(0, 256, (2, 6))
    for place in range(10):
        tail = rng.integers(0, 256, 3 + place % 4)
        ids = np.concatenate([prompts[place % 2], tail])
        mask = np.arange(len(ids)) >= 6
        foreign = np.zeros(len(ids), dtype=np.bool_)
        foreign[7] = place % 4 == 0
        old = rng.normal(-4, 0.5, len(ids)).astype(np.float32)
        ages = np.full(len(ids), place % 3)
        made.append(TrainingRow(ids, mask, old, foreign, rng.normal(size=len(ids)), age=ages))
    return made


def trained(
    model: Any, reference: Any, objective: Objective, batch: Sequence[TrainingRow]
) -> tuple[list[dict[str, float]], Learner]:
    """Figures of two steps, and the learner after them."""
    learner = Learner(model, objective, learning_rate=1e-3, reference=reference)
    batch = learner.with_proximal(batch) if objective.proximal == "recompute" else list(batch)
    return [learner.step(batch, update=update) for update in (0, 1)], learner


def gradients(learner: Learner) -> dict[str, Any]:
    """What the last step moved against; Adam's own steps would magnify the last digit of those near 0."""
    return {name: p.grad for name, p in learner.model.named_parameters() if p.grad is not None}


def assert_same(there: Any, here: Any) -> None:
    for (name, found), wanted in zip(there.items(), here.values(), strict=True):
        assert torch.allclose(on_host(found), wanted, atol=1e-5, rtol=0), name


@pytest.mark.parametrize(
    ("settings", "adapted"),
    [*((one, False) for one in WHOLE), *((one, True) for one in ADAPTED)],
    ids=lambda one: ("adapter" if one else "whole") if isinstance(one, bool) else next(iter(one), "plain"),
)
def test_two_steps_on_a_device_are_those_of_the_cpu(
    qwen: Make, fake_device: str, settings: dict[str, Any], adapted: bool
) -> None:
    objective = Objective.model_validate({"micro_tokens": 40} | settings)
    outcomes = []
    for device in ("cpu", fake_device):
        model = moved(qwen(seed=1), torch.device(device))
        model = adapt(model, rank=2, alpha=4, seed=1) if adapted else model
        apart = moved(qwen(seed=2), torch.device(device))
        reference = (model if adapted else apart) if objective.needs_reference else None
        outcomes.append(trained(model, reference, objective, rows()))
    (wanted, here), (found, there) = outcomes
    assert there.device.type == fake_device
    tolerance = 3e-2 if objective.precision == "bfloat16" else 1e-5  # the device computes that in float32
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine == pytest.approx(theirs, abs=tolerance, rel=tolerance)
    if objective.precision == "float32":
        assert_same(gradients(there), gradients(here))


def test_either_device_goes_on_from_the_state_of_the_other(qwen: Make, fake_device: str) -> None:
    objective = Objective(micro_tokens=40)
    learners = {
        device: trained(moved(qwen(seed=1), torch.device(device)), None, objective, rows())[1]
        for device in ("cpu", fake_device)
    }
    states = {
        name: copy.deepcopy((on_host(dict(one.weights())), on_host(one.optimizer_state())))
        for name, one in learners.items()
    }
    after = {}
    for name, other in (("cpu", fake_device), (fake_device, "cpu")):
        learner = learners[name]
        assert learner.load(*states[other]) == []
        after[name] = learner.step(rows())
    assert after[fake_device] == pytest.approx(after["cpu"], abs=1e-5, rel=1e-5)
    assert_same(gradients(learners[fake_device]), gradients(learners["cpu"]))


@pytest.mark.parametrize(
    "settings", [*WHOLE, {"micro_tokens": 400}], ids=lambda one: next(iter(one), "plain")
)
def test_a_step_reads_the_device_twice_however_many_micro_batches_it_has(
    qwen: Make,
    fake_device: str,
    device_waits: "Counter[str]",
    settings: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All metrics at once, and the norm of the gradient, without which no weight may move."""
    # Of a pass without a mask transformers asks the device whether rows stand in one line; lines come with a mask.
    monkeypatch.setattr("transformers.masking_utils.find_packed_sequence_indices", lambda positions: None)
    objective = Objective.model_validate({"micro_tokens": 40} | settings)
    model, reference = (moved(qwen(seed=seed), torch.device(fake_device)) for seed in (1, 2))
    learner = Learner(
        model, objective, learning_rate=1e-3, reference=reference if objective.needs_reference else None
    )
    batch = learner.with_proximal(rows()) if objective.proximal == "recompute" else rows()
    learner.step(batch)  # what follows the output layer is looked up once, and Adam makes its moments
    device_waits.clear()
    learner.step(batch)
    assert device_waits.pop("upload") > 0  # of micro-batches, which on a card are not waited for
    # The step size then depends on the ratios of all rows.
    weighed = objective.correction.ess_base is not None
    assert device_waits == {"tolist": 1, "_local_scalar_dense": 1 + weighed}


def test_the_gradient_of_a_trajectory_is_measured_in_few_reads(
    qwen: Make, fake_device: str, device_waits: "Counter[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.masking_utils.find_packed_sequence_indices", lambda positions: None)
    learner = Learner(moved(qwen(), torch.device(fake_device)), Objective(), learning_rate=1e-3)
    learner.measure(rows()[:1])
    device_waits.clear()
    learner.measure(rows()[:1])
    assert device_waits == {"upload": device_waits["upload"], "tolist": 1, "_local_scalar_dense": 1}


def test_to_a_card_a_micro_batch_travels_from_pinned_memory() -> None:
    """From other memory the host would wait until the card had come to it; the device of these tests has no such memory."""

    class Here:
        pinned = False

        def pin_memory(self) -> "Here":
            self.pinned = True
            return self

        def to(self, device: torch.device, non_blocking: bool = False) -> tuple[bool, bool]:
            return self.pinned, non_blocking

    sent: Any = _sent
    assert sent(Here(), torch.device("cuda", 0)) == (True, True)
    assert sent(Here(), torch.device("cpu")) == (False, False)

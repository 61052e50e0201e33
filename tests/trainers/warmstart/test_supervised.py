"""Supervised steps: in which number format the matrices are multiplied."""

from typing import Any

import pytest
import torch

from agentenv.policies.fakes import random_model
from agentenv.policies.forward import logits_at
from agentenv.trainers.warmstart import supervised


@pytest.mark.parametrize("own", [True, False])
def test_products_are_in_bfloat16_where_the_processor_has_it_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """Without the instructions a product takes seventy times as long as in float32."""
    model, seen = random_model(257, seed=0, context=64), []

    def noting(*args: Any, **inputs: Any) -> torch.Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        return logits_at(*args, **inputs)

    monkeypatch.setattr(supervised, "multiplies_bfloat16", lambda _: own)
    monkeypatch.setattr(supervised, "logits_at", noting)
    ids, weights = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[0.0, 0.0, 1.0, 1.0]])
    loss = supervised._weighted_loss(model, ids, weights, 2)
    assert seen == [own]
    assert loss > 0
    assert all(weight.grad is not None for weight in model.model.layers.parameters())

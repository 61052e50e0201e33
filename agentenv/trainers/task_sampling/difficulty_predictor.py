"""Predicts how well the policy does on a question from how it did on others, by attention that learns (DOTS).

Sun et al. 2025, arXiv:2506.05316. Two projections of frozen embeddings, one of the question and one of the reference
questions, decide which reference counts how much for a question. A small network then calibrates the weighted mean by the
mean and the deviation of the reference. The architecture and its numbers are those of the released program. It trains them
once, on the outcomes of other models; here they are trained while the run goes on, on its own outcomes: each reference
question is predicted from the others.

Shapes: Q questions, R reference questions, D dimensions of an embedding, H of its projection.
"""

import math
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

_HIDDEN = 32
"""Dimensions of a projected embedding (896 in the released program, for embeddings of 1536)."""
_LAYERS = 3
"""Linear layers of a projection."""
_RATE = 1e-3
"""Learning rate of Adam."""
_NEAR_CERTAIN = 1e-4
_COLDEST, _HOTTEST = 1e-2, 10.0
_UNCHANGED = math.log(math.e - 1)  # softplus gives 1: the calibration begins without an effect


def attended(queries_Q_H: Tensor, references_R_H: Tensor, rewards_R: Tensor, hidden_Q_R: Tensor) -> Tensor:
    """[Q]: mean rewards of the references, weighed by softmax(q k / sqrt(H)); those in ``hidden_Q_R`` have weight 0."""
    scores = queries_Q_H @ references_R_H.T / math.sqrt(references_R_H.shape[1])
    return scores.masked_fill(hidden_Q_R, -torch.inf).softmax(dim=1) @ rewards_R


def calibrated(base_Q: Tensor, temperature_Q: Tensor, bias_Q: Tensor) -> Tensor:
    """[Q]: sigmoid(logit(base) / temperature + bias), base within [1e-4, 1 - 1e-4] and temperature within [1e-2, 10]."""
    logits = torch.logit(base_Q.clamp(_NEAR_CERTAIN, 1 - _NEAR_CERTAIN))
    return torch.sigmoid(logits / temperature_Q.clamp(_COLDEST, _HOTTEST) + bias_Q)


class _Dropout(nn.Module):
    """Dropout with a generator of its own, so that what it draws depends on nothing else in the process."""

    def __init__(self, share: float, chance: torch.Generator) -> None:
        super().__init__()
        self._share, self._chance = share, chance

    def forward(self, activations_Q_H: Tensor) -> Tensor:
        if not self.training:
            return activations_Q_H
        kept = torch.rand(activations_Q_H.shape, generator=self._chance) >= self._share
        return activations_Q_H * kept / (1 - self._share)


def _linear(size: int, out: int, chance: torch.Generator) -> nn.Linear:
    """A linear layer with the usual first weights, drawn from ``chance``."""
    # On `meta` nothing is initialised, so that the global generator of torch, from which other parts draw, does not
    # move.
    layer = nn.Linear(size, out, device="meta").to_empty(device="cpu")
    bound = 1 / math.sqrt(size)
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=chance)
        layer.bias.uniform_(-bound, bound, generator=chance)
    return layer


def _projection(size: int, dropout: float, chance: torch.Generator) -> nn.Sequential:
    parts: list[nn.Module] = [nn.LayerNorm(size), _linear(size, _HIDDEN, chance)]
    for _ in range(_LAYERS - 1):
        parts += [nn.GELU(), _Dropout(dropout, chance), _linear(_HIDDEN, _HIDDEN, chance)]
    return nn.Sequential(*parts, nn.LayerNorm(_HIDDEN))


class _Network(nn.Module):
    def __init__(self, size: int, dropout: float, chance: torch.Generator) -> None:
        super().__init__()
        self.query = _projection(size, dropout, chance)
        self.reference = _projection(size, dropout, chance)
        last = _linear(10, 2, chance)
        with torch.no_grad():
            last.weight.zero_()
            last.bias.copy_(torch.tensor([_UNCHANGED, 0.0]))
        self.calibration = nn.Sequential(_linear(2, 10, chance), nn.ReLU(), last)

    def forward(
        self, queries_Q_D: Tensor, references_R_D: Tensor, rewards_R: Tensor, hidden_Q_R: Tensor
    ) -> Tensor:
        base = attended(self.query(queries_Q_D), self.reference(references_R_D), rewards_R, hidden_Q_R)
        temperature, bias = self.calibration(_mean_and_deviation(rewards_R, ~hidden_Q_R)).unbind(dim=1)
        return calibrated(base, F.softplus(temperature), torch.tanh(bias))


def _mean_and_deviation(rewards_R: Tensor, shown_Q_R: Tensor) -> Tensor:
    """[Q, 2]: of the rewards that each row shows; the deviation of fewer than two is 0."""
    count = shown_Q_R.sum(dim=1, keepdim=True)
    mean = (rewards_R * shown_Q_R).sum(dim=1, keepdim=True) / count
    square = ((rewards_R - mean).square() * shown_Q_R).sum(dim=1, keepdim=True) / (count - 1).clamp(min=1)
    return torch.cat([mean, square.sqrt()], dim=1)


class DifficultyPredictor:
    """The predictor with what it has learned.

    Args:
        size: Dimensions of an embedding.
        dropout: Share of activations that are left out while it learns.
        passes: Steps of Adam in ``learn``.
    """

    def __init__(self, size: int, *, dropout: float = 0.1, passes: int = 5) -> None:
        self._chance = torch.Generator().manual_seed(0)
        self._network = _Network(size, dropout, self._chance)
        self._optimizer = torch.optim.Adam(self._network.parameters(), lr=_RATE)
        self._passes = passes
        self._learned = 0
        self.loss = 0.0
        """Mean cross-entropy of the last pass."""

    def predict(self, questions_Q_D: Any, references_R_D: Any, rewards_R: Any) -> Any:
        """float64[Q]: expected mean rewards in [0, 1]."""
        questions, references, rewards = map(_tensor, (questions_Q_D, references_R_D, rewards_R))
        self._network.eval()
        with torch.no_grad():
            hidden = torch.zeros(len(questions), len(references), dtype=torch.bool)
            predicted: Tensor = self._network(questions, references, rewards, hidden)
        return predicted.double().numpy()

    def learn(self, references_R_D: Any, rewards_R: Any) -> None:
        """Some steps on the cross-entropy of each reference question as the others predict it; none for fewer than three."""
        references, rewards = _tensor(references_R_D), _tensor(rewards_R)
        if len(rewards) < 3:
            return
        # A question would be predicted from its own outcome otherwise, and attention would learn to look at nothing
        # else.
        own = torch.eye(len(rewards), dtype=torch.bool)
        self._network.train()
        self._learned += 1
        # By the number of the call, so that a resumed run draws the dropout that the run without an interruption
        # draws.
        self._chance.manual_seed(self._learned)
        for _ in range(self._passes):
            self._optimizer.zero_grad()
            loss = F.binary_cross_entropy(self._network(references, references, rewards, own), rewards)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimizer.step()
            self.loss = loss.item()

    def state_dict(self) -> dict[str, Any]:
        """Weights and the two moments of Adam as text, and how often it has learned."""
        moments = [self._optimizer.state.get(p, {}) for p in self._network.parameters()]
        tensors = [p.detach() for p in self._network.parameters()]
        tensors += [m[name] for name in ("exp_avg", "exp_avg_sq") for m in moments if m]
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors]).numpy()
        return {"learned": self._learned, "loss": self.loss, "numbers": b64encode(flat.tobytes()).decode()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood."""
        self._learned, self.loss = state["learned"], state["loss"]
        flat = torch.from_numpy(np.frombuffer(b64decode(state["numbers"]), dtype=np.float32).copy())
        parameters = list(self._network.parameters())
        shapes = parameters * (3 if self._learned else 1)
        ends = np.cumsum([like.numel() for like in shapes])
        parts = [flat[end - like.numel() : end].view_as(like) for end, like in zip(ends, shapes, strict=True)]
        count = len(parameters)
        for place, parameter in enumerate(parameters):
            parameter.data.copy_(parts[place])
            if self._learned:
                self._optimizer.state[parameter] = {
                    # Adam corrects its moments by the number of steps, which follows from the number of calls and is
                    # not stored.
                    "step": torch.tensor(float(self._learned * self._passes)),
                    "exp_avg": parts[count + place].clone(),
                    "exp_avg_sq": parts[2 * count + place].clone(),
                }


def _tensor(values: Any) -> Tensor:
    return torch.as_tensor(np.asarray(values, dtype=np.float32))

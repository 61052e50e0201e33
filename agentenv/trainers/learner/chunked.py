"""Log-probs and entropies from hidden states, a few tokens at a time, so that no matrix of all tokens and words exists.

The backward pass computes the logits of a chunk again and multiplies by derivatives written out by hand, in place. With the
logits x = tail(output), z = x / temperature and p = softmax(z):

    d log p(t) / d z_j = [j = t] - p_j,        d entropy / d z_j = -p_j (log p_j + entropy),
    d z / d output = scale / temperature (1 - tanh(scale output / cap)^2)

What is needed at a time is one or two matrices [n, V] in float32, for an entropy or a cap one more, and the gradient of the
output layer's weights, twice where these are no plain linear layer. On a CUDA device ``fused_loss`` computes the same, and
needs two matrices [n, V] in the number format of the model.

Shapes: N trained tokens, n tokens of a chunk, H hidden size, V vocabulary.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from agentenv.policies.output_head import LogitTail
from agentenv.trainers.learner import fused_loss


def chunked_logprobs(
    hidden_NH: Tensor,
    targets_N: Tensor,
    layer: Any,
    tail: LogitTail,
    temperature: float,
    *,
    chunk: int,
    entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Log-probs [N] of the targets, and on demand the entropy [N] of their distributions.

    Args:
        hidden_NH: What the output layer reads.
        targets_N: int64, words.
        layer: The output layer: a module from [n, H] to [n, V].
        tail: What follows it.
        temperature: Logits are divided by it.
        chunk: Tokens at a time.
        entropy: Whether it is wanted.
    """
    weights = [weight for weight in layer.parameters() if weight.requires_grad]
    how = _How(layer, tail, temperature, chunk, entropy)
    logprobs, entropies = _Chunked.apply(hidden_NH, targets_N, how, *weights)  # type: ignore[no-untyped-call]
    return logprobs, entropies if entropy else None


def whole_logprobs(
    logits_NV: Tensor, targets_N: Tensor, temperature: float, *, entropy: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Log-probs and entropies from logits that were all made at once, with the gradients of torch."""
    # In float32, because a log-prob in bfloat16 has two to three digits, too few for ratios near 1.
    scores = logits_NV if logits_NV.dtype == torch.float64 else logits_NV.float()
    logprobs_NV = torch.log_softmax(scores / temperature, dim=-1)
    taken = logprobs_NV.gather(-1, targets_N[:, None])[:, 0]
    return taken, -(logprobs_NV.exp() * logprobs_NV).sum(-1) if entropy else None


class _How:
    """All that is no tensor, and whether multiplications are rounded (autocast), which the backward pass has to repeat."""

    def __init__(self, layer: Any, tail: LogitTail, temperature: float, chunk: int, entropy: bool) -> None:
        self.layer, self.tail, self.temperature = layer, tail, temperature
        self.chunk, self.entropy = chunk, entropy
        self.options = {"tail": tail, "temperature": temperature, "entropy": entropy}

    def note_precision(self, device: str) -> None:
        """Remembers the precision of the multiplications under way."""
        self.device = device
        self.enabled = torch.is_autocast_enabled(device)
        self.dtype = torch.get_autocast_dtype(device)

    @property
    def is_linear(self) -> bool:
        """Whether the layer is a plain product whose factors are not rounded."""
        return type(self.layer) is torch.nn.Linear and not self.enabled

    def outputs(self, hidden_nH: Tensor) -> Tensor:
        """What the layer makes of a chunk [n, V]; a rounded copy of its weights would be kept without its gradient."""
        with torch.autocast(self.device, self.dtype, enabled=self.enabled, cache_enabled=False):
            made: Tensor = self.layer(hidden_nH)
        return made

    def figures(self, outputs_nV: Tensor, targets_n: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probs, logarithms of the sums, and entropies [n]; the outputs are used up."""
        if fused_loss.compiles_for(self.device):
            found: tuple[Tensor, Tensor, Tensor] | None
            found = fused_loss.compiled(fused_loss.figures)(outputs_nV, targets_n, **self.options)
            if found is not None:
                return found
        return _figures(self.scores_(outputs_nV), targets_n, self.entropy)

    def output_slopes(self, kept: Sequence[Tensor], outputs_nV: Tensor) -> Tensor:
        """The gradient with respect to the outputs of the layer [n, V], which are used up."""
        if fused_loss.compiles_for(self.device):
            found: Tensor | None
            found = fused_loss.compiled(fused_loss.output_slopes)(outputs_nV, *kept, **self.options)
            if found is not None:
                return found
        return _output_slopes(self, outputs_nV, *kept)

    def scores_(self, outputs_nV: Tensor) -> Tensor:
        """Logits over the temperature [n, V], in float32 at least; in place where the outputs are."""
        wide = outputs_nV if outputs_nV.dtype == torch.float64 else outputs_nV.float()
        return self.tail.apply_(wide).div_(self.temperature)


class _Chunked(torch.autograd.Function):
    """See the module."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NH: Tensor, targets_N: Tensor, how: _How, *weights: Tensor
    ) -> tuple[Tensor, Tensor]:
        how.note_precision(hidden_NH.device.type)
        parts = zip(torch.split(hidden_NH, how.chunk), torch.split(targets_N, how.chunk), strict=True)
        found = [how.figures(how.outputs(hidden), targets) for hidden, targets in parts]
        logprobs, log_sums, entropies = (torch.cat(columns) for columns in zip(*found, strict=True))
        ctx.how, ctx.count = how, len(weights)
        ctx.save_for_backward(hidden_NH, targets_N, log_sums, entropies, *weights)
        # The zeros that stand for entropies depend on nothing; torch would ask for their gradient otherwise.
        if not how.entropy:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slopes_N: Tensor, entropy_slopes_N: Tensor) -> tuple[Tensor | None, ...]:
        how: _How = ctx.how
        hidden_NH, targets_N, log_sums, entropies, *weights = ctx.saved_tensors
        chunks = (hidden_NH, targets_N, log_sums, entropies, slopes_N, entropy_slopes_N)
        back = _linear_slopes if how.is_linear else _layer_slopes
        hidden_slopes, totals = torch.empty_like(hidden_NH), [torch.zeros_like(weight) for weight in weights]
        parts = zip(*(torch.split(values, how.chunk) for values in chunks), strict=True)
        for place, (hidden, *rest) in enumerate(parts):
            found = back(how, hidden, partial(how.output_slopes, rest), weights, totals)
            hidden_slopes[place * how.chunk :][: len(hidden)] = found
        return hidden_slopes, None, None, *totals


def _linear_slopes(
    how: _How,
    hidden_nH: Tensor,
    slopes_of: Callable[[Tensor], Tensor],
    weights: Sequence[Tensor],
    totals: Sequence[Tensor],
) -> Tensor:
    """The gradient of a chunk with respect to its hidden states [n, H]; that of the layer's weights is added in place."""
    layer = how.layer
    slopes = slopes_of(how.outputs(hidden_nH)).to(hidden_nH.dtype)
    for weight, total in zip(weights, totals, strict=True):
        if weight.dim() == 1:  # its bias
            total += slopes.sum(0)
        else:
            total.addmm_(slopes.T, hidden_nH)
    return slopes @ layer.weight  # type: ignore[no-any-return]


def _layer_slopes(
    how: _How,
    hidden_nH: Tensor,
    slopes_of: Callable[[Tensor], Tensor],
    weights: Sequence[Tensor],
    totals: Sequence[Tensor],
) -> Tensor:
    """The same through any layer, by torch: for a moment each weight has its gradient of the chunk beside the sum."""
    with torch.enable_grad():
        read = hidden_nH.detach().requires_grad_()
        outputs = how.outputs(read)
    slopes = slopes_of(outputs.detach()).to(outputs.dtype)
    found, *ours = torch.autograd.grad(outputs, [read, *weights], slopes)
    for total, one in zip(totals, ours, strict=True):
        total += one
    return found


def _figures(scores_nV: Tensor, targets_n: Tensor, entropy: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, logarithms of the sums, and entropies [n], 0 where they are not wanted; the scores are used up."""
    taken = scores_nV.gather(-1, targets_n[:, None])[:, 0]
    # The largest exponent becomes 0, so that no exp overflows. An entropy reads the scores once more, so that they
    # are overwritten only where none is wanted.
    top = scores_nV.amax(-1, keepdim=True)
    shares = (scores_nV - top if entropy else scores_nV.sub_(top)).exp_()
    sums = shares.sum(-1)
    log_sums = top[:, 0] + sums.log()
    entropies = torch.zeros_like(taken)
    if entropy:
        entropies = log_sums - shares.mul_(scores_nV).sum(-1) / sums
    return taken - log_sums, log_sums, entropies


def _output_slopes(
    how: _How,
    outputs_nV: Tensor,
    targets_n: Tensor,
    log_sums_n: Tensor,
    entropies_n: Tensor,
    slopes_n: Tensor,
    entropy_slopes_n: Tensor,
) -> Tensor:
    """The gradient with respect to the outputs of the layer [n, V], which are used up."""
    scores = how.scores_(outputs_nV)
    # The slope of the cap, 1 - tanh^2, is taken before the scores are overwritten: scores * temperature / cap is the
    # tanh.
    bend = None
    if how.tail.cap is not None:
        bend = (scores * (how.temperature / how.tail.cap)).square_().neg_().add_(1)
    logs = scores.sub_(log_sums_n[:, None])
    # In place, with slopes a of the log-prob and b of the entropy: -p (a + b (log p + entropy)), and a more at the
    # target.
    if how.entropy:
        pulls = logs.exp()
        raw = logs.add_(entropies_n[:, None]).mul_(entropy_slopes_n[:, None]).add_(slopes_n[:, None])
        raw.mul_(pulls).neg_()
    else:
        raw = logs.exp_().mul_(-slopes_n[:, None])
    raw.scatter_add_(-1, targets_n[:, None], slopes_n[:, None])
    if bend is not None:
        raw.mul_(bend)
    return raw.mul_(how.tail.scale / how.temperature)

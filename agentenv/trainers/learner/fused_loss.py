"""The arithmetic on logits of ``chunked`` as formulas that torch compiles into one kernel each for a CUDA device.

Between the two products of the output layer, operations one after the other read and write a matrix of logits in float32
some twenty times. Compiled, a chunk of logits stays in the number format of the model: it is read once for the log-probs,
and for the gradient read once and written once.

Shapes: n tokens of a chunk, V vocabulary.
"""

import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from agentenv.policies.output_head import LogitTail

_given_up: list[str] = []
"""Why torch could not compile here; it is not asked again."""


def compiles_for(device: str) -> bool:
    """Whether torch compiles kernels for devices of that type: for CUDA, where Triton and a C compiler are installed.

    False as well once it has failed to.
    """
    if _given_up:
        return False
    compilers = (os.environ.get("CC"), "gcc", "clang", "cc")
    found = any(name and shutil.which(name) for name in compilers)
    return device == "cuda" and found and importlib.util.find_spec("triton") is not None


@cache
def compiled(formula: Callable[..., Any]) -> Callable[..., Any]:
    """``formula``, compiled at its first call for any number of tokens, the first size of each tensor.

    It gives None where torch cannot compile it, which no look at the machine foretells: Triton compiles against the headers
    of Python, for a driver that it has to know, into a folder that has to be writable.
    """
    # Rows are as many as multiprocessors and more, so each is read by one of them, and once.
    made = torch.compile(formula, options={"split_reductions": False})

    def call(*tensors: Tensor, **options: Any) -> Any:
        bare = [tensor.detach() for tensor in tensors]
        for tensor in bare:  # or the last chunk, which is shorter, would be compiled anew
            torch._dynamo.maybe_mark_dynamic(tensor, 0)
        try:
            return made(*bare, **options)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # of torch, of Triton, or of a compiler, each of its own
            reason = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            _given_up.append(reason)
            message = "torch cannot compile the loss here, which is computed in single operations from now on, slower"
            warnings.warn(f"{message}: {reason}", RuntimeWarning, stacklevel=2)
            return None

    return call


def figures(
    outputs_nV: Tensor, targets_n: Tensor, *, tail: LogitTail, temperature: float, entropy: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, logarithms of the sums, and entropies [n], 0 where they are not wanted.

    Args:
        outputs_nV: Of the output layer.
        targets_n: int64, words.
        tail: From outputs to logits.
        temperature: Logits are divided by it.
        entropy: Whether it is wanted.
    """
    scores = _scores(outputs_nV, tail, temperature)
    # In this form torch finds maximum and sum in one pass (Milakov and Gimelshein 2018, arXiv:1805.02867).
    top = scores.amax(-1, keepdim=True)
    shares = (scores - top).exp()
    sums = shares.sum(-1, keepdim=True)
    log_sums = (top + sums.log())[:, 0]
    # From the outputs: places that are looked up in the scores would have all of these written to memory.
    taken = _scores(outputs_nV.gather(-1, targets_n[:, None]), tail, temperature)[:, 0]
    entropies = torch.zeros_like(taken)
    if entropy:
        entropies = log_sums - (shares * scores).sum(-1) / sums[:, 0]
    return taken - log_sums, log_sums, entropies


def output_slopes(
    outputs_nV: Tensor,
    targets_n: Tensor,
    log_sums_n: Tensor,
    entropies_n: Tensor,
    slopes_n: Tensor,
    entropy_slopes_n: Tensor,
    *,
    tail: LogitTail,
    temperature: float,
    entropy: bool,
) -> Tensor:
    """The gradient with respect to the outputs of the layer [n, V], in their number format; formulas in ``chunked``.

    Args:
        outputs_nV: Of the output layer.
        targets_n: int64, words.
        log_sums_n: Of ``figures``.
        entropies_n: Of ``figures``.
        slopes_n: Gradient with respect to the log-probs.
        entropy_slopes_n: Gradient with respect to the entropies; not read where these are not wanted.
        tail: From outputs to logits.
        temperature: Logits are divided by it.
        entropy: Whether there is a gradient of entropies.
    """
    scores = _scores(outputs_nV, tail, temperature)
    logs = scores - log_sums_n[:, None]
    pulls = slopes_n[:, None]
    if entropy:
        pulls = pulls + entropy_slopes_n[:, None] * (logs + entropies_n[:, None])
    words = torch.arange(outputs_nV.shape[1], device=outputs_nV.device)
    slopes = torch.where(words == targets_n[:, None], slopes_n[:, None], 0.0) - logs.exp() * pulls
    if tail.cap is not None:
        slopes = slopes * (1 - (scores * (temperature / tail.cap)) ** 2)
    return (slopes * (tail.scale / temperature)).to(outputs_nV.dtype)


def _scores(outputs_nV: Tensor, tail: LogitTail, temperature: float) -> Tensor:
    wide = outputs_nV if outputs_nV.dtype == torch.float64 else outputs_nV.float()
    wide = wide * tail.scale
    if tail.cap is not None:
        wide = torch.tanh(wide / tail.cap) * tail.cap
    return wide / temperature

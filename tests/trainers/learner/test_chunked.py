"""Log-probs in chunks: values and gradients of the plain formula, no matrix of all tokens and words, the same learner."""

import importlib.util
import math
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agentenv.policies.fake_architectures import tiny_model
from agentenv.policies.output_head import LogitTail
from agentenv.trainers.learner import fused_loss
from agentenv.trainers.learner.chunked import chunked_logprobs
from agentenv.trainers.learner.logprobs import token_logprobs
from agentenv.trainers.learner.packing import Packed, TrainingRow, micro_batches

TOKENS, WIDTH, WORDS = 11, 5, 23


class Adapted(nn.Module):
    """A linear layer with a low-rank product beside it, as peft makes one."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WORDS).requires_grad_(False)
        self.a, self.b = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WORDS, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.base(hidden) + 0.5 * self.b(self.a(hidden))  # type: ignore[no-any-return]


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(WIDTH, WORDS, bias=False),
    "bias": lambda: nn.Linear(WIDTH, WORDS),
    "adapted": Adapted,
    "frozen": lambda: nn.Linear(WIDTH, WORDS).requires_grad_(False),
}
TAILS = {
    "plain": LogitTail(),
    "scaled": LogitTail(scale=0.3),
    "capped": LogitTail(cap=1.5),
    "both": LogitTail(0.7, 2.0),
}


def given(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True)
    return hidden, torch.randint(WORDS, (TOKENS,), generator=generator)


def plain(
    hidden: Tensor, targets: Tensor, layer: Any, tail: LogitTail, temperature: float
) -> tuple[Tensor, Tensor]:
    logits = tail.scale * layer(hidden)
    if tail.cap is not None:
        logits = tail.cap * torch.tanh(logits / tail.cap)
    logprobs = torch.log_softmax(logits / temperature, -1)
    return logprobs.gather(-1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


@pytest.fixture(params=["in place", "formulas"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How chunks are computed: operations one after the other, or the formulas that are compiled for a card."""
    if request.param == "formulas":
        monkeypatch.setattr(fused_loss, "compiles_for", lambda _: True)
        monkeypatch.setattr(fused_loss, "compiled", lambda formula: formula)
    return str(request.param)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("bend", TAILS)
@pytest.mark.parametrize("entropy", [False, True])
def test_values_and_gradients_are_those_of_the_plain_formula(kind: str, bend: str, entropy: bool) -> None:
    torch.manual_seed(1)
    layer, tail = LAYERS[kind]().double(), TAILS[bend]
    hidden, targets = given()
    trained = [hidden, *(weight for weight in layer.parameters() if weight.requires_grad)]
    wanted = plain(hidden, targets, layer, tail, 0.8)
    found = chunked_logprobs(hidden, targets, layer, tail, 0.8, chunk=4, entropy=entropy)
    pull = torch.randn(2, TOKENS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=1e-10)
    losses = [(pull[0] * wanted[0]).sum(), (pull[0] * found[0]).sum()]
    if entropy:
        assert found[1] is not None
        torch.testing.assert_close(found[1], wanted[1], rtol=0, atol=1e-10)
        losses = [losses[0] + (pull[1] * wanted[1]).sum(), losses[1] + (pull[1] * found[1]).sum()]
    else:
        assert found[1] is None
    slopes, ours = (torch.autograd.grad(loss, trained) for loss in losses)
    for one, other in zip(ours, slopes, strict=True):
        assert other.abs().max() > 1e-3
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where its compiler is imported
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles for a CPU with g++")
@pytest.mark.parametrize(
    ("entropy", "chunks"),
    [
        (False, (4, 3)),  # 4, 4 and 3 tokens, then 3, 3, 3 and 2
        (True, (5, 4)),  # 5, 5 and 1 tokens, then 4, 4 and 3; a chunk of one token is compiled by itself
    ],
)
def test_compiled_formulas_give_the_same_for_chunks_of_any_length(
    entropy: bool, chunks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    layer, (hidden, targets) = nn.Linear(WIDTH, WORDS).double(), given()
    compiled = []
    monkeypatch.setattr(fused_loss, "compiles_for", lambda _: True)
    for chunk in chunks:
        found = chunked_logprobs(hidden, targets, layer, LogitTail(), 0.8, chunk=chunk, entropy=entropy)
        wanted = plain(hidden, targets, layer, LogitTail(), 0.8)
        torch.testing.assert_close(found[0], wanted[0], rtol=0, atol=1e-10)
        pairs = zip(found, wanted, strict=True) if entropy else [(found[0], wanted[0])]
        for one, other in pairs:
            assert one is not None
            ours, slopes = (torch.autograd.grad(v.sum(), hidden, retain_graph=True)[0] for v in (one, other))
            torch.testing.assert_close(ours, slopes, rtol=0, atol=1e-10)
        compiled.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert compiled[0] == compiled[1]


@pytest.mark.parametrize("broken", [fused_loss.figures, fused_loss.output_slopes])
def test_a_machine_on_which_torch_cannot_compile_goes_on_without(
    broken: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A C compiler without the headers of Python, for one; it is not asked again, and the values are the same."""
    asked: list[Any] = []

    def compile_(formula: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            asked.append(formula)
            if formula is broken:
                raise RuntimeError("fatal error: Python.h\nof a compiler")
            return formula(*args, **options)

        return call

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(fused_loss, "_given_up", [])
    monkeypatch.setattr(fused_loss, "compiled", fused_loss.compiled.__wrapped__)
    installed = fused_loss.compiles_for
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(fused_loss, "compiles_for", lambda _: installed("cuda"))
    torch.manual_seed(1)
    layer, (hidden, targets) = nn.Linear(WIDTH, WORDS).double(), given()

    def both() -> tuple[Tensor, Tensor]:
        found = chunked_logprobs(hidden, targets, layer, LogitTail(), 0.8, chunk=4)[0]
        return found, torch.autograd.grad(found.sum(), hidden)[0]

    with pytest.warns(RuntimeWarning, match=r"RuntimeError: fatal error: Python\.h$"):
        found, ours = both()
    wanted = plain(hidden, targets, layer, LogitTail(), 0.8)[0]
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)
    torch.testing.assert_close(ours, torch.autograd.grad(wanted.sum(), hidden)[0], rtol=0, atol=1e-10)
    assert asked.count(broken) == 1


def test_a_card_without_memory_for_the_loss_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "compile", lambda formula, **_: full)
    monkeypatch.setattr(fused_loss, "_given_up", [])
    monkeypatch.setattr(fused_loss, "compiled", fused_loss.compiled.__wrapped__)
    monkeypatch.setattr(fused_loss, "compiles_for", lambda _: True)
    with pytest.raises(torch.OutOfMemoryError):
        chunked_logprobs(given()[0], given()[1], nn.Linear(WIDTH, WORDS).double(), LogitTail(), 0.8, chunk=4)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("entropy", [False, True])
def test_gradients_are_those_of_finite_differences(entropy: bool) -> None:
    torch.manual_seed(3)
    layer = nn.Linear(WIDTH, WORDS).double()
    hidden, targets = given(4)

    def figures(hidden: Tensor, *_: Tensor) -> tuple[Tensor, ...]:
        logprobs, spread = chunked_logprobs(
            hidden, targets, layer, LogitTail(0.5, 3.0), 1.3, chunk=3, entropy=entropy
        )
        return (logprobs,) if spread is None else (logprobs, spread)

    assert torch.autograd.gradcheck(figures, (hidden, *layer.parameters()))


class Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the shapes of all tensors that operations make."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.shapes |= {tuple(leaf.shape) for leaf in tree_leaves(made) if isinstance(leaf, Tensor)}
        return made


@pytest.mark.parametrize("entropy", [False, True])
def test_nothing_larger_than_a_chunk_of_logits_is_made(entropy: bool) -> None:
    torch.manual_seed(5)
    layer, (hidden, targets) = nn.Linear(WIDTH, WORDS).double(), given()
    with Made() as made:
        found, spread = chunked_logprobs(hidden, targets, layer, LogitTail(), 1.0, chunk=6, entropy=entropy)
        (found.sum() if spread is None else found.sum() + spread.sum()).backward()  # type: ignore[no-untyped-call]
    assert (6, WORDS) in made.shapes
    assert max(math.prod(shape) for shape in made.shapes) == 6 * WORDS


def test_under_autocast_the_backward_pass_rounds_as_the_forward_pass_did() -> None:
    torch.manual_seed(6)
    layer, (hidden, targets) = nn.Linear(WIDTH, WORDS, bias=False), given()
    hidden = hidden.detach().float().requires_grad_()
    slopes = []
    for chunk in (4, None):
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            if chunk is None:
                scores = layer(hidden).float()
                found = torch.log_softmax(scores, -1).gather(-1, targets[:, None])[:, 0]
            else:
                found = chunked_logprobs(hidden, targets, layer, LogitTail(), 1.0, chunk=chunk)[0]
        found.sum().backward()  # type: ignore[no-untyped-call]
        assert layer.weight.grad is not None
        slopes.append(layer.weight.grad.clone())
    exact = torch.autograd.grad(plain(hidden, targets, layer, LogitTail(), 1.0)[0].sum(), layer.weight)[0]
    assert slopes[0].dtype == torch.float32
    torch.testing.assert_close(slopes[0], slopes[1], rtol=0.02, atol=0.02)
    assert not torch.allclose(slopes[0], exact, rtol=1e-5, atol=1e-5)


def packed() -> Packed:
    rng = np.random.default_rng(0)
    rows = []
    for length in (9, 14):
        mask = np.arange(length) > 3
        none = np.zeros(length, dtype=np.bool_)
        rows.append(
            TrainingRow(
                rng.integers(0, 99, length), mask, np.zeros(length, np.float32), none, np.ones(length)
            )
        )
    (made,) = micro_batches(rows, 100)
    return made


@pytest.mark.parametrize("kind", ["qwen2", "granite", "cohere", "gemma2"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_model_gets_the_same_gradient_in_chunks(kind: str, tied: bool) -> None:
    model, batch = tiny_model(kind, tie_word_embeddings=tied).double().eval(), packed()
    # A hook keeps the fused pass away, whose norms are in float64 where those of the modules are in float32.
    model.model.register_forward_pre_hook(lambda *_: None)
    with Made() as made:
        found = gradient(model, batch, 5 * 99)
    assert (5, 99) in made.shapes
    assert (len(batch.targets), 99) not in made.shapes
    torch.testing.assert_close(found, gradient(model, batch, 10**9), rtol=0, atol=1e-9)


def gradient(model: Any, batch: Packed, whole: int) -> Tensor:
    model.zero_grad()
    logprobs, spread = token_logprobs(model, batch, 0.9, entropy=True, whole=whole)
    assert spread is not None
    (logprobs * torch.arange(1.0, len(logprobs) + 1)).sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]
    spread.sum().backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

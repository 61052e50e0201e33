"""Compiled layers: a policy samples, and a learner learns, what they do without; what cannot be compiled is refused."""

import asyncio
import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.core.types import Completion, Sampling
from agentenv.errors import ConfigurationError
from agentenv.policies.compute import ComputeSettings
from agentenv.policies.fakes import random_model, random_policy
from agentenv.policies.loading import compile_layers
from agentenv.policies.lora import adapt
from agentenv.policies.policy_spec import make_policy
from agentenv.trainers.learner.learner import Learner, Objective
from agentenv.trainers.learner.logprobs import checkpoint_layers
from agentenv.trainers.learner.packing import TrainingRow

COMPILER = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler is installed"
)


@pytest.fixture
def traced_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets layers be traced and differentiated as always, and run without C++ made of them, which takes a minute."""
    compile_module = torch.nn.Module.compile

    def traced(self: torch.nn.Module, **options: Any) -> None:
        compile_module(self, backend="aot_eager", **options)

    monkeypatch.setattr(torch.nn.Module, "compile", traced)


def sampled(policy: object, prompts: list[list[int]]) -> list[Completion]:
    """Two turns of each episode, the second on the cache of the first."""

    async def turns() -> list[Completion]:
        found: list[Completion] = []
        for turn in range(2):
            asked = (
                policy.generate([*ids, *[7] * turn], Sampling(10, seed=i + 10 * turn), episode=str(i))  # type: ignore[attr-defined]
                for i, ids in enumerate(prompts)
            )
            found += await asyncio.gather(*asked)
        return found

    return asyncio.run(turns())


def learned(model: Any) -> dict[str, float]:
    """One step on rows of two lengths."""
    rng = np.random.default_rng(0)
    rows = []
    for length in (12, 17):
        mask = np.arange(length) >= 4
        logprobs = np.full(length, -3.0, dtype=np.float32)
        ids = rng.integers(5, model.config.vocab_size, size=length)
        rows.append(
            TrainingRow(ids, mask, logprobs, np.zeros(length, dtype=np.bool_), rng.normal(size=length))
        )
    return Learner(model, Objective(), learning_rate=1e-4).step(rows)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Any, Any]:
    """The same policy with compiled layers and without."""
    random_policy(tmp_path, ["Who wrote the opera, and where was its author born?"], layers=2, spread=0.3)
    plain = make_policy(f"hf:{tmp_path}", ComputeSettings(device="cpu"))
    compiled = make_policy(f"hf:{tmp_path}", ComputeSettings(device="cpu", compile=True))
    return compiled, plain


@COMPILER
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where its compiler is imported
@pytest.mark.usefixtures("traced_alone")
def test_compiled_layers_sample_what_they_did_before(pair: tuple[Any, Any]) -> None:
    compiled, plain = pair
    layers = compiled.model.get_decoder().layers
    assert all(layer._compiled_call_impl is not None for layer in layers)
    assert all(
        layer._compiled_call_impl is None for layer in copy.deepcopy(compiled.model).get_decoder().layers
    )
    prompts = [list(range(20, 20 + length)) for length in (5, 9)]
    versions = torch._dynamo.utils.counters["stats"]
    before = versions["unique_graphs"]
    for one, other in zip(sampled(compiled, prompts), sampled(plain, prompts), strict=True):
        assert one.ids == other.ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    assert (
        0 < versions["unique_graphs"] - before <= 8
    )  # one for each kind of pass, and not for each layer as well


@COMPILER
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where its compiler is imported
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_compiled_layers_learn_what_they_did_before(pair: tuple[Any, Any]) -> None:
    compiled, plain = pair
    versions = torch._dynamo.utils.counters["stats"]
    before = versions["unique_graphs"]
    found, wanted = learned(compiled.model), learned(plain.model)
    assert before < versions["unique_graphs"]
    assert found["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
    assert found["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where its compiler is imported
def test_what_enters_the_first_of_compiled_layers_may_be_written_to() -> None:
    """Above frozen embeddings it gets a gradient, and models that read images write them there."""
    model = adapt(random_model(257), rank=2, alpha=4)
    compile_layers(model)
    embedded = model.get_input_embeddings()(torch.arange(5, 12)[None])
    assert embedded.requires_grad
    embedded[0, 1] = 0.0
    with torch.no_grad():
        assert not model.get_input_embeddings()(torch.arange(5, 12)[None]).requires_grad


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where its compiler is imported
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.usefixtures("traced_alone")
def test_layers_with_adapters_take_one_version_for_all_layers_and_lengths() -> None:
    """The first one too, whose input comes from frozen embeddings; and rows as long as the model is wide."""
    model = adapt(random_model(257, layers=3, width=16, inner=24), rank=2, alpha=4)
    compile_layers(model)
    versions = torch._dynamo.utils.counters["stats"]
    before = versions["unique_graphs"]
    learner = Learner(model, Objective(), learning_rate=1e-4)
    for length in (16, 21):
        zeros, mask = np.zeros(length, np.float32), np.arange(length) > 4
        ids = np.arange(length) + 5
        learner.step([TrainingRow(ids, mask, zeros, mask & False, zeros.astype(float) + 1)])
    assert versions["unique_graphs"] - before == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where its compiler is imported
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.usefixtures("traced_alone")
def test_layers_that_keep_their_inputs_alone_are_compiled_too() -> None:
    versions = torch._dynamo.utils.counters["stats"]
    model, plain = (random_model(257, layers=2, spread=0.2, seed=3) for _ in range(2))
    compile_layers(model)
    for one in (model, plain):
        checkpoint_layers(one)
    before = versions["unique_graphs"]
    found, wanted = learned(model), learned(plain)
    assert versions["unique_graphs"] - before == 1
    assert found["loss"] == pytest.approx(wanted["loss"], abs=1e-5)
    assert found["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-4)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where its compiler is imported
def test_a_copy_of_layers_that_keep_their_inputs_alone_has_its_own_weights() -> None:
    """Also of compiled ones, which the copy is not; what is compiled is so at its first pass, which is not made here."""
    model = random_model(257)
    for layer in model.model.layers:
        layer.compile(dynamic=True)
    checkpoint_layers(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for weight in model.model.layers.parameters():
            weight.zero_()
    untouched = random_model(257)
    ids = torch.arange(5, 12)[None]
    for one in (copied, untouched):
        for layer in one.model.layers:
            layer._compiled_call_impl = None
    with torch.no_grad():
        assert torch.equal(copied(input_ids=ids).logits, untouched(input_ids=ids).logits)


def test_without_a_compiler_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ConfigurationError, match=r"compute\.compile"):
        ComputeSettings(device="cpu", compile=True).resolved()
    assert not ComputeSettings(device="cpu").resolved().compile


def test_a_device_that_torch_cannot_compile_for_is_refused(fake_device: str) -> None:
    with pytest.raises(ConfigurationError, match=fake_device):
        ComputeSettings(device=fake_device, compile=True).resolved()

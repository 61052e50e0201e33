"""Weights that are not finite: no folder of them is loaded, no sampler gives their tokens, none of them is saved."""

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from agentenv.cli.main import main
from agentenv.core.types import Completion, Sampling
from agentenv.errors import CheckpointMismatch, Diverged, PolicyFault
from agentenv.policies.engine import EngineConfig
from agentenv.policies.fakes import ByteTokenizer, random_model, random_policy
from agentenv.policies.hf import HFPolicy
from agentenv.policies.lora import adapt, write_trained
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.soundness import first_not_finite, refuse_diverged
from agentenv.policies.vllm import VLLMPolicy
from agentenv.policies.vllm_local import sampled, tempered

NAN, INF = math.nan, math.inf


def poisoned(value: float = NAN, place: str = "model.layers.0.mlp.up_proj.weight") -> Any:
    model = random_model()
    with torch.no_grad():
        model.get_parameter(place)[0, 0] = value
    return model


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_folder_of_such_weights_is_refused_by_name(tmp_path: Path, value: float) -> None:
    model, _ = random_policy(tmp_path, ["a question"])
    with torch.no_grad():
        model.model.norm.weight[3] = value
    model.save_pretrained(tmp_path)
    for load in (
        lambda: make_policy(f"hf:{tmp_path}"),
        lambda: VLLMPolicy.load(tmp_path, EngineConfig(kind="vllm")),  # before an engine is started
    ):
        with pytest.raises(CheckpointMismatch, match=r"model\.norm\.weight") as caught:
            load()
        assert str(tmp_path) in str(caught.value)


def test_an_adapter_of_such_weights_is_refused(tmp_path: Path) -> None:
    random_policy(tmp_path / "base", ["a question"])
    adapted = adapt(make_policy(f"hf:{tmp_path / 'base'}").model, rank=2, alpha=4)
    with torch.no_grad():
        next(p for name, p in adapted.named_parameters() if "lora_B" in name)[0, 0] = NAN
    (tmp_path / "adapter").mkdir()
    write_trained(adapted, tmp_path / "adapter")
    for kind in (lambda path: make_policy(f"hf:{path}"), lambda path: VLLMPolicy.load(path)):
        with pytest.raises(CheckpointMismatch, match=r"model\.layers\.0"):
            kind(tmp_path / "adapter")


@pytest.mark.parametrize("command", ["eval", "train"])
def test_a_command_with_such_a_policy_fails(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = random_policy(tmp_path / "policy", ["a question"])
    with torch.no_grad():
        model.lm_head.weight[0, 0] = NAN
    model.save_pretrained(tmp_path / "policy")
    out, name = tmp_path / "out", f"hf:{tmp_path / 'policy'}"
    flags = (
        ["laptop-search"]
        if command == "train"
        else ["--dataset", "env", "--env", "agentenv/Calculator-v0", "--limit", "2"]
    )
    assert main([command, *flags, "--policy", name, "--out", str(out)]) == 1
    assert "lm_head.weight" in capsys.readouterr().err
    assert not (out / "results.json").exists()


def generate(policy: HFPolicy, prompts: Sequence[Sequence[int]], **sampling: Any) -> list[Any]:
    async def together() -> list[Any]:
        asked = (
            policy.generate(ids, Sampling(4, **sampling), episode=str(i)) for i, ids in enumerate(prompts)
        )
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(together())


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.0}, {"top_p": 0.5}])
@pytest.mark.parametrize("value", [NAN, INF])
def test_a_sampler_of_such_weights_fails(value: float, sampling: dict[str, float]) -> None:
    """Whatever the rule of sampling; the argmax of NaN is a token, too."""
    policy = HFPolicy(poisoned(value), ByteTokenizer())
    (found,) = generate(policy, [[65, 66]], **sampling)
    assert isinstance(found, PolicyFault)
    with pytest.raises(PolicyFault):
        asyncio.run(policy.score([65, 66, 67]))


def test_finite_weights_whose_logits_overflow_fail_as_well() -> None:
    model = random_model()
    with torch.no_grad():
        model.model.norm.weight.mul_(1e20)
        model.lm_head.weight.mul_(1e20)
    assert first_not_finite(model.state_dict().items()) is None
    (found,) = generate(HFPolicy(model, ByteTokenizer()), [[65, 66]])
    assert isinstance(found, PolicyFault)
    with pytest.raises(Diverged, match=r"step 3\b"):
        refuse_diverged(model, "the weights of step 3")


def test_a_row_that_fails_leaves_its_neighbours_alone() -> None:
    """Token 7 alone has a broken embedding: who reads it fails, and others sample what they would have by themselves."""
    policy = HFPolicy(poisoned(), ByteTokenizer())
    with torch.no_grad():
        policy.model.model.layers[0].mlp.up_proj.weight[0, 0] = 0.1
    (alone,) = generate(policy, [[65, 66]], temperature=0.0)
    with torch.no_grad():
        policy.model.model.embed_tokens.weight[7] = NAN
    first, broken, last = generate(policy, [[65, 66], [65, 7], [65, 66]], temperature=0.0)
    assert isinstance(broken, PolicyFault)
    assert isinstance(first, Completion)
    assert first.ids == last.ids == alone.ids
    # The failed episode left nothing.
    again, recovered = generate(policy, [[65, 66], [65, 8]], temperature=0.0)
    assert again.ids == alone.ids
    assert len(recovered.ids) > 0


def test_log_probs_of_an_engine_are_looked_at() -> None:
    for logprobs in ((-1.0, NAN), (-INF, -1.0)):
        with pytest.raises(PolicyFault):
            sampled((5, 6), logprobs, [])
    with pytest.raises(PolicyFault):
        tempered((9, 1), [{1: NAN}], 1.0)
    with pytest.raises(PolicyFault):
        tempered((9, 1), [{0: -1.0, 1: NAN}], 0.5)


def test_what_is_sound_is_not_refused() -> None:
    model = random_model()
    before = torch.random.get_rng_state()
    refuse_diverged(model, "these weights")
    model.register_buffer("mask", torch.tensor([0.0, -INF]))
    refuse_diverged(model, "these weights")
    refuse_diverged(adapt(model, rank=2, alpha=4), "these weights")
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_every_kind_of_number_can_be_looked_at(kind: torch.dtype) -> None:
    values = torch.ones(3).to(kind)
    assert first_not_finite([("w", values)]) is None
    if kind.is_floating_point:
        assert first_not_finite([("v", values), ("w", torch.tensor([1.0, NAN]).to(kind))]) == "w"

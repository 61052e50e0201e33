"""Where models compute: what ``auto`` becomes, what is refused, settings behind a policy's name, and a policy on a device.

The device ``fake`` refuses tensors of the processor, as a GPU does; the policy on it must sample what it samples on the CPU.
"""

import asyncio
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.torch_version import TorchVersion

from agentenv.core.types import Completion, Sampling
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.policies import compute as module
from agentenv.policies.attention import by_mask
from agentenv.policies.compute import ComputeSettings, process_compute, use_compute
from agentenv.policies.hf import HFPolicy
from agentenv.policies.policy_spec import check_policy, compute_of, make_policy, policy_folder
from agentenv.policies.tiny import shipped_weights

CPU = ComputeSettings(device="cpu")


def cards(monkeypatch: pytest.MonkeyPatch, majors: dict[str, int]) -> None:
    """Lets torch have CUDA devices of these names, with the first number of their compute capability."""

    def properties(device: str) -> SimpleNamespace:
        if device not in majors:
            raise AssertionError("Invalid device id")
        return SimpleNamespace(major=majors[device])

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    monkeypatch.setattr(module, "_usable", torch.device)


def test_on_a_machine_without_a_gpu_auto_is_what_it_always_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = ComputeSettings().resolved()
    assert (found.device, found.dtype, found.attention) == (torch.device("cpu"), torch.float32, "sdpa")
    assert not ComputeSettings().rounds


@pytest.mark.parametrize(
    ("installed", "attention"),
    [
        ((), "sdpa"),
        (("varlen",), "varlen"),
        (("varlen", "flash_attention_2"), "flash_attention_2"),
        (("flash_attention_2", "flash_attention_3"), "flash_attention_3"),
    ],
)
def test_on_a_gpu_auto_is_bfloat16_and_the_best_attention(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], attention: str
) -> None:
    cards(monkeypatch, {"cuda": 9})
    monkeypatch.setattr(module, "is_installed", lambda name: name in installed)
    found = ComputeSettings(device="cuda").resolved()
    assert (found.dtype, found.attention) == (torch.bfloat16, attention)
    assert ComputeSettings().rounds
    precise = ComputeSettings(device="cuda").precise()
    assert precise.resolved().dtype is torch.float32
    assert precise.resolved().attention == "sdpa"  # flash attention computes in halves alone
    assert not ComputeSettings(device="cpu").rounds


def test_a_torch_that_knows_nothing_of_the_processor_multiplies_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Builds without oneDNN, as for ARM under macOS, have no such operation."""
    monkeypatch.setattr(torch.ops, "mkldnn", SimpleNamespace())
    assert not module.multiplies_bfloat16("cpu")


@pytest.mark.parametrize("capability", [8, 10, 12])
def test_flash_attention_3_is_for_hopper_alone(monkeypatch: pytest.MonkeyPatch, capability: int) -> None:
    cards(monkeypatch, {"cuda": capability})
    monkeypatch.setattr(module, "is_installed", lambda name: True)
    assert ComputeSettings(device="cuda").resolved().attention == "flash_attention_2"
    with pytest.raises(ConfigurationError, match=r"flash_attention_3.*cuda"):
        ComputeSettings(device="cuda", attention="flash_attention_3").resolved()
    monkeypatch.setattr(module, "is_installed", lambda name: name == "flash_attention_3")
    assert ComputeSettings(device="cuda").resolved().attention == "sdpa"


def test_a_card_that_emulates_bfloat16_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """To torch bfloat16 is supported on a card of compute capability 7.5, where it is slower than float32."""
    cards(monkeypatch, {"cuda": 7, "cuda:0": 7, "cuda:1": 8})
    monkeypatch.setattr(module, "is_installed", lambda name: True)
    old, new = (ComputeSettings(device=f"cuda:{place}") for place in (0, 1))
    assert (old.resolved().dtype, old.resolved().attention, old.rounds) == (torch.float32, "sdpa", False)
    assert (new.resolved().dtype, new.rounds) == (torch.bfloat16, True)
    assert not ComputeSettings().rounds
    assert not ComputeSettings(device="cuda:7").rounds
    assert ComputeSettings(device="cuda:0", dtype="bfloat16").resolved().dtype is torch.bfloat16


def test_a_card_without_bfloat16_of_its_own_is_not_given_torchs_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is for Ampere and newer; on older cards sdpa computes in bfloat16 as well, where that is named."""
    cards(monkeypatch, {"cuda:0": 7})
    monkeypatch.setattr(module, "is_installed", lambda name: name == "varlen")
    settings = ComputeSettings(device="cuda:0", dtype="bfloat16")
    assert settings.resolved().attention == "sdpa"
    with pytest.raises(ConfigurationError, match="varlen"):
        settings.model_copy(update={"attention": "varlen"}).resolved()


def test_torchs_kernel_of_before_it_knew_windows_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """In torch 2.10 it has neither windows nor scales, and a pass that gives them would fail."""
    from torch.nn.attention import varlen

    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    assert module.is_installed("varlen")
    monkeypatch.setattr(
        varlen, "varlen_attn", lambda query, key, value, is_causal=False, return_aux=None: None
    )
    assert not module.is_installed("varlen")


@pytest.mark.parametrize(
    "settings",
    [
        {"device": "cuda:7"},
        {"device": "nonsense"},
        {"device": "meta"},
        {"device": "cpu", "attention": "flash_attention_2"},
        {"device": "cpu", "attention": "varlen"},
        {"device": "cpu", "attention": "flex"},
    ],
)
def test_what_cannot_be_had_is_one_sentence_with_its_value(settings: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ComputeSettings.model_validate(settings).resolved()
    assert settings.get("attention", settings["device"]) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_flash_attention_needs_a_gpu_even_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_installed", lambda name: True)
    with pytest.raises(ConfigurationError, match="flash_attention_3"):
        ComputeSettings(device="cpu", dtype="bfloat16", attention="flash_attention_3").resolved()


def test_a_process_has_settings_for_models_opened_by_name() -> None:
    before = process_compute()
    with use_compute(ComputeSettings(device="cpu", dtype="bfloat16")):
        assert make_policy("tiny").model.dtype is torch.bfloat16
        assert make_policy("tiny", CPU).model.dtype is torch.float32
    assert process_compute() == before


def test_a_policy_may_name_settings_of_its_own() -> None:
    spec = f"hf:{shipped_weights()}#dtype=bfloat16&attention=eager"
    assert policy_folder(spec) == shipped_weights()
    model = make_policy(spec, CPU).model
    assert model.dtype is torch.bfloat16
    assert model.config._attn_implementation == "eager"
    assert compute_of("tiny#device=cuda:1&dtype=float32", CPU) == ComputeSettings(
        device="cuda:1", dtype="float32"
    )
    assert policy_folder("hf:runs/a#1") == Path("runs/a#1")  # a number sign alone is part of a path
    check_policy(f"hf:{shipped_weights()}#device=cpu")


def test_a_setting_of_a_policy_that_is_not_known_is_named() -> None:
    with pytest.raises(UnknownName) as unknown:
        check_policy("tiny#devise=cpu")
    assert "devise" in str(unknown.value)
    assert "device" in str(unknown.value)
    with pytest.raises(ConfigurationError, match="int3"):
        make_policy("tiny#dtype=int3")


def test_weights_are_read_in_the_wanted_format(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor of float32 is ever made of them."""
    import transformers

    read = transformers.AutoModelForCausalLM.from_pretrained
    asked: list[Any] = []

    def noting(*args: Any, **options: Any) -> Any:
        found = read(*args, **options)
        asked.extend({p.dtype for p in found[0].parameters()})
        return found

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", noting)
    HFPolicy.load(shipped_weights(), ComputeSettings(device="cpu", dtype="bfloat16"))
    assert asked == [torch.bfloat16]


def test_an_attention_that_a_model_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ComputeSettings,
        "resolved",
        lambda self: module.Compute(torch.device("cpu"), torch.float32, "flex"),
    )
    import transformers

    monkeypatch.setattr(transformers.Qwen2ForCausalLM, "_supports_flex_attn", False)
    with pytest.raises(ConfigurationError, match="flex"):
        HFPolicy.load(shipped_weights(), ComputeSettings(attention="flex"))


def test_a_mask_of_our_own_is_computed_by_sdpa() -> None:
    attend = by_mask(lambda *_, **__: "kernel", lambda *_, **__: "masked")
    assert attend(None, 0, 0, 0, None) == "kernel"
    assert attend(None, 0, 0, 0, torch.ones(2, 5)) == "kernel"  # padding, which kernels know
    assert attend(None, 0, 0, 0, torch.ones(2, 1, 5, 5)) == "masked"


def conversation(policy: HFPolicy) -> list[Completion]:
    """Two turns of four episodes in one batch, a rewound third, a fork of one, and top_p; rows end at unequal lengths."""

    async def turn(prompts: dict[str, list[int]], seed: int, **sampling: Any) -> list[Completion]:
        asked = (
            policy.generate(ids, Sampling(6 + 5 * i, seed=seed + i, **sampling), episode=name)
            for i, (name, ids) in enumerate(prompts.items())
        )
        return list(await asyncio.gather(*asked))

    prompts = {str(i): list(range(10, 24 + 3 * i)) for i in range(4)}
    first = asyncio.run(turn(prompts, 0))
    longer = {name: [*prompts[name], *done.ids, 40, 41] for name, done in zip(prompts, first, strict=True)}
    second = asyncio.run(turn(longer, 10, temperature=0.7))
    rewound = {name: [*ids[:-4], 99] for name, ids in longer.items()}
    third = asyncio.run(turn({**rewound, "fork": rewound["0"], "twin": rewound["0"]}, 20, top_p=0.8))
    return [*first, *second, *third, *asyncio.run(turn(rewound, 30, temperature=0.0))]


def test_a_policy_on_a_device_samples_what_it_samples_on_the_cpu(fake_device: str) -> None:
    here = make_policy("tiny", CPU)
    there = make_policy("tiny", ComputeSettings(device=fake_device))
    assert there.model.device.type == fake_device
    assert there.model.lm_head.weight is there.model.get_input_embeddings().weight  # tied before, tied now
    for one, other in zip(conversation(there), conversation(here), strict=True):
        assert (one.ids, one.text, one.finish) == (other.ids, other.text, other.finish)
        # On the processor a small model is passed in fewer operations, which add up in another order.
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_scores_on_a_device_are_those_of_the_cpu(fake_device: str) -> None:
    here = make_policy("tiny", CPU)
    there = make_policy("tiny", ComputeSettings(device=fake_device))
    ids = list(range(5, 40))
    assert asyncio.run(there.score(ids)) == pytest.approx(asyncio.run(here.score(ids)), abs=1e-5)
    found, wanted = (asyncio.run(policy.top_two(ids, 3)) for policy in (there, here))
    assert [row[0][0] for row in found] == [row[0][0] for row in wanted]


def test_a_token_of_a_whole_batch_is_one_wait_for_the_device(
    fake_device: str, device_waits: "Counter[str]"
) -> None:
    policy = make_policy("tiny", ComputeSettings(device=fake_device))

    async def batch() -> list[Completion]:
        asked = (policy.generate([5, 6, 7 + i], Sampling(12, seed=i)) for i in range(8))
        return list(await asyncio.gather(*asked))

    device_waits.clear()
    done = asyncio.run(batch())
    assert {len(one.ids) for one in done} == {12}
    # sent once for the batch: ids, positions, last places, temperatures, top_p, random numbers, positions of what is sampled
    assert device_waits == {"tolist": 12, "upload": 7}


def test_rows_that_end_cost_a_few_small_tensors_and_no_further_wait(
    fake_device: str, device_waits: "Counter[str]"
) -> None:
    policy = make_policy("tiny", ComputeSettings(device=fake_device))

    async def batch(*limits: int) -> list[Completion]:
        asked = (policy.generate([5, 6, 7 + i], Sampling(n, seed=i)) for i, n in enumerate(limits))
        return list(await asyncio.gather(*asked))

    for limits, uploads in (
        ((3, 6, 12, 12), 2),  # twice the positions of those that are left
        ((3, 3, 3, 12), 4),  # these, and three tensors that say which row goes on in a batch of its own
    ):
        device_waits.clear()
        assert [len(one.ids) for one in asyncio.run(batch(*limits))] == list(limits)
        assert device_waits == {"tolist": 12, "upload": 7 + uploads}


@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "adapter"])
def test_weights_of_a_device_are_written_as_those_of_the_cpu(
    tmp_path: Path, fake_device: str, adapted: bool
) -> None:
    from agentenv.policies.export import write_weights
    from agentenv.policies.lora import adapt, write_trained

    for name in ("cpu", fake_device):
        model = make_policy("tiny", ComputeSettings(device=name)).model
        model = adapt(model, rank=2, alpha=4) if adapted else model
        (tmp_path / f"trained-{name}").mkdir()
        write_trained(model, tmp_path / f"trained-{name}")
        write_weights(model, tmp_path / f"whole-{name}")
    for kind in ("trained", "whole"):
        (here,) = (tmp_path / f"{kind}-cpu").glob("*.safetensors")
        (there,) = (tmp_path / f"{kind}-{fake_device}").glob("*.safetensors")
        assert there.read_bytes() == here.read_bytes()


def test_compiling_on_a_cpu_is_refused_where_torch_would_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled layers of torch 2.11 end the process in their first backward pass on a CPU."""
    monkeypatch.setattr("shutil.which", lambda _: "/usr/bin/g++")
    settings = ComputeSettings(device="cpu", compile=True)
    for version, known in (("2.11.0+cu130", False), ("2.12.1", True), ("2.9.1", False)):
        monkeypatch.setattr(torch, "__version__", TorchVersion(version))
        with nullcontext() if known else pytest.raises(ConfigurationError, match=r"2\.12 or newer"):
            assert settings.resolved().compile

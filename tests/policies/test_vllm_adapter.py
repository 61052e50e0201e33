"""A LoRA adapter on the real engine: log-probs are those of the model with the adapter on, until new weights come."""

import asyncio
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed")

from agentenv.core.types import Sampling
from agentenv.policies.engine import EngineConfig
from agentenv.policies.hf import HFPolicy
from agentenv.policies.tiny import shipped_weights
from agentenv.policies.vllm import VLLMPolicy


def test_an_adapter_and_then_the_weights_of_the_learner(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    hf = HFPolicy.load(shipped_weights())
    torch.manual_seed(0)
    adapted = get_peft_model(hf.model, LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "down_proj"]))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1)
    adapted.save_pretrained(tmp_path)
    prompt = hf.tokenizer.encode("Who wrote Zodkalo Opera?", add_special_tokens=False)

    def gap(policy: VLLMPolicy, *, adapter: bool) -> float:
        """Largest distance of the engine's log-probs from the trainer's, with the adapter or without, over six samples."""
        gaps = []
        for seed in range(6):
            done = asyncio.run(policy.generate(prompt, Sampling(24, temperature=2.0, seed=seed)))
            with nullcontext() if adapter else adapted.disable_adapter():
                scores = asyncio.run(hf.score([*prompt, *done.ids], temperature=2.0))[len(prompt) :]
            gaps += list(np.abs(np.subtract(scores, done.logprobs)))
        return float(max(gaps))

    with VLLMPolicy.load(tmp_path, EngineConfig(kind="vllm", kv_gib=0.25), adapted) as policy:
        assert gap(policy, adapter=True) < 1e-3  # the engine adds the adapter's product apart
        assert gap(policy, adapter=False) > 0.01
        policy.set_weights()
        assert gap(policy, adapter=True) < 1e-4  # merged

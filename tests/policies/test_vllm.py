"""VLLMPolicy on the real engine: the contract, parity with the model in training, new weights without a restart, prefixes.

One engine for the whole file: starting one takes half a minute. Bounds of log-probs are in nats, float32 on both sides.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed")

from agentenv.core.images import PlacedImage
from agentenv.core.protocols import Policy
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import CheckpointMismatch, ConfigurationError
from agentenv.policies.engine import Engine, EngineConfig, EngineRequest, Sampled
from agentenv.policies.hf import HFPolicy
from agentenv.policies.policy_contract import PolicyContract
from agentenv.policies.policy_spec import make_engine_policy
from agentenv.policies.tiny import shipped_weights
from agentenv.policies.vllm import VLLMPolicy

CONFIG = EngineConfig(kind="vllm", kv_gib=0.25)
AGREEMENT = 1e-4
"""Between the engine's log-probs and the trainer's; seen: 2.1e-5."""


class Visitor:
    """The shared engine on the loop of another policy, which may come and go."""

    dead = False

    def __init__(self, host: VLLMPolicy) -> None:
        self._engine, self._background = host._engines[0], host._background

    async def sample(self, request: EngineRequest) -> Sampled:
        return await self._background.join(self._engine.sample(request), 60)

    async def logprobs(
        self,
        ids: tuple[int, ...],
        temperature: float,
        images: tuple[PlacedImage, ...] = (),
        *,
        fed: tuple[int, ...] | None = None,
    ) -> tuple[float, ...]:
        return await self._background.join(self._engine.logprobs(ids, temperature, images, fed=fed), 60)

    async def load(self, folder: Path, version: int) -> None:
        await self._background.join(self._engine.load(folder, version), 60)

    async def close(self) -> None:
        """The engine stays."""


@pytest.fixture(scope="module")
def host() -> Iterator[VLLMPolicy]:
    """The policy that the engine belongs to."""
    with VLLMPolicy.load(shipped_weights(), CONFIG) as policy:
        yield policy


@pytest.fixture(autouse=True)
def guests(host: VLLMPolicy, request: pytest.FixtureRequest) -> Iterator[list[VLLMPolicy]]:
    """Policies that the test opened on the engine; they are closed after it."""
    opened: list[VLLMPolicy] = []
    if request.instance is not None:
        request.instance.host, request.instance.opened = host, opened
        # Whole characters: of a prompt that ends within one vLLM looks for stop strings in what it still holds back.
        request.instance.prompts = [tuple(ids) for ids in prompts(host)]
    yield opened
    for policy in opened:
        policy.close()


def guest(host: VLLMPolicy, opened: list[VLLMPolicy], model: Any = None) -> VLLMPolicy:
    async def visit() -> Engine:
        return Visitor(host)

    opened.append(VLLMPolicy(host.tokenizer, host.context_tokens, CONFIG, [visit], model))
    return opened[-1]


class TestContract(PolicyContract):
    host: VLLMPolicy
    opened: list[VLLMPolicy]

    def make(self) -> Policy:
        return guest(self.host, self.opened)


def ask(policy: Any, prompt: Sequence[int], sampling: Sampling, episode: str | None = None) -> Completion:
    done: Completion = asyncio.run(policy.generate(prompt, sampling, episode=episode))
    return done


def gap(hf: HFPolicy, prompt: Sequence[int], done: Completion, temperature: float = 1.0) -> float:
    """Largest distance between recorded log-probs and those of the model in training on the same ids."""
    scores = asyncio.run(hf.score([*prompt, *done.ids], temperature=temperature))[len(prompt) :]
    return float(np.abs(np.subtract(scores, done.logprobs)).max())


def prompts(policy: Any) -> list[list[int]]:
    texts = ("Who wrote Zodkalo Opera?", "Where was Ada born?\n", "<search> mayor of")
    return [policy.tokenizer.encode(text, add_special_tokens=False) for text in texts]


def test_log_probs_and_greedy_outputs_agree_with_the_trainer(
    host: VLLMPolicy, guests: list[VLLMPolicy]
) -> None:
    hf, policy = HFPolicy.load(shipped_weights()), guest(host, guests)
    stop = ("</search>", "</answer>")
    for prompt in prompts(hf):
        greedy = Sampling(24, temperature=0.0, stop=stop)
        mine, theirs = ask(policy, prompt, greedy), ask(hf, prompt, greedy)
        assert (mine.ids, mine.text, mine.finish) == (theirs.ids, theirs.text, theirs.finish)
        for temperature in (0.5, 1.0, 1.7):
            done = ask(policy, prompt, Sampling(24, temperature=temperature, seed=3, stop=stop))
            assert gap(hf, prompt, done, temperature) < AGREEMENT


def test_new_weights_are_taken_up_whole_and_stamped(host: VLLMPolicy, guests: list[VLLMPolicy]) -> None:
    """Every parameter moves, the shared embedding included; keys and values of the old weights are gone."""
    hf = HFPolicy.load(shipped_weights())
    policy = guest(host, guests, hf.model)
    prompt = prompts(hf)[0] * 4  # more than one block of keys and values
    sampling = Sampling(24, temperature=2.0, seed=1)
    before = ask(policy, prompt, sampling)
    with torch.no_grad():
        for parameter in hf.model.parameters():
            parameter.mul_(1.05)
    assert gap(hf, prompt, before, 2.0) > 100 * AGREEMENT
    policy.set_weights()
    after = ask(policy, prompt, sampling)
    assert (before.version, after.version, policy.version) == (0, 1, 1)
    assert gap(hf, prompt, after, 2.0) < AGREEMENT
    with torch.no_grad():
        for parameter in hf.model.parameters():
            parameter.div_(1.05)
    policy.resumed(0)


def test_a_request_under_way_goes_on_with_new_weights(host: VLLMPolicy, guests: list[VLLMPolicy]) -> None:
    hf = HFPolicy.load(shipped_weights())
    policy = guest(host, guests, hf.model)
    never = hf.model.config.vocab_size - 1  # a row of the output layer without a token
    request = EngineRequest(tuple(prompts(hf)[0]), Sampling(300, temperature=2.0, seed=2), ends=(never,))

    async def updated_midway() -> Sampled:
        work = asyncio.create_task(policy._engines[0].sample(request))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(policy.set_weights)
        return await work

    done = asyncio.run(updated_midway())
    assert len(done.versions) == len(done.ids) == 300
    assert list(done.versions) == sorted(done.versions)
    assert done.versions[-1] == 1
    policy.resumed(0)


def test_a_turn_reuses_the_keys_and_values_of_the_ones_before(host: VLLMPolicy) -> None:
    """Tokens that the engine had to read for a turn grow with what is new, not with the turn."""
    engine: Any = host._engines[0]
    ids, read = list(range(300, 340)), []

    async def turn(prompt: tuple[int, ...]) -> int:
        fields = {"max_tokens": 8, "temperature": 0.0, "ignore_eos": True}
        output = await engine._ask(prompt, fields, ())
        ids.extend(output.outputs[0].token_ids)
        return len(prompt) - int(output.num_cached_tokens)

    for place in range(6):
        read.append(host._background.run(turn(tuple(ids)), 60))
        ids.extend(range(400 + 32 * place, 432 + 32 * place))
    assert all(count < 40 + 2 * CONFIG.block_tokens for count in read[1:])
    assert len(ids) > 200


def test_more_prompts_than_one_step_reads(host: VLLMPolicy, guests: list[VLLMPolicy]) -> None:
    """On a CPU vLLM 0.32 ends where it reads a prompt in pieces whose request has a seed."""
    policy = guest(host, guests)

    async def all_at_once() -> list[Completion]:
        work = [
            policy.generate([300 + i, *range(300, 499)], Sampling(4, temperature=2.0, seed=i))
            for i in range(32)
        ]
        return await asyncio.gather(*work)

    assert all(done.ids for done in asyncio.run(all_at_once()))


def test_a_folder_without_a_model_starts_no_engine(tmp_path: Path) -> None:
    with pytest.raises(CheckpointMismatch, match="holds no model"):
        make_engine_policy(f"vllm:{tmp_path}")


def test_no_more_than_the_context_holds(host: VLLMPolicy, guests: list[VLLMPolicy]) -> None:
    prompt = ([*range(300, 900)] * 2)[: host.context_tokens - 3]
    done = ask(guest(host, guests), prompt, Sampling(8, temperature=2.0, seed=1))
    assert len(done.ids) == 3 or done.finish is FinishReason.EOS


@pytest.mark.parametrize("temperature", [0.005, 2.5])
def test_a_temperature_that_vllm_would_change_or_refuse(
    temperature: float, host: VLLMPolicy, guests: list[VLLMPolicy]
) -> None:
    with pytest.raises(ConfigurationError, match=r"\b0\.01\b.*\b2\b"):
        ask(guest(host, guests), [5], Sampling(1, temperature=temperature))

"""Copies of the weights: one, two where episodes under way read them, and a reference where one is needed."""

from functools import partial
from typing import Any

import pytest
import torch

from agentenv.policies.hf import HFPolicy
from agentenv.policies.loading import compile_layers, has_compiled_layers
from agentenv.policies.policy_spec import make_policy
from agentenv.trainers.config.config_files import override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.learner import Learner
from agentenv.trainers.learner.optimizers import SecondMoments, make_optimizer
from agentenv.trainers.learner.settings import MemorySettings
from agentenv.trainers.loop.parts import make_learner, make_objective, trained_policy
from agentenv.trainers.plan import memory_of

AHEAD = "--asynchronous.staleness 2 --rollout.deterministic false"
ENGINE = "--engine.kind vllm"
LORA = "--lora.rank 4"


def opened(config: TrainConfig) -> tuple[HFPolicy, Learner]:
    """Policy and learner as a run opens them."""
    policy = trained_policy(config.policy, config.lora, config.compute, seed=config.seed)
    objective = make_objective(config.resolved_loss, config.memory, config.rollout)
    start = partial(make_policy, config.policy, config.compute)
    return policy, make_learner(policy, start, objective, config.optimizer, ahead=config.copies_weights)


def alive(*models: Any) -> int:
    """Values of all weights, each tensor counted once."""
    held = {
        id(weight): weight.numel() for model in models if model is not None for weight in model.parameters()
    }
    return sum(held.values())


@pytest.mark.parametrize(
    ("words", "copies"),
    [
        ("", 1),
        (AHEAD, 2),
        (f"{AHEAD} {ENGINE}", 1),
        ("--loss.kl_coefficient 0.1", 2),
        (f"{AHEAD} --loss.kl_coefficient 0.1", 3),
        (f"{AHEAD} {ENGINE} --loss.kl_coefficient 0.1", 2),
    ],
)
def test_copies_of_a_model_that_is_trained_as_a_whole(words: str, copies: int) -> None:
    config = override(TrainConfig(), ["--threads", "1", *words.split()])
    policy, learner = opened(config)
    assert alive(policy.model, learner.model, learner.reference) == copies * alive(policy.model)


@pytest.mark.parametrize("words", ["", AHEAD, f"{AHEAD} {ENGINE}"])
def test_with_adapters_only_these_are_copied_and_the_reference_is_the_base(words: str) -> None:
    config = override(TrainConfig(), ["--threads", "1", *f"{LORA} --loss.kl_coefficient 0.1 {words}".split()])
    policy, learner = opened(config)
    base = alive(make_policy("tiny").model)
    adapters = alive(policy.model) - base
    assert 0 < adapters < 0.2 * base
    times = 2 if words == AHEAD else 1
    assert alive(policy.model, learner.model, learner.reference) == base + times * adapters


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, where its compiler is imported
@pytest.mark.parametrize("words", [LORA, AHEAD, f"{AHEAD} {LORA}"])
def test_a_copy_that_learns_is_compiled_where_its_policy_is(words: str) -> None:
    """Torch leaves that out of copies. Nothing is compiled before the first pass, which is not made here."""
    config = override(TrainConfig(), ["--threads", "1", *words.split()])
    compiled = trained_policy(config.policy, config.lora, config.compute, seed=config.seed)
    plain = trained_policy(config.policy, config.lora, config.compute, seed=config.seed)
    compile_layers(compiled.model)
    objective = make_objective(config.resolved_loss, config.memory, config.rollout)
    start = partial(make_policy, config.policy, config.compute)
    for policy in (compiled, plain):
        learner = make_learner(policy, start, objective, config.optimizer, ahead=config.copies_weights)
        assert (learner.model is policy.model) == (not config.copies_weights)
        assert has_compiled_layers(learner.model) == (policy is compiled)


@pytest.mark.parametrize(
    ("dtype", "words", "bytes_a_weight"),
    [
        (torch.float32, "", 4 + 8),
        (torch.bfloat16, "", 2 + 8 + 4),
        (torch.bfloat16, "--memory.optimizer adamw_8bit", 2 + 2 + 4),
        (torch.bfloat16, "--memory.master_weights false", 2 + 4),
    ],
    ids=["float32", "bfloat16", "8 bits", "without copies"],
)
def test_the_plan_counts_gradients_moments_and_copies(
    dtype: torch.dtype, words: str, bytes_a_weight: int
) -> None:
    model = make_policy("tiny").model.to(dtype)
    found = memory_of(override(TrainConfig(), words.split()), model, 1.0)
    assert found.optimizer == bytes_a_weight * alive(model)


@pytest.mark.parametrize(
    ("dtype", "words", "moments"),
    [
        (torch.float32, "", 8),
        (torch.bfloat16, "", 8),
        (torch.bfloat16, "--memory.optimizer adamw_8bit", 2),
        (torch.bfloat16, "--memory.master_weights false", 4),
    ],
    ids=["float32", "bfloat16", "8 bits", "without copies"],
)
def test_the_plan_counts_the_moments_of_supervised_steps_and_no_second_copies(
    dtype: torch.dtype, words: str, moments: int
) -> None:
    model = make_policy("tiny").model.to(dtype)
    plain = override(TrainConfig(), words.split())
    relift = override(plain, ["--rollout.strategy", "demonstrate"])
    added = memory_of(relift, model, 1.0).optimizer - memory_of(plain, model, 1.0).optimizer
    assert added == moments * alive(model)


def test_the_second_optimizer_holds_as_many_bytes_as_the_plan_counts() -> None:
    """After one step of each kind, the second one has two moments of every weight, and the first one's weights."""
    model = make_policy("tiny").model
    weights = list(model.parameters())
    first, second = (
        make_optimizer(weights, MemorySettings(), learning_rate=1e-3, weight_decay=0.0),
        SecondMoments(),
    )
    other = second.beside(first, weights, MemorySettings(), 1e-3)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    other.step()
    held = sum(
        value.numel() * value.element_size()
        for state in other.state.values()
        for name, value in state.items()
        if name != "step"
    )
    relift = override(TrainConfig(), ["--rollout.strategy", "demonstrate"])
    counted = memory_of(relift, model, 1.0).optimizer - memory_of(TrainConfig(), model, 1.0).optimizer
    assert held == counted

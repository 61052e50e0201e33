"""The learner: exact policy gradients, mask isolation, micro-batches, denominators, temperature, rows, the penalty.

Most gradients are those of a tabular policy over two tokens in float64, whose derivatives are known by hand.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.types import EndReason, Sampling, Task
from agentenv.policies.fakes import ByteTokenizer, random_model
from agentenv.policies.fused_decoder import fused_decoder
from agentenv.policies.hf import HFPolicy
from agentenv.trainers.credit.outcome import group_relative
from agentenv.trainers.learner.learner import (
    Learner,
    Objective,
    TrainingRow,
    rows_of,
)
from agentenv.trainers.learner.logprobs import checkpoint_layers
from agentenv.trainers.learner.settings import CorrectionSettings

PROMPT, POLICY, ENV = SegmentKind.PROMPT, SegmentKind.POLICY, SegmentKind.ENV
Make = Callable[..., Any]
OUTCOMES = tuple(product((0, 1), (0, 1)))
REWARDS = dict(zip(OUTCOMES, (0.3, -1.0, 2.0, 0.7), strict=True))


def sampled(episode: Make, model: Any, a: int, b: int, reward: float = 0.0, *, seen: int = 1) -> Trajectory:
    """Prompt 0, action a, observation ``seen``, action b, with the log-probs that ``model`` gives them."""
    with torch.no_grad():
        logprobs = [model.logprob([0], a).item(), model.logprob([0, a, seen], b).item()]
    parts = [(PROMPT, (0,)), (POLICY, (a,)), (ENV, (seen,)), (POLICY, (b,))]
    made: Trajectory = episode(parts, reward, logprobs=logprobs)
    return made


def constant(trajectories: Sequence[Trajectory], scores: Sequence[float]) -> list[np.ndarray[Any, Any]]:
    return [np.full(len(t.ids), score) for t, score in zip(trajectories, scores, strict=True)]


def gradient(
    model: Any, rows: Sequence[TrainingRow], tokens: int | None = None, **objective: Any
) -> tuple[dict[str, float], Tensor]:
    """Figures, and the gradient of all parameters as one vector."""
    model.zero_grad()
    figures = Learner(model, Objective(**objective), learning_rate=1.0).accumulate(rows, tokens)
    zeros = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return figures, torch.cat([g.flatten() for g in zeros]).clone()


def test_the_gradient_is_the_exact_policy_gradient(table: Make, episode: Make) -> None:
    """Every outcome once, weighted by its probability, advantage R - E[R]: the gradient of -E[R]."""
    model = table(4)
    with torch.no_grad():
        chance = {
            (a, b): (model.logprob([0], a) + model.logprob([0, a, 1], b)).exp().item() for a, b in OUTCOMES
        }
    assert sum(chance.values()) == pytest.approx(1, abs=1e-12)
    expected_reward = sum(chance[o] * REWARDS[o] for o in OUTCOMES)
    played = [sampled(episode, model, *outcome) for outcome in OUTCOMES]
    weighted = [chance[o] * (REWARDS[o] - expected_reward) for o in OUTCOMES]
    _, found = gradient(model, rows_of(played, constant(played, weighted)), tokens=1)

    model.zero_grad()
    value = sum(
        (model.logprob([0], a) + model.logprob([0, a, 1], b)).exp() * REWARDS[a, b] for a, b in OUTCOMES
    )
    (-value).backward()
    exact = model.head.weight.grad.flatten()
    assert exact.abs().max() > 0.1
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-6)


def test_the_gradient_of_a_group_is_the_analytic_one(table: Make, episode: Make) -> None:
    """-1/N sum over trajectories and actions of A ([action = b] - p(b | history)), for rewards 1, 0, 0, 0."""
    model = table(4)
    actions = [(1, 0), (0, 0), (0, 1), (0, 0)]
    group = [
        sampled(episode, model, a, b, reward) for (a, b), reward in zip(actions, (1.0, 0, 0, 0), strict=True)
    ]
    _, found = gradient(model, rows_of(group, group_relative(group)))

    # mean 1/4 and unbiased deviation 1/2 (see test_advantages), epsilon 1e-6; N = 4 episodes x 2 actions
    scores = np.array([0.75, -0.25, -0.25, -0.25]) / (0.5 + 1e-6)
    exact = np.zeros((2, model.histories))
    chance = torch.softmax(model.head.weight.detach(), dim=0).numpy()
    for (a, b), score in zip(actions, scores, strict=True):
        for action, history in ((a, 0b10), (b, 0b1001 + 2 * a)):
            exact[:, history] -= score / 8 * (np.eye(2)[action] - chance[:, history])
    torch.testing.assert_close(found, torch.from_numpy(exact).flatten(), rtol=0, atol=1e-6)


def random_row(model: Any, rng: np.random.Generator, length: int) -> TrainingRow:
    """Tokens 0 and 1 with a mask that leaves the first out, near on policy, a score for every token."""
    ids = rng.integers(2, size=length)
    mask = rng.random(length) < 0.6
    mask[0], mask[1] = False, True
    with torch.no_grad():
        exact = [0.0, *(model.logprob(ids[:t].tolist(), int(ids[t])).item() for t in range(1, length))]
    logprobs = (np.array(exact) + rng.normal(0, 0.2, length)).astype(np.float32)
    return TrainingRow(ids, mask, logprobs, np.zeros(length, dtype=bool), rng.normal(size=length))


def test_micro_batches_change_nothing(table: Make) -> None:
    model = table(8)
    rng = np.random.default_rng(0)
    rows = [random_row(model, rng, int(length)) for length in rng.integers(3, 9, size=20)]
    reference, expected = gradient(model, rows, micro_tokens=10_000)
    assert expected.abs().max() > 0.01
    for micro_tokens in (1, 9, 33):
        figures, found = gradient(model, rows, micro_tokens=micro_tokens)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert figures | {"padding_share": 0} == pytest.approx(reference | {"padding_share": 0}, abs=1e-12)


def test_a_row_s_padding_and_its_company_change_nothing(qwen: Make) -> None:
    """The same through attention; transformers computes norms in float32 whatever the model's dtype."""
    model = qwen(16).double()
    rng = np.random.default_rng(1)
    rows = []
    for length in (5, 11, 19):
        mask = np.arange(length) % 3 == 1
        nothing = np.zeros(length, dtype=np.float32)
        rows.append(TrainingRow(rng.integers(16, size=length), mask, nothing, mask, rng.normal(size=length)))
    _, together = gradient(model, rows)
    _, alone = gradient(model, rows, micro_tokens=1)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6 * float(together.abs().max()))


def test_what_was_observed_is_seen_but_not_trained(table: Make) -> None:
    """Tokens: prompt 2, policy 2, observation 2, policy 1. Log-probs of observations are never read; their ids are."""
    model = table(7)
    ids = np.array([0, 1, 1, 0, 1, 1, 0])
    mask = np.array([0, 0, 1, 1, 0, 0, 1], dtype=bool)
    old = np.array([0, 0, -0.7, -0.6, 0, 0, -0.8], dtype=np.float32)
    row = TrainingRow(ids, mask, old, np.zeros(7, dtype=bool), np.ones(7))
    settings: dict[str, Any] = {"objective_options": {"clip_high": 10.0, "clip_low": 1.0}}
    figures, expected = gradient(model, [row], **settings)

    other_logprobs = replace(row, logprobs=old + 5 * ~mask)
    assert gradient(model, [other_logprobs], **settings)[0] == figures
    torch.testing.assert_close(gradient(model, [other_logprobs], **settings)[1], expected, rtol=0, atol=0)

    other_score = replace(row, advantages=np.where(mask, 1.0, 99.0))
    assert gradient(model, [other_score], **settings)[0] == figures

    seen = ids.copy()
    seen[4] = 0
    other_figures, other = gradient(model, [replace(row, ids=seen)], **settings)
    assert other_figures["loss"] != figures["loss"]
    # Only the action after the observation moved: the first two have the same gradient at their own histories.
    changed = (other - expected).reshape(2, -1).abs().sum(0).nonzero().flatten().tolist()
    assert changed == [0b1011001, 0b1011011]  # histories 0 1 1 0 0 1 and 0 1 1 0 1 1


def test_tokens_of_another_context_have_ratio_one(table: Make, episode: Make) -> None:
    """A spliced token's recorded log-prob belongs to another context: its own present one takes its place."""
    model = table(4)
    trajectory = sampled(episode, model, 1, 0, 1.0)
    wrong = [
        replace(s, logprobs=(-9.0,), context_mismatch=True) if s.logprobs else s for s in trajectory.segments
    ]
    spliced = replace(trajectory, segments=tuple(wrong))
    straight, expected = gradient(model, rows_of([trajectory], constant([trajectory], [1.0])))
    figures, found = gradient(model, rows_of([spliced], constant([spliced], [1.0])))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert figures["approx_kl"] == 0
    assert figures["loss"] == pytest.approx(straight["loss"], abs=1e-6)
    unmarked = replace(spliced, segments=tuple(replace(s, context_mismatch=False) for s in wrong))
    assert gradient(model, rows_of([unmarked], constant([unmarked], [1.0])))[0]["clip_fraction"] == 1


def test_flat_rows_are_dropped_and_their_tokens_stay_in_the_mean(table: Make, episode: Make) -> None:
    model = table(4)
    played = [sampled(episode, model, a, b) for a, b in OUTCOMES]
    scores = [1.0, -1.0, 0.0, 0.0]
    rows = rows_of(played, constant(played, scores))
    assert len(rows) == 2
    figures, found = gradient(model, rows, tokens=8)
    assert figures["trained_tokens"] == 4
    _, without = gradient(model, rows)
    torch.testing.assert_close(found, without / 2, rtol=0, atol=1e-12)


def test_a_penalty_keeps_flat_rows(table: Make, episode: Make) -> None:
    """Without credit a row still holds the policy near the reference."""
    model, reference = table(4), table(4, seed=1)
    played = [sampled(episode, model, 0, 1)]
    rows = rows_of(played, constant(played, [0.0]), keep_zero_variance=True)
    learner = Learner(model, Objective(kl_coefficient=0.1), learning_rate=1.0, reference=reference)
    figures = learner.accumulate(rows)
    gaps = [(reference.logprob(h, t) - model.logprob(h, t)).item() for h, t in (([0], 0), ([0, 0, 1], 1))]
    # mean of .1 (exp(d) - d - 1)
    assert figures["loss"] == pytest.approx(0.05 * sum(np.exp(d) - d - 1 for d in gaps), abs=1e-7)
    assert figures["reference_kl"] == pytest.approx(10 * figures["loss"], rel=1e-6)
    assert model.head.weight.grad.abs().max() > 0
    assert reference.head.weight.grad is None


def test_what_ace_takes_is_a_figure(table: Make, episode: Make) -> None:
    """With the reference's own weights the factor is 1 + softplus(0) = 1 + ln 2, and half of the tokens have credit -1."""
    model = table(4)
    played = [sampled(episode, model, 0, 1), sampled(episode, model, 1, 1)]
    rows = rows_of(played, constant(played, [1.0, -1.0]))
    learner = Learner(model, Objective(ace_alpha=1.0), learning_rate=1.0, reference=table(4))
    assert learner.accumulate(rows)["ace_penalty"] == pytest.approx(np.log(2) / 2, abs=1e-6)


def test_each_row_of_a_trajectory_is_a_sequence_of_its_own(table: Make, episode: Make) -> None:
    """Two rows of one trajectory train as two trajectories of one row each; neither sees the other."""
    model = table(4)
    one, two = sampled(episode, model, 0, 1), sampled(episode, model, 1, 1)
    joined = replace(one, segments=(*one.segments, *(replace(segment, row=1) for segment in two.segments)))
    apart = rows_of([one, two], constant([one, two], [1.0, 1.0]))
    together = rows_of([joined], constant([joined], [1.0]))
    assert len(together) == 2
    figures, found = gradient(model, together)
    expected_figures, expected = gradient(model, apart)
    assert figures == expected_figures
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_any_reward_moves_the_gradient(table: Make, episode: Make) -> None:
    """A reward of any size in any member of a group of rewards 0 gives every member a gradient."""
    model = table(4)
    group = [sampled(episode, model, a, b) for a, b in OUTCOMES]
    assert rows_of(group, group_relative(group)) == []
    for place, reward in product(range(4), (1e-6, 0.5, -3.0)):
        paid = [replace(t, reward=reward if i == place else 0.0) for i, t in enumerate(group)]
        rows = rows_of(paid, group_relative(paid))
        assert len(rows) == 4
        assert gradient(model, rows)[1].abs().max() > 1e-3


def test_untrained_turns_get_no_gradient(table: Make, episode: Make) -> None:
    model = table(4)
    whole = sampled(episode, model, 0, 1)
    pivot = replace(whole, segments=tuple(replace(s, trained=s.turn > 1) for s in whole.segments))
    _, found = gradient(model, rows_of([pivot], constant([pivot], [1.0])))
    moved = found.reshape(2, -1).abs().sum(0).nonzero().flatten().tolist()
    assert moved == [0b1001]  # the history 0, 0, 1 of the second action


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_sampler_and_learner_agree(qwen: Make, temperature: float) -> None:
    """On policy the ratio is 1 at any temperature, through prefix caches and batches of several lengths."""
    model = qwen()
    policy = HFPolicy(model, ByteTokenizer())
    prompts = ([65, 66, 67], [70] * 9, [80, 81])

    async def two_turns(i: int) -> Trajectory:
        ids = list(prompts[i])
        segments = [Segment(PROMPT, tuple(ids), 0)]
        for turn in range(2):
            sampling = Sampling(6 + i, temperature=temperature, seed=10 * i + turn)
            done = await policy.generate(ids, sampling, episode=str(i))
            seen = (10 + i, 32, 32)
            segments += [Segment(POLICY, done.ids, turn, logprobs=done.logprobs), Segment(ENV, seen, turn)]
            ids += [*done.ids, *seen]
        return Trajectory(Task(str(i), "q"), tuple(segments), (), 0.0, EndReason.ANSWERED)

    async def all_three() -> list[Trajectory]:
        return await asyncio.gather(*(two_turns(i) for i in range(3)))

    played = asyncio.run(all_three())
    rows = rows_of(played, constant(played, [1.0, -2.0, 0.5]))
    figures, _ = gradient(model, rows, temperature=temperature)
    count = sum(int(t.loss_mask.sum()) for t in played)
    assert figures["trained_tokens"] == count
    assert abs(figures["approx_kl"]) < 1e-5
    assert figures["clip_fraction"] == 0
    score = sum(s * int(t.loss_mask.sum()) for s, t in zip((1.0, -2.0, 0.5), played, strict=True))
    assert figures["loss"] == pytest.approx(-score / count, abs=1e-5)  # every ratio is 1
    if temperature != 1:
        assert abs(gradient(model, rows, temperature=1.0)[0]["approx_kl"]) > 0.01


def test_a_step_moves_against_the_gradient_and_is_bounded(table: Make, episode: Make) -> None:
    model = table(4)
    played = [sampled(episode, model, 0, 1)]
    rows = rows_of(played, constant(played, [5.0]))
    before = model.logprob([0], 0).item()
    learner = Learner(model, Objective(), learning_rate=0.01, max_grad_norm=0.1)
    figures = learner.step(rows)
    assert model.logprob([0], 0).item() > before
    assert figures["grad_norm"] > 0.1
    clipped = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    assert clipped == pytest.approx(0.1, rel=1e-4)


def test_a_step_without_rows_changes_nothing(table: Make) -> None:
    model = table(4)
    before = model.head.weight.detach().clone()
    figures = Learner(model, Objective(), learning_rate=0.1, weight_decay=0.1).step([], tokens=100)
    names = {"loss", "clip_fraction", "approx_kl", "trained_tokens", "padding_share", "grad_norm"}
    assert figures == dict.fromkeys(names, 0)
    assert torch.equal(model.head.weight, before)


def saved_bytes(learner: Learner, rows: Sequence[TrainingRow]) -> int:
    """What a forward pass over ``rows`` keeps for its backward pass, beside the weights."""
    kept: dict[int, int] = {parameter.data_ptr(): 0 for parameter in learner.model.parameters()}

    def note(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor.untyped_storage().nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        learner.accumulate(rows)
    return sum(kept.values())


def some_rows(count: int = 3, length: int = 40) -> list[TrainingRow]:
    rng, none = np.random.default_rng(0), np.zeros(length, dtype=np.bool_)
    mask = np.arange(length) > 4
    return [
        TrainingRow(
            rng.integers(0, 256, length), mask, np.zeros(length, np.float32), none, rng.normal(size=length)
        )
        for _ in range(count)
    ]


def test_checkpointed_layers_give_the_same_gradient_for_less_memory(qwen: Make) -> None:
    torch.set_num_threads(1)
    plain, saving, rows = qwen(), qwen(), some_rows()
    checkpoint_layers(saving)
    # Both through the model's own modules, as checkpointed layers always go: the fused pass sums in another order.
    plain.model.register_forward_pre_hook(lambda *_: None)
    objective = Objective(proximal="recompute")
    bytes_ = [saved_bytes(Learner(model, objective, learning_rate=1.0), rows) for model in (plain, saving)]
    for ours, theirs in zip(saving.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    assert bytes_[1] < 0.7 * bytes_[0]
    policy = HFPolicy(saving, ByteTokenizer())  # a synchronous run samples with the same layers
    reference = HFPolicy(plain, ByteTokenizer())
    drawn = [
        asyncio.run(one.generate([1, 2, 3], Sampling(max_tokens=6, seed=4))) for one in (policy, reference)
    ]
    assert drawn[0] == drawn[1]


def test_bfloat16_is_near_and_leaves_weights_and_gradients_in_float32(qwen: Make) -> None:
    torch.set_num_threads(1)
    exact, rough, rows = qwen(), qwen(), some_rows()
    objective = Objective(proximal="recompute")
    Learner(exact, objective, learning_rate=1.0).accumulate(rows)
    Learner(rough, objective.model_copy(update={"precision": "bfloat16"}), learning_rate=1.0).accumulate(rows)
    a, b = (torch.cat([p.grad.flatten() for p in model.parameters()]) for model in (exact, rough))
    assert not torch.equal(a, b)
    assert b.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(a, b, dim=0) > 0.99


@pytest.mark.parametrize("proximal", ["sampler", "recompute", "interpolate"])
@pytest.mark.parametrize("off_context", ["ratio", "recompute"])
def test_the_denominator_of_a_token_of_another_context(
    qwen: Make,
    proximal: Literal["sampler", "recompute", "interpolate"],
    off_context: Literal["ratio", "recompute"],
) -> None:
    """Two tokens with A = 1, each recorded .1 below what the model gives it, the second in another context.

    Their ratios are exp(.1) where the recorded log-prob is the denominator and 1 where it is the model's own. The second
    token takes the recorded one under ``ratio`` alone, whatever the first one takes.
    """
    model, ids = qwen(), np.arange(60, 66)
    mask = np.arange(6) >= 4
    row = TrainingRow(
        ids,
        mask,
        np.zeros(6, dtype=np.float32),
        np.arange(6) == 5,
        np.ones(6),
        age=np.zeros(6, dtype=np.int64),
    )
    (scored,) = Learner(model, Objective(), learning_rate=1.0).with_proximal([row])
    assert scored.proximal is not None
    row.logprobs[mask] = scored.proximal - 0.1
    goal = Objective(proximal=proximal, correction=CorrectionSettings(off_context=off_context))
    loss = Learner(model, goal, learning_rate=1.0).accumulate([row])["loss"]
    first = 1.0 if proximal == "recompute" else math.exp(0.1)
    second = math.exp(0.1) if off_context == "ratio" else 1.0
    assert loss == pytest.approx(-(first + second) / 2, abs=1e-5)


@pytest.mark.parametrize("objective", ["ppo_clip", "gspo"])
def test_micro_batches_at_once_give_the_gradients_of_one_after_the_other(objective: str) -> None:
    """The gradients are added in the order of the batches, so that not even the last bits differ."""
    model = random_model(257, seed=1, context=64, spread=0.2).double()
    assert fused_decoder(model) is not None
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(24):
        ids, mask = rng.integers(0, 257, int(rng.integers(8, 40))), None
        mask = np.arange(len(ids)) >= 4
        logprobs = np.where(mask, -5.0, 0.0)
        never = np.zeros(len(ids), dtype=bool)
        rows.append(TrainingRow(ids, mask, logprobs, never, np.full(len(ids), rng.normal()), int(mask.sum())))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        wanted, slope = gradient(model, rows, objective=objective, micro_tokens=160)
        scored = Learner(model, Objective(micro_tokens=160), learning_rate=1.0).with_proximal(rows)
        torch.set_num_threads(4)
        learner = Learner(model, Objective(micro_tokens=160), learning_rate=1.0)
        assert learner.batches_at_once == 4
        assert len(list(learner._micro_batches(rows))) > 4
        found, other = gradient(model, rows, objective=objective, micro_tokens=160)
        again = learner.with_proximal(rows)
    finally:
        torch.set_num_threads(before)
    assert found == wanted
    assert torch.equal(slope, other)
    for one, two in zip(scored, again, strict=True):
        assert np.array_equal(one.ids, two.ids)
        assert one.proximal is not None
        assert two.proximal is not None
        assert np.array_equal(one.proximal, two.proximal)

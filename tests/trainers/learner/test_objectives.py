"""Objectives through the learner: micro-batches and strips, averages over the whole step, corrections, splices.

The default objective is compared, to the bit, with the published formula written out again here.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.outcome import group_relative
from agentenv.trainers.learner.learner import Learner, Objective, TrainingRow, rows_of
from agentenv.trainers.learner.losses import OBJECTIVES
from agentenv.trainers.learner.packing import micro_batches, strips_of
from agentenv.trainers.learner.settings import CorrectionSettings

PROMPT, POLICY, ENV = SegmentKind.PROMPT, SegmentKind.POLICY, SegmentKind.ENV
Make = Callable[..., Any]
TRUNCATED = CorrectionSettings(mode="truncate", high=2.0, off_context="recompute")


def gradient(learner: Learner, rows: Sequence[TrainingRow], **totals: int) -> tuple[dict[str, float], Tensor]:
    """Figures, and the gradient of all parameters as one vector."""
    learner.model.zero_grad()
    metrics = learner.accumulate(rows, **totals)
    zeros = [torch.zeros_like(p) if p.grad is None else p.grad for p in learner.model.parameters()]
    return metrics, torch.cat([g.flatten() for g in zeros]).clone()


def learner_of(model: Any, reference: Any = None, **objective: Any) -> Learner:
    return Learner(model, Objective(**objective), learning_rate=0.01, reference=reference)


@pytest.fixture
def rows(table: Make) -> list[TrainingRow]:
    """Twelve rows behind two prompts, a little off policy, every fourth one with a off-context token in it."""
    model, rng = table(8), np.random.default_rng(0)
    made = []
    for place in range(12):
        length = int(rng.integers(6, 9))
        ids = np.concatenate([[0, 1, 1, place % 2], rng.integers(2, size=length - 4)])
        mask = np.arange(length) >= 4
        mask[5:-1] &= rng.random(length - 6) < 0.7
        with torch.no_grad():
            exact = [0.0, *(model.logprob(ids[:t].tolist(), int(ids[t])).item() for t in range(1, length))]
        noisy = (np.array(exact) + rng.normal(0, 0.2, length)).astype(np.float32)
        off_context = np.zeros(length, dtype=bool)
        off_context[4] = place % 4 == 0
        made.append(
            TrainingRow(
                ids, mask, noisy, off_context, np.full(length, rng.normal()), age=np.full(length, place % 3)
            )
        )
    return made


def without_off_context(rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    return [replace(row, mismatch=np.zeros(len(row.ids), dtype=bool)) for row in rows]


EVERY: list[dict[str, Any]] = [
    *({"objective": name} for name in OBJECTIVES),
    *({"objective": "gspo", "aggregation": name} for name in ("token_mean", "sequence_sum", "constant")),
    {"kl_coefficient": 0.1, "kl": "k3_corrected", "ace_alpha": 1.0, "entropy_coefficient": 0.01},
    {"proximal": "interpolate"},
    *(
        {
            "proximal": "recompute",
            "correction": TRUNCATED.model_copy(update={"level": level, "off_context": "weight"}),
        }
        for level in ("token", "sequence", "geometric")
    ),
    {
        "proximal": "interpolate",
        "correction": CorrectionSettings(
            mode="mask", low=0.5, reject_above=0.01, off_context="weight", ess_base=1.0
        ),
    },
]
each_objective = pytest.mark.parametrize("objective", EVERY, ids=str)


def test_the_scale_of_confidence_reaches_the_loss(table: Make, rows: list[TrainingRow]) -> None:
    def found(scale: str) -> torch.Tensor:
        learner = learner_of(table(8), table(8, seed=1), ace_alpha=1.0, ace_scale=scale)
        return gradient(learner, rows)[1]

    torch.testing.assert_close(
        found("mean"), gradient(learner_of(table(8), table(8, seed=1), ace_alpha=1.0), rows)[1]
    )
    assert not torch.allclose(found("mean"), found("sum"), atol=1e-6)


@each_objective
def test_micro_batches_and_strips_change_nothing(
    table: Make, rows: list[TrainingRow], objective: dict[str, Any]
) -> None:
    """Also where a loss needs sums over a row: a row is never cut, whatever it is packed with."""
    model, reference = table(8), table(8, seed=1)
    whole, expected = gradient(learner_of(model, reference, **objective), rows)
    assert expected.abs().max() > 1e-3
    for micro_tokens in (1, 30):
        learner = learner_of(model, reference, micro_tokens=micro_tokens, **objective)
        metrics, found = gradient(learner, rows)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
        assert metrics | {"padding_share": 0} == pytest.approx(whole | {"padding_share": 0}, abs=1e-12)


@each_objective
def test_what_stands_at_observed_tokens_enters_no_term(
    table: Make, rows: list[TrainingRow], objective: dict[str, Any]
) -> None:
    learner = learner_of(table(8), table(8, seed=1), **objective)
    other = [
        replace(
            row,
            logprobs=(row.logprobs + 5 * ~row.mask).astype(np.float32),
            advantages=np.where(row.mask, row.advantages, 99.0),
            mismatch=row.mismatch | ~row.mask,
        )
        for row in rows
    ]
    metrics, expected = gradient(learner, rows)
    found_figures, found = gradient(learner, other)
    assert found_figures == metrics
    assert torch.equal(found, expected)


@pytest.mark.parametrize("surrogate", ["ppo_clip", "gspo"])
def test_rows_behind_one_prompt_are_apart(qwen: Make, surrogate: str) -> None:
    """In a transformer, where strips hold several rows; float32 norms bound the agreement."""
    model, rng = qwen(16).double(), np.random.default_rng(0)
    prompt = rng.integers(16, size=20)
    made = []
    for _ in range(4):
        tail = rng.integers(16, size=rng.integers(2, 6))
        ids = np.concatenate([prompt, tail])
        mask = np.arange(len(ids)) >= 20
        old = rng.normal(-2.7, 0.3, len(ids)).astype(np.float32)
        made.append(
            TrainingRow(ids, mask, old, np.zeros(len(ids), dtype=bool), np.full(len(ids), rng.normal()))
        )
    assert len(strips_of(made, 1000)) == 1
    options = {"clip_low": 1.0, "clip_high": 9.0}
    together = gradient(learner_of(model, objective=surrogate, objective_options=options), made)[1]
    apart = gradient(learner_of(model, objective=surrogate, objective_options=options, micro_tokens=1), made)[
        1
    ]
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-5 * float(apart.abs().max()))


def spliced(rows: Sequence[TrainingRow], shift: float) -> list[TrainingRow]:
    """The rows with other recorded log-probs on their off-context tokens."""
    return [replace(row, logprobs=(row.logprobs + shift * row.mismatch).astype(np.float32)) for row in rows]


@pytest.mark.parametrize("shift", [-3.0, 2.0])
@pytest.mark.parametrize("objective", [o for o in EVERY if "correction" not in o], ids=str)
def test_log_probs_of_another_context_enter_no_ratio(
    table: Make, rows: list[TrainingRow], objective: dict[str, Any], shift: float
) -> None:
    """Whatever was recorded for spliced tokens, no objective reads it; for the others every ratio does."""
    model, reference = table(8), table(8, seed=1)
    learner = learner_of(model, reference, **objective)
    metrics, expected = gradient(learner, rows)
    found_figures, found = gradient(learner, spliced(rows, shift))
    assert found_figures == metrics
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    if objective.get("objective") != "opmd":
        own = [replace(row, mismatch=~row.mismatch & row.mask) for row in rows]
        unmarked = [
            replace(row, mismatch=old.mismatch) for row, old in zip(spliced(own, shift), rows, strict=True)
        ]
        assert gradient(learner, unmarked)[0]["approx_kl"] != metrics["approx_kl"]


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_a_correction_refuses_log_probs_of_another_context(
    table: Make, rows: list[TrainingRow], level: Any
) -> None:
    learner = learner_of(
        table(8), proximal="recompute", correction=TRUNCATED.model_copy(update={"level": level})
    )
    with pytest.raises(ConfigurationError, match="'weight'"):
        learner.accumulate(rows)
    learner.accumulate(without_off_context(rows))


@pytest.mark.parametrize("level", ["sequence", "geometric"])
def test_a_weighed_splice_is_in_no_weight_but_its_own(
    table: Make, rows: list[TrainingRow], level: Any
) -> None:
    """The rest of its row gets the weight that it has without it."""
    how = TRUNCATED.model_copy(update={"level": level, "off_context": "weight", "high": 50.0})
    learner = learner_of(table(8), proximal="recompute", correction=how)
    small = spliced(rows, 30.0)  # p(now) / p(sampled) = e^-30: its own weight vanishes, whatever was recorded
    smaller = spliced(rows, 40.0)
    torch.testing.assert_close(gradient(learner, small)[1], gradient(learner, smaller)[1], rtol=0, atol=1e-7)
    assert not torch.equal(gradient(learner, small)[1], gradient(learner, rows)[1])


def test_a_correction_needs_two_log_probs(table: Make) -> None:
    with pytest.raises(ConfigurationError, match="'sampler'"):
        learner_of(table(8), correction=TRUNCATED)


def test_decoupled_ppo(table: Make, rows: list[TrainingRow]) -> None:
    """At the first update the ratio is 1, and each token counts min(p / p_behaviour, 2) times; the rejected stay below."""
    model, own = table(8), without_off_context(rows)
    weight, denominator, expected = 0.0, 0, torch.zeros(())
    for row in own:
        for t in row.trained:
            logprob = model.logprob(row.ids[:t].tolist(), int(row.ids[t]))
            weight = min(float((logprob.detach() - row.logprobs[t]).exp()), 2.0)
            expected = expected - row.advantages[t] * weight * logprob
            denominator += 1
    (exact,) = torch.autograd.grad(expected / denominator, model.head.weight)
    decoupled: dict[str, Any] = {"proximal": "recompute", "correction": TRUNCATED}
    metrics, found = gradient(learner_of(model, **decoupled), own)
    torch.testing.assert_close(found, exact.flatten(), rtol=0, atol=1e-7)
    assert metrics["approx_kl"] == 0
    assert 0.5 < metrics["behaviour_weight"] < 2

    everything = CorrectionSettings(mode="truncate", reject_above=1e-12)
    metrics, found = gradient(learner_of(model, proximal="recompute", correction=everything), own)
    assert metrics["behaviour_weight"] == 0
    assert found.abs().max() == 0
    half = CorrectionSettings(mode="mask", low=1.0, high=1e9)  # tokens that became likelier
    kept = [
        replace(
            row,
            mask=row.mask
            & np.array(
                [
                    t in row.trained
                    and bool(model.logprob(row.ids[:t].tolist(), int(row.ids[t])).item() >= row.logprobs[t])
                    for t in range(len(row.ids))
                ]
            ),
        )
        for row in own
    ]
    kept = [row for row in kept if row.mask.any()]
    _, masked = gradient(learner_of(model, proximal="recompute", correction=half), own)
    _, alone = gradient(
        learner_of(model, micro_tokens=1, proximal="recompute", correction=half), kept, tokens=denominator
    )
    assert sum(len(row.trained) for row in kept) < denominator
    torch.testing.assert_close(masked, alone, rtol=0, atol=1e-12)


def test_several_updates_hold_on_to_where_they_began(table: Make, rows: list[TrainingRow]) -> None:
    """After a step the ratio of recomputed log-probs is no longer 1; a spliced token's neither."""
    model = table(8)
    learner = Learner(model, Objective(proximal="recompute"), learning_rate=0.3)
    prepared = learner.with_proximal(rows)
    for row in prepared:
        assert row.proximal is not None
        assert len(row.proximal) == len(row.trained)
    assert learner.step(prepared)["approx_kl"] == pytest.approx(0, abs=1e-12)
    second = learner.step(prepared, update=1)
    assert abs(second["approx_kl"]) > 1e-3
    assert second["clip_fraction"] > 0
    assert gradient(learner_of(model, proximal="recompute"), rows)[0]["approx_kl"] == 0

    off_context = [replace(row, mismatch=row.mask) for row in rows]
    learner = Learner(table(8), Objective(), learning_rate=0.3)
    prepared = learner.with_proximal(off_context)
    learner.step(prepared)
    assert abs(learner.step(prepared, update=1)["approx_kl"]) > 1e-3


def test_interpolation_follows_the_age_of_a_row(table: Make, rows: list[TrainingRow]) -> None:
    """Fresh rows keep the sampler's log-probs; older ones take the present weights' before the first step."""
    own = without_off_context(rows)
    fresh, old = ([replace(r, age=np.full(len(r.ids), age)) for r in own] for age in (0, 2))
    model = table(8)
    learner = learner_of(model, proximal="interpolate")
    plain = gradient(learner_of(model), own)[0]["approx_kl"]
    assert gradient(learner, fresh)[0]["approx_kl"] == plain != 0
    assert gradient(learner, old)[0]["approx_kl"] == pytest.approx(0, abs=1e-12)
    model.zero_grad()
    assert learner.accumulate(old, update=2)["approx_kl"] == pytest.approx(plain / 2, abs=1e-12)


def test_every_token_of_a_row_has_its_own_age(episode: Make) -> None:
    made = episode([(PROMPT, (0,)), (POLICY, (1,)), (ENV, (1,)), (POLICY, (0,))])
    versions = iter((3, 5))
    segments = [replace(s, version=next(versions)) if s.kind is POLICY else s for s in made.segments]
    aged = replace(made, segments=tuple(segments))
    credit = [np.ones(4)]

    def ages(trajectory: Trajectory, version: int | None) -> list[int]:
        (row,) = rows_of([trajectory], credit, version=version)
        assert row.age is not None
        return [int(age) for age in row.age[row.mask]]

    assert ages(aged, 7) == [4, 2]
    assert ages(aged, 2) == [0, 0]
    assert ages(made, 7) == [0, 0]  # nobody recorded a version
    assert rows_of([aged], credit)[0].age is None


def test_a_trajectory_counts_once_however_many_rows_it_has(table: Make, episode: Make) -> None:
    """Means over sequences divide by trajectories, and by all trained tokens of each."""
    parts = [(PROMPT, (0,)), (POLICY, (1,)), (ENV, (1,)), (POLICY, (0, 1))]
    whole = episode(parts)
    again = Segment(PROMPT, (0, 1, 1), 2, row=1)
    head, tail = whole.segments[:3], [replace(s, row=1) for s in whole.segments[3:]]
    split = replace(whole, segments=(*head, again, *tail))
    other = episode([(PROMPT, (0,)), (POLICY, (0,))])
    model = table(6)

    def of(group: list[Trajectory], credit: float = 1.0, **objective: Any) -> Tensor:
        rows = rows_of(group, [np.full(len(t.ids), credit) for t in group])
        return gradient(learner_of(model, **objective), rows, sequences=len(group))[1]

    assert len(rows_of([split], [np.ones(len(split.ids))])) == 2
    for aggregation in ("sequence_mean", "sequence_sum", "constant", "token_mean"):
        one, two = (of([t, other], aggregation=aggregation) for t in (whole, split))
        torch.testing.assert_close(one, two, rtol=0, atol=1e-12)
    # ratio 1 clipped nowhere: the sequence mean is the mean of each trajectory's own token mean
    mine, its = (of([t], aggregation="token_mean") for t in (whole, other))
    torch.testing.assert_close(
        of([whole, other], aggregation="sequence_mean"), (mine + its) / 2, rtol=0, atol=1e-9
    )
    summed = of([whole, other], aggregation="token_sum")
    torch.testing.assert_close(of([whole, other], aggregation="sequence_sum"), summed / 2, rtol=0, atol=1e-12)
    constant = of([whole, other], aggregation="constant", length=7)
    torch.testing.assert_close(constant, summed / 14, rtol=0, atol=1e-12)


def test_the_entropy_bonus(table: Make, rows: list[TrainingRow]) -> None:
    model = table(8)
    flat = [replace(row, advantages=np.zeros(len(row.ids))) for row in rows]
    metrics, found = gradient(learner_of(model, entropy_coefficient=0.5), flat)
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        for t in row.trained:
            scores = torch.stack([model.logprob(row.ids[:t].tolist(), a) for a in (0, 1)])
            total = total - (scores.exp() * scores).sum()
    count = sum(len(row.trained) for row in rows)
    (exact,) = torch.autograd.grad(-0.5 * total / count, model.head.weight)
    torch.testing.assert_close(found, exact.flatten(), rtol=0, atol=1e-12)
    assert metrics["policy_entropy"] == pytest.approx(total.item() / count)


def test_mastered_tokens_have_no_loss_and_stay_in_the_denominator(
    table: Make, rows: list[TrainingRow]
) -> None:
    """With bounds that every token meets, the tokens of rows of positive credit are gone; the others' gradient stays."""
    bad = [replace(row, advantages=np.minimum(row.advantages, 0.0)) for row in rows]
    tokens = sum(int(row.mask.sum()) for row in rows)
    bounds = {"mastered_probability": 1e-6, "mastered_entropy": 9.0}
    figures, masked = gradient(learner_of(table(8), **bounds), rows)
    _, expected = gradient(learner_of(table(8)), bad, tokens=tokens)
    torch.testing.assert_close(masked, expected)
    good = sum(int((row.mask & (row.advantages > 0)).sum()) for row in rows)
    assert figures["mastered_share"] == pytest.approx(good / tokens)
    _, unmasked = gradient(learner_of(table(8), mastered_probability=1.0), rows)
    torch.testing.assert_close(unmasked, gradient(learner_of(table(8)), rows)[1])


@pytest.mark.parametrize(
    ("objective", "reference", "flat"),
    [
        ({}, False, False),
        ({"kl_coefficient": 0.1}, True, True),
        ({"ace_alpha": 1.0}, True, False),
        ({"estimator": "reinforce_pp", "estimator_options": {"kl_coefficient": 0.1}}, True, False),
        ({"estimator": "reinforce_pp"}, False, False),
        ({"entropy_coefficient": 0.1}, False, True),
        ({"proximal": "recompute", "correction": CorrectionSettings(ess_base=1.0)}, False, True),
    ],
)
def test_what_an_objective_needs(objective: dict[str, Any], reference: bool, flat: bool) -> None:
    goal = Objective(**objective)
    assert (goal.needs_reference, goal.keeps_zero_variance) == (reference, flat)


def test_the_effective_sample_scales_one_step(table: Make, rows: list[TrainingRow]) -> None:
    """Adam's first step is the step size in every coordinate: it shrinks with the effective sample, and comes back."""
    own = without_off_context(rows)
    skewed = [*own[:-1], replace(own[-1], logprobs=own[-1].logprobs - 2.0)]
    how = CorrectionSettings(ess_base=1.0)
    for batch, low, high in ((own, 0.7, 1.0), (skewed, 0.05, 0.6)):
        model = table(8)
        before = model.head.weight.detach().clone()
        learner = learner_of(model, proximal="recompute", correction=how)
        metrics = learner.step(batch)
        assert low < metrics["effective_sample"] < high
        moved = (model.head.weight - before).abs().max().item()
        assert moved == pytest.approx(0.01 * metrics["effective_sample"] ** 0.5, rel=1e-3)
        assert learner.optimizer.param_groups[0]["lr"] == 0.01


def published(model: Any, rows: Sequence[TrainingRow], tokens: int) -> tuple[float, Tensor]:
    """Loss and gradient of the default objective, written out: clip .2 and .28, dual clip 10, mean over tokens."""
    model.zero_grad()
    total = 0.0
    for packed in micro_batches(rows, 8192):
        scores = model(input_ids=packed.ids, use_cache=False).logits[packed.strips, packed.before]
        logprobs = torch.log_softmax(scores / 1.0, dim=-1).gather(-1, packed.targets[:, None])[:, 0]
        own = logprobs.detach()
        old, credit = torch.where(packed.mismatch, own, packed.old.to(own.dtype)), packed.advantages
        ratio = (logprobs - old).clamp(-20.0, 20.0).exp()
        losses = torch.maximum(-credit * ratio, -credit * ratio.clamp(1 - 0.2, 1 + 0.28))
        losses = torch.where(credit < 0, torch.minimum(losses, -credit * 10.0), losses)
        (losses.sum() / tokens).backward()  # type: ignore[no-untyped-call]
        total += losses.sum().item() / tokens
    return total, model.head.weight.grad.flatten().clone()


def test_the_default_is_the_published_formula_to_the_bit(table: Make, rows: list[TrainingRow]) -> None:
    """In one forward pass; several would add their sums in another order."""
    model = table(8)
    metrics, found = gradient(learner_of(model, padding=1.0), rows, tokens=57)
    loss, expected = published(model, rows, tokens=57)
    assert metrics["loss"] == loss
    assert torch.equal(found, expected)
    assert set(metrics) == {"loss", "clip_fraction", "approx_kl", "trained_tokens", "padding_share"}


def test_the_default_is_what_it_was(table: Make, episode: Make) -> None:
    """Three steps on the table policy, as they were before there was a choice; the last digits are the processor's."""
    model = table(4)
    learner = Learner(model, Objective(), learning_rate=0.05, weight_decay=0.01)
    seen = []
    for step in range(3):
        group = []
        for place, (a, b) in enumerate(((1, 0), (0, 0), (0, 1), (1, 1))):
            with torch.no_grad():
                old = [model.logprob([0], a).item(), model.logprob([0, a, 1], b).item() - 0.3 * (step == 2)]
            parts = [(PROMPT, (0,)), (POLICY, (a,)), (ENV, (1,)), (POLICY, (b,))]
            group.append(episode(parts, float((place + step) % 3), logprobs=old))
        metrics = learner.step(rows_of(group, group_relative(group)), tokens=9)
        seen.append([metrics["loss"], metrics["grad_norm"], metrics["approx_kl"]])
    pinned = [
        ["0x1.64db60e38e38ep-28", "0x1.f9e93da25c417p-3", "-0x1.356f96f800000p-30"],
        ["-0x1.fb62ccc71c71cp-28", "0x1.8a232751caeeap-3", "-0x1.6d0031e000000p-27"],
        ["0x1.8e7c67d53bf07p-7", "0x1.5ae9f8376d234p-2", "-0x1.333331dd3d539p-3"],
    ]
    for mine, wanted in zip(seen, pinned, strict=True):
        assert mine == pytest.approx([float.fromhex(word) for word in wanted], rel=1e-9, abs=1e-15)
    assert model.head.weight.sum().item() == pytest.approx(float.fromhex("0x1.7b1a08b916676p+2"), rel=1e-12)

"""The losses by hand: every objective, where its gradient is zero, averages, KL estimates, ACE; what no loss may read."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from agentenv.errors import UnknownName
from agentenv.trainers.learner.losses import (
    OBJECTIVES,
    Surrogate,
    Tokens,
    asymmetric_penalty,
    bounded_ratio,
    denominator,
    get_objective,
    kl_penalty,
    mastered_tokens,
    shaped_probability,
    token_weights,
)


def double(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def made(
    ratios: Sequence[float],
    advantages: Sequence[float],
    *,
    rows: Sequence[int] | None = None,
    logprobs: Sequence[float] | None = None,
    off_context: Sequence[bool] | None = None,
) -> Tokens:
    """Tokens of these ratios; log-probs are -1 where none are given."""
    new = double(logprobs or [-1.0] * len(ratios)).requires_grad_()
    old = new.detach() - double([math.log(ratio) for ratio in ratios])
    places = torch.tensor(rows if rows is not None else range(len(ratios)))
    strange = torch.tensor(off_context if off_context is not None else [False] * len(ratios))
    return Tokens(new, old, double(advantages), places, strange)


def evaluate(name: str, tokens: Tokens, **options: Any) -> tuple[list[float], list[float], Surrogate]:
    """Losses, their slopes in the log-probs, and the surrogate itself."""
    surrogate = get_objective(name, options)(tokens)
    surrogate.losses.sum().backward()  # type: ignore[no-untyped-call]
    assert tokens.logprobs.grad is not None
    return surrogate.losses.tolist(), tokens.logprobs.grad.tolist(), surrogate


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        # loss = max(-A r, -A clip(r, .8, 1.28)); d loss / d logprob = -A r where r decides, else 0.
        (1.0, 1.0, -1.0, -1.0),
        (1.5, 1.0, -1.28, 0.0),  # the good action is likely enough
        (1.5, -1.0, 1.5, 1.5),  # the bad one grew: pull it back
        (0.7, -1.0, 0.8, 0.0),  # the bad action is rare enough
        (0.7, 1.0, -0.7, -0.7),  # the good one shrank: pull it back
        (12.0, -1.0, 10.0, 0.0),  # dual clip: one token may not blow the step up
        (12.0, -0.5, 5.0, 0.0),
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_clipping(ratio: float, advantage: float, loss: float, slope: float) -> None:
    losses, slopes, surrogate = evaluate("ppo_clip", made([ratio], [advantage]))
    assert losses == pytest.approx([loss], abs=1e-12)
    assert slopes == pytest.approx([slope], abs=1e-12)
    assert surrogate.clipped.tolist() == [ratio > 1.28 or ratio < 0.8]


def test_bounds_are_options() -> None:
    assert evaluate("ppo_clip", made([0.5], [-1.0]), clip_low=0.4)[0] == pytest.approx([0.6])
    assert evaluate("ppo_clip", made([2.0], [1.0]), clip_high=0.9)[0] == pytest.approx([-1.9])
    assert evaluate("ppo_clip", made([2.0], [-1.0]), dual_clip=1.5)[0] == pytest.approx([1.5])


def test_a_margin_of_a_token_takes_the_place_of_the_upper_bound() -> None:
    """Ratios of 1.5: bounds 1 + .2 + .06 and 1 + .2 + 0, and 1 + .28 where there is no margin; below, .8 holds for all."""
    tokens = replace(made([1.5, 1.5, 1.5], [1.0] * 3), clip_margin=double([0.06, 0.0, math.nan]))
    losses, slopes, surrogate = evaluate("ppo_clip", tokens)
    assert losses == pytest.approx([-1.26, -1.2, -1.28])
    assert slopes == [0.0] * 3
    assert surrogate.clipped.tolist() == [True] * 3
    low = replace(made([0.7, 1.21], [-1.0, 1.0]), clip_margin=double([0.06, 0.06]))
    losses, _, surrogate = evaluate("ppo_clip", low)
    assert losses == pytest.approx([0.8, -1.21])
    assert surrogate.clipped.tolist() == [True, False]


@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_an_absurd_ratio_stays_finite(name: str) -> None:
    tokens = made([1.0, 1.0], [-1.0, 1.0], logprobs=[-0.1, -200.0])
    tokens = Tokens(
        tokens.logprobs, double([-200.0, -0.1]), tokens.advantages, tokens.rows, tokens.off_context
    )
    losses, slopes, _ = evaluate(name, tokens)
    assert all(map(math.isfinite, losses + slopes))


def test_gspo_has_one_ratio_a_row() -> None:
    # mean log-ratios .3 and 0: ratios exp .3 = 1.34986 and 1; the rows are interleaved
    ratios = [math.exp(x) for x in (0.2, 0.1, 0.4, -0.3, 0.2)]
    rows = [0, 1, 0, 1, 1]
    losses, slopes, surrogate = evaluate("gspo", made(ratios, [-1.0] * 5, rows=rows))
    assert losses == pytest.approx([1.34986, 1, 1.34986, 1, 1], abs=1e-5)
    assert slopes == pytest.approx([1.34986, 1, 1.34986, 1, 1], abs=1e-5)
    assert surrogate.clipped.tolist() == [True, False, True, False, False]
    # A > 0 above the bound: the loss is bounded and pushes no further
    losses, slopes, _ = evaluate("gspo", made(ratios, [1.0] * 5, rows=rows))
    assert losses == pytest.approx([-1.0004, -1, -1.0004, -1, -1], abs=1e-9)
    assert slopes == pytest.approx([0, -1, 0, -1, -1], abs=1e-9)


def test_gspo_has_a_dual_clip_where_one_is_named() -> None:
    """Rows of one token with ratios 4, 2 and 4: a loss of 4 at A = -1 becomes 3 without a gradient; A = 1 is as before."""
    tokens = made([4.0, 2.0, 4.0], [-1.0, -1.0, 1.0])
    losses, slopes, _ = evaluate("gspo", tokens, dual_clip=3.0)
    assert losses == pytest.approx([3.0, 2.0, -1.0004])
    assert slopes == pytest.approx([0.0, 2.0, 0.0])
    losses, slopes, _ = evaluate("gspo", made([4.0], [-1.0]))
    assert losses == slopes == pytest.approx([4.0])


def test_the_gradient_of_gspo_is_that_of_the_geometric_mean() -> None:
    """Averaged over the row, as its own aggregation does: d/d lp_k of -A exp(mean(lp - old))."""
    tokens = made([1.1, 0.9, 1.2], [-2.0] * 3, rows=[0, 0, 0])
    surrogate = get_objective("gspo")(tokens)
    (found,) = torch.autograd.grad(surrogate.losses.mean(), tokens.logprobs)
    ratio = (tokens.logprobs - tokens.proximal).mean().exp()
    (exact,) = torch.autograd.grad(2.0 * ratio, tokens.logprobs)
    torch.testing.assert_close(found, exact)


@pytest.mark.parametrize(
    ("options", "ratio", "loss", "slope"),
    [
        # -clip(r) A log p with log p = -1, A = 1; the slope is -clip(r) A everywhere
        ({}, 2.0, 1.28, -1.28),
        ({}, 0.5, 0.8, -0.8),
        # .28, the bound of the other convention, would scale all tokens down.
        ({"convention": "trl"}, 1.0, 1.0, -1.0),
        ({"convention": "trl"}, 9.0, 5.0, -5.0),
        ({"convention": "trl", "clip_high": 5.0}, 2.0, 2.0, -2.0),
        ({"convention": "trl", "clip_high": 5.0}, 9.0, 5.0, -5.0),
        ({"convention": "trl", "clip_high": 5.0}, 0.01, 0.01, -0.01),
        ({"convention": "verl", "clip_high": 4.0}, 9.0, 5.0, -5.0),
    ],
)
def test_the_two_conventions_of_cispo(
    options: dict[str, Any], ratio: float, loss: float, slope: float
) -> None:
    losses, slopes, _ = evaluate("cispo", made([ratio], [1.0]), **options)
    assert losses == pytest.approx([loss], abs=1e-12)
    assert slopes == pytest.approx([slope], abs=1e-12)


def test_opmd_knows_no_ratio() -> None:
    for ratio in (0.1, 1.0, 30.0):
        assert evaluate("opmd", made([ratio], [3.0]))[:2] == ([1.5], [-1.5])
    assert evaluate("opmd", made([1.0], [3.0]), tau=0.5)[1] == [-2.0]


@pytest.mark.parametrize(
    ("trained", "sampled", "advantage", "dropped"),
    [
        (0.75, 0.5, 1.0, True),  # rose by .25 where it should rise
        (0.75, 0.5, -1.0, False),
        (0.2, 0.5, -1.0, True),  # fell by .3 where it should fall
        (0.2, 0.5, 1.0, False),
        (0.6, 0.5, 1.0, False),
    ],
)
def test_tokens_that_moved_far_enough_are_dropped(
    trained: float, sampled: float, advantage: float, dropped: bool
) -> None:
    tokens = made([trained / sampled], [advantage], logprobs=[math.log(trained)])
    losses, _, surrogate = evaluate("probability_mask", tokens)
    square = 1e-3 * math.log(trained / sampled) ** 2
    assert surrogate.clipped.tolist() == [dropped]
    assert losses == pytest.approx([square + (0.0 if dropped else -advantage * trained / sampled)], abs=1e-12)


def test_probability_shaped_weights() -> None:
    assert shaped_probability(double([0.5, 0.9]).log()).tolist() == pytest.approx([0.83333, 0.9], abs=1e-5)
    probability = double([1e-12]).requires_grad_()
    shaped_probability(probability.log()).sum().backward()  # type: ignore[no-untyped-call]
    assert probability.grad is not None
    assert probability.grad.item() == pytest.approx(10.0, abs=1e-6)


def test_guided_tokens_get_the_shaped_loss_and_the_others_ppo_s() -> None:
    tokens = made([1.5, 1.0], [1.0, 1.0], logprobs=[-1.0, math.log(0.5)], off_context=[False, True])
    losses, _, surrogate = evaluate("guided_clip", tokens)
    assert losses == pytest.approx([-1.2, -0.83333], abs=1e-5)
    assert surrogate.clipped.tolist() == [True, False]


@pytest.mark.parametrize(
    ("aggregation", "value"),
    [
        # losses 1 2 3 of a trajectory and 10 of another; a constant of 5 tokens
        ("token_mean", 16 / 4),
        ("sequence_mean", (2 + 10) / 2),
        ("sequence_sum", (6 + 10) / 2),
        ("constant", 16 / (2 * 5)),
        ("token_sum", 16),
    ],
)
def test_aggregations(aggregation: Any, value: float) -> None:
    losses, lengths = double([1, 2, 3, 10]), torch.tensor([3, 3, 3, 1])
    weights = token_weights(aggregation, lengths)
    weighted = losses if weights is None else losses * weights
    below = denominator(aggregation, tokens=4, sequences=2, length=5)
    assert float(weighted.sum()) / below == pytest.approx(value)
    assert denominator(aggregation, tokens=0, sequences=0, length=5) == 1


@pytest.mark.parametrize(
    ("kind", "value", "slope"),
    [
        # d = -1.5 - -1 = -.5. k1 = .5; k2 = .125, slope -d; k3 = exp(-.5) + .5 - 1, slope 1 - exp(-.5)
        ("k1", 0.5, 1.0),
        ("k2", 0.125, 0.5),
        ("k3", 0.1065307, 0.3934693),
        # times the ratio 1.2: .12784; slope 1.2 (k3 + 1 - exp(-.5)) = .6
        ("k3_corrected", 0.1278368, 0.6),
    ],
)
def test_estimates_of_the_divergence(kind: Any, value: float, slope: float) -> None:
    new = double([-1.0]).requires_grad_()
    ratio = (new - new.detach()).exp() * 1.2
    penalty = kl_penalty(new, double([-1.5]), kind, ratio)
    penalty.sum().backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert penalty.item() == pytest.approx(value, abs=1e-7)
    assert new.grad.item() == pytest.approx(slope, abs=1e-7)


def test_which_estimates_have_the_divergence_s_gradient() -> None:
    """Two actions with p = .7 .3 against a reference of .4 .6: expected gradients over actions, in the first logit."""
    logits = double([math.log(0.7), math.log(0.3)]).requires_grad_()
    reference = double([0.4, 0.6]).log()
    logprobs = torch.log_softmax(logits, 0)
    chances = logprobs.detach().exp()
    divergence = (logprobs.exp() * (logprobs - reference)).sum()
    (exact,) = torch.autograd.grad(divergence, logits, retain_graph=True)
    found = {}
    for kind in ("k1", "k2", "k3", "k3_corrected"):
        penalty = kl_penalty(logprobs, reference, kind, (logprobs - logprobs.detach()).exp())
        (slopes,) = torch.autograd.grad((chances * penalty).sum(), logits, retain_graph=True)
        found[kind] = slopes[0].item()
    assert exact[0].item() > 0.1
    assert found["k1"] == pytest.approx(0, abs=1e-12)
    assert found["k2"] == pytest.approx(exact[0].item(), abs=1e-12)
    assert found["k3_corrected"] == pytest.approx(exact[0].item(), abs=1e-12)
    # k3 alone: sum p (1 - ref/p) ([a = 0] - p_0) = .7 - .4: the reverse divergence's
    assert found["k3"] == pytest.approx(0.3, abs=1e-12)


def test_k3_is_zero_at_the_reference_and_positive_elsewhere() -> None:
    gaps = torch.linspace(-30, 30, 61, dtype=torch.float64)
    penalties = kl_penalty(gaps, torch.zeros(61, dtype=torch.float64))
    assert penalties[30] == 0
    assert bool((penalties[gaps != 0] > 0).all())
    assert torch.isfinite(penalties).all()


@pytest.mark.parametrize(
    ("confidences", "advantage", "expected"),
    [
        # 1 + log(1 + e) = 2.31326; 1 + log(1 + e^-3) = 1.04859
        ([1.0], -0.5, -1.15663),
        ([-3.0], -0.5, -0.52429),
        ([1.0], 0.5, 0.5),
        ([3.0, -1.0], -0.5, -1.15663),  # the mean is 1
        ([400.0, 400.0], -0.5, -0.5 * (1 + math.log(1 + math.exp(5)))),  # capped
    ],
)
def test_overconfident_errors_are_pushed_harder(
    confidences: list[float], advantage: float, expected: float
) -> None:
    new = double([-1.0] * len(confidences)).requires_grad_()
    advantages = double([advantage] * len(confidences))
    rows = torch.zeros(len(confidences), dtype=torch.long)
    found = asymmetric_penalty(advantages, new, new.detach() - double(confidences), rows, alpha=1.0, cap=5.0)
    assert found.tolist() == pytest.approx([expected] * len(confidences), abs=1e-5)
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("scale", "expected"), [("mean", -1.974077), ("sqrt", -2.313262), ("sum", -3.126928)]
)
def test_confidence_is_a_mean_a_sum_or_in_between(scale: Any, expected: float) -> None:
    """Four tokens of gain 1/2: c = 1/2, 4/2/sqrt 4 = 1 and 2; softplus .974077, 1.313262 and 2.126928."""
    new, advantages = double([-1.0] * 4), double([-1.0] * 4)
    rows = torch.zeros(4, dtype=torch.int64)
    found = asymmetric_penalty(advantages, new, new - 0.5, rows, alpha=1.0, cap=5.0, scale=scale)
    assert found.tolist() == pytest.approx([expected] * 4, abs=1e-5)


def test_an_unknown_objective_or_option_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="'ppo_clip'"):
        get_objective("ppo_clipp")
    with pytest.raises(UnknownName, match="'clip_high'"):
        get_objective("gspo", {"clip_hi": 1})


def test_each_bound_of_the_probability_mask_is_for_its_own_sign() -> None:
    """P moved by +.2 and -.2 from .5; ``mask_high`` is for positive advantages and ``mask_low`` for negative ones."""
    logprobs = [math.log(0.7), math.log(0.3), math.log(0.7), math.log(0.3)]
    advantages = [1.0, -1.0, -1.0, 1.0]
    for low, high, dropped in (
        (0.1, 0.3, [False, True]),
        (0.3, 0.1, [True, False]),
        (0.1, 0.1, [True, True]),
    ):
        tokens = made([p / 0.5 for p in (0.7, 0.3, 0.7, 0.3)], advantages, logprobs=logprobs)
        losses, _, surrogate = evaluate("probability_mask", tokens, mask_low=low, mask_high=high, weight=0.0)
        # The last two moved against their advantage.
        assert surrogate.clipped.tolist() == [*dropped, False, False]
        kept = [0.0 if gone else -a * r for gone, a, r in zip(dropped, (1, -1), (1.4, 0.6), strict=True)]
        assert losses == pytest.approx([*kept, 1.4, -0.6])


def test_ratios_are_bounded_on_both_sides() -> None:
    found = bounded_ratio(double([25.0, -25.0, 19.0, -19.0, 0.0]), double([0.0] * 5))
    assert found.tolist() == pytest.approx([math.exp(20), math.exp(-20), math.exp(19), math.exp(-19), 1.0])
    far = double([-30.0, 30.0])
    assert kl_penalty(double([0.0, 0.0]), far, "k1").tolist() == pytest.approx([20.0, -20.0])
    assert kl_penalty(double([0.0, 0.0]), far, "k2").tolist() == pytest.approx([200.0, 200.0])
    assert kl_penalty(double([0.0]), double([30.0]), "k3").tolist() == pytest.approx([math.exp(20) - 21])


def test_the_row_s_ratio_is_bounded_above_alone() -> None:
    """exp(10) for a row that rose by 12 nats a token, pulled back by a negative advantage; exp(-12) for one that fell."""
    tokens = made([math.exp(12), math.exp(-12)], [-1.0, 1.0], logprobs=[-1.0, -13.0])
    losses, _, _ = evaluate("gspo", tokens)
    assert losses == pytest.approx([math.exp(10), -math.exp(-12)])


def test_tokens_of_another_context_count_as_clipped_nowhere() -> None:
    tokens = made([1.5, 1.5, 0.5, 0.5], [1.0] * 4, off_context=[False, True, False, True])
    _, _, surrogate = evaluate("guided_clip", tokens)
    assert surrogate.clipped.tolist() == [True, False, True, False]


def test_mastered_tokens_are_sure_good_and_in_a_row_of_low_entropy() -> None:
    """Row 0 has a mean entropy of (.1 + .2 + .15) / 3 = .15, row 1 of .2, which is not below .2."""
    probabilities = double([0.995, 0.98, 0.99, 0.995, 0.995])
    entropies, rows = double([0.1, 0.2, 0.15, 0.1, 0.3]), torch.tensor([0, 0, 0, 1, 1])
    # The exponential of a logarithm may be a little below .99.
    logprobs = probabilities.log() + 1e-12
    good = mastered_tokens(logprobs, entropies, double([1.0] * 5), rows)
    assert good.tolist() == [True, False, True, False, False]
    mixed = mastered_tokens(logprobs, entropies, double([-1.0, 1.0, 0.5, 1.0, 1.0]), rows)
    assert mixed.tolist() == [False, False, True, False, False]
    looser = mastered_tokens(logprobs, entropies, double([1.0] * 5), rows, probability=0.5, entropy=0.21)
    assert looser.tolist() == [True] * 5

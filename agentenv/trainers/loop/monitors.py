"""Signs that a run is collapsing, each one a sentence that names the figure and what to try.

The known ways in which GRPO loses a search agent: the likelihood of what it does right falls along with that of its errors
(likelihood displacement, Search-R1), the reward pays for form alone, and silence pays as much as a wrong answer.
"""

from collections.abc import Mapping, Sequence
from math import isfinite, nan
from statistics import fmean
from typing import Any

Metrics = Mapping[str, Any]

_RECENT = 5  # steps that a sign must last before it is believed
_MOST = 0.75  # of the episodes that earn the reward, before the questions count as learned


def warnings_of(history: Sequence[Metrics]) -> dict[str, str]:
    """What looks wrong after the last step of ``history``, a sentence for each figure; nothing in the first steps.

    A sign counts when the mean of the last five steps is out of bounds against the mean of the first five; a figure that is
    no finite number counts at once, and that self-play finds nothing weak after five steps. Low entropy and groups of equal
    rewards are signs only while the questions are not learned (see `_learned`): a policy that has come to answer most of
    them right is sure of its answers, and most groups are then equal because all of their members are right.
    """
    lost = (_not_finite(history[-1]) if history else {}) | _nothing_weak(history)
    # The first and the last steps would overlap, and a figure would be compared with itself.
    if len(history) < 2 * _RECENT:
        return lost
    first, last = _means(history[:_RECENT]), _means(history[-_RECENT:])
    learned = _learned(first, last)
    found = {}
    if last["entropy"] < 0.02 and not learned:
        found["entropy"] = (
            f"entropy fell to {last['entropy']:.3f} nats: the policy repeats itself; lower the learning rate"
        )
    if last["format_rate"] < 0.7 * first["format_rate"]:
        found["format_rate"] = (
            f"valid actions fell from {first['format_rate']:.0%} to {last['format_rate']:.0%}: "
            "lower the learning rate, or look at the trajectories for a reward that pays for broken form"
        )
    if last["answer_rate"] < 0.7 * first["answer_rate"]:
        found["answer_rate"] = (
            f"answered episodes fell from {first['answer_rate']:.0%} to {last['answer_rate']:.0%}: "
            "look at end reasons; the turn or token budget may be too small"
        )
    if last["response_tokens"] > 2 * first["response_tokens"] and last["reward_mean"] <= first["reward_mean"]:
        found["response_tokens"] = (
            f"responses grew from {first['response_tokens']:.0f} to {last['response_tokens']:.0f} tokens "
            "without more reward"
        )
    if last["zero_variance_share"] > 0.9 and not learned:
        found["zero_variance_share"] = (
            f"{last['zero_variance_share']:.0%} of the groups have equal rewards and teach nothing: "
            "the questions are too easy or too hard"
        )
    if last["reward_mean"] < first["reward_mean"] - 0.5 * abs(first["reward_mean"]):
        found["reward_mean"] = (
            f"reward fell from {first['reward_mean']:.2f} to {last['reward_mean']:.2f}: lower the learning rate"
        )
    return found | _displaced(history) | _unearned(history) | lost


def _not_finite(metrics: Metrics) -> dict[str, str]:
    """A sentence for each figure of a step that is NaN or infinite."""
    return {
        name: f"{name} is {metrics[name]}: the policy computes numbers that are not finite; lower the learning rate"
        for name in (*WATCHED, *_COMPUTED)
        if name in metrics and not isfinite(metrics[name])
    }


def _learned(first: Mapping[str, float], last: Mapping[str, float]) -> bool:
    """Whether the reward has risen and most episodes earn it.

    The share that earns it is m^2 / (m^2 + s^2) for the mean m and the standard deviation s of the rewards: the success rate
    where a reward is 0 or some other number, whatever that number is.
    """
    mean, deviation = last["reward_mean"], last["reward_std"]
    return 0 < mean > first["reward_mean"] and mean**2 >= _MOST * (mean**2 + deviation**2)


def _displaced(history: Sequence[Metrics]) -> dict[str, str]:
    """Likelihood displacement. A step without a rewarded episode says nothing here."""
    early, late = (
        [m[_RIGHT] for m in part if _RIGHT in m] for part in (history[:_RECENT], history[-_RECENT:])
    )
    if not early or not late or fmean(late) > fmean(early) - 0.3:
        return {}
    return {
        _RIGHT: f"log-prob of rewarded episodes fell from {fmean(early):.2f} to {fmean(late):.2f} nats a token: errors that "
        "resemble them push them down; lower the learning rate or loss.clip_low"
    }


def _unearned(history: Sequence[Metrics]) -> dict[str, str]:
    """A reward that rises above the score on the dev questions, and without it.

    What is sampled lags behind the greedy score: a reward that is still below it has only caught up.
    """
    scored = [place for place, metrics in enumerate(history) if "dev_score" in metrics]
    # Between two evaluations that lie close together the reward has no time to rise without the score.
    if len(scored) < 2 or scored[-1] - scored[0] < _RECENT:
        return {}
    first, last = (
        fmean(m["reward_mean"] for m in history[max(0, i + 1 - _RECENT) : i + 1])
        for i in (scored[0], scored[-1])
    )
    before, after = history[scored[0]]["dev_score"], history[scored[-1]]["dev_score"]
    if last - first < 0.15 or last <= after or after - before > 0.25 * (last - first):
        return {}
    return {
        "dev_score": f"reward rose from {first:.2f} to {last:.2f} and the dev score went from {before:.2f} to "
        f"{after:.2f}: the reward pays for something else than right answers, such as form"
    }


def _nothing_weak(history: Sequence[Metrics]) -> dict[str, str]:
    """Self-play that is to ask for what is failed (SwS), where no kind of question counts as failed."""
    if len(history) < _RECENT or any(metrics.get(_WEAK, 1) for metrics in history[-_RECENT:]):
        return {}
    return {
        _WEAK: f"no kind of question counted as failed in the last {_RECENT} steps: references come from the pool, as with "
        "references='pool'; play more questions a step, or take another rule of sampler_options.failed"
    }


def guarded(history: Sequence[Metrics], factor: float) -> float:
    """What the guard multiplies the step size by: ``factor`` for each kind of collapse seen so far, each counted once."""
    seen = {sign for metrics in history for sign in metrics.get("signs", ())}
    return factor ** len(seen)


def _means(history: Sequence[Metrics]) -> dict[str, float]:
    """Over the steps in which the figure is a number; NaN, which every comparison is false with, where there is none."""
    numbers = {name: [m[name] for m in history if name in m and isfinite(m[name])] for name in WATCHED}
    return {name: sum(found) / len(found) if found else nan for name, found in numbers.items()}


WATCHED = (
    "entropy",
    "format_rate",
    "answer_rate",
    "response_tokens",
    "zero_variance_share",
    "reward_mean",
    "reward_std",
)
"""Metrics of a step that the monitors compare, where it reports them; `entropy` may be absent."""

_RIGHT = "rewarded_logprob"
_WEAK = "weak_kinds"
_COMPUTED = ("loss", "grad_norm", "policy_entropy", _RIGHT)

COLLAPSES = ("entropy", "format_rate", "answer_rate", "reward_mean", "loss", "grad_norm", _RIGHT, "dev_score")
"""Signs upon which a guard acts; the others say that nothing is learned."""

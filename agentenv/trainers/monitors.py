"""Signs that a run is collapsing, each one a sentence that names the figure and what to try."""

from collections.abc import Mapping, Sequence

Metrics = Mapping[str, float]

_RECENT = 5  # steps that a sign must last before it is believed


def warnings_of(history: Sequence[Metrics]) -> dict[str, str]:
    """What looks wrong after the last step of ``history``, a sentence for each figure; nothing in the first steps.

    A sign counts when the mean of the last five steps is out of bounds against the mean of the first five.
    """
    if len(history) < 2 * _RECENT:
        return {}
    first, last = _means(history[:_RECENT]), _means(history[-_RECENT:])
    found = {}
    if last["entropy"] < 0.02:
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
    if last["zero_variance_share"] > 0.9:
        found["zero_variance_share"] = (
            f"{last['zero_variance_share']:.0%} of the groups have equal rewards and teach nothing: "
            "the questions are too easy or too hard"
        )
    if last["reward_mean"] < 0.5 * first["reward_mean"]:
        found["reward_mean"] = (
            f"reward fell from {first['reward_mean']:.2f} to {last['reward_mean']:.2f}: lower the learning rate"
        )
    return found


def _means(history: Sequence[Metrics]) -> dict[str, float]:
    return {name: sum(m[name] for m in history) / len(history) for name in WATCHED}


WATCHED = ("entropy", "format_rate", "answer_rate", "response_tokens", "zero_variance_share", "reward_mean")
"""Figures that a step must report for the monitors."""

"""Does a broader set of rollouts push every right action up? The simulation of BroRL, by default at a hundredth of its size.

BroRL (arXiv:2510.01180): one softmax over many actions, a few of them right. A step samples N actions, rewards right ones by
1 and others with -1, subtracts the mean of the batch, and descends the surrogate -(1/N) sum r p. Among the actions that were
not sampled the right ones lose mass, and the more so the fewer rollouts there are. The script reports the mass of the right
actions, the share of them that rose, and the largest relative fall among them, for several N: from equal logits, and seeded,
where right actions begin at a logit of 3 and one of them, the anchor, at 5, as those of a policy that has been trained.

    python benchmarks/broadened_rollouts.py
    python benchmarks/broadened_rollouts.py --scale 100 --seeds 1 --out benchmarks/results/broadened_rollouts_whole.json
"""

from statistics import fmean
from typing import Any

import numpy as np
from common import common_arguments, finish, interval, run_script
from numpy.typing import NDArray

Values = NDArray[np.float64]

ACTIONS, RIGHT, STEPS, RATE = 1280, 100, 1000, 1e-3
ROLLOUTS = (4, 8, 16, 512)
PUBLISHED = 100  # times as many actions, with 51,200 rollouts besides
DECAY = 0.01  # of AdamW; the published one was not found, and this is that of torch
SEED, ANCHOR = 3.0, 5.0  # logits of right actions, and of one of them


class AdamW:
    """AdamW (Loshchilov and Hutter 2017, arXiv:1711.05101), as in BroRL's simulation, with its usual constants; descends."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        """Begins at step 0."""
        self.first, self.second, self.step = np.zeros(shape), np.zeros(shape), 0

    def update(self, gradient: Values, weights: Values) -> Values:
        """What a rate of 1 would subtract from ``weights``: the step of Adam, and ``DECAY`` of the weights themselves."""
        self.step += 1
        self.first += 0.1 * (gradient - self.first)
        self.second += 0.001 * (gradient**2 - self.second)
        scale = np.sqrt(self.second / (1 - 0.999**self.step)) + 1e-8
        moved: Values = self.first / (1 - 0.9**self.step) / scale + DECAY * weights
        return moved


def mass_change(
    probabilities_A: Values,
    right_A: NDArray[np.bool_],
    sampled_A: NDArray[np.bool_],
    *,
    good: float,
    bad: float,
) -> float:
    """First-order change of the mass of the right actions, in units of eta / N (BroRL).

    (good - S) Q_wrong A_2 + (S - bad) Q_right B_2 + S (Q_right U_wrong_2 - Q_wrong U_right_2), where S is the sum of reward
    times probability over the sampled actions, Q the mass of right and wrong actions, A_2 and B_2 the sums of p^2 over the
    sampled right and wrong actions, and U_2 those over the others.

    Args:
        probabilities_A: Of all actions.
        right_A: Which are right.
        sampled_A: Which were sampled.
        good: Reward of a right action, less the baseline.
        bad: Reward of a wrong one.
    """
    p, square = probabilities_A, probabilities_A**2
    signal = good * p[right_A & sampled_A].sum() + bad * p[~right_A & sampled_A].sum()
    right, wrong = p[right_A].sum(), p[~right_A].sum()
    found, missed = square[right_A & sampled_A].sum(), square[right_A & ~sampled_A].sum()
    misled, spared = square[~right_A & sampled_A].sum(), square[~right_A & ~sampled_A].sum()
    sampled = (good - signal) * wrong * found + (signal - bad) * right * misled
    return float(sampled + signal * (right * spared - wrong * missed))


def softmax(logits_A: Values) -> Values:
    """float64[..., A]: the probabilities."""
    weights = np.exp(logits_A - logits_A.max(-1, keepdims=True))
    probabilities: Values = weights / weights.sum(-1, keepdims=True)
    return probabilities


def first_logits(actions: int, right: int, *, seeded: bool) -> Values:
    """float64[actions]: zeros; seeded ones have 3 where an action is right, and 5 at the first of these."""
    logits = np.zeros(actions)
    if seeded:
        logits[:right], logits[0] = SEED, ANCHOR
    return logits


def surrogate_gradient(p_A: Values, right_A: NDArray[np.bool_], drawn_A: NDArray[np.int_]) -> Values:
    """float64[..., A]: of -(1/N) sum r p in the logits, r the rewards of N sampled actions less their mean.

    Args:
        p_A: Probabilities of the actions.
        right_A: Which are right.
        drawn_A: How often each was sampled.
    """
    rewards, rollouts = np.where(right_A, 1.0, -1.0), drawn_A.sum(-1, keepdims=True)
    mean = (drawn_A * rewards).sum(-1, keepdims=True) / rollouts
    weights = drawn_A * (rewards - mean) / rollouts
    gradient: Values = -p_A * (weights - (weights * p_A).sum(-1, keepdims=True))
    return gradient


def simulate(
    rollouts: int, seed: int, steps: int = STEPS, *, seeded: bool = False, scale: int = 1
) -> dict[str, float]:
    """One run with AdamW: mass of the right actions, share of them that rose, largest relative fall of one.

    Args:
        rollouts: Of a step.
        seed: Of the draws.
        steps: How many.
        seeded: See `first_logits`.
        scale: Times as many actions, right and wrong.
    """
    rng = np.random.default_rng([seed, rollouts])
    actions = ACTIONS * scale
    right = np.arange(actions) < RIGHT * scale
    logits, adam = first_logits(actions, RIGHT * scale, seeded=seeded), AdamW((actions,))
    start = softmax(logits)
    for _ in range(steps):
        p = softmax(logits)
        drawn = np.bincount(rng.choice(actions, size=rollouts, p=p), minlength=actions)
        logits = logits - RATE * adam.update(surrogate_gradient(p, right, drawn), logits)
    end = softmax(logits)
    relative = end[right] / start[right]
    return {
        "right_mass": float(end[right].sum()),
        "share_that_rose": float((relative > 1).mean()),
        "largest_fall": max(0.0, float(1 - relative.min())),
    }


def main() -> None:
    """Simulates and reports."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--scale", type=int, default=1, help=f"times as many actions; {PUBLISHED} is published"
    )
    args = parser.parse_args()
    sizes = (*ROLLOUTS, max(ROLLOUTS) * PUBLISHED) if args.scale >= PUBLISHED else ROLLOUTS
    figures: dict[str, dict[str, Any]] = {"rollouts": {}, "seeded": {}}
    lines = []
    for part, found in figures.items():
        for rollouts in sizes:
            runs = [
                simulate(rollouts, seed, seeded=part == "seeded", scale=args.scale)
                for seed in range(args.seeds)
            ]
            found[str(rollouts)] = {name: interval([run[name] for run in runs]) for name in runs[0]}
            shown = ", ".join(f"{name} {fmean(run[name] for run in runs):.3f}" for name in runs[0])
            lines.append(f"{part}, N = {rollouts}: {shown}")
    actions, right = ACTIONS * args.scale, RIGHT * args.scale
    setup = {"actions": actions, "right": right, "steps": STEPS, "seeds": args.seeds, "decay": DECAY} | {
        "fewest": min(sizes),
        "most": max(sizes),
        "seeded_start": float(softmax(first_logits(actions, right, seeded=True))[:right].sum()),
    }
    finish("broadened_rollouts", args, {"setup": setup, **figures}, lines)


if __name__ == "__main__":
    run_script(main)

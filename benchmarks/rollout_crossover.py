"""Many questions with few rollouts, or few questions with many, at equal episodes: where does one overtake the other?

BroRL (arXiv:2510.01180) goes on with few questions and many rollouts where a run of many questions and few rollouts has
stopped to gain. The simulation has 64 questions, each a softmax of its own over 64 actions of which five are right. A step
plays 256 episodes: 64 questions 4 times each, 16 questions 16 times, or 4 questions 64 times. Questions are drawn without
repetition until all were played. The surrogate is that of ``broadened_rollouts.py``, averaged over the questions of the
step; one AdamW moves all logits. The rate is the same for all three, or scaled by the root of the rollouts over 16. A run
begins with equal logits, or saturated: seeded like ``broadened_rollouts.py``, with right actions at 3 and one of them at 5.

Nothing is shared between questions, so what one question teaches about another is left out. A pair of arms crosses where
the interval of its difference in the mass of right actions, over seeds, has been below 0 and is above it later.

    python benchmarks/rollout_crossover.py
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from broadened_rollouts import DECAY, AdamW, first_logits, softmax, surrogate_gradient
from common import common_arguments, finish, interval, run_script

QUESTIONS, ACTIONS, RIGHT, EPISODES, RATE = 64, 64, 5, 256, 1e-2
ARMS = {"64x4": 4, "16x16": 16, "4x64": 64}
"""Rollouts of a question by arm."""
PAIRS = (("16x16", "64x4"), ("4x64", "64x4"), ("4x64", "16x16"))
"""The broader arm first."""
LOOKS = (12, 25, 50, 100, 200, 400)
"""Steps after which the right actions are weighed."""


def right_mass(
    rollouts: int, seed: int, *, seeded: bool, scaled: bool, looks: Sequence[int] = LOOKS
) -> list[float]:
    """The mean mass of the right actions over all questions, at each look of one run."""
    rng = np.random.default_rng([seed, rollouts])
    right = np.arange(ACTIONS) < RIGHT
    logits = np.tile(first_logits(ACTIONS, RIGHT, seeded=seeded), (QUESTIONS, 1))
    adam, drawn, found = AdamW(logits.shape), EPISODES // rollouts, []
    rate = RATE * ((rollouts / 16) ** 0.5 if scaled else 1.0)
    waiting: list[int] = []
    for step in range(1, max(looks) + 1):
        if not waiting:
            waiting = rng.permutation(QUESTIONS).tolist()
        now, waiting = waiting[:drawn], waiting[drawn:]
        p, gradient = softmax(logits[now]), np.zeros_like(logits)
        gradient[now] = surrogate_gradient(p, right, rng.multinomial(rollouts, p)) / drawn
        logits = logits - rate * adam.update(gradient, logits)
        if step in looks:
            found.append(float(softmax(logits)[:, right].sum(-1).mean()))
    return found


def crossing(differences: Sequence[Mapping[str, Any]]) -> int | None:
    """The place of the first interval above 0 behind one below 0; None where there is none."""
    behind = False
    for place, one in enumerate(differences):
        low, high = one.get("ci95", (-math.inf, math.inf))  # without one nothing is told apart
        if behind and low > 0:
            return place
        behind = behind or high < 0
    return None


def compared(runs: Mapping[str, Sequence[Sequence[float]]], steps: Sequence[int]) -> dict[str, Any]:
    """For each pair the differences at each look with their intervals, and the episodes at which the broader arm overtakes.

    Args:
        runs: By arm the masses at each look, for each seed.
        steps: Those of the looks.
    """
    found = {}
    for broad, narrow in PAIRS:
        pairs = [np.subtract(a, b).tolist() for a, b in zip(runs[broad], runs[narrow], strict=True)]
        differences = [interval(list(one)) for one in zip(*pairs, strict=True)]
        place = crossing(differences)
        found[f"{broad} over {narrow}"] = {
            "differences": {str(step * EPISODES): one for step, one in zip(steps, differences, strict=True)},
            "crossover_episodes": None if place is None else steps[place] * EPISODES,
        }
    return found


def main() -> None:
    """Simulates and reports."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    figures: dict[str, Any] = {}
    lines = []
    for seeded in (False, True):
        for scaled in (False, True):
            name = f"{'saturated' if seeded else 'equal_logits'}_{'scaled' if scaled else 'fixed'}_rate"
            runs = {
                arm: [right_mass(n, seed, seeded=seeded, scaled=scaled) for seed in range(args.seeds)]
                for arm, n in ARMS.items()
            }
            masses = {
                arm: {
                    str(step * EPISODES): interval(list(one))
                    for step, one in zip(LOOKS, zip(*mine, strict=True), strict=True)
                }
                for arm, mine in runs.items()
            }
            pairs = compared(runs, LOOKS)
            figures[name] = {"right_mass": masses, "pairs": pairs}
            lines += [f"{name}, {pair}: crossover {one['crossover_episodes']}" for pair, one in pairs.items()]
    setup = {
        "questions": QUESTIONS,
        "actions": ACTIONS,
        "right": RIGHT,
        "episodes_of_a_step": EPISODES,
        "rate": RATE,
        "decay": DECAY,
        "seeds": args.seeds,
        "start": {
            name: float(softmax(first_logits(ACTIONS, RIGHT, seeded=seeded))[:RIGHT].sum())
            for name, seeded in (("equal_logits", False), ("saturated", True))
        },
    }
    finish("rollout_crossover", args, {"setup": setup, "runs": figures}, lines)


if __name__ == "__main__":
    run_script(main)

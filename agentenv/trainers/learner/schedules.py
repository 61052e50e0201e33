"""Step sizes over a run, as a pure function of the number of the step."""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def batch_scale(episodes: int, reference: int) -> float:
    """sqrt(episodes / reference): how much larger the step size is for a larger batch (BroRL, arXiv:2510.01180).

    Args:
        episodes: Of a step.
        reference: Of the step that the step size was chosen for; 0 leaves it.
    """
    return math.sqrt(episodes / reference) if reference else 1.0


def learning_rate_share(
    step: int, *, steps: int, warmup: int = 0, schedule: Schedule = "constant", final: float = 0.0
) -> float:
    """The step size of ``step`` as a share of the largest one.

    Warm-up: step / warmup. After it, with u = (step - 1 - warmup) / (steps - warmup), which is 0 at the first step after the
    warm-up and would be 1 at the step after the last: ``constant`` 1, ``linear`` final + (1 - final) (1 - u), and ``cosine``
    final + (1 - final) (1 + cos pi u) / 2 (Loshchilov and Hutter 2017, eq. 5, without restarts).

    Args:
        step: From 1 on.
        steps: Of the whole run.
        warmup: Steps of linear warm-up.
        schedule: What follows the warm-up.
        final: Share that the schedule leads to.
    """
    if step <= warmup:
        return step / warmup
    if schedule == "constant":
        return 1.0
    done = min((step - 1 - warmup) / max(steps - warmup, 1), 1.0)
    left = 1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return final + (1 - final) * left

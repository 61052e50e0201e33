"""Policies that know nothing of the task. The contract uses them to check an environment's minimum reward."""

import numpy as np

from agentenv.core.types import Observation

FLOORS = ("no-op", "copy the prompt", "empty answer", "random text")
"""Policies that know nothing: an exact outcome must leave every one of them at ``Env.reward_floor``."""


def floor_action(floor: str, opening: Observation, rng: np.random.Generator) -> str:
    """Returns the action of the policy ``floor``, the same in every turn.

    Args:
        floor: One of ``FLOORS``.
        opening: The messages that opened the episode.
        rng: The random generator of the random text.
    """
    match floor:
        case "copy the prompt":
            return "".join(message.text for message in opening)
        case "empty answer":
            return "<answer></answer>"
        case "random text":
            return "".join(chr(code) for code in rng.integers(32, 127, size=64))
        case _:
            return ""

"""Policies that know nothing of the task, with which the contract checks the least reward of an environment."""

import numpy as np

from agentenv.core.types import Observation

FLOORS = ("no-op", "copy the prompt", "empty answer", "random text")
"""Policies that know nothing: an exact outcome must leave every one of them at ``Env.reward_floor``."""


def floor_action(floor: str, opening: Observation, rng: np.random.Generator) -> str:
    """What the policy ``floor`` of ``FLOORS`` does in any turn.

    Args:
        floor: One of ``FLOORS``.
        opening: The messages that opened the episode.
        rng: Source of the random text.
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

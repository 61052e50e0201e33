"""Covers the policies that know nothing, by which environments are checked."""

import numpy as np

from agentenv.core.floors import FLOORS, floor_action
from agentenv.core.types import Message


def test_floor_actions() -> None:
    opening = (Message("system", "Be brief. "), Message("user", "Why?"))
    rng = np.random.default_rng(0)
    actions = {floor: floor_action(floor, opening, rng) for floor in FLOORS}
    assert actions["no-op"] == ""
    assert actions["copy the prompt"] == "Be brief. Why?"
    assert actions["empty answer"] == "<answer></answer>"
    assert len(actions["random text"]) == 64
    assert floor_action("random text", opening, rng) != actions["random text"]

"""Escapes of half characters that a policy writes: they reach no environment that would fail at what they stand for."""

import ast
import asyncio
import json
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.env import Env
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Message, Step, Task
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy

TASK = Task("t", "Who?", ("Ada",))


def act(env: Env[Any], action: str) -> Trajectory:
    """The episode of one action."""
    policy, config = ScriptedPolicy({"e-0": (action,)}), RolloutConfig(context_tokens=500, turn_tokens=99)
    spec = EpisodeSpec(env, TASK, 0)
    (played,) = asyncio.run(rollout([spec], policy, InlineFormat(ByteTokenizer()), config, name="e"))
    return played


class Encoding(Env[None]):
    """Reads an action as JSON or as a Python literal and writes it to a file, as an environment of somebody else may."""

    def __init__(self, read: Any) -> None:
        super().__init__()
        self.read = read

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.state = None
        return (Message("user", "Say it."),), {"task_id": TASK.id}

    def step(self, action: str) -> Step:
        self.check_running()
        said = self.read(action).encode()
        return self.result((), reward=-1.0, end=EndReason.ANSWERED, answer=said.decode())


@pytest.mark.parametrize("read", [json.loads, ast.literal_eval])
@pytest.mark.parametrize(
    ("action", "heard"),
    [
        (r'"a\ud83d"', "a\ufffd"),
        (r'"\uDE00\ud83d"', "\ufffd\ufffd"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\ud83d\ud83d\ude00"', "\ufffd\U0001f600"),
        (r'"\u00e9"', "\u00e9"),
    ],
)
def test_an_escape_of_half_a_character_makes_no_environment_fail(read: Any, action: str, heard: str) -> None:
    played = act(Encoding(read), action)
    assert (played.valid, played.reward, played.info["answer"]) == (True, -1.0, heard)
    assert played.turns[0].action == action


def test_an_escape_that_is_escaped_twice_makes_no_environment_fail() -> None:
    def twice(text: str) -> str:
        return str(json.loads(json.loads(text)))

    played = act(Encoding(twice), json.dumps(json.dumps("\ud83d")))
    assert (played.valid, played.info["answer"]) == (True, "\ufffd")

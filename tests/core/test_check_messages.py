"""What `agentenv check` says of the mistakes of a first environment: what is wrong, and what to write."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.env import Env
from agentenv.core.env_contract import run_check
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task


@dataclass
class State:
    guesses: int = 0


class NoStep(Env[State]):
    """Its author forgot to act."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        task = (options or {}).get("task") or Task("1", "Guess.", ("7",))
        self.state = State()
        return (Message("user", "Guess."),), {"task_id": task.id}


class Costly(NoStep):
    """A guess costs something even where it is right, and silence earns something."""

    def step(self, action: str) -> Step:
        self.check_running()
        return self.result((), reward=0.9 if action == "7" else 0.2, end=EndReason.ANSWERED)

    def expert(self) -> Sequence[str]:
        return ["7"]


class LeavesFilesOpen(Costly):
    """Opens a file with every reset, and never closes it."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        Path(__file__).open(encoding="utf-8").read(1)  # noqa: SIM115  # what is tested
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (NoStep, "info", "NoStep has no step(); write `def step(self, action)`"),
        (Costly, "expert", "declare it as reward_ceiling"),
        (Costly, "floors", "declare it as reward_floor"),
    ],
)
def test_a_failed_check_says_what_to_write(make: Callable[[], Env[Any]], name: str, words: str) -> None:
    result = run_check(name, make)
    assert result.status == "failed"
    assert words in result.detail


def test_a_warning_is_said_once_however_often_it_was_given() -> None:
    result = run_check("gymnasium", LeavesFilesOpen)
    assert result.status == "failed"
    assert result.detail.count("unclosed file") == 1

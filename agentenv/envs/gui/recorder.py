"""Records episodes of a graphical environment, and writes recordings as a data set with a card."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from agentenv.core.io.files import write_text
from agentenv.core.types import Info, Observation, Step, Task
from agentenv.envs.gui.actions import Action, parse_reply
from agentenv.envs.gui.cards import card
from agentenv.envs.gui.matching import Gold
from agentenv.envs.gui.recordings import RecordedStep, Recording, write_recordings
from agentenv.envs.gui.screen import Box, Screen, pointed
from agentenv.errors import ConfigurationError


class RecordableEnv(Protocol):
    """A graphical environment that can be recorded."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses a task. ``info`` contains ``goal`` and ``task_id``."""

    def step(self, action: str) -> Step:
        """Executes one action."""

    def screen(self) -> Screen:
        """Returns the present screen."""

    def expert(self) -> Sequence[str] | None:
        """Returns actions that solve the present task."""


def record(
    env: RecordableEnv,
    task: Task | None = None,
    *,
    seed: int | None = None,
    actions: Iterable[str] | None = None,
) -> Recording:
    """Plays an episode and records its screens and actions.

    A target given by id is replaced by the centre of its element, whose box is recorded too. A text without a valid action
    is left out.

    Args:
        env: The environment.
        task: The task; None lets the seed draw it.
        seed: The seed of the reset.
        actions: The actions to play, such as those of a trajectory; None plays the environment's expert.

    Raises:
        ConfigurationError: the environment has no expert for the task.
    """
    _, info = env.reset(seed=seed, options={"task": task} if task else None)
    script = env.expert() if actions is None else actions
    if script is None:
        raise ConfigurationError(f"task {info['task_id']!r} has no expert; give the actions to record")
    steps: list[RecordedStep] = []
    total = 0.0
    for text in script:
        screen, reply = env.screen(), parse_reply(text)
        if reply.action is not None:
            gold = Gold(
                pointed(reply.action, screen), (screen.width, screen.height), boxes_of(reply.action, screen)
            )
            steps.append(RecordedStep(screen, gold, thought=reply.thought))
        step = env.step(text)
        total += step.reward
        if step.terminated or step.truncated:
            break
    return Recording(info["task_id"], info["goal"], tuple(steps), successful=total >= 1.0)


def boxes_of(action: Action, screen: Screen) -> tuple[Box, ...]:
    """Returns the box of the element that ``action`` refers to; empty without one."""
    element = screen.element(action.id) if action.id is not None else None
    if element is None and action.point is not None:
        element = screen.at(action.point)
    return (element.box,) if element else ()


def write_dataset(recordings: Sequence[Recording], folder: Path) -> dict[str, Any]:
    """Writes ``recordings.jsonl`` and its card ``card.json``; returns the card.

    Raises:
        ConfigurationError: there are no recordings, or one did not succeed.
    """
    failed = [recording.id for recording in recordings if not recording.successful]
    if not recordings or failed:
        raise ConfigurationError(
            f"a data set of an expert needs runs that succeeded; {failed[0]!r} did not"
            if failed
            else "nothing was recorded"
        )
    write_recordings(recordings, folder / "recordings.jsonl")
    summary = card(recordings)
    write_text(folder / "card.json", json.dumps(summary, indent=2) + "\n")
    return summary

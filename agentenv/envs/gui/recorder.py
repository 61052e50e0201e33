"""Runs of a graphical environment become recordings, and recordings a data set with a card."""

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
        """Poses a task; ``info`` has ``goal`` and ``task_id``."""

    def step(self, action: str) -> Step:
        """Acts once."""

    def screen(self) -> Screen:
        """What is on the screen now."""

    def expert(self) -> Sequence[str] | None:
        """Actions that solve the present task."""


def record(
    env: RecordableEnv,
    task: Task | None = None,
    *,
    seed: int | None = None,
    actions: Iterable[str] | None = None,
) -> Recording:
    """Plays an episode and keeps what was seen and done.

    A target by id becomes the middle of its element, whose box is kept with it. A text that is no action is left out.

    Args:
        env: Where.
        task: What; None lets the seed draw it.
        seed: Of the reset.
        actions: What is done, such as the actions of a trajectory; None plays the environment's expert.

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
    """The box of the element that ``action`` is about; none where there is none."""
    element = screen.element(action.id) if action.id is not None else None
    if element is None and action.point is not None:
        element = screen.at(action.point)
    return (element.box,) if element else ()


def write_dataset(recordings: Sequence[Recording], folder: Path) -> dict[str, Any]:
    """Writes ``recordings.jsonl`` and its card ``card.json``, which is returned.

    Raises:
        ConfigurationError: there is no recording, or one that did not succeed.
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

"""The task that both trainers of ``trl_comparison.py`` work on: pages are read, a fixed number of tokens is written."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.core.env import Env
from agentenv.core.types import EndReason, Info, Message, Observation, Passage, Step, Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.page_format import format_passages, information

_REWARDS = random.Random(0)


def draw_reward() -> float:
    """Noise: no group of equal rewards is ever left out of the update, so both trainers learn from all rows."""
    return _REWARDS.random()


@dataclass
class ReadingState:
    """How far the episode is."""

    task: Task
    turns: int = 0


class Reading(Env[ReadingState]):
    """Shows one page of the task after each action; the action after the last page ends the episode."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses ``options["task"]``."""
        super().reset(seed=seed)
        self.state = ReadingState((options or {})["task"])
        return (Message("user", self.state.task.question),), {"task_id": self.state.task.id}

    def step(self, action: str) -> Step:
        """Any text will do."""
        pages: Sequence[str] = self.state.task.data["pages"]
        turn = self.state.turns
        self.state.turns += 1
        if turn == len(pages):
            return self.result((), reward=draw_reward(), end=EndReason.ANSWERED)
        return self.result((Message("tool", pages[turn]),))


def questions(count: int, *, in_prompt: bool) -> list[Task]:
    """Two-hop questions with their gold passages: both in the prompt, or one as an observation after each turn."""
    dials = WorldConfig(
        documents=max(200, 10 * count), questions=2 * count, hops=(2, 2), families=("bridge",)
    )
    world = FictionalWorld.generate(dials)
    documents = {document.id: document for document in world.documents}
    tasks = []
    for task in world.questions:
        gold = [documents[name] for name in task.data["supporting_ids"]]
        if len(gold) != 2:  # a fact that several documents state
            continue
        pages = [information(format_passages([Passage(d.id, d.title, d.text, 1.0)])) for d in gold]
        text = "".join([*pages, task.question]) if in_prompt else task.question
        tasks.append(Task(task.id, text, task.answers, data={"pages": [] if in_prompt else pages}))
    return tasks[:count]

"""Trains the shipped policy in an environment of your own: answers are to be short. Takes about ten seconds.

Run it with ``python examples/train_own_environment.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import agentenv

LONGEST = 80


@dataclass
class BriefState:
    """All that changes within an episode."""

    task: agentenv.Task


class Brief(agentenv.Env[BriefState]):
    """Rewards an answer of few characters: 1 for none at all, 0 from eighty on."""

    @classmethod
    def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[agentenv.Task]:
        """Every split asks about other numbers."""
        first = {"train": 0, "dev": 10_000, "test": 20_000}[split] + seed
        return [
            agentenv.Task(str(i), f"Say something about {i}.", (), split) for i in range(first, first + n)
        ]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Poses the task in ``options``."""
        super().reset(seed=seed)
        task = (options or {}).get("task") or self.make_tasks(1)[0]
        self.state = BriefState(task)
        return (agentenv.Message("user", task.question),), {"task_id": task.id}

    def step(self, action: str) -> agentenv.Step:
        """The first answer ends the episode."""
        reward = max(0.0, 1.0 - len(action) / LONGEST)
        return self.result((), reward=reward, end=agentenv.EndReason.ANSWERED)


if __name__ == "__main__":
    sizes = {"questions": 4, "group_size": 8, "turn_tokens": 16, "context_tokens": 64}
    changes = {"optimizer.steps": 8, "optimizer.learning_rate": 5e-4, "test.limit": 32}
    with TemporaryDirectory() as folder:
        result = agentenv.train(
            "own-env", out=f"{folder}/run", env__id=Brief, rollout=sizes, overrides=changes
        )
    for name, score in (("before", result.before), ("after", result.after)):
        print(f"{name}: {score.mean:.3f} on {score.n} held-out tasks, 95 % interval {score.ci95}")

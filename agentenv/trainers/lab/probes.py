"""What a comparison plays besides its runs: the test questions in all wordings, or sampled often; what a proposer asked."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.data.paraphrases import paraphrases_of
from agentenv.errors import ConfigurationError
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.credit.estimators import get_estimator
from agentenv.trainers.lab.measures import Play, agreement, proposals, sign_flips

SAMPLED_TASKS, SAMPLES = 24, 32
"""Test tasks that are sampled, and episodes of each: their mean reward stands for the policy's value of the task."""


def play_besides(kind: Play, config: TrainConfig, folder: Path | None = None) -> dict[str, float]:
    """The figures that ``kind`` gives for the policy of ``config``; none where there is nothing to read yet.

    Args:
        kind: What is played or read.
        config: The run of the arm, with the policy that is played.
        folder: Of the run, for what it has kept; None for a start.

    Raises:
        ConfigurationError: the test tasks do not fit the measure.
    """
    if kind == "wordings":
        return {"agreement": _agreement(config)}
    if kind == "samples":
        return {"sign_flips": _sign_flips(config)}
    return {} if folder is None else _proposals(config, folder)


def _agreement(config: TrainConfig) -> float:
    """Agreement of the greedy answers over the wordings of the test questions.

    A wording whose episode met an infrastructure failure is left out: it says nothing of what the policy would answer.
    """
    from agentenv.trainers.loop.evaluate import play_under

    counts: list[int] = []

    def worded(tasks: Sequence[Task]) -> list[Task]:
        forms = [paraphrases_of(task) for task in tasks]
        counts.extend(map(len, forms))
        return [
            replace(task, question=form) for task, mine in zip(tasks, forms, strict=True) for form in mine
        ]

    played = iter(play_under(config, worded))
    worded_alike = [[next(played) for _ in range(count)] for count in counts]
    return agreement([[_answer(one) for one in mine if one.valid] for mine in worded_alike])


def _answer(trajectory: Trajectory) -> str | None:
    answer = trajectory.info.get("answer")
    return None if answer is None else str(answer)


def _sign_flips(config: TrainConfig) -> float:
    """Share of flips in groups of the run's size, under its estimator, over samples of the first test tasks.

    0 where no advantage could flip, because every episode of a task has the same reward.
    """
    from agentenv.trainers.loop.evaluate import play_under

    estimate = get_estimator(config.loss.estimator, config.loss.estimator_options)

    def sampled(tasks: Sequence[Task]) -> list[Task]:
        return [task for task in tasks[:SAMPLED_TASKS] for _ in range(SAMPLES)]

    flips = signed = 0
    for of_task in _chunks(play_under(config, sampled, temperature=config.rollout.temperature), SAMPLES):
        valid = [trajectory for trajectory in of_task if trajectory.valid]
        value = sum(t.reward for t in valid) / max(len(valid), 1)
        for group in _chunks(valid, config.rollout.group_size):
            pushed = [float(v[t.loss_mask].mean()) for v, t in zip(estimate(group), group, strict=True)]
            found = sign_flips([t.reward for t in group], pushed, value)
            flips, signed = flips + found[0], signed + found[1]
    return flips / max(signed, 1)


def _chunks(played: Sequence[Trajectory], size: int) -> Iterator[Sequence[Trajectory]]:
    """Runs of ``size`` episodes in a row; what is left over at the end is left out."""
    for begin in range(0, len(played) - size + 1, size):
        yield played[begin : begin + size]


def _proposals(config: TrainConfig, folder: Path) -> dict[str, Any]:
    """What became of the questions that the run in ``folder`` proposed, by the truth of its training world."""
    from agentenv.core.scoring.scorers import get_scorer
    from agentenv.data.world_facts import generate_facts
    from agentenv.data.world_solver import Solver
    from agentenv.trainers.run_folder.folder import RunFolder

    if config.train.dataset != "world":
        raise ConfigurationError(
            f"this measure needs the facts of an invented world: set train.dataset to 'world', not {config.train.dataset!r}"
        )
    solver, scorer = Solver(generate_facts(config.train.world)), get_scorer("em_squad")

    def is_true(question: str, answer: str) -> bool:
        right = tuple(sorted(solver.answers(question)))
        return bool(right) and scorer(answer, right).value == 1.0

    return proposals(RunFolder.open(folder).history("questions"), is_true)

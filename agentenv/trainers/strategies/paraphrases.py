"""Con-RAG's groups (PS-GRPO): the episodes of a group ask the same thing in other words, and agreement is rewarded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.rollout import EpisodeSpec
from agentenv.core.scoring.scorers import get_scorer, load_scorer
from agentenv.core.trajectory import Trajectory
from agentenv.data.paraphrases import paraphrases_of
from agentenv.errors import ConfigurationError
from agentenv.trainers.credit.shaping import add_reward
from agentenv.trainers.strategies.rollout_context import RolloutContext


@dataclass(frozen=True, kw_only=True)
class ParaphraseStrategy:
    """Asks each question in several wordings and rewards answers that agree with those to the other wordings.

    Con-RAG, 2025, arXiv:2510.04392.
    """

    weight: float = 0.5
    """Reward of an answer that is like all the others; 0 only poses paraphrases."""
    scorer: str = "f1_squad"
    """How alike two answers are."""

    wordings: int | None = None
    """Other wordings whose answers an answer is compared with, drawn anew for each; None takes all. With `answers` it is the
    published approximation, whose cost grows with the group and not with its square."""
    answers: int | None = None
    """Answers of each of these wordings, drawn anew; None takes all."""

    def __post_init__(self) -> None:
        load_scorer(self.scorer)
        if self.weight < 0:
            raise ConfigurationError(f"weight={self.weight} must not be negative")
        if any(number is not None and number < 1 for number in (self.wordings, self.answers)):
            raise ConfigurationError(
                f"wordings={self.wordings} and answers={self.answers} must be at least 1"
            )

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """One trajectory for each start, in their order."""
        forms = paraphrases_of(specs[0].task)
        posed = [
            replace(spec, task=replace(spec.task, question=forms[place % len(forms)]))
            for place, spec in enumerate(specs)
        ]
        played = await gather_all(self._episode(place, spec, context) for place, spec in enumerate(posed))
        wordings = [t.task.question if t.valid else None for t in played]
        answers = [t.info.get("answer") for t in played]
        drawn = compared(wordings, self.wordings, self.answers, Random(f"paraphrase {specs[0].seed}"))
        similarity_of = group_similarity(answers, drawn, self.scorer)
        return [
            replace(
                add_reward(trajectory, self.weight * value),
                info=trajectory.info | {"strategy": {"agreement": [value]}},
            )
            for trajectory, value in zip(played, similarity_of, strict=True)
        ]

    async def _episode(self, place: int, spec: EpisodeSpec, context: RolloutContext) -> Trajectory:
        async with context.slot(place):
            return await context.run(spec, context.episode(place))


def compared(
    wordings: Sequence[str | None], most_wordings: int | None, most_answers: int | None, rng: Random
) -> list[list[int]]:
    """For each episode of a group, the places of the episodes whose answers it is compared with; all had other wordings.

    Con-RAG's reward is the mean over all answers to the other wordings; its approximation draws kappa of these wordings and
    s answers of each. Every answer to another wording is as likely to be drawn as the others where all wordings have equally
    many, so the mean of the draw is an unbiased estimate.

    Args:
        wordings: The question that each episode was asked; None for one that met an infrastructure failure. It is compared
            with nothing, and nothing with it, because its missing answer says nothing about the policy.
        most_wordings: kappa; None takes all.
        most_answers: s; None takes all.
        rng: Draws the wordings and the answers.
    """
    places: dict[str, list[int]] = {}
    for place, wording in enumerate(wordings):
        if wording is not None:
            places.setdefault(wording, []).append(place)
    drawn = []
    for wording in wordings:
        others = [group for other, group in places.items() if other != wording and wording is not None]
        if most_wordings is not None and most_wordings < len(others):
            others = rng.sample(others, most_wordings)
        drawn.append(sorted(place for group in others for place in _some(group, most_answers, rng)))
    return drawn


def _some(group: list[int], most: int | None, rng: Random) -> list[int]:
    return group if most is None or most >= len(group) else rng.sample(group, most)


def group_similarity(
    answers: Sequence[str | None], others: Sequence[Sequence[int]], scorer: str = "f1_squad"
) -> list[float]:
    """For each answer, its mean similarity to the answers at the places in ``others``; 0 where one of both is missing.

    Args:
        answers: Answers of the episodes of a group; None where an episode gave none, which has similarity 0 to all.
        others: The result of `compared`.
        scorer: How alike two answers are.
    """
    alike = get_scorer(scorer)
    values = []
    for mine, places in zip(answers, others, strict=True):
        scores = [alike(mine, (other,)).value if mine and (other := answers[i]) else 0.0 for i in places]
        values.append(sum(scores) / len(scores) if scores else 0.0)
    return values

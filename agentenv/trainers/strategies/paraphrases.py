"""Con-RAG's groups (PS-GRPO): the episodes of a group ask the same thing in other words, and agreement is rewarded."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.rollout import EpisodeSpec, run_episode
from agentenv.core.scoring.scorers import get_scorer
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

    def __post_init__(self) -> None:
        get_scorer(self.scorer)
        if self.weight < 0:
            raise ConfigurationError(f"weight={self.weight} must not be negative")

    async def play(self, specs: Sequence[EpisodeSpec], context: RolloutContext) -> list[Trajectory]:
        """One trajectory for each start, in their order."""
        forms = paraphrases_of(specs[0].task)
        posed = [
            replace(spec, task=replace(spec.task, question=forms[place % len(forms)]))
            for place, spec in enumerate(specs)
        ]
        played = await gather_all(self._episode(place, spec, context) for place, spec in enumerate(posed))
        wordings = [spec.task.question for spec in posed]
        answers = [t.info.get("answer") if t.valid else None for t in played]
        similarity_of = group_similarity(answers, wordings, self.scorer)
        return [
            replace(
                add_reward(trajectory, self.weight * value),
                info=trajectory.info | {"strategy": {"agreement": [value]}},
            )
            for trajectory, value in zip(played, similarity_of, strict=True)
        ]

    async def _episode(self, place: int, spec: EpisodeSpec, context: RolloutContext) -> Trajectory:
        async with context.slot(place):
            return await run_episode(
                spec, context.policy, context.chat, context.config, episode=context.episode(place)
            )


def group_similarity(
    answers: Sequence[str | None], wordings: Sequence[str], scorer: str = "f1_squad"
) -> list[float]:
    """For each answer its mean likeness to the answers to other wordings of the question; 0 without an answer or any other.

    Args:
        answers: Of the episodes of a group; None where there is none.
        wordings: The question that each was asked.
        scorer: How alike two answers are.
    """
    alike = get_scorer(scorer)
    values = []
    for mine, wording in zip(answers, wordings, strict=True):
        others = [a for a, other in zip(answers, wordings, strict=True) if other != wording]
        scores = [alike(mine, (a,)).value if mine and a else 0.0 for a in others]
        values.append(sum(scores) / len(scores) if scores else 0.0)
    return values

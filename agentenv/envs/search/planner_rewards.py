"""The rewards of AI-SearchPlanner (Mei et al. 2025, arXiv:2508.20368) as pure functions, and its judges.

J = E[R_outcome + lambda R_process - alpha Cost]. The equations of the paper were not available; the gain and the cost by
turns follow a public description of it.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from agentenv.data.synthesis.asearcher_model import SAME
from agentenv.data.synthesis.model_replies import ModelWriter, is_yes
from agentenv.errors import ContextTooSmall, EndpointRefusal, SynthesisFault

_RATING = """\
A planner searches for somebody else, who answers a question from what was found.
Question: {question}
{steps}

How rational is this plan: does each query look for something that the question needs and that was not known yet, and does \
the plan end when everything is known? Reply with one JSON object and nothing after it: \
{{"rating": "a whole number from 0 to 10"}}
"""
_NUMBER = re.compile(r"(\d{1,2}(?:\.\d{1,6})?)\s*(?:/|out of|$)")
_BRACES = str.maketrans("{}", "()")
"""Replaces braces, so that a query cannot contain an object that a judge might repeat as its own reply."""


def planning_gain(plan: float, direct: float, rag: float) -> float:
    """R_outcome = 1/2 + S_plan - max(S_direct, S_rag): the gain of planning over an answer without it.

    Args:
        plan: The score of the generator's answer from what the plan found.
        direct: The score of its answer without a search.
        rag: The score of its answer from a single search for the question itself.
    """
    return 0.5 + plan - max(direct, rag)


LEAST_GAIN = -0.5
"""The minimum of `planning_gain`: the answer is right without the plan, and missing or wrong with it."""


def frugality(turns: int, most: int) -> float:
    """max(0, 1 - L / T) for a plan with L of at most T turns."""
    return max(0.0, 1.0 - turns / most) if most else 0.0


def coverage(found: Collection[str], needed: Sequence[str]) -> float:
    """Returns the share of the documents that a question needs which the plan found; 0 if the question names none."""
    return sum(one in found for one in needed) / len(needed) if needed else 0.0


@dataclass(frozen=True)
class PlanJudge:
    """Rates the rationality of a plan by a language model; in the paper, that is the generator itself."""

    writer: ModelWriter

    async def rate(self, question: str, steps: Sequence[tuple[str, Sequence[str]]]) -> float:
        """Returns R_process in [0, 1].

        The prompt contains the planner's text. If that makes the reply unreadable, too long or refused, the plan is rated 0,
        because a failure would exclude the episode from the loss.

        Args:
            question: The question of the task.
            steps: Each query with the titles of its results.

        Raises:
            Fault: the model failed.
            ConfigurationError: the model is not configured correctly.
        """
        lines = [
            f"{i}. {query.translate(_BRACES)} -> {'; '.join(titles) or 'nothing'}"
            for i, (query, titles) in enumerate(steps, 1)
        ]
        listing = "\n".join(lines) or "It searches nothing."
        try:
            said = await self.writer.write(
                _RATING.format(question=question, steps=listing), {"rating": str}, 0
            )
        except (SynthesisFault, ContextTooSmall, EndpointRefusal):
            return 0.0
        rating = _NUMBER.match(said["rating"])
        return min(float(rating[1]), 10.0) / 10 if rating else 0.0


@dataclass(frozen=True)
class AnswerJudge:
    """Decides by a language model whether an answer is equivalent to an accepted one.

    Verdicts are cached. A reply that cannot be parsed, or is refused, counts as no: the plan decides what the generator has
    read, and a failure would exclude the episode from the loss.
    """

    writer: ModelWriter
    known: dict[tuple[str, tuple[str, ...], str], bool] = field(default_factory=dict, repr=False)

    async def is_right(self, question: str, accepted: Sequence[str], answer: str) -> bool:
        """Whether ``answer`` is equivalent to one of ``accepted``.

        Raises:
            Fault: the model failed.
            ConfigurationError: the model is not configured correctly.
        """
        case = (question, tuple(accepted), answer)
        if case not in self.known:
            asked = SAME.format(question=question, answer=" or ".join(accepted), given=answer)
            try:
                said = await self.writer.write(asked, {"same": str}, 0)
            except (SynthesisFault, ContextTooSmall, EndpointRefusal):
                return False
            self.known[case] = is_yes(said["same"])
        return self.known[case]

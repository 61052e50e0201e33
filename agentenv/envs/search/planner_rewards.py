"""The rewards of AI-SearchPlanner (Mei et al. 2025, arXiv:2508.20368) as pure functions, and who judges plans and answers.

J = E[R_outcome + lambda R_process - alpha Cost]. The equations of the paper were not at hand; the gain and the cost by turns
are those that a public description of it gives.
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
"""A query cannot hold an object that a judge might repeat as its own reply."""


def planning_gain(plan: float, direct: float, rag: float) -> float:
    """R_outcome = 1/2 + S_plan - max(S_direct, S_rag): what planning adds to an answer without it.

    Args:
        plan: Score of the generator's answer from what the plan has found.
        direct: Score of its answer without a search.
        rag: Score of its answer from one search for the question as it stands.
    """
    return 0.5 + plan - max(direct, rag)


LEAST_GAIN = -0.5
"""The least that `planning_gain` can be: an answer is right without the plan, and with it there is none or a wrong one."""


def frugality(turns: int, most: int) -> float:
    """max(0, 1 - L / T) for a plan of L of at most T turns."""
    return max(0.0, 1.0 - turns / most) if most else 0.0


def coverage(found: Collection[str], needed: Sequence[str]) -> float:
    """The share of the documents that a question needs which the plan has found; 0 where none is named."""
    return sum(one in found for one in needed) / len(needed) if needed else 0.0


@dataclass(frozen=True)
class PlanJudge:
    """Rates the rationality of a plan by a language model, which in the paper is the generator itself."""

    writer: ModelWriter

    async def rate(self, question: str, steps: Sequence[tuple[str, Sequence[str]]]) -> float:
        """R_process from 0 to 1.

        What the planner wrote stands in the prompt. Where that makes a reply unreadable, too long or refused, the plan is
        rated 0, because a failure would take the episode out of the loss.

        Args:
            question: Of the task.
            steps: Each query, and the titles of what it found.

        Raises:
            Fault: the model failed.
            ConfigurationError: it is not configured as it should be.
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
    """Says by a language model whether an answer says the same as an accepted one.

    Of equal answers it remembers the verdict. A reply that cannot be read, or is refused, is no: the plan decides what the
    generator has read, and a failure would take the episode out of the loss.
    """

    writer: ModelWriter
    known: dict[tuple[str, tuple[str, ...], str], bool] = field(default_factory=dict, repr=False)

    async def is_right(self, question: str, accepted: Sequence[str], answer: str) -> bool:
        """Whether ``answer`` says the same as one of ``accepted``.

        Raises:
            Fault: the model failed.
            ConfigurationError: it is not configured as it should be.
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

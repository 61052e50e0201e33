"""Baselines of conversational search without a language model: the query is the question, or the whole conversation.

These are the forms Original and AllHistory of TopiOCQA's questions (Adlakha et al. 2022, arXiv:2110.00768). A policy that
rewrites questions has to beat both.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from agentenv.core.types import Completion, Sampling
from agentenv.errors import check_known
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import complete

SEPARATOR = " [SEP] "
"""Between the questions and answers of TopiOCQA's form AllHistory."""
_TURN = re.compile(r"^[QA]: ", re.MULTILINE)


def turns_of(text: str) -> list[str]:
    """The questions and answers of the conversation in an opening message of ``Rewrite-v0``, the last question included."""
    return [turn.strip() for turn in _TURN.split(text)[1:]]


def all_history(turns: Sequence[str]) -> str:
    """TopiOCQA's form AllHistory: questions, without their question marks, and answers with ``[SEP]`` between them."""
    return SEPARATOR.join(
        turn if number % 2 else turn.strip().strip("?").strip() for number, turn in enumerate(turns)
    )


def _original(turns: Sequence[str]) -> str:
    return turns[-1]


FORMS: Mapping[str, Callable[[Sequence[str]], str]] = {
    "scripted:original": _original,
    "scripted:all_history": all_history,
}
"""By the spec of the policy, from the questions and answers of a conversation to what is searched."""


class ConversationPolicy:
    """Writes a form of the last question in the place of a rewriting. Always the same for the same text.

    Args:
        spec: A key of ``FORMS``.

    Raises:
        UnknownName: no such form.
    """

    version = 0

    def __init__(self, spec: str) -> None:
        check_known("policy", spec, FORMS)
        self.tokenizer = ByteTokenizer()
        self._form = FORMS[spec]

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        """The action, from the text of ``prompt_ids`` alone."""
        turns = turns_of(self.tokenizer.decode(prompt_ids))
        query = " ".join(self._form(turns).split()) if turns else ""
        action = f"<think>Nothing is rewritten.</think>\n<rewrite>{query}</rewrite>"
        return complete(action, self.tokenizer, sampling)

    def release(self, episode: str) -> None:
        """Nothing is kept."""

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        """A log-prob of 0 for each id."""
        return [0.0] * len(ids)

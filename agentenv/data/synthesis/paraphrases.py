"""The same question in other words, by a language model: the groups of Con-RAG (2025, arXiv:2510.04392) pose them."""

import re
from dataclasses import dataclass, replace

from agentenv.core.types import Task
from agentenv.data.synthesis.model_replies import ModelWriter, is_yes
from agentenv.errors import DatasetError

WRITE = """\
Write this question in {count} other ways. Each asks exactly the same and has the same answer; names, numbers and dates \
stay. The answer, {answer}, stands in none of them.
Question: {question}
Reply with one JSON object and nothing after it: {{"questions": ["...", "..."]}}
"""
SAME = """\
First question: {question}
Second question: {other}
Do both ask for exactly the same, so that they have the same answer? Reply with one JSON object and nothing after it: \
{{"same": "yes or no"}}
"""


@dataclass(frozen=True)
class Paraphraser:
    """Writes other wordings of questions."""

    writer: ModelWriter
    judge: ModelWriter
    count: int = 5
    """Wordings beside the question's own."""
    fewest: int = 1
    """Wordings that have to be left after the checks."""
    seed: int = 0

    async def paraphrase(self, task: Task) -> Task:
        """``task`` with the wordings that pass every check in ``data["paraphrases"]``.

        Raises:
            DatasetError: fewer than ``fewest`` pass.
            Fault: a model failed.
        """
        asked = WRITE.format(count=self.count, answer=task.answers[0], question=task.question)
        written = (await self.writer.write(asked, {"questions": list}, self.seed))["questions"]
        kept = []
        for other in dict.fromkeys(written):
            if wording_flaw(task, other):
                continue
            said = await self.judge.write(SAME.format(question=task.question, other=other), {"same": str}, 0)
            if is_yes(said["same"]):
                kept.append(other)
        if len(kept) < self.fewest:
            raise DatasetError(f"{task.id}: {len(kept)} of {len(written)} wordings passed the checks")
        return replace(task, data={**task.data, "paraphrases": kept[: self.count]})


def wording_flaw(task: Task, other: str) -> str:
    """What is wrong with a wording, as far as a program sees it."""
    if " ".join(other.lower().split()) == " ".join(task.question.lower().split()):
        return "it is the question itself"
    held = [a for a in task.answers if re.search(rf"(?<!\w){re.escape(a)}(?!\w)", other, re.IGNORECASE)]
    if any(answer.lower() not in task.question.lower() for answer in held):
        return "it holds the answer"
    numbers = set(re.findall(r"\d+", task.question))
    return "" if numbers == set(re.findall(r"\d+", other)) else "it has other numbers"

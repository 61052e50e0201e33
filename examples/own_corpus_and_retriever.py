"""Searches a corpus of your own with a retriever of your own. Any class with ``search`` and ``info`` is a retriever.

Run it with ``python examples/own_corpus_and_retriever.py``.
"""

import asyncio
import re
from collections.abc import Sequence

import agentenv

CORPUS = {
    "Seine": "The Seine flows through Paris and ends at Le Havre.",
    "Danube": "The Danube flows through Vienna, Budapest and Belgrade.",
    "Hamlet": "Hamlet is a tragedy by William Shakespeare.",
}
TASKS = [
    agentenv.Task("river", "Which river flows through Vienna?", ("Danube", "the Danube")),
    agentenv.Task("play", "Who wrote Hamlet?", ("William Shakespeare", "Shakespeare")),
]


def words_of(text: str) -> set[str]:
    """The distinct words of ``text``."""
    return set(re.findall(r"\w+", text.lower()))


class TitleFirst:
    """Ranks documents by the words that a query shares with them; a word of the title counts three times."""

    async def search(self, queries: Sequence[agentenv.Query | str], k: int) -> list[list[agentenv.Passage]]:
        """At most ``k`` passages a query, best first."""
        return [self._ranked(words_of(str(getattr(query, "text", query))), k) for query in queries]

    def _ranked(self, words: set[str], k: int) -> list[agentenv.Passage]:
        scores = {
            title: len(words & words_of(text)) + 3.0 * (title.lower() in words)
            for title, text in CORPUS.items()
        }
        best = sorted(scores, key=lambda title: -scores[title])
        return [agentenv.Passage(title, title, CORPUS[title], scores[title]) for title in best[:k]]

    def info(self) -> agentenv.RetrieverInfo:
        """What results say about it; the fingerprint changes whenever its results may."""
        return agentenv.RetrieverInfo(name="title-first", documents=len(CORPUS), fingerprint="title-first-1")


async def main() -> None:
    """One search and one answer for each question."""
    env = agentenv.make("agentenv/LocalSearch-v0", tasks=TASKS, retriever=TitleFirst(), k=1)
    for task, answer in zip(TASKS, ("the Danube", "Christopher Marlowe"), strict=True):
        await env.areset(options={"task": task})
        found = await env.astep(f"<search> {task.question} </search>")
        step = await env.astep(f"<answer> {answer} </answer>")
        print(found.observation[0].text.strip(), f"{task.question} {answer}: reward {step.reward}", sep="\n")


if __name__ == "__main__":
    asyncio.run(main())

"""``agentenv/JudgedSearch-v0``: the policy judges what it found before it goes on (ReSeek).

After each page the next action may say ``<judge>yes</judge>`` or ``<judge>no</judge>`` beside its own block. A reranker
knows whether the page holds what is looked for; agreeing with it is rewarded at once. That a page judged useless leaves the
policy's context is the rollout strategy ``judge``.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentenv.core.env import run_sync
from agentenv.core.grammar import earliest_block
from agentenv.envs.search.local_search import LocalSearch
from agentenv.envs.search.outcomes import Reward
from agentenv.envs.search.search_state import SearchState
from agentenv.retrievers.rerank import Reranker, make_reranker

PROMPT = """\
Find the answer to the question below.
First think between <think> and </think>. When you lack a fact, write a query between <search> and </search>; what the \
search finds comes back between <information> and </information>. Then judge it: <judge>yes</judge> if it helps with the \
question, <judge>no</judge> if it does not and shall be left out. Search again as often as you need.
When you know the answer, write it between <answer> and </answer>, short and without explanation, \
as in <answer> Beijing </answer>.
Question: {question}
"""


@dataclass(frozen=True)
class Judge:
    """Compares a verdict on the latest page with what a reranker says of it."""

    reranker: Reranker
    threshold: float
    """A page that scores more is useful."""

    async def __call__(self, action: str, state: SearchState) -> dict[str, bool]:
        """``judged_right``, where the turn before has searched and ``action`` holds a verdict of yes or no."""
        page, block = searched_page(state), earliest_block(action, ("judge",))
        verdict = block.content.lower() if block else ""
        if not page or verdict not in ("yes", "no"):
            return {}
        return {"judged_right": (verdict == "yes") == await self.is_useful(page, state.task.answers)}

    async def is_useful(self, page: str, answers: Sequence[str]) -> bool:
        """Whether the reranker scores ``page`` above the threshold for one of ``answers``."""
        pairs = [(answer, page) for answer in answers]
        scores: Sequence[float] = await asyncio.to_thread(self.reranker.score, pairs)
        return max(scores) > self.threshold


def searched_page(state: SearchState) -> str:
    """The page that the latest turn searched; empty where it did something else."""
    result = state.last.result if state.record else None
    return state.last.page if result is not None and result.name == "search" else ""


def judged_reward(state: SearchState, *, answer: Reward, judge_reward: float) -> dict[str, float]:
    """ReSeek: the reward of the answer, and of a verdict that agrees with the reranker or does not."""
    right = state.last.info.get("judged_right")
    verdict = 0.0 if right is None else judge_reward if right else -judge_reward
    return {**answer(state), "verdict": verdict}


class JudgedSearch(LocalSearch):
    """`LocalSearch` in which each page may be judged once, in the action after it."""

    def __init__(
        self,
        *,
        reranker: Reranker | str = "overlap",
        threshold: float = 0.7,
        judge_reward: float = 0.3,
        prompt: str = PROMPT,
        **options: Any,
    ) -> None:
        """Builds an environment.

        Args:
            reranker: Scores a page against the accepted answers; ``overlap`` is the share of an answer's words in it, a
                folder holds a cross-encoder.
            threshold: A page that scores more is useful.
            judge_reward: Added for a verdict that agrees, subtracted for one that does not.
            prompt: Opening message; must hold ``{question}``.
            **options: Further arguments of `LocalSearch`.

        Raises:
            ConfigurationError: no such reranker.
        """
        super().__init__(prompt=prompt, **options)
        self.judge = Judge(make_reranker(reranker) if isinstance(reranker, str) else reranker, threshold)
        self.parts = replace(
            self.parts,
            beside=self.judge,
            reward=partial(judged_reward, answer=self.answer_reward, judge_reward=judge_reward),
        )

    def expert(self) -> Sequence[str] | None:
        """As `LocalSearch`, with the verdict on each page in the action after it."""
        (twin,) = self.fork()
        answers = self.state.task.answers
        actions: list[str] = []
        for action in super().expert() or ():
            page = searched_page(twin.state)
            useful = page and run_sync(self.judge.is_useful(page, answers))
            verdict = f"<judge>{'yes' if useful else 'no'}</judge>" if page else ""
            actions.append(verdict + action)
            twin.step(action)
        return actions

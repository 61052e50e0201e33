"""``agentenv/JudgedSearch-v0``: the policy judges what it found before it goes on (ReSeek).

After each page the next action may say ``<judge>yes</judge>`` or ``<judge>no</judge>`` beside its own block. A reranker
knows whether the page holds what is looked for; agreeing with it is rewarded at once. That a page judged useless leaves the
policy's context is the rollout strategy ``judge``.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.core.env import run_sync
from agentenv.core.grammar import earliest_block
from agentenv.core.types import Info, Observation, Step
from agentenv.envs.search.local_search import LocalSearch, SearchState
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


@dataclass
class JudgedState(SearchState):
    """All that changes within an episode."""

    page: str = ""
    """The last page, while nobody has judged it."""


class JudgedSearch(LocalSearch):
    """`LocalSearch` in which each page may be judged once, in the action after it."""

    state: JudgedState

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
        self._reranker = make_reranker(reranker) if isinstance(reranker, str) else reranker
        self._threshold = threshold
        self._judge_reward = judge_reward

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """As `LocalSearch`."""
        opening = await super().areset(seed=seed, options=options)
        self.state = JudgedState(self.state.task, self.state.seed)
        return opening

    async def astep(self, action: str) -> Step:
        """Acts on ``action`` and rewards the verdict in it, if there is a page to judge.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            RetrieverFault: the search failed.
        """
        self.check_running()
        verdict = earliest_block(action, ("judge",))
        known = verdict is not None and verdict.content.lower() in ("yes", "no")
        agrees = None
        if self.state.page and verdict is not None and known:
            agrees = (verdict.content.lower() == "yes") == await self._is_useful(self.state.page)
        step = await super().astep(action)
        searched = any(result.name == "search" for result in step.info["tool_results"])
        self.state.page = "".join(message.text for message in step.observation) if searched else ""
        if agrees is None:
            return step
        extra = self._judge_reward if agrees else -self._judge_reward
        return step._replace(reward=step.reward + extra, info=step.info | {"judged_right": agrees})

    async def _is_useful(self, page: str) -> bool:
        pairs = [(answer, page) for answer in self.state.task.answers]
        scores: Sequence[float] = await asyncio.to_thread(self._reranker.score, pairs)
        return max(scores) > self._threshold

    def expert(self) -> Sequence[str] | None:
        """As `LocalSearch`, with the verdict on each page in the action after it."""
        (twin,) = self.fork()
        actions: list[str] = []
        for action in super().expert() or ():
            useful = bool(twin.state.page) and run_sync(twin._is_useful(twin.state.page))
            verdict = f"<judge>{'yes' if useful else 'no'}</judge>" if twin.state.page else ""
            actions.append(verdict + action)
            twin.step(action)
        return actions

"""``agentenv/JudgedSearch-v0``: the policy judges each page that it finds (ReSeek).

After each page, the next action may contain ``<judge>yes</judge>`` or ``<judge>no</judge>`` in addition to its own block. A
reranker decides whether the page is useful, and agreement with it is rewarded at once. The rollout strategy ``judge``
removes pages judged useless from the policy's context.

As published, the rewards of the verdicts are summed. A sum can be hacked: nonsense searches, each judged useless, earn more
than a right answer, and the paper has no limit. The default is therefore the mean over the pages (`verdict_mean`), and an
episode without an answer is worth less than any with an answer.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

from agentenv.core.env import run_sync
from agentenv.core.grammar import earliest_block
from agentenv.core.types import ToolResult, ToolStatus
from agentenv.envs.search.local_search import LocalSearch
from agentenv.envs.search.outcomes import Reward
from agentenv.envs.search.search_state import SearchState, TagCall, ToolReply
from agentenv.envs.search.search_tools import submit_answer
from agentenv.errors import ConfigurationError, check_known
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

AGAIN_PROMPT = PROMPT.replace(
    "if it does not and shall be left out. Search again as often as you need.",
    "if it does not; then you have to search again before you answer. Search as often as you need.",
)
"""The message of version 3 of the paper, in which a useless page stays and another search is required."""

AGAIN = """
I judged the last result useless, so I have to search again before I answer.
"""


@dataclass(frozen=True)
class VerdictCheck:
    """Compares the policy's verdict on the latest page with that of a reranker."""

    reranker: Reranker
    threshold: float
    """A page with a higher score is useful."""

    async def __call__(self, action: str, state: SearchState) -> dict[str, bool | float]:
        """Returns ``judged_useful`` and ``judged_right`` if the previous turn searched and ``action`` contains a verdict.

        ``verdicts_right`` is the share of right verdicts in the episode so far, once there is one.
        """
        page, said = searched_page(state), verdict_in(action)
        right = [turn.info["judged_right"] for turn in state.record if "judged_right" in turn.info]
        found: dict[str, bool | float] = {}
        if page and said is not None:
            right.append(said == await self.is_useful(page, state.task.answers))
            found = {"judged_useful": said, "judged_right": right[-1]}
        return found | ({"verdicts_right": fmean(right)} if right else {})

    async def is_useful(self, page: str, answers: Sequence[str]) -> bool:
        """Whether the reranker's score of ``page`` exceeds the threshold for one of ``answers``."""
        pairs = [(answer, page) for answer in answers]
        scores: Sequence[float] = await asyncio.to_thread(self.reranker.score, pairs)
        return max(scores) > self.threshold


@dataclass(frozen=True)
class SubmitAfterUse:
    """Accepts an answer, unless the latest page was judged useless and turns for another search are left (version 3)."""

    most: int
    """Number of turns before the last one, in which an answer is always accepted."""

    async def __call__(self, call: TagCall, state: SearchState) -> ToolReply:
        """Returns the end of the episode, or a request to search again."""
        if state.turns < self.most and is_judged_useless(state, call.action):
            return ToolReply(AGAIN, ToolResult("none", ToolStatus.FORMAT_ERROR, error_class="useless page"))
        return await submit_answer(call, state)


def verdict_in(action: str) -> bool | None:
    """Returns the verdict of ``action`` on the page before it: whether it is useful; None without a verdict."""
    block = earliest_block(action, ("judge",))
    return {"yes": True, "no": False}.get(block.content.lower()) if block else None


def is_judged_useless(state: SearchState, action: str) -> bool:
    """Whether the latest searched page was judged useless, by the turn after it or by ``action``."""
    searched = [place for place, turn in enumerate(state.record) if has_searched(turn)]
    if not searched:
        return False
    after = searched[-1] + 1
    said = state.record[after].info.get("judged_useful") if after < len(state.record) else verdict_in(action)
    return said is False


def searched_page(state: SearchState) -> str:
    """Returns the page that the latest turn searched; empty if it did something else."""
    return state.last.page if state.record and has_searched(state.last) else ""


def has_searched(turn: ToolReply) -> bool:
    """Whether a turn showed results of a search."""
    return turn.result is not None and turn.result.name == "search"


def verdict_reward(said_useful: bool, right: bool, unit: float, false_yes: float = 2.0) -> float:
    """ReSeek: one unit for a right verdict, -1 for a useful page judged useless, ``-false_yes`` for the reverse.

    Args:
        said_useful: The policy's verdict on the page.
        right: Whether the reranker agrees.
        unit: The reward of a right verdict.
        false_yes: The cost in units of a useless page judged useful: 2 in version 3 of the paper, 1 in version 1.
    """
    return unit if right else -false_yes * unit if said_useful else -unit


def verdicts_of(record: Sequence[ToolReply], unit: float, false_yes: float = 2.0) -> list[float | None]:
    """Returns the reward of the verdict on each page that a later action could judge; None without a verdict."""
    return [
        verdict_reward(after.info["judged_useful"], after.info["judged_right"], unit, false_yes)
        if "judged_right" in after.info
        else None
        for before, after in pairwise(record)
        if has_searched(before)
    ]


def verdict_sum(verdicts: Sequence[float | None], *, discount: float = 1.0) -> float:
    """ReSeek, as published: the sum of discount^(t - 1) r_t over the pages; a page without a verdict adds 0.

    t counts searches, so a page without a verdict also discounts the pages after it. The paper names no discount. With 1,
    four nonsense pages judged useless are worth 1.2.
    """
    return sum(discount**t * (reward or 0.0) for t, reward in enumerate(verdicts))


def verdict_mean(verdicts: Sequence[float | None]) -> float:
    """Returns the mean over all pages, with 0 for a page without a verdict, so that more pages cannot exceed one unit."""
    return sum(reward or 0.0 for reward in verdicts) / max(1, len(verdicts))


def judged_reward(
    state: SearchState,
    *,
    answer: Reward,
    unit: float,
    total: Callable[[Sequence[float | None]], float],
    false_yes: float = 2.0,
) -> dict[str, float]:
    """Returns the reward of the answer, and the change of ``total`` by the latest turn, so that the sum is ``total``.

    With `verdict_mean`, an episode without an answer gets one unit less than the worst possible mean: -3 units if a false
    yes costs 2. So no answer is worth less than any answer, and a wrong answer (1 unit at most) is worth less than a right
    one (1 - 2 units at least) if the unit is below a third.
    """
    *before, _ = state.record
    now = total(verdicts_of(state.record, unit, false_yes))
    if total is verdict_mean and state.last.end is not None and state.answer is None:
        now = -(max(false_yes, 1.0) + 1) * unit
    return {**answer(state), "verdict": now - total(verdicts_of(before, unit, false_yes))}


TOTALS: Mapping[str, Callable[[Sequence[float | None]], float]] = {"mean": verdict_mean, "sum": verdict_sum}
"""How the verdicts of an episode are combined, by name."""


class JudgedSearch(LocalSearch):
    """`LocalSearch` with a verdict on each page in the next action."""

    reward_options = LocalSearch.reward_options | {"judge_reward", "false_yes", "verdicts", "discount"}

    def __init__(
        self,
        *,
        reranker: Reranker | str = "overlap",
        threshold: float = 0.7,
        judge_reward: float = 0.3,
        false_yes: float = 2.0,
        verdicts: str = "mean",
        discount: float = 1.0,
        search_again: bool = False,
        prompt: str | None = None,
        **options: Any,
    ) -> None:
        """Makes an environment.

        Args:
            reranker: Scores a page against the accepted answers. ``overlap`` is the share of an answer's words in the page,
                without punctuation and in any order; a folder contains a cross-encoder.
            threshold: A page with a higher score is useful.
            judge_reward: The reward of a verdict that agrees with the reranker, and the cost of judging a useful page
                useless.
            false_yes: The cost of judging a useless page useful, as a multiple of ``judge_reward``: 2 in version 3 of the
                paper, 1 in version 1.
            verdicts: How the verdicts of an episode are combined: their ``mean`` over the pages or, as published, their
                ``sum``, which nonsense searches can hack.
            discount: The factor of the sum for each further search; not used by the mean.
            search_again: Whether an answer is refused after a page that was judged useless until there is another search
                (version 3 of the paper, with ``drop = "mark"`` of the strategy).
            prompt: The opening message. It must contain ``{question}``. None is ``PROMPT``, or ``AGAIN_PROMPT`` with
                ``search_again``.
            **options: Further arguments of `LocalSearch`.

        Raises:
            ConfigurationError: there is no such reranker, or ``false_yes`` is below 0.
            UnknownName: there is no such combination of verdicts.
        """
        usual = AGAIN_PROMPT if search_again else PROMPT
        super().__init__(prompt=usual if prompt is None else prompt, **options)
        check_known("total of verdicts", verdicts, TOTALS)
        if not 0 <= false_yes < float("inf"):
            raise ConfigurationError(
                f"false_yes={false_yes} is a cost: it must be a finite number of at least 0"
            )
        total = partial(verdict_sum, discount=discount) if verdicts == "sum" else TOTALS[verdicts]
        self.search_again = search_again
        self.judge = VerdictCheck(
            make_reranker(reranker) if isinstance(reranker, str) else reranker, threshold
        )
        self.parts = replace(
            self.parts,
            submit=SubmitAfterUse(self.max_turns) if search_again else submit_answer,
            beside=self.judge,
            native=None,  # a native call has no place for the verdict beside the action
            reward=partial(
                judged_reward, answer=self.answer_reward, unit=judge_reward, total=total, false_yes=false_yes
            ),
        )

    @classmethod
    def default_prompt(cls, options: Mapping[str, Any], *, native: bool = False) -> str | None:
        """Returns None, because the environment has the same message for every outcome."""
        return None

    def expert(self) -> Sequence[str] | None:
        """Like `LocalSearch`, with the verdict on each page in the next action, unless its answer would be refused."""
        (twin,) = self.fork()
        answers = self.state.task.answers
        actions: list[str] = []
        for action in super().expert() or ():
            page = searched_page(twin.state)
            useful = page and run_sync(self.judge.is_useful(page, answers))
            silent = not page or (self.search_again and not useful and "<answer>" in action)
            verdict = "" if silent else f"<judge>{'yes' if useful else 'no'}</judge>"
            actions.append(verdict + action)
            twin.step(action)
        return actions

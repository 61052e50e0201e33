"""The rewards of HierSearch (Tan et al. 2025, arXiv:2508.08088) for its planner and its agents."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from agentenv.core.scoring.scorers import Scorer
from agentenv.envs.search.outcomes import Reward, is_one_action, score_of
from agentenv.envs.search.page_format import QuestionPrompt
from agentenv.envs.search.search_env import SearchEnv, SearchParts
from agentenv.envs.search.search_state import SearchState, ToolFunction
from agentenv.envs.search.search_tools import TagParser


def is_complete(actions: Sequence[str], tools: Sequence[str]) -> bool:
    """Whether the policy's turns have HierSearch's format.

    There is exactly one answer. There is at least one thought, and every thought is closed. A turn calls at most one tool,
    so that its result comes before the next call.
    """
    text = "".join(actions)
    thoughts = text.count("<think>")
    return (
        text.count("<answer>") == text.count("</answer>") == 1
        and thoughts == text.count("</think>") > 0
        and all(is_one_action(action, tools) for action in actions)
    )


def coverage_reward(score: float, used: int, offered: int, complete: bool) -> float:
    """HierSearch: 0 for an invalid format or no answer; the score if above 0; otherwise a tenth of the share of tools tried.

    As published, a score between 0 and that tenth is worth less than a wrong answer after trying every tool.
    """
    if not complete:
        return 0.0
    return score if score > 0 else 0.1 * used / offered


def local_first_penalty(calls: Sequence[str], web: Collection[str]) -> float:
    """HierSearch: the penalty for searching the web early, by the index (from 1) of the first call of a web tool.

    -1 within the first three calls; -.05 (4 - i) at the calls 4 to 6 and -.015 (3 - i) at the calls 7 and 8, with i from 0
    at the first of them; -.01 later; 0 without such a call. As published, it applies even if local search cannot find the
    answer.
    """
    place = next((number for number, call in enumerate(calls, 1) if call in web), None)
    if place is None:
        return 0.0
    if place <= 3:
        return -1.0
    if place <= 6:
        return -0.05 * (4 - (place - 4))
    return -0.015 * (3 - (place - 7)) if place <= 8 else -0.01


@dataclass
class HierarchicalState(SearchState):
    """All that changes within an episode."""

    calls: list[str] = field(default_factory=list)
    """Tags of the tools in the order of their calls."""

    @property
    def used(self) -> set[str]:
        """Tags of the tools called so far."""
        return set(self.calls)


def hierarchical_reward(
    state: HierarchicalState,
    *,
    answer: Reward,
    scorer: Scorer,
    tools: Sequence[str],
    late: Collection[str] = (),
) -> Mapping[str, float]:
    """HierSearch: `coverage_reward` at the end; before it, the reward of `answer` for a page with an accepted answer.

    An answer with a score also gets the `local_first_penalty` of the tools ``late``, which is empty if it is disabled.
    """
    if state.last.end is None:
        return answer(state)
    whole = state.answer is not None and not state.mistakes
    complete = whole and is_complete([turn.action for turn in state.record], tools)
    score = score_of(state, scorer)
    parts = {"coverage": coverage_reward(score, len(state.used), len(tools), complete)}
    if late and complete and score > 0:
        parts["local_first"] = local_first_penalty(state.calls, late)
    return parts


def hierarchical_parts(
    env: SearchEnv,
    opening: QuestionPrompt,
    tools: Mapping[str, ToolFunction],
    names: tuple[str, ...],
    late: Collection[str],
) -> SearchParts:
    """Makes the parts of an environment whose policy calls ``tools`` and is rewarded by `hierarchical_reward`.

    Args:
        env: The environment whose rewards and scorer are used.
        opening: Makes the first message from a task.
        tools: The tools by tag.
        names: The tags of the tools in the order in which they are listed.
        late: The tags of tools with the `local_first_penalty`.
    """
    reward = partial(hierarchical_reward, answer=env.answer_reward, scorer=env.scorer, tools=names, late=late)
    parser = TagParser((*names, "answer"), filled=names)
    return SearchParts(opening=opening, parser=parser, tools=tools, reward=reward, state=HierarchicalState)

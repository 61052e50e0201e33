"""Rewards of search: what the end of an episode is worth, one pure function a published reward, and `answer_reward`.

A reward is a pure function of the state of an episode, which holds the task and the record of its turns. It gives what the
latest turn earns, in parts by name; their sum is the reward of the turn.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.core.scoring.scorers import Scorer, get_scorer
from agentenv.envs.search.search_state import SearchState, ToolReply
from agentenv.errors import UnknownName

Reward = Callable[[Any], Mapping[str, float]]
"""From the state after a turn to what the turn earns, by part."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an episode ended."""

    score: float
    """Of the answer; 0 without one."""
    searches: int = 0
    """Queries that were asked and pages that were read, however many of them shared a turn."""
    mistakes: int = 0
    """Turns that could not be acted on."""
    tool_turns: int = 0
    """Turns that searched or read."""
    answered: bool = True
    """Whether there is an answer."""
    thought: bool = True
    """Whether the policy thought at all between tags that are whole; see `thinks_in_tags`."""


def answer_alone(ending: Ending) -> float:
    """The score of the answer (Search-R1)."""
    return ending.score


def knowledge_boundary(ending: Ending) -> float:
    """IKEA (Huang et al. 2025): 1 + max(0, .6 - .2 n) for a right answer after n queries, else .05 if n > 0; malformed -1.

    A right answer from memory is worth most, a wrong one from memory nothing: search pays where memory ends. Malformed is
    an episode with a turn that could not be acted on, or without a thought between whole tags.

    The published program also pays .05 where a search was made and no answer was given, and the paper does not say whether
    it means to. Here such an episode earns nothing, because a query without an intention would otherwise earn as much as an
    honest attempt that went wrong.
    """
    if ending.mistakes or not ending.thought:
        return -1.0
    if ending.score >= 1:
        return 1.0 + max(0.0, 0.6 - 0.2 * ending.searches)
    return 0.05 * (ending.searches > 0 and ending.answered)


def deliberative(ending: Ending) -> float:
    """Open-AgentRL (Yu et al. 2025): 1 for a right answer, otherwise min(-.6, -1 + .1 n) after n tool turns.

    Published with messages: score + .1 (messages - 2) / 2, of which a tool turn adds two.
    """
    return 1.0 if ending.score >= 1 else min(-0.6, -1.0 + 0.1 * ending.tool_turns)


OUTCOMES: Mapping[str, Callable[[Ending], float]] = {
    "answer": answer_alone,
    "knowledge_boundary": knowledge_boundary,
    "deliberative": deliberative,
}
THOUGHTFUL = frozenset({"knowledge_boundary"})
"""Outcomes by which an episode without a thought is malformed, so the expert has to think as well."""


def get_outcome(name: str) -> Callable[[Ending], float]:
    """The outcome of `OUTCOMES` with this name.

    Raises:
        UnknownName: there is none; carries the nearest.
    """
    if name not in OUTCOMES:
        raise UnknownName.among("outcome", name, OUTCOMES)
    return OUTCOMES[name]


_HOLDS = get_scorer("em_cover")
_GLUED = re.compile(r"[(\[](?:think|search|answer)|(?:think|search|answer)[)\]]")


def thinks_in_tags(actions: Sequence[str]) -> bool:
    """IKEA: whether a thought stands in ``actions``, and no name of a tag next to a bracket of another kind.

    Published with the presence of both tags alone, by which an empty thought counts, and one that ends before it begins.
    """
    text = "".join(actions)
    *closed, _ = text.split("</think>")  # an expression for all of it takes the square of the text's length
    thinks = any(part.partition("<think>")[2].strip() for part in closed)
    return thinks and _GLUED.search(text) is None


def is_one_action(action: str, tags: Sequence[str]) -> bool:
    """Whether each of ``tags`` is opened in ``action`` as often as it is closed, and all of them at most once."""
    opened = [action.count(f"<{tag}>") for tag in tags]
    closed = [action.count(f"</{tag}>") for tag in tags]
    return opened == closed and sum(opened) <= 1


def score_of(state: SearchState, scorer: Scorer) -> float:
    """The score of the answer; 0 without one."""
    return scorer(state.answer, state.task.answers).value if state.answer is not None else 0.0


def answer_shown(turns: Sequence[ToolReply], answers: Sequence[str]) -> bool:
    """Whether a valid page of ``turns`` holds one of ``answers``."""
    return any(turn.valid and _HOLDS(turn.page, answers).value > 0 for turn in turns)


def shows_answer_first(state: SearchState) -> bool:
    """Whether the page of the latest turn holds an accepted answer, and no valid page before it does."""
    *before, latest = state.record
    answers = state.task.answers
    return answer_shown([latest], answers) and not answer_shown(before, answers)


def answer_reward(
    state: SearchState,
    *,
    scorer: Scorer,
    outcome: Callable[[Ending], float] = answer_alone,
    found: float = 0.0,
    score: Callable[[SearchState, Scorer], float] = score_of,
) -> dict[str, float]:
    """The outcome where the episode ends, and before that ``found`` for the page that shows an accepted answer first."""
    if state.last.end is None:
        return {"found": found * shows_answer_first(state)} if found else {}
    return {"outcome": outcome(ending_of(state, score(state, scorer)))}


def ending_of(state: SearchState, score: float) -> Ending:
    """How the episode of ``state`` ended, whose answer has ``score``."""
    return Ending(
        score,
        searches=state.lookups,
        mistakes=state.mistakes,
        tool_turns=state.turns - state.mistakes,
        answered=state.answer is not None,
        thought=not state.tagged or thinks_in_tags([turn.action for turn in state.record]),
    )

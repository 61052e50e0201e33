"""Rewards of search environments: `answer_reward`, and one pure function for each published reward of an episode's end.

A reward is a pure function of the state of an episode, which contains the task and the record of its turns. It returns the
named parts of the latest turn's reward, which is their sum.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.core.options import bind_options, own_part
from agentenv.core.scoring.evidence import holds_answer, is_yes_or_no
from agentenv.core.scoring.scorers import Scorer
from agentenv.envs.search.search_state import SearchState, ToolReply

Reward = Callable[[Any], Mapping[str, float]]
"""A function of the state after a turn that returns the named parts of the turn's reward."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an episode ended."""

    score: float
    """Score of the answer; 0 without an answer."""
    searches: int = 0
    """Number of queries and of pages read, even if several were in one turn."""
    mistakes: int = 0
    """Number of turns that could not be executed."""
    tool_turns: int = 0
    """Number of turns that searched or read."""
    answered: bool = True
    """Whether there is an answer."""
    thought: bool = True
    """Whether the policy wrote any complete thought in tags; see `thinks_in_tags`."""
    formed: bool = True
    """Whether every action is a thought and a search, and the last one a thought and an answer; see `is_well_formed`."""
    answer_seen: bool = False
    """Whether a page contained an accepted answer."""
    grounded: bool = True
    """Whether the episode found what its answer needs; see `is_grounded`."""


def answer_alone(ending: Ending) -> float:
    """Returns the score of the answer (Search-R1)."""
    return ending.score


def knowledge_boundary(ending: Ending) -> float:
    """IKEA (Huang et al. 2025): a right answer after n queries 1 + max(0, .6 - .2 n), else .05 if n > 0; malformed -1.

    A right answer without a search is worth most, and a wrong one without a search nothing, so searching pays only when the
    policy does not know the answer. An episode is malformed if it has a turn that could not be executed, or no complete
    thought in tags.

    The published program also gives .05 for an episode with a search and no answer, and the paper does not say whether this
    is intended. Here such an episode earns nothing, because otherwise an aimless query would earn as much as an honest
    attempt that fails.
    """
    if ending.mistakes or not ending.thought:
        return -1.0
    if ending.score >= 1:
        return 1.0 + max(0.0, 0.6 - 0.2 * ending.searches)
    return 0.05 * (ending.searches > 0 and ending.answered)


def graded_format(
    ending: Ending, *, structure: float = 0.2, final: float = 0.1, retrieval: float = 0.0
) -> float:
    """Search-R1's reward v0.3 (Jin et al. 2025, arXiv:2505.15117), for the format as well as for the answer.

    A right answer is worth 1, or 1 - ``structure`` if the episode is not well formed. A wrong answer is worth ``structure``
    if the episode is well formed, plus ``retrieval`` if a page contained an accepted answer; otherwise ``final``.
    ``retrieval`` is 0 in the published scripts, although .1 was intended.

    The published program also gives ``final`` if there is no answer, because it takes the example in its own prompt for one.
    Here an episode without an answer is worth 0. The program searches pages for the letters of an answer, by which nearly
    every page contains "no". Here only whole words count, and yes and no never do.
    """
    if ending.score >= 1:
        return 1.0 if ending.formed else 1.0 - structure
    if ending.formed:
        return structure + retrieval * ending.answer_seen
    return final * ending.answered


def deliberative(ending: Ending) -> float:
    """Open-AgentRL (Yu et al. 2025): 1 for a right answer, otherwise min(-.6, -1 + .1 n) after n tool turns.

    Published for messages: score + .1 (messages - 2) / 2, where each tool turn adds two messages.
    """
    return 1.0 if ending.score >= 1 else min(-0.6, -1.0 + 0.1 * ending.tool_turns)


def flawed_positive(ending: Ending, *, penalty: float = 1.0) -> float:
    """FAPO (2025, arXiv:2510.22543): a right answer that was guessed or reached without the evidence earns less.

    Published for rewards of 1 and -1: a right answer with a flaw earns 1 - ``penalty``, and the penalty is 1. Here wrong is
    0 and right is 1, so half of the penalty is subtracted. Instead of the paper's trained judge, a rule finds flaws: the
    episode did not find what the answer needs. All other answers earn their score.

    Args:
        ending: How the episode ended.
        penalty: The paper's lambda; with 2 a flawed right answer earns as much as a wrong one, with 0 it costs nothing.
    """
    flawed = ending.score >= 1 and not ending.grounded
    return ending.score - flawed * penalty / 2


OUTCOMES: Mapping[str, Callable[..., float]] = {
    "answer": answer_alone,
    "knowledge_boundary": knowledge_boundary,
    "deliberative": deliberative,
    "graded_format": graded_format,
    "flawed_positive": flawed_positive,
}
THOUGHTFUL = frozenset({"knowledge_boundary", "graded_format"})
"""Outcomes for which an episode without a thought is malformed, so the expert has to think too."""


def get_outcome(name: str, options: Mapping[str, Any] | None = None) -> Callable[[Ending], float]:
    """Returns the outcome of `OUTCOMES` with this name, or what ``module:name`` names.

    Args:
        name: The name of a function of an `Ending` that returns the reward of the end.
        options: Values for the function's keyword-only arguments.

    Raises:
        UnknownName: there is no such outcome, or it has no such option; the error carries the nearest name.
        ConfigurationError: the module cannot be imported, or the value of an option has the wrong type.
    """
    outcome = OUTCOMES[name] if name in OUTCOMES else own_part("outcome", name, OUTCOMES)
    return bind_options("outcome", name, outcome, options or {})


_BRACKETED_TAG = re.compile(r"[(\[](?:think|search|answer)|(?:think|search|answer)[)\]]")


def thinks_in_tags(actions: Sequence[str]) -> bool:
    """IKEA: whether ``actions`` contain a non-empty thought, and no tag name next to another kind of bracket.

    The published program only checks that both tags occur, so an empty thought counts, and so do tags in the wrong order.
    """
    text = "".join(actions)
    *closed, _ = text.split("</think>")  # a regular expression for the whole would take quadratic time
    thinks = any(part.partition("<think>")[2].strip() for part in closed)
    return thinks and _BRACKETED_TAG.search(text) is None


_FORM = re.compile(
    r"\s*<think>(?:(?!</?(?:think|search|information|answer)>).)*</think>"
    r"\s*<(search|answer)>(?:(?!</?(?:think|search|information|answer)>).)*</\1>\s*",
    re.DOTALL,
)


def is_well_formed(turns: Sequence[ToolReply]) -> bool:
    """Whether an episode has Search-R1's format: (think, search, information)*, then think and answer, nothing else.

    The environment writes the pages, so only the actions are checked: each is a complete thought and a complete search, and
    the last one is a complete thought and a complete answer.
    """
    forms = [_FORM.fullmatch(turn.action) for turn in turns]
    wanted = ["search"] * (len(turns) - 1) + ["answer"]
    return all(turn.valid for turn in turns) and [form and form[1] for form in forms] == wanted


def is_one_action(action: str, tags: Sequence[str]) -> bool:
    """Whether each of ``tags`` is opened and closed equally often in ``action``, and all together at most once."""
    opened = [action.count(f"<{tag}>") for tag in tags]
    closed = [action.count(f"</{tag}>") for tag in tags]
    return opened == closed and sum(opened) <= 1


def score_of(state: SearchState, scorer: Scorer) -> float:
    """Returns the score of the answer; 0 without an answer."""
    return scorer(state.answer, state.task.answers).value if state.answer is not None else 0.0


def answer_shown(turns: Sequence[ToolReply], answers: Sequence[str]) -> bool:
    """Whether a valid page of ``turns`` contains one of ``answers``; see `holds_answer`."""
    return any(turn.valid and holds_answer(turn.page, answers) for turn in turns)


def is_grounded(state: SearchState) -> bool:
    """Whether every passage that the task needs was found; if it names none, whether a page contains an accepted answer.

    For a task without named passages and with the answer yes or no, which no page can contain, any page suffices.
    """
    if needed := state.task.data.get("supporting_ids"):
        return all(one in state.by_id for one in needed)
    answers = state.task.answers
    if answers and is_yes_or_no(answers):
        return any(turn.valid and turn.page for turn in state.record)
    return answer_shown(state.record, answers)


def shows_answer_first(state: SearchState) -> bool:
    """Whether the page of the latest turn contains an accepted answer, and no earlier valid page does."""
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
    """Returns the outcome at the end of the episode; before it, ``found`` for the first page with an accepted answer."""
    if state.last.end is None:
        return {"found": found * shows_answer_first(state)} if found else {}
    return {"outcome": outcome(ending_of(state, score(state, scorer)))}


def ending_of(state: SearchState, score: float) -> Ending:
    """Describes how the episode of ``state`` ended; its answer has the score ``score``."""
    answered = state.answer is not None
    return Ending(
        score,
        searches=state.lookups,
        mistakes=state.mistakes,
        tool_turns=state.turns - state.mistakes,
        answered=answered,
        thought=not state.tagged or thinks_in_tags([turn.action for turn in state.record]),
        formed=is_well_formed(state.record) if state.tagged else answered and not state.mistakes,
        answer_seen=answer_shown(state.record, state.task.answers),
        grounded=is_grounded(state),
    )

"""Rewards of search: what the end of an episode is worth, one pure function a published reward, and `answer_reward`.

A reward is a pure function of the state of an episode, which holds the task and the record of its turns. It gives what the
latest turn earns, in parts by name; their sum is the reward of the turn.
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
"""From the state after a turn to what the turn earns, by part."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an episode ended."""

    score: float
    """Score of the answer; 0 without one."""
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
    formed: bool = True
    """Whether every action is a thought and a search, and the last one a thought and an answer; see `is_well_formed`."""
    answer_seen: bool = False
    """Whether a page showed an accepted answer."""
    grounded: bool = True
    """Whether the episode met what its answer needs; see `is_grounded`."""


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


def graded_format(
    ending: Ending, *, structure: float = 0.2, final: float = 0.1, retrieval: float = 0.0
) -> float:
    """Search-R1's reward v0.3 (Jin et al. 2025, arXiv:2505.15117), which pays for the form as well as for the answer.

    A right answer is worth 1, or 1 - ``structure`` where the episode is not well formed. A wrong answer is worth
    ``structure`` where the episode is well formed, and ``retrieval`` more where a page showed an accepted answer; otherwise
    ``final``. ``retrieval`` is 0 in the published scripts, and .1 was intended.

    The published program also pays ``final`` where there is no answer, because it takes the example of its own prompt for
    one. Here an episode without an answer is worth 0. It looks for the letters of an answer on a page, by which nearly any
    page shows "no"; here an answer is shown as whole words, and yes and no never are.
    """
    if ending.score >= 1:
        return 1.0 if ending.formed else 1.0 - structure
    if ending.formed:
        return structure + retrieval * ending.answer_seen
    return final * ending.answered


def deliberative(ending: Ending) -> float:
    """Open-AgentRL (Yu et al. 2025): 1 for a right answer, otherwise min(-.6, -1 + .1 n) after n tool turns.

    Published with messages: score + .1 (messages - 2) / 2, of which a tool turn adds two.
    """
    return 1.0 if ending.score >= 1 else min(-0.6, -1.0 + 0.1 * ending.tool_turns)


def flawed_positive(ending: Ending, *, penalty: float = 1.0) -> float:
    """FAPO (2025, arXiv:2510.22543): a right answer that was guessed or reached by a jump earns less.

    Published for rewards of 1 and -1: a right answer with a flaw earns 1 - ``penalty``, and the penalty is 1. Here wrong is
    0 and right is 1, so that half of the penalty is taken. A flaw is found by a rule in place of the paper's trained judge:
    the episode did not meet what the answer needs. Other answers earn their score.

    Args:
        ending: How the episode ended.
        penalty: The paper's lambda; 2 pays a flawed answer like a wrong one, 0 like one without a flaw.
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
"""Outcomes by which an episode without a thought is malformed, so the expert has to think as well."""


def get_outcome(name: str, options: Mapping[str, Any] | None = None) -> Callable[[Ending], float]:
    """The outcome of `OUTCOMES` with this name, or what ``module:name`` names.

    Args:
        name: A function from an `Ending` to the reward of the end.
        options: Its keyword-only arguments, which are filled in.

    Raises:
        UnknownName: there is none, or it has no such option; carries the nearest.
        ConfigurationError: the module cannot be imported, or an option's value is of another type.
    """
    outcome = OUTCOMES[name] if name in OUTCOMES else own_part("outcome", name, OUTCOMES)
    return bind_options("outcome", name, outcome, options or {})


_GLUED = re.compile(r"[(\[](?:think|search|answer)|(?:think|search|answer)[)\]]")


def thinks_in_tags(actions: Sequence[str]) -> bool:
    """IKEA: whether a thought stands in ``actions``, and no name of a tag next to a bracket of another kind.

    Published with the presence of both tags alone, by which an empty thought counts, and one that ends before it begins.
    """
    text = "".join(actions)
    *closed, _ = text.split("</think>")  # an expression for all of it takes the square of the text's length
    thinks = any(part.partition("<think>")[2].strip() for part in closed)
    return thinks and _GLUED.search(text) is None


_FORM = re.compile(
    r"\s*<think>(?:(?!</?(?:think|search|information|answer)>).)*</think>"
    r"\s*<(search|answer)>(?:(?!</?(?:think|search|information|answer)>).)*</\1>\s*",
    re.DOTALL,
)


def is_well_formed(turns: Sequence[ToolReply]) -> bool:
    """Search-R1's form of an episode: (think, search, information)*, then think and answer, with nothing in between.

    The pages are the environment's, so the actions decide: each is a whole thought and a whole search, and the last one a
    whole thought and a whole answer.
    """
    forms = [_FORM.fullmatch(turn.action) for turn in turns]
    wanted = ["search"] * (len(turns) - 1) + ["answer"]
    return all(turn.valid for turn in turns) and [form and form[1] for form in forms] == wanted


def is_one_action(action: str, tags: Sequence[str]) -> bool:
    """Whether each of ``tags`` is opened in ``action`` as often as it is closed, and all of them at most once."""
    opened = [action.count(f"<{tag}>") for tag in tags]
    closed = [action.count(f"</{tag}>") for tag in tags]
    return opened == closed and sum(opened) <= 1


def score_of(state: SearchState, scorer: Scorer) -> float:
    """The score of the answer; 0 without one."""
    return scorer(state.answer, state.task.answers).value if state.answer is not None else 0.0


def answer_shown(turns: Sequence[ToolReply], answers: Sequence[str]) -> bool:
    """Whether a valid page of ``turns`` holds one of ``answers``; see `holds_answer`."""
    return any(turn.valid and holds_answer(turn.page, answers) for turn in turns)


def is_grounded(state: SearchState) -> bool:
    """Whether every passage that the task needs was found; where it names none, whether a page holds an accepted answer.

    A task that names none and is answered by yes or no, which no page holds, is grounded by any page.
    """
    if needed := state.task.data.get("supporting_ids"):
        return all(one in state.by_id for one in needed)
    answers = state.task.answers
    if answers and is_yes_or_no(answers):
        return any(turn.valid and turn.page for turn in state.record)
    return answer_shown(state.record, answers)


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

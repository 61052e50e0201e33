"""``agentenv/CapabilitySearch-v0``: the search environment with a reward for one capability (TRACE, arXiv:2604.05336).

Actions, tools and observations are those of ``LocalSearch-v0``, but the reward is for showing the capability.
``CAPABILITIES`` lists the capabilities with the questions that need each. In the paper, a language model writes these
environments. Here they are rows of a table, because a reward that is a program can be tested, and the policy cannot
influence its judgement by arguments.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentenv.core.scoring.evidence import is_yes_or_no
from agentenv.core.scoring.scorers import get_scorer
from agentenv.core.types import EndReason, ToolStatus
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.local_search import LocalSearch
from agentenv.envs.search.outcomes import answer_shown, score_of
from agentenv.envs.search.search_state import SearchState
from agentenv.errors import ConfigurationError, check_known
from agentenv.retrievers.fakes import InMemoryRetriever

EXERCISE = 0.5
"""The reward of an episode that shows its capability and gives a wrong answer; 1 in the paper."""


@dataclass(frozen=True)
class Capability:
    """A capability of a search agent."""

    skill: str
    """The row of ``SEARCH_SKILLS`` by which an evaluation detects its lack."""
    description: str
    """A description for the model that chooses an adapter."""
    demonstrated: Callable[[SearchState], bool]
    """Whether a finished episode shows it, judging by what its searches found and never only by the policy's words."""
    worlds: tuple[Mapping[str, Any], ...]
    """Options of the worlds whose questions need it, the easiest first."""


def _supported(state: SearchState) -> int:
    """Counts the needed documents that were found; if the question names none, 1 if a page contains the answer."""
    needed = state.task.data.get("supporting_ids")
    if needed:
        return len(set(needed) & state.by_id.keys())
    return int(_answer_found(state))


def _answer_found(state: SearchState) -> bool:
    """Whether a valid page contains an accepted answer; for yes and no, whether all needed documents were found."""
    if is_yes_or_no(state.task.answers):
        needed = state.task.data.get("supporting_ids", ())
        return bool(needed) and set(needed) <= state.by_id.keys()
    return answer_shown(state.record, state.task.answers)


def _searches(state: SearchState) -> bool:
    return _supported(state) > 0


def _chains(state: SearchState) -> bool:
    """Whether all needed documents were found, with a query that used a word known only from an earlier page.

    Words of the question and of earlier queries were known before. Searching for these in two turns is not a chain, and
    neither is repeating a query.
    """
    needed, known, read_words = (
        set(state.task.data.get("supporting_ids", ())),
        _words(state.task.question),
        set[str](),
    )
    chained = False
    for turn in state.record:
        if turn.result is None or "ids" not in turn.result.data:
            continue
        query = turn.action.rpartition("<search>")[2].partition("</search>")[0]
        chained |= bool((_words(query) - known) & read_words)
        known |= _words(query)
        found = {one for ranking in turn.result.data["ids"] for one in ranking} & needed
        read_words |= {word for one in found for word in _words(state.by_id[one].text)}
    return chained and needed <= state.by_id.keys()


def _words(text: str) -> set[str]:
    """Returns the words of a text that could be names: those of at least four letters."""
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) > 3}


def _reads(state: SearchState) -> bool:
    return _answer_found(state) and score_of(state, get_scorer("em_squad")) == 1.0


def _well_formed(state: SearchState) -> bool:
    results = [turn.result for turn in state.record if turn.result is not None]
    sound = all(result.status is ToolStatus.OK for result in results)
    return sound and state.mistakes == 0 and _has_answered(state) and _supported(state) > 0


def _has_answered(state: SearchState) -> bool:
    return state.last.end is EndReason.ANSWERED


def _in_time(state: SearchState) -> bool:
    """Whether the episode found all needed documents and answered at most two turns after the last of them.

    An answer before that does not count, because the agent stopped too early.
    """
    needed = set(state.task.data.get("supporting_ids", ()))
    last, seen = 0, set[str]()
    for number, turn in enumerate(state.record):
        data = {} if turn.result is None else turn.result.data
        found = {one for ranking in data.get("ids", ()) for one in ranking} & needed
        last, seen = (number, seen | found) if found - seen else (last, seen)
    return bool(seen) and needed <= seen and _has_answered(state) and len(state.record) - 1 - last <= 2


_ONE: Mapping[str, Any] = {"hops": (1, 1), "families": ("lookup",), "distractors": 0.0}
_TWO: Mapping[str, Any] = {"hops": (2, 2), "families": ("bridge",), "distractors": 0.0}

CAPABILITIES: Mapping[str, Capability] = {
    "search": Capability(
        "searches",
        "It searches the corpus for what the question is about instead of answering from memory.",
        _searches,
        (_ONE, {**_ONE, "distractors": 0.3}, _TWO),
    ),
    "chain": Capability(
        "chains searches",
        "The question needs several documents, and the name in one of them is what has to be searched next.",
        _chains,
        (_TWO, {**_TWO, "distractors": 0.2}, {**_TWO, "hops": (3, 3)}),
    ),
    "find": Capability(
        "finds the answer",
        "Several things have nearly the same name, and the query has to name the right one.",
        _answer_found,
        ({**_ONE, "distractors": 0.2}, {**_ONE, "distractors": 0.5}, {**_TWO, "distractors": 0.3}),
    ),
    "read": Capability(
        "answers with what it was shown",
        "The answer stands on a page that was found and has to be copied from it.",
        _reads,
        (_ONE, {**_ONE, "words": 80}, _TWO),
    ),
    "form": Capability(
        "writes valid actions",
        "Every action is one complete block of a known tag.",
        _well_formed,
        (_ONE, _TWO),
    ),
    "stop": Capability(
        "answers in time",
        "It answers as soon as it knows enough instead of searching on.",
        _in_time,
        (_ONE, _TWO),
    ),
}
"""The capabilities by name."""


def get_capability(name: str) -> Capability:
    """Returns the capability registered under ``name``.

    Raises:
        UnknownName: there is no such capability.
    """
    check_known("capability", name, CAPABILITIES)
    return CAPABILITIES[name]


def capability_reward(state: SearchState, *, capability: Capability, exercise: float) -> dict[str, float]:
    """Returns ``exercise`` for an episode with the capability, and the rest of 1 if it also answers right; otherwise 0."""
    if state.last.end is None:
        return {}
    right = score_of(state, get_scorer("em_squad"))
    demonstrated = float(capability.demonstrated(state))
    return {"exercised": exercise * demonstrated, "outcome": (1.0 - exercise) * demonstrated * right}


class CapabilitySearch(LocalSearch):
    """Searches as in ``LocalSearch``, with a reward for one capability."""

    def __init__(self, *, capability: str = "search", exercise: float = EXERCISE, **options: Any) -> None:
        """Makes an environment over a corpus.

        Args:
            capability: A row of ``CAPABILITIES``.
            exercise: The reward for showing the capability; the rest of 1 is for a right answer with it. 1 is the paper's
                reward, with which an agent may show a capability without any use.
            **options: Arguments of `LocalSearch`. Without tasks and retriever, a small world is made whose questions need
                the capability. Its search by word overlap does not find every document.

        Raises:
            UnknownName: there is no such capability.
            ConfigurationError: ``exercise`` is not above 0 and at most 1.
        """
        if not 0 < exercise <= 1:
            raise ConfigurationError(f"exercise={exercise} must be above 0 and at most 1")
        chosen = get_capability(capability)
        if options.get("tasks") is None and options.get("retriever") is None:
            world = FictionalWorld.generate(WorldConfig(documents=200, questions=50, **chosen.worlds[0]))
            options |= {"tasks": world.questions, "retriever": InMemoryRetriever(world.documents)}
        super().__init__(**options)
        reward = partial(capability_reward, capability=chosen, exercise=exercise)
        self.parts = replace(self.parts, reward=reward)

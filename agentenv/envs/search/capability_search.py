"""``agentenv/CapabilitySearch-v0``: the search environment with a reward for one capability (TRACE, arXiv:2604.05336).

Actions, tools and observations are those of ``LocalSearch-v0``; what an episode earns is whether it showed the capability.
``CAPABILITIES`` lists them with the questions that exercise each. In the paper a language model writes these environments;
here they are rows of a table, because a reward that is a program of ours can be probed and cannot be argued with.
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
"""What an episode earns that shows its capability and gives a wrong answer; 1 in the paper."""


@dataclass(frozen=True)
class Capability:
    """Something that a search agent has to be able to do."""

    skill: str
    """The row of ``SEARCH_SKILLS`` by which an evaluation finds that it is lacking."""
    description: str
    """What it is, for the model that chooses an adapter."""
    demonstrated: Callable[[SearchState], bool]
    """Whether a finished episode shows it, by what its searches found and never by its words alone."""
    worlds: tuple[Mapping[str, Any], ...]
    """Dials of the worlds that exercise it, the easiest first."""


def _supported(state: SearchState) -> int:
    """How many needed documents were found; of a question that names none, whether a page answers it."""
    needed = state.task.data.get("supporting_ids")
    if needed:
        return len(set(needed) & state.by_id.keys())
    return int(_answer_found(state))


def _answer_found(state: SearchState) -> bool:
    """Whether a valid page holds an accepted answer; of yes and no, which none holds, whether all documents were found."""
    if is_yes_or_no(state.task.answers):
        needed = state.task.data.get("supporting_ids", ())
        return bool(needed) and set(needed) <= state.by_id.keys()
    return answer_shown(state.record, state.task.answers)


def _searches(state: SearchState) -> bool:
    return _supported(state) > 0


def _chains(state: SearchState) -> bool:
    """Whether all needed documents were found, and a query held a word that only a page before it had told.

    The words of the question were known, and so were those of earlier queries: searching for them in two turns is no chain,
    and neither is repeating a query.
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
    """The words of a text that could be names: those of at least four letters."""
    return {word for word in re.findall(r"\w+", text.lower()) if len(word) > 3}


def _reads(state: SearchState) -> bool:
    return _answer_found(state) and score_of(state, get_scorer("em_squad")) == 1.0


def _formed(state: SearchState) -> bool:
    results = [turn.result for turn in state.record if turn.result is not None]
    sound = all(result.status is ToolStatus.OK for result in results)
    return sound and state.mistakes == 0 and _ended(state) and _supported(state) > 0


def _ended(state: SearchState) -> bool:
    return state.last.end is EndReason.ANSWERED


def _in_time(state: SearchState) -> bool:
    """Whether it found all needed documents and answered, no later than two turns after it had found the last of them.

    An answer before that is no end in time: the agent has left off too early.
    """
    needed = set(state.task.data.get("supporting_ids", ()))
    last, seen = 0, set[str]()
    for number, turn in enumerate(state.record):
        data = {} if turn.result is None else turn.result.data
        found = {one for ranking in data.get("ids", ()) for one in ranking} & needed
        last, seen = (number, seen | found) if found - seen else (last, seen)
    return bool(seen) and needed <= seen and _ended(state) and len(state.record) - 1 - last <= 2


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
        _formed,
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
    """The capability registered under ``name``.

    Raises:
        UnknownName: there is none.
    """
    check_known("capability", name, CAPABILITIES)
    return CAPABILITIES[name]


def capability_reward(state: SearchState, *, capability: Capability, exercise: float) -> dict[str, float]:
    """``exercise`` for an episode that shows the capability, and the rest of 1 for a right answer with it; else nothing."""
    if state.last.end is None:
        return {}
    right = score_of(state, get_scorer("em_squad"))
    demonstrated = float(capability.demonstrated(state))
    return {"exercised": exercise * demonstrated, "outcome": (1.0 - exercise) * demonstrated * right}


class CapabilitySearch(LocalSearch):
    """Search as in ``LocalSearch``; paid for one capability."""

    def __init__(self, *, capability: str = "search", exercise: float = EXERCISE, **options: Any) -> None:
        """Builds an environment over a corpus.

        Args:
            capability: Row of ``CAPABILITIES``.
            exercise: What showing it pays; the rest of 1 is paid for a right answer that was reached with it. 1 is the
                paper's reward, under which an agent may exercise a capability to no use.
            **options: Those of `LocalSearch`. Without tasks and retriever a small world that exercises it is made, whose
                search by word overlap does not find every document.

        Raises:
            UnknownName: no such capability.
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

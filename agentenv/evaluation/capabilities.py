"""Finds the skills that a search agent's failures lack, and how to practise each (after TRACE).

For each skill, failures are compared with successes among the episodes that need the skill: those whose question requires it
and that showed what the skill builds on. For example, an episode without a search cannot chain searches or read a page, so
it must not count as lacking these skills as well. All functions are pure functions of records.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from agentenv.core.scoring.normalize import squad
from agentenv.core.types import EndReason, ToolStatus
from agentenv.evaluation.diagnosis import answer_shown, cause_of, ends_in_no_action
from agentenv.evaluation.records import EpisodeRecord

MISSING_GAP = 0.2
"""A skill counts as missing if its share among successes exceeds that among failures by at least this much. It is not a
statistical test: with few successes or failures, such a gap arises by chance. With 20 episodes, half of which succeed, this
happens in a fifth of evaluations."""


@dataclass(frozen=True)
class Skill:
    """A behaviour that an episode shows or lacks, and the condition under which an episode needs it."""

    name: str
    exercises: Callable[[EpisodeRecord], bool]
    """Whether an episode needs the skill, judging by its question and by what was shown before."""
    demonstrated: Callable[[EpisodeRecord], bool]
    """Whether the episode shows the skill."""
    slice: str
    """How to obtain questions that require the skill, in words."""


@dataclass(frozen=True)
class TrainableCapability:
    """A capability with the parts that TRACE needs to train it: how its lack is detected, and tasks to practise it."""

    skill: Skill
    """The skill by which an evaluation detects that the capability is lacking."""
    description: str
    """A description of the capability, for the model that chooses an adapter."""
    variants: tuple[Mapping[str, Any], ...]
    """Changes to a run's configuration by dotted key, such as ``{"train.options": {"length": 3}}``, with which the run's
    environment exercises the capability; the easiest first."""
    success: float = 1.0
    """The smallest reward with which an episode shows the capability there."""


@dataclass(frozen=True)
class SkillReport:
    """How often successes and failures show one skill."""

    skill: str
    slice: str
    episodes: int
    """Number of episodes that need the skill."""
    shown_in_successes: float | None
    """Share of the successes among them that show the skill; None without successes."""
    shown_in_failures: float | None
    missing: bool
    """Whether failures show it less often than successes by ``MISSING_GAP``, or no episode succeeds and hardly any shows
    it."""


def capability_report(
    records: Sequence[EpisodeRecord],
    values: Sequence[float],
    skills: Sequence[Skill],
) -> list[dict[str, Any]]:
    """Returns the fields of a ``SkillReport`` for each skill, the one with the widest gap first.

    Args:
        records: The episodes. Faults are left out.
        values: Their scores.
        skills: The skills to look for.
    """
    solved = [
        (record, cause_of(record, value) == "correct")
        for record, value in zip(records, values, strict=True)
        if record["valid"]
    ]
    found = []
    for skill in skills:
        called = [(record, won) for record, won in solved if skill.exercises(record)]
        good, bad = (
            _share([skill.demonstrated(record) for record, won in called if won is wanted])
            for wanted in (True, False)
        )
        gap = (1.0 if good is None else good) - (1.0 if bad is None else bad)
        missing = bool(called) and gap >= MISSING_GAP
        found.append((gap, SkillReport(skill.name, skill.slice, len(called), good, bad, missing)))
    return [asdict(one) for _, one in sorted(found, key=lambda pair: (-pair[0], pair[1].skill))]


def _share(flags: Sequence[bool]) -> float | None:
    return fmean(flags) if flags else None


def _well_formed(record: EpisodeRecord) -> bool:
    """Whether every action was valid; a search in the last turn, in which only an answer counts, is accepted too."""
    turns = list(record.get("turns", ()))
    if record["end_reason"] == EndReason.TURN_LIMIT.value and not ends_in_no_action(record):
        turns = turns[:-1]
    results = [result for turn in turns for result in turn.get("tool_results", ())]
    return all(turn.get("valid", True) for turn in turns) and all(
        result.get("status", ToolStatus.OK.value) == ToolStatus.OK.value for result in results
    )


def _different_queries(record: EpisodeRecord) -> int:
    """Counts the queries that no earlier search of the episode had already asked."""
    seen: set[str] = set()
    repeated = 0
    for turn in record.get("turns", ()):
        for result in turn.get("tool_results", ()):
            query = squad(result.get("text", ""))
            if query and query in seen:
                repeated += len(result.get("ids", ()))
            seen.add(query)
    return (record["searches"] or 0) - repeated


SEARCH_SKILLS = (
    Skill("searches", lambda record: True, lambda record: (record["searches"] or 0) > 0, "any question"),
    Skill(
        "chains searches",
        lambda record: (record.get("hops") or 1) > 1 and (record["searches"] or 0) > 0,
        lambda record: _different_queries(record) >= (record.get("hops") or 1),
        "questions of two hops and more: agentenv world --hops 2-4",
    ),
    Skill(
        "finds the answer",
        lambda record: _different_queries(record) >= (record.get("hops") or 1),
        answer_shown,
        "questions whose names have twins: world distractors = 0.5",
    ),
    Skill(
        "answers with what it was shown",
        lambda record: record["prediction"] is not None and answer_shown(record),
        lambda record: answer_shown({**record, "answers": [record["prediction"] or ""]}),
        "questions with their passages shown",
    ),
    Skill("writes valid actions", lambda record: True, _well_formed, "any question"),
    Skill(
        "answers in time",
        lambda record: not ends_in_no_action(record),
        lambda record: record["end_reason"] == EndReason.ANSWERED.value,
        "fewer turns: max_turns",
    ),
)
"""The skills that a search agent needs."""

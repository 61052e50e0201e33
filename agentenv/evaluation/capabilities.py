"""Which skills a search agent's failures lack, and the slice of the environment that exercises each (after TRACE).

Failures are compared with successes skill by skill, among the episodes that call for the skill: those whose question does,
and in which what the skill builds on was shown. An episode without a search cannot chain searches or read a
page, and would otherwise be said to lack these skills as well. Pure functions over records.
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
"""Gap between the shares of successes and failures from which a skill counts as missing. It is no test: of few successes or
failures such a gap arises by chance, of 20 episodes half of which succeed in a fifth of evaluations."""


@dataclass(frozen=True)
class Skill:
    """Something that an episode shows or lacks, and the questions that exercise it."""

    name: str
    exercises: Callable[[EpisodeRecord], bool]
    """Whether an episode calls for it, by its question and by what it showed before."""
    demonstrated: Callable[[EpisodeRecord], bool]
    """Whether the episode shows it."""
    slice: str
    """How to get questions that exercise it, in words."""


@dataclass(frozen=True)
class TrainableCapability:
    """A capability with what TRACE needs to train it: how it is found lacking, and tasks that exercise it."""

    skill: Skill
    """By which an evaluation finds that it is lacking."""
    description: str
    """What it is, for the model that chooses an adapter."""
    variants: tuple[Mapping[str, Any], ...]
    """Changes to a run's configuration by dotted key, such as ``{"train.options": {"length": 3}}``, under which the run's
    environment exercises it; the easiest first."""
    success: float = 1.0
    """Reward from which an episode there shows it."""


@dataclass(frozen=True)
class SkillReport:
    """How a skill stands."""

    skill: str
    slice: str
    episodes: int
    """That call for it."""
    shown_in_successes: float | None
    """Share of the successes among them that show it; None where there are none."""
    shown_in_failures: float | None
    missing: bool
    """Shown less often in failures than in successes, by ``MISSING_GAP``; or never a success and hardly ever shown."""


def capability_report(
    records: Sequence[EpisodeRecord],
    values: Sequence[float],
    skills: Sequence[Skill],
) -> list[dict[str, Any]]:
    """The fields of a ``SkillReport`` for each skill, those with the widest gap first.

    Args:
        records: Episodes; faults say nothing.
        values: Their scores.
        skills: What to look for.
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
    """Whether every action was one; a search in the last turn, in which only an answer counts, is one all the same."""
    turns = list(record.get("turns", ()))
    if record["end_reason"] == EndReason.TURN_LIMIT.value and not ends_in_no_action(record):
        turns = turns[:-1]
    results = [result for turn in turns for result in turn.get("tool_results", ())]
    return all(turn.get("valid", True) for turn in turns) and all(
        result.get("status", ToolStatus.OK.value) == ToolStatus.OK.value for result in results
    )


def _different_queries(record: EpisodeRecord) -> int:
    """How many queries were asked that no earlier search of the episode had asked already."""
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
"""What an agent that searches has to be able to do."""

"""What a policy cannot do yet: kinds of tasks that it fails (SwS), and skills that its failures lack (TRACE).

*Self-aware weakness-driven synthesis* (Liang et al. 2025) finds the kinds of tasks that are failed again and again and
asks for new ones of them, in shares of their failures. *TRACE* compares failures with successes skill by skill and names
the slice of the environment that exercises what is lacking. Both are pure functions here; kinds are frames of questions.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentenv.core.scorers import get_scorer
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, ToolStatus
from agentenv.trainers.board import mean_of
from agentenv.trainers.question_pool import frame


@dataclass(frozen=True)
class Weakness:
    """One kind of task that is often failed."""

    kind: str
    """The frame of its questions."""
    tasks: int
    """How many were played."""
    failure_rate: float
    """Mean share of failed attempts."""
    share: float
    """Part of the next proposals that should be of this kind; the parts of all weaknesses add up to 1."""
    example: str
    """The question of this kind that was failed most, the first of equals."""


def weaknesses(rates: Mapping[str, float], *, at_most: float = 0.5, least: int = 2) -> list[Weakness]:
    """The kinds with at least ``least`` tasks and a mean solve rate of at most ``at_most``, the weakest first.

    Args:
        rates: Share of solved attempts by question.
        at_most: Solve rate above which a kind is no weakness.
        least: Tasks below which nothing is said of a kind.
    """
    kinds: dict[str, list[str]] = defaultdict(list)
    for question in rates:
        kinds[frame(question)].append(question)
    failed = {kind: sum(1 - rates[q] for q in asked) / len(asked) for kind, asked in kinds.items()}
    weak = [kind for kind, asked in kinds.items() if len(asked) >= least and 1 - failed[kind] <= at_most]
    total = sum(failed[kind] for kind in weak)
    found = [
        Weakness(
            kind,
            len(kinds[kind]),
            failed[kind],
            failed[kind] / total,
            min(kinds[kind], key=lambda q: rates[q]),
        )
        for kind in weak
    ]
    return sorted(found, key=lambda weakness: (-weakness.failure_rate, weakness.kind))


@dataclass(frozen=True)
class Skill:
    """Something that an episode shows or lacks, and the tasks that exercise it."""

    name: str
    exercises: Callable[[Trajectory], bool]
    """Whether the task of an episode calls for it."""
    shown: Callable[[Trajectory], bool]
    """Whether the episode shows it."""
    slice: str
    """How to get tasks that exercise it, in words."""


@dataclass(frozen=True)
class Lack:
    """How a skill stands."""

    skill: str
    slice: str
    tasks: int
    """Episodes that call for it."""
    shown_in_successes: float | None
    """Share of the successes among them that show it; None where there are none."""
    shown_in_failures: float | None
    missing: bool
    """Shown less often in failures than in successes, by the margin; or never a success and hardly ever shown."""


def capability_report(
    episodes: Sequence[Trajectory], skills: Sequence[Skill], *, margin: float = 0.2
) -> list[Lack]:
    """Which skills the failures lack, those with the widest gap first.

    Args:
        episodes: Valid ones, solved where their reward is 1.
        skills: What to look for.
        margin: Gap between the shares of successes and failures from which a skill counts as missing.
    """
    found = []
    for skill in skills:
        called = [t for t in episodes if t.valid and skill.exercises(t)]
        good, bad = (
            mean_of([skill.shown(t) for t in called if (t.reward >= 1) is won]) for won in (True, False)
        )
        gap = (1.0 if good is None else good) - (1.0 if bad is None else bad)
        found.append(
            (gap, Lack(skill.name, skill.slice, len(called), good, bad, bool(called) and gap >= margin))
        )
    return [lack for _, lack in sorted(found, key=lambda pair: (-pair[0], pair[1].skill))]


def _searches(trajectory: Trajectory) -> int:
    return sum(r.name == "search" for turn in trajectory.turns for r in turn.tool_results)


def _hops(trajectory: Trajectory) -> int:
    return int(trajectory.task.data.get("hops", trajectory.task.data.get("searches", 1)))


def _saw_answer(trajectory: Trajectory) -> bool:
    pages = "".join(message.text for turn in trajectory.turns for message in turn.observation)
    return get_scorer("em_cover")(pages, trajectory.task.answers).value > 0


SEARCH_SKILLS = (
    Skill("searches", lambda t: True, lambda t: _searches(t) > 0, "any task"),
    Skill(
        "chains searches",
        lambda t: _hops(t) > 1,
        lambda t: _searches(t) >= _hops(t),
        "tasks of two hops and more: agentenv world --hops 2-4, or searches = [2, 2]",
    ),
    Skill(
        "finds the answer",
        lambda t: True,
        _saw_answer,
        "tasks whose names have twins: world distractors = 0.5",
    ),
    Skill(
        "reads the answer off the page",
        _saw_answer,
        lambda t: t.reward >= 1,
        "tasks with their passages shown: the drills of agentenv warmstart",
    ),
    Skill(
        "writes valid actions",
        lambda t: True,
        lambda t: (
            all(turn.valid for turn in t.turns)
            and all(r.status is ToolStatus.OK for turn in t.turns for r in turn.tool_results)
        ),
        "any task",
    ),
    Skill(
        "answers in time",
        lambda t: True,
        lambda t: t.end_reason is EndReason.ANSWERED,
        "fewer turns: max_turns",
    ),
)
"""What an agent that searches has to be able to do."""

"""Does each part of TraceCoder repair more programs than best of n? A scripted repairer that errs, in ``TraceCode-v0``.

TraceCoder (arXiv:2602.06875) repairs a program by prints, a plan, a memory of failed plans, and a strict rollback. Each arm
is given the same 400 programs that fail a public test, written by `scripted_repairer`, and uses one part more than the arm
before. What an arm does not use it does not read, and without the trace it adds no prints, so that these cost no tests.
When an episode ends before the budget is spent, the arm begins anew with another first program. Its answer is the program
with the most passed public tests, the first of equals, that it has handed in within the budget; what counts is whether it
passes all hidden tests. A budget is one of these:

- ``tests``: executed public tests: 4 for each program, and for each trace one for every failing test, and 4 by which the
  environment checks that the prints change nothing; ``traced_once`` leaves these last 4 out;
- ``tokens``: words and signs that are written and read;
- ``turns``: a program from nothing is one, a round of repair is three, also where no prints are added.

    python benchmarks/trace_repair.py

The programs run in this very process, without a sandbox: they are the lines of a fixed table.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any, Literal

import numpy as np
from common import common_arguments, finish, run_script
from scripted_repairer import Reads, Repairer, Sketch, Skill, sketch_of

from agentenv.core.types import Task
from agentenv.data.code_tasks import generate_code_tasks
from agentenv.envs.trace_code import SUBMIT, TraceCode
from agentenv.evaluation.statistics import estimate, paired_bootstrap
from agentenv.sandbox.fakes import FakeExecutor
from agentenv.sandbox.grading import CaseOutcome, ProgramGrade, grade
from agentenv.sandbox.types import ExecResult, FunctionCall

PROGRAMS, SEED = 400, 0
PUBLIC, HIDDEN = 4, 4
BUDGETS: Mapping[str, Sequence[int]] = {
    "tests": (20, 40, 60, 120),
    "traced_once": (20, 40, 60, 120),
    "tokens": (1000, 2000, 4000, 8000),
    "turns": (8, 16, 32),
}
MAIN = ("tests", 60)
"""The budget of the comparison: a first program and five rounds of the whole method need 49 to 64."""
COMPARED = (MAIN, ("traced_once", 60), ("tokens", 4000), ("turns", 16))
"""The budgets within which arms are compared."""


@dataclass(frozen=True)
class Arm:
    """What the repairer reads, and the rules of the environment."""

    reads: Reads = field(default_factory=Reads)
    accept: Literal["more", "as_many", "all"] = "all"
    rounds: int = 5
    patience: int = 2


BEST_OF_N, WHOLE = "best of n", "+ rollback"
ARMS: Mapping[str, Arm] = {
    BEST_OF_N: Arm(rounds=0),
    "retry": Arm(),
    "+ errors": Arm(Reads(errors=True)),
    "+ trace": Arm(Reads(errors=True, trace=True)),
    "+ history": Arm(Reads(errors=True, trace=True, history=True)),
    WHOLE: Arm(Reads(errors=True, trace=True, history=True), "more"),
    "whole, no trace": Arm(Reads(errors=True, history=True), "more"),
    "whole, no history": Arm(Reads(errors=True, trace=True), "more"),
    "whole, equals kept": Arm(Reads(errors=True, trace=True, history=True), "as_many"),
    "retry, rollback": Arm(accept="more"),
}
LADDER = tuple(ARMS)[1:6]
"""Each of these has one part more than the one before."""


@dataclass(frozen=True)
class Setting:
    """A kind of repairer, the length of the programs, and what the environment allows."""

    error: float = 0.35
    hard: float | None = None
    """How often it errs in one line of each program, if not as in the others."""
    misread: float = 0.35
    habit: float = 0.5
    parts: int = 1
    """1: each test runs every line. More: each test runs the lines of one part."""
    steps: int = 4
    """Lines of a part before the last."""
    raising: bool = True
    """Whether a mistake may make the program raise."""
    patience: int = 2
    rounds: int = 5
    arms: tuple[str, ...] = tuple(ARMS)


FEW = (BEST_OF_N, "+ history", WHOLE, "whole, no trace", "whole, no history", "retry, rollback")
SETTINGS: Mapping[str, Setting] = {
    "errors .35": Setting(),
    "parts, errors .35": Setting(parts=4, steps=1),
    "errors .20": Setting(error=0.2, misread=0.2),
    "errors .50": Setting(error=0.5, misread=0.5),
    "parts, errors .20": Setting(error=0.2, misread=0.2, parts=4, steps=1),
    "parts, errors .50": Setting(error=0.5, misread=0.5, parts=4, steps=1),
    "parts, nothing misread": Setting(misread=0.0, parts=4, steps=1),
    "nothing misread": Setting(misread=0.0),
    "misread .70": Setting(misread=0.7, arms=FEW),
    "all misread": Setting(misread=1.0, arms=FEW),
    "mistakes at random": Setting(habit=0.0, arms=FEW),
    "always the same mistake": Setting(habit=1.0, arms=FEW),
    "nothing raises": Setting(raising=False, arms=(*tuple(ARMS)[:6], "whole, no trace")),
    "three lines": Setting(steps=2, arms=FEW),
    "seven lines": Setting(steps=6, arms=FEW),
    "one hard line": Setting(0.2, 0.9, 0.2),
    "parts, one hard line": Setting(0.2, 0.9, 0.2, parts=4, steps=1),
    "patience 5": Setting(patience=5, rounds=20, arms=(*FEW, "whole, equals kept")),
}


@dataclass(frozen=True)
class Try:
    """A program that passed more public tests than any before: what all had cost by then, and how it did."""

    tests: int
    traced_once: int
    tokens: int
    turns: int
    passed: int
    solved: bool


@dataclass(frozen=True)
class Repair:
    """What a repair did to the line that it wrote again, and whether the environment kept it."""

    was_right: bool
    is_right: bool
    kept: bool


class Counting(FakeExecutor):
    """Counts the executed public tests: calls with their arguments, and runs for a trace."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._public = [test.arguments for test in task.data["tests"][:PUBLIC]]
        self.called = self.traced = 0

    def run(self, code: str, *, calls: Sequence[FunctionCall] | None = None, **options: Any) -> ExecResult:
        """As the executor does."""
        self.traced += calls is None
        self.called += sum(call.arguments in self._public for call in calls or ())
        self.programs.clear()
        return super().run(code, calls=calls, **options)


@dataclass(frozen=True)
class Case:
    """A task, what the repairer knows and prefers, and a first program of it that fails a public test."""

    number: int
    task: Task
    sketch: Sketch
    skill: Skill
    favourites: Sequence[str]
    first: Sequence[str]


def cases(setting: Setting, count: int) -> Iterator[Case]:
    """The programs to be repaired."""
    for number, task in enumerate(tasks_of(setting, count)):
        sketch = sketch_of(task.question)
        if not setting.raising:
            sketch = quiet(task, sketch)
        rng = np.random.default_rng([SEED, number])
        favourites = [str(rng.choice(line.mutants or [line.source])) for line in sketch.lines]
        skill = skill_of(setting, len(sketch.lines), np.random.default_rng([SEED, number, 0]))
        writer = Repairer(sketch, Reads(), skill, favourites, rng)
        first = writer.draft()
        while graded(task, sketch.text(first), hidden=False).all_passed:
            first = writer.draft()
        yield Case(number, task, sketch, skill, favourites, first)


def tasks_of(setting: Setting, count: int) -> Sequence[Task]:
    """Tasks of one part as the package makes them, or of several such parts with one public and one hidden test each."""
    tests = (PUBLIC + HIDDEN) // setting.parts
    wanted = count * setting.parts
    made = generate_code_tasks(6 * wanted, seed=SEED, steps=setting.steps, tests=tests)
    chosen = [task for task in made if telling(task)][:wanted]
    if len(chosen) < wanted:
        raise ValueError(
            f"of {6 * wanted} tasks only {len(chosen)} have telling tests, where {wanted} are needed"
        )
    if setting.parts == 1:
        return chosen
    groups = [chosen[start : start + setting.parts] for start in range(0, wanted, setting.parts)]
    return [joined(f"parts-{number}", group) for number, group in enumerate(groups)]


def telling(task: Task) -> bool:
    """Whether more than half of the expected values differ: where all are 0, wrong programs are as good as the right one."""
    tests = task.data["tests"]
    return len({repr(test.expected) for test in tests}) > len(tests) / 2


def joined(name: str, parts: Sequence[Task]) -> Task:
    """A task whose function does what one of the parts asks for."""
    asked = [
        re.sub(r"^.*that takes", f"If part is {n}, it takes", one.question.splitlines()[0])
        for n, one in enumerate(parts)
    ]
    tests = [
        replace(one.data["tests"][at], arguments=(number, *one.data["tests"][at].arguments))
        for at in range(2)
        for number, one in enumerate(parts)
    ]
    return Task(
        name, "\n".join(["Write a Python function solve(part, x).", *asked]), ("",), data={"tests": tests}
    )


def quiet(task: Task, sketch: Sketch) -> Sketch:
    """The sketch without the mutants that alone make the right program raise."""
    right = [line.source for line in sketch.lines]

    def raises(number: int, source: str) -> bool:
        program = sketch.text([*right[:number], source, *right[number + 1 :]])
        return CaseOutcome.ERROR in grade(FakeExecutor(), program, task.data["tests"]).outcomes

    lines = [
        replace(line, mutants=tuple(one for one in line.mutants if not raises(number, one)))
        for number, line in enumerate(sketch.lines)
    ]
    return replace(sketch, lines=tuple(lines))


def skill_of(setting: Setting, lines: int, rng: np.random.Generator) -> Skill:
    """How the repairer of a setting errs in a program of so many lines."""
    errors = [setting.error] * lines
    if setting.hard is not None:
        errors[int(rng.integers(lines))] = setting.hard
    return Skill(errors, setting.misread, setting.habit)


def graded(task: Task, program: str, *, hidden: bool) -> ProgramGrade:
    """How a program does in the public or in the hidden tests."""
    tests = task.data["tests"]
    return grade(FakeExecutor(), program, tests[PUBLIC:] if hidden else tests[:PUBLIC])


def tokens(text: str) -> int:
    """Words and signs of a text."""
    return len(re.findall(r"\w+|[^\w\s]", text))


class Play:
    """One program in the hands of one arm, until a program passes all public tests or every budget is spent."""

    def __init__(self, case: Case, arm: Arm, stream: int) -> None:
        self.case, self.arm = case, arm
        self.rng = np.random.default_rng([SEED, case.number, stream])
        self.counting = Counting(case.task)
        self.env = TraceCode(
            tasks=[case.task],
            executor=self.counting,
            public=PUBLIC,
            rounds=arm.rounds,
            patience=arm.patience,
            accept=arm.accept,
        )
        self.tokens = self.turns = self.checks = 0
        self.first_episode = 0
        """Executed public tests when the first episode ended."""
        self.tries: list[Try] = []
        self.repairs: list[Repair] = []

    def run(self) -> None:
        """Plays episodes."""
        while self._goes_on():
            self._episode()
            self.first_episode = self.first_episode or self._spent()["tests"]

    def _spent(self) -> dict[str, int]:
        """What all has cost, in each unit of the budgets."""
        tests = self.counting.called + self.counting.traced
        once = tests - self.checks
        return {"tests": tests, "traced_once": once, "tokens": self.tokens, "turns": self.turns}

    def _goes_on(self) -> bool:
        spent = self._spent()
        left = any(spent[unit] < max(BUDGETS[unit]) for unit in BUDGETS)
        return left and not (self.tries and self.tries[-1].passed == PUBLIC)

    def _episode(self) -> None:
        """The first episode begins with the program that is to be repaired, a later one with another program."""
        shown = self.env.reset(seed=0)[0][0].text
        case = self.case
        player = Repairer(case.sketch, self.arm.reads, case.skill, case.favourites, self.rng)
        action = player.hand_in(player.draft() if self.tries else list(case.first))
        while True:
            self.turns += 1
            self.tokens += tokens(shown) + tokens(action)
            called = self.counting.called
            step = self.env.step(action)
            (result,) = step.info["tool_results"]
            if result.name == SUBMIT:
                self._note(player, result.data)
            else:
                self.checks += self.counting.called - called
            if step.terminated or not self._goes_on():
                return
            shown = step.observation[0].text
            action = player.act(shown)

    def _note(self, player: Repairer, found: Mapping[str, Any]) -> None:
        """Keeps what was handed in, where it is better than all before, and what a repair did."""
        if not self.tries or found["passed"] > self.tries[-1].passed:
            program = self.case.sketch.text(player.written)
            solved = graded(self.case.task, program, hidden=True).all_passed
            self.tries.append(Try(**self._spent(), passed=found["passed"], solved=solved))
        if player.base:
            number, source = player.plan
            right = self.case.sketch.lines[number].source
            self.repairs.append(Repair(player.base[number] == right, source == right, found["accepted"]))


def solved_within(tries: Sequence[Try], unit: str, budget: int) -> float:
    """Whether the last, and so the best, program that a budget paid for passes all hidden tests."""
    paid = [one for one in tries if getattr(one, unit) <= budget]
    return float(bool(paid) and paid[-1].solved)


def of_repairs(repairs: Sequence[Repair]) -> dict[str, float]:
    """How often a repair chose a wrong line, mended it, or spoilt a right one, and what became of those that mended."""
    mended = [one for one in repairs if not one.was_right and one.is_right]
    return {
        "repairs": len(repairs),
        "wrong_line_chosen": fmean(not one.was_right for one in repairs),
        "mended": len(mended) / len(repairs),
        "spoilt": fmean(one.was_right and not one.is_right for one in repairs),
        "mended_and_rolled_back": fmean(not one.kept for one in mended),
    }


def of_setting(setting: Setting, count: int) -> dict[str, Any]:
    """The figures of all arms of a setting."""
    plays: dict[str, list[Play]] = {name: [] for name in setting.arms}
    for case in cases(setting, count):
        for name in setting.arms:
            arm = ARMS[name]
            if arm.rounds:
                arm = replace(arm, rounds=setting.rounds, patience=setting.patience)
            plays[name].append(Play(case, arm, list(ARMS).index(name) + 1))
            plays[name][-1].run()
    wrong = [_wrong(play.case) for play in plays[BEST_OF_N]]
    return {
        "first_programs": {
            "wrong_lines": {
                str(number): fmean(one == number for one in wrong) for number in sorted(set(wrong))
            },
            "raise": fmean(_raises(play.case) for play in plays[BEST_OF_N]),
        },
        "arms": {name: of_arm(name, plays) for name in setting.arms},
    }


def _wrong(case: Case) -> int:
    """The lines of a first program that are not those of the right one."""
    return sum(source != line.source for source, line in zip(case.first, case.sketch.lines, strict=True))


def _raises(case: Case) -> bool:
    """Whether a first program raises in a public test."""
    return CaseOutcome.ERROR in graded(case.task, case.sketch.text(case.first), hidden=False).outcomes


def of_arm(name: str, plays: Mapping[str, Sequence[Play]]) -> dict[str, Any]:
    """The shares of an arm within each budget, beside best of n and beside the arm with one part less."""
    found: dict[str, Any] = {
        f"{unit} {budget}": _within(name, plays, unit, budget) for unit in BUDGETS for budget in BUDGETS[unit]
    }
    main = found[f"{MAIN[0]} {MAIN[1]}"]
    scores = _scores(plays[name], *MAIN)
    main["ci95"] = estimate(scores).ci95
    if name != WHOLE:
        main["over_whole"] = _paired(_scores(plays[WHOLE], *MAIN), scores)
    wrong = [min(3, _wrong(play.case)) for play in plays[name]]
    main["by_wrong_lines"] = {
        str(number): fmean(score for score, one in zip(scores, wrong, strict=True) if one == number)
        for number in sorted(set(wrong))
    }
    if repairs := [one for play in plays[name] for one in play.repairs]:
        found["of_repairs"] = of_repairs(repairs)
        found["first_episode"] = _first_episode(plays[name], plays[BEST_OF_N])
    return found


def _scores(plays: Sequence[Play], unit: str, budget: int) -> list[float]:
    return [solved_within(play.tries, unit, budget) for play in plays]


def _within(name: str, plays: Mapping[str, Sequence[Play]], unit: str, budget: int) -> dict[str, Any]:
    """The share that an arm solves within a budget, and the paired differences within those that are compared."""
    scores = _scores(plays[name], unit, budget)
    row: dict[str, Any] = {"solved": fmean(scores)}
    if (unit, budget) not in COMPARED:
        return row
    if name != BEST_OF_N:
        row["over_best_of_n"] = _paired(_scores(plays[BEST_OF_N], unit, budget), scores)
    if name in LADDER[1:] and (less := LADDER[LADDER.index(name) - 1]) in plays:
        row["over_one_part_less"] = _paired(_scores(plays[less], unit, budget), scores)
    return row


def _first_episode(plays: Sequence[Play], best_of_n: Sequence[Play]) -> dict[str, Any]:
    """An arm without a second episode, beside best of n with as many tests for each program."""
    alone = [solved_within(play.tries, "tests", play.first_episode) for play in plays]
    beside = [
        solved_within(other.tries, "tests", play.first_episode)
        for play, other in zip(plays, best_of_n, strict=True)
    ]
    return {
        "solved": fmean(alone),
        "tests": fmean(play.first_episode for play in plays),
        "best_of_n": fmean(beside),
        "over_best_of_n": _paired(beside, alone),
    }


def _paired(less: Sequence[float], more: Sequence[float]) -> dict[str, Any]:
    found = paired_bootstrap(less, more)
    return {"difference": found.difference, "ci95": found.ci95, "p": found.p_value}


def main() -> None:
    """Plays, reports, writes."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--programs", type=int, default=PROGRAMS, help="programs to be repaired")
    parser.add_argument("--only", nargs="+", choices=list(SETTINGS), help="these settings alone")
    args = parser.parse_args()
    figures, lines = {}, []
    for name, setting in SETTINGS.items():
        if args.only and name not in args.only:
            continue
        figures[name] = {"setting": asdict(setting), **of_setting(setting, args.programs)}
        lines.append(name)
        for arm, row in figures[name]["arms"].items():
            shares = "  ".join(
                f"{budget} {row[budget]['solved']:.3f}"
                for budget in (f"{unit} {most}" for unit, all_of in BUDGETS.items() for most in all_of)
            )
            lines.append(f"  {arm:20} {shares}  {row.get('of_repairs', '')}")
    settings = {"programs": args.programs, "seed": SEED, "public": PUBLIC, "hidden": HIDDEN}
    finish("trace_repair", args, {"settings": settings, "found": figures}, lines)


if __name__ == "__main__":
    run_script(main)

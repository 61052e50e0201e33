"""A scripted programmer for ``agentenv/TraceCode-v0`` that errs at a given rate, and reads nothing but the messages shown.

It knows the statement for each step of the small tasks, and writes a line right with probability 1 - ``errors[line]``,
whether for the first or the fifth time. A wrong line is a mutant of the right one: with probability ``habit`` the one that
this programmer prefers for that line of that task, else any. A repair writes one line of the program once more, drawn as
any other line. What a failure says serves to choose the line, and plans that failed serve not to write the same there
again; nothing ever says what is to be written. Whatever line a failure points to, with probability ``misread`` a random one
is taken.

- From a traceback it takes the line in which the program raised.
- From a trace it takes the first line whose printed value is not the one that the words of the task ask for.
- Where nothing points to a line, it takes a random one.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from agentenv.data.code_tasks import FAMILIES
from agentenv.envs.trace_code import ASK, INSTRUMENT, PLAN, SUBMIT

CALLS = {
    "sum": "len",
    "len": "sum",
    "max": "min",
    "sorted": "reversed",
    "list": "set",
    "upper": "lower",
    "count": "find",
}
"""Functions that are mistaken for another one."""
OPERATORS: Mapping[type[ast.operator], Sequence[type[ast.operator]]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.Mod: (ast.FloorDiv,),
}
COMPARISONS: Mapping[type[ast.cmpop], Sequence[type[ast.cmpop]]] = {
    ast.Eq: (ast.NotEq,),
    ast.Gt: (ast.GtE, ast.Lt),
}
_ASKED = re.compile(r"takes (.+?) and does this: (.+)\.$", re.MULTILINE)
_FRAME = re.compile(r'File "main\.py", line (\d+), in solve')
_TEST = re.compile(r"^\[solve\((.*)\)\]$", re.MULTILINE)
_PRINTED = re.compile(r"^line (\d+): (.*)$", re.MULTILINE)
_RETURNED = re.compile(r"^returned: (.*)$", re.MULTILINE)
_PLANNED = re.compile(r"^Write line (\d+) as: (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Reads:
    """What of the messages it makes use of; without any of it, it only knows that the program failed."""

    errors: bool = False
    trace: bool = False
    history: bool = False


@dataclass(frozen=True)
class Skill:
    """How often it errs: in each line of the program, in what a failure points to, and in the same way as before."""

    errors: Sequence[float]
    misread: float
    habit: float


@dataclass(frozen=True)
class Line:
    """A line of the right program, what it makes of a value, and how it is written wrong."""

    source: str
    meaning: Callable[[Any], Any]
    mutants: tuple[str, ...]


def mutants(source: str) -> tuple[str, ...]:
    """The line with one number, operator, comparison, bound, name or function mistaken, or with its step left out."""
    found = [ast.unparse(tree) for tree in _mutated(source)]
    found.append("return x" if source.startswith("return") else "x = x")
    return tuple(one for one in dict.fromkeys(found) if one != source)


def _mutated(source: str) -> Iterator[ast.stmt]:
    """The parsed line with each change made to it in turn."""

    def parsed() -> tuple[ast.stmt, list[ast.AST]]:
        (line,) = ast.parse(f"def solve(x):\n    {source}").body[0].body  # type: ignore[attr-defined]
        return line, list(ast.walk(line))

    for place in range(len(parsed()[1])):
        for change in range(2):
            line, nodes = parsed()
            if _changed(nodes[place], change):
                yield line


def _changed(node: ast.AST, change: int) -> bool:
    """Makes the first or second change that the node allows, and says whether there was one."""
    match node:
        case ast.Constant(value=int(number)):
            node.value = number + (1, -1)[change]
        case ast.BinOp(op=op) if change < len(OPERATORS.get(type(op), ())):
            node.op = OPERATORS[type(op)][change]()
        case ast.Compare(ops=[op]) if change < len(COMPARISONS.get(type(op), ())):
            node.ops = [COMPARISONS[type(op)][change]()]
        case ast.Slice(step=None) if not change:
            node.lower, node.upper = node.upper, node.lower
        case ast.Name(id="x", ctx=ast.Load()) if not change:
            node.id = "y"
        case ast.Call(func=ast.Name(id=name) as function) if not change and name in CALLS:
            function.id = CALLS[name]
        case ast.Call(func=ast.Attribute(attr=name) as method) if not change and name in CALLS:
            method.attr = CALLS[name]
        case _:
            return False
    return True


@dataclass(frozen=True)
class Sketch:
    """What the programmer knows of a program: its lines, and how many of them each part has.

    A program of one part is a function of ``x``. One of several is a function of ``part`` and ``x``, and a call runs the
    lines of one part.
    """

    lines: tuple[Line, ...]
    sizes: tuple[int, ...]

    def text(self, sources: Sequence[str]) -> str:
        """The function with these lines."""
        several = len(self.sizes) > 1
        written = ["def solve(part, x):" if several else "def solve(x):"]
        for part, numbers in enumerate(self.parts()):
            if several:
                written.append(f"    if part == {part}:")
            indent = "        " if several else "    "
            written += [indent + line for number in numbers for line in sources[number].splitlines()]
        return "\n".join(written)

    def parts(self) -> list[range]:
        """The numbers of the lines of each part, from 0."""
        ends = np.cumsum(self.sizes).tolist()
        return [range(end - size, end) for size, end in zip(self.sizes, ends, strict=True)]

    def sources(self, program: str) -> list[str]:
        """The lines of such a function."""
        return [line.strip() for line in program.splitlines() if _is_source(line)]

    def with_prints(self, sources: Sequence[str]) -> str:
        """The function with a print after each line but those that return, whose value the environment prints."""
        told = [
            source if source.startswith("return") else f"{source}\nprint('line {number}:', repr(x))"
            for number, source in enumerate(sources, 1)
        ]
        return self.text(told)

    def named(self, shown: str, sources: Sequence[str]) -> int | None:
        """The line in which the program raised; None where no traceback is shown."""
        found = _FRAME.findall(shown)
        before = self.text(sources).splitlines()[: int(found[-1]) - 1] if found else []
        return sum(map(_is_source, before)) if found else None

    def first_wrong(self, shown: str) -> int | None:
        """The first line whose value is wrong or missing in the first test whose trace can be read."""
        _, *blocks = _TEST.split(shown)
        for arguments, printed in zip(blocks[::2], blocks[1::2], strict=True):
            *part, value = ast.literal_eval(f"({arguments},)")
            numbers = self.parts()[part[0] if part else 0]
            told = {int(number) - 1: text for number, text in _PRINTED.findall(printed)}
            if returned := _RETURNED.search(printed):
                told[numbers[-1]] = returned[1]
            for number in numbers:
                value = self.lines[number].meaning(value)
                if told.get(number) != repr(value):
                    return number
        return None


def _is_source(line: str) -> bool:
    return line.strip().startswith(("x = ", "return "))


def sketch_of(prompt: str) -> Sketch:
    """The right program, from the words of the task."""
    parts = []
    for kind, words in _ASKED.findall(prompt):
        (steps,) = [(*middle, *ends) for known, middle, ends in FAMILIES.values() if known == kind]
        parts.append([_line(one, steps) for one in words.split(", then ")])
    return Sketch(tuple(line for part in parts for line in part), tuple(map(len, parts)))


def _line(words: str, steps: Sequence[Any]) -> Line:
    for step in steps:
        form = re.escape(step.words).replace(re.escape("{n}"), r"(\d+)")
        if found := re.fullmatch(form, words):
            number = int(found[1]) if found.groups() else 0
            source = step.source.format(n=number)
            return Line(source, partial(_result, step.act, number), mutants(source))
    raise ValueError(f"no step has the words {words!r}")


def _result(act: Callable[[Any, int], Any], number: int, value: Any) -> Any:
    return act(value, number)


def failed_plans(shown: str) -> frozenset[tuple[int, str]]:
    """Lines, from 0, and what the plans that failed wrote there."""
    _, _, told = shown.partition("Plans that failed:\n")
    return frozenset((int(number) - 1, source) for number, source in _PLANNED.findall(told))


@dataclass
class Repairer:
    """Plays an episode of a task; ``act`` maps the message that is shown to the next action."""

    sketch: Sketch
    reads: Reads
    skill: Skill
    favourites: Sequence[str]
    """The mutant of each line that it prefers."""
    rng: np.random.Generator
    base: list[str] = field(default_factory=list)
    """The lines from which the next repair starts, as far as it was told."""
    written: list[str] = field(default_factory=list)
    """The lines that were handed in last."""
    plan: tuple[int, str] = (0, "")
    """The line of the present plan, and what it writes there."""
    pointed: int | None = None
    """The line that the last failure named."""

    def draft(self) -> list[str]:
        """A program from nothing."""
        return [self.write(number) for number in range(len(self.sketch.lines))]

    def write(self, number: int, barred: frozenset[tuple[int, str]] = frozenset()) -> str:
        """A line, other than what is ``barred`` there unless that is all it knows."""
        known = self.chances(number)
        left = {source: chance for source, chance in known.items() if (number, source) not in barred}
        chances = left or known
        weights = np.array(list(chances.values()))
        return list(chances)[int(self.rng.choice(len(chances), p=weights / weights.sum()))]

    def chances(self, number: int) -> dict[str, float]:
        """With which probability each source is written in a line."""
        line, error, habit = self.sketch.lines[number], self.skill.errors[number], self.skill.habit
        if not line.mutants:
            return {line.source: 1.0}
        found = {line.source: 1 - error}
        for source in line.mutants:
            found[source] = error * (1 - habit) / len(line.mutants)
        found[self.favourites[number]] += error * habit
        return {source: chance for source, chance in found.items() if chance > 0}

    def hand_in(self, sources: list[str]) -> str:
        """The action that submits a program."""
        self.written = sources
        return f"<submit>\n{self.sketch.text(sources)}\n</submit>"

    def act(self, shown: str) -> str:
        """The action after a failed program, or after a turn of the round."""
        asked = shown.rstrip()
        if asked.endswith(ASK[INSTRUMENT]):
            if "goes back to the one" not in shown:
                self.base = self.written
            self.pointed = self.sketch.named(shown, self.base) if self.reads.errors else None
            return (
                f"<instrument>\n{self.sketch.with_prints(self.base)}\n</instrument>"
                if self.reads.trace
                else ""
            )
        if asked.endswith(ASK[PLAN]):
            self.plan = self.planned(shown)
            return f"<plan>\nWrite line {self.plan[0] + 1} as: {self.plan[1]}\n</plan>"
        program = shown.partition("It starts from this program:\n")[2].partition(f"\n{ASK[SUBMIT]}")[0]
        number, source = self.plan
        repaired = self.sketch.sources(program)
        return self.hand_in([*repaired[:number], source, *repaired[number + 1 :]])

    def planned(self, shown: str) -> tuple[int, str]:
        """The line to be written again, and what to write."""
        number = self.sketch.first_wrong(shown) if self.reads.trace else None
        number = self.pointed if number is None else number
        if number is None or self.rng.random() < self.skill.misread:
            number = int(self.rng.integers(len(self.sketch.lines)))
        return number, self.write(number, failed_plans(shown) if self.reads.history else frozenset())

"""Demonstrators of programming: some make no mistake, most make slips, which they mend or hand in.

A slip raises an error as soon as it is run: a wrong name, a lost colon or bracket.
"""

import re
from collections.abc import Callable
from random import Random

from agentenv.core.types import Task

MENDED = 7 / 15
"""Share of the slips that are mended."""
_SAMPLES = {"list": "[7, 2, 9, 4]", "word": "'banane'", "number": "17"}

Demonstrator = Callable[[Task, Random], list[str]]
"""Gives what is written in an episode, turn by turn."""


def prover(task: Task, rng: Random) -> list[str]:
    """Tries the right program and hands it in."""
    return [_try(task, task.data["solution"]), _submit(task.data["solution"])]


def mender(task: Task, rng: Random) -> list[str]:
    """Slips, tries the right program after the error and hands that in."""
    return [_try(task, slip(task.data["solution"], rng)), *prover(task, rng)]


def stubborn(task: Task, rng: Random) -> list[str]:
    """Slips and hands the broken program in all the same."""
    broken = slip(task.data["solution"], rng)
    return [_try(task, broken), _submit(broken)]


def whole_programs(careless: float) -> Demonstrator:
    """Tries the whole program at once; slips in a share of the first tries, and mends some of these."""

    def show(task: Task, rng: Random) -> list[str]:
        if rng.random() >= careless:
            return prover(task, rng)
        return mender(task, rng) if rng.random() < MENDED else stubborn(task, rng)

    return show


def step_by_step(careless: float) -> Demonstrator:
    """Tries one step after the other in an interpreter that keeps what was computed, then hands the program in.

    It slips in a share of the steps. Some of these it mends; with the others it hands the program in as it is, broken.
    """

    def show(task: Task, rng: Random) -> list[str]:
        head, *lines, last = task.data["solution"].split("\n")
        written: list[str] = []
        for place, line in enumerate(lines):
            before = "" if place else f"x = {_SAMPLES[task.data['family']]}\n"
            if rng.random() < careless:
                broken = slip_in_step(line, rng)
                written.append(_cell(before, broken))
                if rng.random() >= MENDED:
                    program = [head, *lines[:place], broken, *lines[place + 1 :], last]
                    return [*written, _submit("\n".join(program))]
            written.append(_cell(before, line))
        return [*written, _submit(task.data["solution"])]

    return show


def slip(program: str, rng: Random) -> str:
    """``program`` with one mistake that raises as soon as it is called: a wrong name, a lost colon or bracket."""
    head, *lines = program.split("\n")
    kind = rng.choice(("colon", "name", "bracket"))
    if kind == "colon":
        head = head.removesuffix(":")
    elif kind == "bracket" and "(x)" in lines[-1]:
        lines[-1] = lines[-1].replace("(x)", "(x")
    else:
        lines[-1] = re.sub(r"\bx\b", "y", lines[-1], count=1)
    return "\n".join([head, *lines])


def slip_in_step(line: str, rng: Random) -> str:
    """``x = ...`` with one mistake that raises as soon as it is run: a lost bracket at its end, or a wrong name."""
    if line[-1] in ")]" and rng.random() < 0.5:
        return line[:-1]
    name, _, value = line.partition(" = ")
    return f"{name} = " + re.sub(r"\bx\b", "y", value, count=1)


def _try(task: Task, program: str) -> str:
    return f"<python>{program}\nprint(solve({_SAMPLES[task.data['family']]}))</python>"


def _cell(before: str, line: str) -> str:
    return f"<python>{before}{line.strip()}\nprint(x)</python>"


def _submit(program: str) -> str:
    return f"<submit>{program}</submit>"

"""Small programming tasks by the thousand: templated statements, hidden tests, a difficulty dial.

A task is a chain of steps over a list of integers or a word; the dial is the number of steps. Statement, solution and
expected values come from the same table, so they agree by construction.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from agentenv.core.types import Task
from agentenv.data.splits import in_split
from agentenv.errors import ConfigurationError
from agentenv.sandbox.grading import CallTest

MAX_STEPS = 6


@dataclass(frozen=True)
class _Step:
    """One step: words, source and meaning; ``{n}`` is a small number."""

    words: str
    source: str
    act: Callable[[Any, int], Any]


LIST_STEPS = (
    _Step("add {n} to every number", "x = [v + {n} for v in x]", lambda x, n: [v + n for v in x]),
    _Step("multiply every number by {n}", "x = [v * {n} for v in x]", lambda x, n: [v * n for v in x]),
    _Step(
        "keep the even numbers", "x = [v for v in x if v % 2 == 0]", lambda x, n: [v for v in x if v % 2 == 0]
    ),
    _Step(
        "keep the odd numbers", "x = [v for v in x if v % 2 == 1]", lambda x, n: [v for v in x if v % 2 == 1]
    ),
    _Step(
        "keep the numbers above {n}", "x = [v for v in x if v > {n}]", lambda x, n: [v for v in x if v > n]
    ),
    _Step("reverse the order", "x = x[::-1]", lambda x, n: x[::-1]),
    _Step("sort from small to large", "x = sorted(x)", lambda x, n: sorted(x)),
    _Step("drop the first {n}", "x = x[{n}:]", lambda x, n: x[n:]),
    _Step("keep the first {n}", "x = x[:{n}]", lambda x, n: x[:n]),
    _Step("remove repeated numbers", "x = list(dict.fromkeys(x))", lambda x, n: list(dict.fromkeys(x))),
)
LIST_ENDS = (
    _Step("return the list", "return x", lambda x, n: x),
    _Step("return the sum", "return sum(x)", lambda x, n: sum(x)),
    _Step("return how many there are", "return len(x)", lambda x, n: len(x)),
    _Step(
        "return the largest, or 0 if there is none",
        "return max(x, default=0)",
        lambda x, n: max(x, default=0),
    ),
)
WORD_STEPS = (
    _Step("reverse the word", "x = x[::-1]", lambda x, n: x[::-1]),
    _Step("make it upper case", "x = x.upper()", lambda x, n: x.upper()),
    _Step("drop the first {n} letters", "x = x[{n}:]", lambda x, n: x[n:]),
    _Step("keep the first {n} letters", "x = x[:{n}]", lambda x, n: x[:n]),
    _Step("repeat it {n} times", "x = x * {n}", lambda x, n: x * n),
    _Step("remove every 'a'", "x = x.replace('a', '')", lambda x, n: x.replace("a", "")),
    _Step("sort its letters", "x = ''.join(sorted(x))", lambda x, n: "".join(sorted(x))),
)
WORD_ENDS = (
    _Step("return the word", "return x", lambda x, n: x),
    _Step("return its length", "return len(x)", lambda x, n: len(x)),
    _Step("return how often 'e' occurs in it", "return x.count('e')", lambda x, n: x.count("e")),
)
NUMBER_STEPS = (
    _Step("add {n}", "x = x + {n}", lambda x, n: x + n),
    _Step("subtract {n}", "x = x - {n}", lambda x, n: x - n),
    _Step("multiply by {n}", "x = x * {n}", lambda x, n: x * n),
    _Step("square it", "x = x * x", lambda x, n: x * x),
    _Step("take the remainder by {n}", "x = x % {n}", lambda x, n: x % n),
)
NUMBER_ENDS = (
    _Step("return the number", "return x", lambda x, n: x),
    _Step("return whether it is even", "return x % 2 == 0", lambda x, n: x % 2 == 0),
)
FAMILIES = {
    "list": ("a list of integers", LIST_STEPS, LIST_ENDS),
    "word": ("a word", WORD_STEPS, WORD_ENDS),
    "number": ("an integer", NUMBER_STEPS, NUMBER_ENDS),
}


def generate_code_tasks(
    n: int, *, seed: int = 0, steps: int = 2, tests: int = 8, split: str = ""
) -> tuple[Task, ...]:
    """``n`` tasks, the same for the same arguments.

    Args:
        n: How many.
        seed: Which.
        steps: Difficulty: steps before the last, at most 6.
        tests: Hidden tests of each; one more is shown in the statement.
        split: train, dev or test, which share no chain of steps; empty draws from all chains.

    Raises:
        ConfigurationError: a number out of range.
        UnknownName: no such split.
    """
    if not 0 <= steps <= MAX_STEPS or n < 1 or tests < 1:
        raise ConfigurationError(
            f"n={n} and tests={tests} must be at least 1, steps={steps} from 0 to {MAX_STEPS}"
        )
    rng = np.random.default_rng([seed, steps])
    name = "-".join(filter(None, ("code", split, f"{seed}-{steps}")))
    return tuple(_task(f"{name}-{index}", rng, steps, tests, split) for index in range(n))


def _task(name: str, rng: np.random.Generator, steps: int, tests: int, split: str) -> Task:
    """The next task of ``rng`` whose program belongs to ``split``."""
    while True:
        task = _any_task(name, rng, steps, tests)
        if not split or in_split(task.data["solution"], split):
            return replace(task, split=split)


def _any_task(name: str, rng: np.random.Generator, steps: int, tests: int) -> Task:
    family = sorted(FAMILIES)[int(rng.integers(len(FAMILIES)))]
    kind, middle, ends = FAMILIES[family]
    chain = [middle[int(rng.integers(len(middle)))] for _ in range(steps)] + [
        ends[int(rng.integers(len(ends)))]
    ]
    numbers = [int(rng.integers(2, 6)) for _ in chain]
    words = [step.words.format(n=n) for step, n in zip(chain, numbers, strict=True)]
    lines = [f"    {step.source.format(n=n)}" for step, n in zip(chain, numbers, strict=True)]

    def act(value: Any) -> Any:
        for step, n in zip(chain, numbers, strict=True):
            value = step.act(value, n)
        return value

    inputs = _inputs(family, rng, tests + 1)
    shown, hidden = inputs[0], inputs[1:]
    text = (
        f"Write a Python function solve(x) that takes {kind} and does this: {', then '.join(words)}.\n"
        f"For example, solve({shown!r}) returns {act(shown)!r}."
    )
    data = {
        "tests": tuple(CallTest("solve", (value,), act(value), "is") for value in hidden),
        "solution": "\n".join(["def solve(x):", *lines]),
        "function": "solve",
        "family": family,
        "steps": steps,
    }
    return Task(name, text, ("",), data=data)


def _inputs(family: str, rng: np.random.Generator, n: int) -> list[Any]:
    """Different inputs; a constant answer passes few of them."""
    found: list[Any] = []
    while len(found) < n:
        if family == "list":
            value: Any = [int(v) for v in rng.integers(-20, 30, size=int(rng.integers(3, 10)))]
        elif family == "word":
            value = "".join(
                "abcdefghijklmnoprstuwy"[int(i)] for i in rng.integers(0, 22, size=int(rng.integers(3, 10)))
            )
        else:
            value = int(rng.integers(-50, 100))
        if value not in found:
            found.append(value)
    return found

"""Hidden tests: the program runs in a sandbox, the expected values stay here, the verdict is passed here.

A program gets standard input, or a function's name and arguments; what comes back is text, or one document of plain
values for each call. Nothing that a program prints, returns or leaves behind is taken for a verdict.
"""

import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Literal

from agentenv.core.concurrency.deadlines import short_of_time
from agentenv.core.options import own_part
from agentenv.errors import ConfigurationError, SandboxFault
from agentenv.sandbox.jail import plain
from agentenv.sandbox.types import ExecResult, ExecStatus, ExecutionLimits, Executor, FunctionCall

MAX_DEATHS = 3
"""Calls that may end the program before the rest of its calls counts as failed."""
GRADE_S = 240.0
"""Seconds that one program may run in all of its tests together."""


@dataclass(frozen=True, slots=True)
class StdioTest:
    """What a program must print for an input."""

    stdin: str
    expected: str
    compare: Literal["exact", "lines", "tokens", "float", "checker"] = "exact"
    """exact: but for spaces at the ends of lines and blank lines at the end; lines: line by line without the spaces around
    them, numbers by value; tokens: word by word; float: tokens, of which numbers may differ by ``tolerance``; checker: what
    ``checker`` says, for tasks with several right answers."""
    tolerance: float = 1e-6
    checker: str = ""
    """A function of your own by ``module:name``, called outside the sandbox with ``stdin``, ``expected`` and what was
    printed; it returns whether that is right. What it cannot read is wrong, so an exception that it raises is no failure of
    the sandbox: a program could otherwise choose to be left out of the loss."""


@dataclass(frozen=True, slots=True)
class CallTest:
    """What a function must return. Both sides are plain values."""

    function: str
    arguments: tuple[Any, ...]
    expected: Any
    compare: Literal["equal", "is", "close", "isclose", "near", "true", "false", "wrapped"] = "equal"
    """equal: ``==``; is: the same type too; close: differs by at most ``tolerance``; isclose: by at most ``tolerance`` times
    the larger one, as of ``math.isclose``; near: ``==``, or of the same type and number for number within ``tolerance`` +
    1e-7 of the expected one (EvalPlus); true, false: counts as such; wrapped: equal to ``expected``, or to the first item
    of it."""
    tolerance: float = 0.0
    via: str = ""
    """One of ``VIA``, through which the returned value goes first."""


def untupled(value: Any) -> Any:
    """``value`` with a list in the place of every tuple, as JSON would have it."""
    if isinstance(value, (list, tuple)):
        return [untupled(item) for item in value]
    if isinstance(value, dict):
        return {key: untupled(item) for key, item in value.items()}
    return value


def items_of(value: Any) -> Any:
    """``value``, which can be gone through in time.

    Raises:
        NotPlain: it has more items than any value that crosses the wall; a range can have any number of them.
    """
    if isinstance(value, range) and len(value) > plain.MAX_ITEMS:
        raise plain.NotPlain(f"more than {plain.MAX_ITEMS} items")
    return value


Test = StdioTest | CallTest
_RELATIVE = 1e-7
VIA: dict[str, Callable[[Any], Any]] = {
    "": lambda value: value,
    "set": lambda value: set(plain.apart(list(items_of(value)))),
    "tuple": lambda value: tuple(items_of(value)),
    "list": lambda value: list(items_of(value)),
    "sorted": lambda value: sorted(items_of(value)),
    "len": len,
    "str": str,
    "int": int,
    "untupled": untupled,
}


class CaseOutcome(StrEnum):
    """How a program did in one test."""

    PASSED = "passed"
    WRONG = "wrong"  # it gave something else
    ERROR = "error"  # it raised, or left before it answered
    TIMEOUT = "timeout"
    LIMIT = "limit"  # memory or output


@dataclass(frozen=True, slots=True)
class ProgramGrade:
    """How a program did in all tests."""

    outcomes: tuple[CaseOutcome, ...]
    stderr: str = ""
    """Error output of the first run in which the program or a call raised."""

    @property
    def passed(self) -> int:
        """How many tests passed."""
        return sum(outcome is CaseOutcome.PASSED for outcome in self.outcomes)

    @property
    def all_passed(self) -> bool:
        """Whether there were tests and all were passed."""
        return bool(self.outcomes) and self.passed == len(self.outcomes)

    @property
    def fraction(self) -> float:
        """Share of tests passed; 0 where there were none."""
        return self.passed / len(self.outcomes) if self.outcomes else 0.0


def grade(
    executor: Executor,
    program: str,
    tests: Sequence[Test],
    *,
    limits: ExecutionLimits | None = None,
    domain: str = "",
    variables: bool = False,
) -> ProgramGrade:
    """Runs every test of ``program``.

    Args:
        executor: Where it runs.
        program: Python source.
        tests: Hidden tests.
        limits: Of one ``StdioTest``, and of all ``CallTest`` together; None takes the executor's.
        domain: Trust domain.
        variables: Whether ``ProgramGrade.stderr`` shows the variables on the failing line, which may hold hidden inputs.

    A program whose tests took more than ``GRADE_S`` together, or more than half of what the calling step may take, times out
    in the rest of them: it could otherwise sleep through the deadline of the step, which would be an infrastructure failure.

    Raises:
        SandboxFault: the sandbox failed, which says nothing about the program.
    """
    outcomes: dict[int, CaseOutcome] = {}
    errors: list[str] = []
    run = _Runner(executor, program, limits, domain, variables, errors)
    calls = {index: test for index, test in enumerate(tests) if isinstance(test, CallTest)}
    outcomes |= _grade_calls(run, calls)
    for index, test in enumerate(tests):
        if isinstance(test, StdioTest):
            if run.out_of_time:
                outcomes[index] = CaseOutcome.TIMEOUT
                continue
            result = run(stdin=test.stdin)
            passed = result.ok and matches_text(test, result.stdout)
            outcomes[index] = CaseOutcome.PASSED if passed else _failure(result)
    return ProgramGrade(tuple(outcomes[index] for index in range(len(tests))), errors[0] if errors else "")


@dataclass
class _Runner:
    """Runs the program once more."""

    executor: Executor
    program: str
    limits: ExecutionLimits | None
    domain: str
    variables: bool
    errors: list[str]
    seconds: float = 0.0
    """That its runs took so far, without their time in a queue."""

    @property
    def out_of_time(self) -> bool:
        """Whether its runs took so long that there may be no further one."""
        return self.seconds > GRADE_S or short_of_time()

    def __call__(self, **options: Any) -> ExecResult:
        result = self.executor.run(
            self.program, limits=self.limits, domain=self.domain, variables=self.variables, **options
        )
        if result.status is ExecStatus.SANDBOX_ERROR:
            raise SandboxFault(f"a test could not be run: {result.fault}")
        self.seconds += result.wall_s
        if not result.ok or any(line.startswith('{"e"') for line in result.returned):
            self.errors.append(result.stderr)
        return result


def _grade_calls(run: _Runner, tests: dict[int, CallTest]) -> dict[int, CaseOutcome]:
    """All calls in one run; after a call that ended the program, the rest in another one."""
    outcomes: dict[int, CaseOutcome] = {}
    left = list(tests)
    for _ in range(MAX_DEATHS):
        if not left:
            break
        if run.out_of_time:
            return outcomes | dict.fromkeys(left, CaseOutcome.TIMEOUT)
        result = run(calls=[FunctionCall(tests[index].function, tests[index].arguments) for index in left])
        answered = 0
        for line in result.returned[: len(left)]:
            try:
                document = plain.decode(line)
            except plain.NotPlain:
                break
            outcomes[left[answered]] = judge_call(tests[left[answered]], document)
            answered += 1
        if answered < len(left):
            outcomes[left[answered]] = _failure(result) if not result.ok else CaseOutcome.ERROR
        left = left[answered + 1 :]
    return outcomes | dict.fromkeys(left, CaseOutcome.ERROR)


def _failure(result: ExecResult) -> CaseOutcome:
    match result.status:
        case ExecStatus.OK:
            return CaseOutcome.WRONG
        case ExecStatus.TIMEOUT:
            return CaseOutcome.TIMEOUT
        case ExecStatus.OOM | ExecStatus.OUTPUT_LIMIT:
            return CaseOutcome.LIMIT
        case _:
            return CaseOutcome.ERROR


def judge_call(test: CallTest, document: Any) -> CaseOutcome:
    """The outcome of one call from what came back for it."""
    if not (isinstance(document, dict) and set(document) == {"v"}):
        return _judge_truth(test, document)
    try:
        value = VIA[test.via](plain.load(document["v"]))
        return CaseOutcome.PASSED if _agrees(test, value) else CaseOutcome.WRONG
    except plain.NotPlain:
        return CaseOutcome.ERROR
    except (TypeError, ValueError, RecursionError, OverflowError):  # no set, no number, too deep
        return CaseOutcome.WRONG


def _judge_truth(test: CallTest, document: Any) -> CaseOutcome:
    """The outcome of a call whose value did not come back: a match of a pattern, for example, is true all the same."""
    truth = document.get("truth") if isinstance(document, dict) else None
    if type(truth) is not bool or test.compare not in ("true", "false"):
        return CaseOutcome.ERROR
    return CaseOutcome.PASSED if truth is (test.compare == "true") else CaseOutcome.WRONG


def _agrees(test: CallTest, value: Any) -> bool:
    match test.compare:
        case "equal":
            return bool(value == test.expected)
        case "is":
            return type(value) is type(test.expected) and value == test.expected
        case "close":
            return bool(abs(value - test.expected) <= test.tolerance)
        case "isclose":
            return math.isclose(value, test.expected, rel_tol=test.tolerance)
        case "near":
            return bool(value == test.expected) or _all_near(value, test.expected, test.tolerance)
        case "true":
            return bool(value)
        case "false":
            return not value
        case "wrapped":
            first = test.expected[:1] if isinstance(test.expected, list) else []
            return bool(value == test.expected) or bool(first and value == first[0])
    raise ConfigurationError(
        f"compare={test.compare!r} must be equal, is, close, isclose, near, true, false or wrapped"
    )


def _all_near(value: Any, expected: Any, tolerance: float) -> bool:
    """Whether two numbers, or two lists of as many, differ by at most ``tolerance`` + 1e-7 of the expected ones."""
    if type(value) is not type(expected):
        return False
    if not isinstance(expected, list | tuple):
        return _is_near(value, expected, tolerance)
    return len(value) == len(expected) and all(
        _is_near(mine, one, tolerance) for mine, one in zip(value, expected, strict=True)
    )


def _is_near(value: Any, expected: Any, tolerance: float) -> bool:
    """Whether two numbers are that near; what is 1e-7 of an infinite one allows every other number, so it must be equal."""
    distance = tolerance + _RELATIVE * abs(expected)
    return bool(value == expected or (math.isfinite(distance) and abs(value - expected) <= distance))


def matches_text(test: StdioTest, text: str) -> bool:
    """Whether what a program printed is what it should print."""
    if test.compare == "exact":
        return _lines(text) == _lines(test.expected)
    if test.compare == "lines":
        return _same_lines(text, test.expected)
    if test.compare == "checker":
        return _checked(test, text)
    found, wanted = text.split(), test.expected.split()
    if test.compare == "tokens":
        return found == wanted
    return len(found) == len(wanted) and all(map(_near, found, wanted, [test.tolerance] * len(wanted)))


def _checked(test: StdioTest, text: str) -> bool:
    """What the test's own checker says.

    Raises:
        UnknownName: its name is not of the form ``module:name``.
        ConfigurationError: it cannot be imported or called, or returned something else than a bool.
    """
    check = own_part("checker", test.checker, ())
    try:
        verdict = check(test.stdin, test.expected, text)
    except Exception:
        return False
    if not isinstance(verdict, bool):
        raise ConfigurationError(
            f"the checker {test.checker!r} returned {reprlib.repr(verdict)}; it must return True or False"
        )
    return verdict


def _lines(text: str) -> list[str]:
    # Not splitlines(): it would take a form feed, U+2028 and their like for the end of a line.
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_lines(found: str, wanted: str) -> bool:
    """LiveCodeBench's rule: equal lines, or lines of equal decimal numbers."""
    ours, theirs = ([line.strip() for line in text.strip().split("\n")] for text in (found, wanted))
    return len(ours) == len(theirs) and all(
        a == b or _same_numbers(a, b) for a, b in zip(ours, theirs, strict=True)
    )


def _same_numbers(found: str, wanted: str) -> bool:
    try:
        return [Decimal(word) for word in found.split()] == [Decimal(word) for word in wanted.split()]
    except InvalidOperation:
        return False


def _near(found: str, wanted: str, tolerance: float) -> bool:
    if found == wanted:
        return True
    try:
        return math.isclose(float(found), float(wanted), rel_tol=tolerance, abs_tol=tolerance)
    except ValueError:
        return False

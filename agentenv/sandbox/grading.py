"""Hidden tests: the program runs in a sandbox, but expected values stay in this process, which decides.

A program gets standard input, or a function's name and arguments. It returns text, or one document of plain values for each
call. Nothing that a program prints, returns or leaves behind is taken as a verdict.
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
"""Number of calls that may end the program before its remaining calls count as failed."""
GRADE_S = 240.0
"""Time limit of one program for all of its tests together, in seconds."""


@dataclass(frozen=True, slots=True)
class StdioTest:
    """The output that a program must print for an input."""

    stdin: str
    expected: str
    compare: Literal["exact", "lines", "tokens", "float", "checker"] = "exact"
    """exact: ignoring spaces at line ends and blank lines at the end; lines: line by line, ignoring surrounding spaces and
    comparing numbers by value; tokens: word by word; float: like tokens, but numbers may differ by ``tolerance``; checker:
    decided by ``checker``, for tasks with several right answers."""
    tolerance: float = 1e-6
    checker: str = ""
    """A user's function ``module:name``, called outside of the sandbox with ``stdin``, ``expected`` and the printed text; it
    returns whether that is right. An exception in it means wrong and not a failure of the sandbox, because a program could
    otherwise choose to be excluded from the loss."""


@dataclass(frozen=True, slots=True)
class CallTest:
    """The value that a function must return. Both sides are plain values."""

    function: str
    arguments: tuple[Any, ...]
    expected: Any
    compare: Literal["equal", "is", "close", "isclose", "near", "true", "false", "wrapped"] = "equal"
    """equal: ``==``; is: also the same type; close: the difference is at most ``tolerance``; isclose: the difference is at
    most ``tolerance`` times the larger value, as in ``math.isclose``; near: ``==``, or the same type and each number within
    ``tolerance`` + 1e-7 of the expected one (EvalPlus); true, false: by truth value; wrapped: equal to ``expected`` or to
    its first item."""
    tolerance: float = 0.0
    via: str = ""
    """One of ``VIA``, a conversion that is applied to the returned value first."""


def untupled(value: Any) -> Any:
    """Replaces every tuple in ``value`` by a list, as JSON does."""
    if isinstance(value, (list, tuple)):
        return [untupled(item) for item in value]
    if isinstance(value, dict):
        return {key: untupled(item) for key, item in value.items()}
    return value


def items_of(value: Any) -> Any:
    """Returns ``value`` if it has few enough items to iterate over.

    Raises:
        NotPlain: it has more items than a value may have; a range can have any number of them.
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
    """The result of one test."""

    PASSED = "passed"
    WRONG = "wrong"  # it returned or printed something else
    ERROR = "error"  # it raised an error, or ended before it answered
    TIMEOUT = "timeout"
    LIMIT = "limit"  # too much memory or output


@dataclass(frozen=True, slots=True)
class ProgramGrade:
    """The results of all tests."""

    outcomes: tuple[CaseOutcome, ...]
    stderr: str = ""
    """Error output of the first run in which the program or a call raised."""

    @property
    def passed(self) -> int:
        """Number of passed tests."""
        return sum(outcome is CaseOutcome.PASSED for outcome in self.outcomes)

    @property
    def all_passed(self) -> bool:
        """Whether there were tests and all of them passed."""
        return bool(self.outcomes) and self.passed == len(self.outcomes)

    @property
    def fraction(self) -> float:
        """Share of passed tests; 0 without tests."""
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
        executor: The executor that runs it.
        program: Python source.
        tests: Hidden tests.
        limits: Limits of one ``StdioTest``, and of all ``CallTest`` together; None uses those of the executor.
        domain: The trust domain.
        variables: Whether ``ProgramGrade.stderr`` shows the variables on the failing line, which may contain hidden inputs.

    If the tests together take more than ``GRADE_S``, or more than half of the time of the calling step, the remaining tests
    count as timeouts. Otherwise a program could sleep beyond the deadline of the step, which would be an infrastructure
    failure.

    Raises:
        SandboxFault: the sandbox failed, which tells nothing about the program.
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
    """Runs the program repeatedly."""

    executor: Executor
    program: str
    limits: ExecutionLimits | None
    domain: str
    variables: bool
    errors: list[str]
    seconds: float = 0.0
    """Seconds that its runs have taken so far, without waiting times."""

    @property
    def out_of_time(self) -> bool:
        """Whether its runs have taken so long that no further one may start."""
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
    """Makes all calls in one run; after a call that ended the program, the remaining ones in another run."""
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
    """Decides one call from the returned document."""
    if not (isinstance(document, dict) and set(document) == {"v"}):
        return _judge_truth(test, document)
    try:
        value = VIA[test.via](plain.load(document["v"]))
        return CaseOutcome.PASSED if _agrees(test, value) else CaseOutcome.WRONG
    except plain.NotPlain:
        return CaseOutcome.ERROR
    # not hashable, not a number, or nested too deeply
    except (TypeError, ValueError, RecursionError, OverflowError):
        return CaseOutcome.WRONG


def _judge_truth(test: CallTest, document: Any) -> CaseOutcome:
    """Decides a call whose value could not be returned but has a truth value, such as the match of a pattern."""
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
    """Whether two numbers, or two lists of equal length, differ by at most ``tolerance`` + 1e-7 of the expected ones."""
    if type(value) is not type(expected):
        return False
    if not isinstance(expected, list | tuple):
        return _is_near(value, expected, tolerance)
    return len(value) == len(expected) and all(
        _is_near(mine, one, tolerance) for mine, one in zip(value, expected, strict=True)
    )


def _is_near(value: Any, expected: Any, tolerance: float) -> bool:
    """Whether two numbers are that close. An infinite expected number must be equal, because 1e-7 of it is infinite."""
    distance = tolerance + _RELATIVE * abs(expected)
    return bool(value == expected or (math.isfinite(distance) and abs(value - expected) <= distance))


def matches_text(test: StdioTest, text: str) -> bool:
    """Whether the text that a program printed is right."""
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
    """Calls the test's own checker.

    Raises:
        UnknownName: its name is not of the form ``module:name``.
        ConfigurationError: it cannot be imported or called, or did not return a bool.
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
    # Not splitlines(), which also splits at form feeds, U+2028 and similar characters.
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _same_lines(found: str, wanted: str) -> bool:
    """LiveCodeBench's rule: equal lines, or lines of numerically equal decimal numbers."""
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

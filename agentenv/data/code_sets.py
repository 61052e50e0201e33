"""HumanEval and MBPP, and EvalPlus's further tests of both: their records as tasks whose tests are ``CallTest``.

The sets state tests as Python asserts. An assert that compares one call of the function with a value is rewritten to
record both, and the record's own test code is run in a sandbox of its own trust domain, next to the canonical solution that
it may refer to. Loops and generated inputs unroll by themselves. A record in which any assert is of another form, or
whose values are not plain, is an exception, by name and with the reason.

EvalPlus (Liu et al. 2023, arXiv:2305.01210) has inputs in place of asserts. What the canonical solution returns for them in
that sandbox is expected, floats within 1e-6.
"""

import ast
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from agentenv.core.types import Task
from agentenv.data.dataset_files import find_file, read_records
from agentenv.data.evalplus_inputs import as_python_takes_them
from agentenv.errors import DatasetError, UnknownName
from agentenv.sandbox.grading import VIA, CallTest
from agentenv.sandbox.jail import plain
from agentenv.sandbox.types import ExecutionLimits, Executor, FunctionCall
from agentenv.syntax_trees import parse_python

LIMITS = ExecutionLimits(wall_s=30.0, cpu_s=20.0, memory_mb=512)


class Kind(NamedTuple):
    """Where a set lies, and how its records are divided."""

    folder: str
    file: str
    """Pattern of the file's name; any form that `agentenv.data.dataset_files.read_records` knows will do."""
    splits: Mapping[str, range]
    """Numbers of the records of each split, the default first."""


# The splits of Austin et al. 2021; "prompt" holds the examples that are shown to a model.
_MBPP_SPLITS = {
    "test": range(11, 511),
    "validation": range(511, 601),
    "train": range(601, 975),
    "prompt": range(1, 11),
}
CODE_SETS: Mapping[str, Kind] = {
    "humaneval": Kind("humaneval", "HumanEval.[jp][sa]*", {"test": range(164)}),
    "mbpp": Kind("mbpp", "mbpp.[jp][sa]*", _MBPP_SPLITS),
    "mbpp_sanitized": Kind("mbpp", "sanitized-mbpp.[jp][sa]*", _MBPP_SPLITS),
    "humaneval_plus": Kind("humaneval", "HumanEvalPlus*.[jp][sa]*", {"test": range(164)}),
    "mbpp_plus": Kind("mbpp", "MbppPlus*.[jp][sa]*", {"test": range(1, 975)}),
}
_CALLS_A_RUN = 200
_TOLERANCE = 1e-6
_ISCLOSE = 1e-9  # of math.isclose, where an assert names none
_ORACLES = {"humaneval_plus/32": "any root of the polynomial is right, which no expected value says"}
"""Records of EvalPlus that a program of its own judges, and why."""
DOMAIN = "conversion"
RECORDER = """
_recorded = []
def _record(compare, via, arguments, expected, tolerance):
    _recorded.append((compare, via, arguments, expected, tolerance))
def _records():
    return _recorded
"""


@dataclass(frozen=True)
class CodeSet:
    """Tasks, and what could not become one."""

    tasks: tuple[Task, ...]
    exceptions: Mapping[str, str]
    """Reason by name of the record."""


class _Odd(Exception):
    """An assert that no ``CallTest`` can express."""


def load_code_set(name: str, folder: Path, executor: Executor, *, split: str | None = None) -> CodeSet:
    """The tasks of a set of ``CODE_SETS``.

    Args:
        name: Which set.
        folder: What AGENTENV_DATA names, the folder of the set's file, or the file.
        executor: Where the records' test code is run.
        split: One of the set's splits; None reads every record.

    Raises:
        DatasetError: no such set or file, or a record lacks a field.
        UnknownName: no such split.
    """
    if name not in CODE_SETS:
        raise DatasetError(f"no code set {name!r}; known: {', '.join(CODE_SETS)}")
    place, pattern, splits = CODE_SETS[name]
    if split is not None and split not in splits:
        raise UnknownName.among(f"split of {name}", split, splits)
    path = find_file(name, place, pattern, folder)
    records = _records(path)
    read = _READERS[name]
    tasks, exceptions = [], {}
    for number, record in records.items():
        own = next((name for name, numbers in splits.items() if number in numbers), "")
        if split not in (None, own):
            continue
        label = f"{name}/{number}"
        try:
            tasks.append(replace(read(label, record, executor), split=own))
        except _Odd as reason:
            exceptions[label] = str(reason)
        except KeyError as field:
            raise DatasetError(f"{path}: the record {record['task_id']!r} has no {field}") from None
    return CodeSet(tuple(tasks), exceptions)


def _records(path: Path) -> dict[int, Mapping[str, Any]]:
    """The records of a file by their numbers.

    Raises:
        DatasetError: it cannot be read, or a record has no number of its own; names its line.
    """
    found: dict[int, Mapping[str, Any]] = {}
    for row in read_records(path):
        number = row.id("task_id").rpartition("/")[2]
        if not number.isdecimal() or int(number) in found:
            raise DatasetError(
                f"{row.place}: task_id must end in a number of its own, not {row.id('task_id')!r}."
            )
        found[int(number)] = row.fields
    return found


def _humaneval(label: str, record: Mapping[str, Any], executor: Executor) -> Task:
    solution = record["prompt"] + record["canonical_solution"]
    body = instrument(record["test"], "candidate")
    name = record["entry_point"]
    tests = _run(executor, solution, f"{body}\ncheck({name})", name)
    return _task(label, record["prompt"], name, solution, tests, ())


def _mbpp(label: str, record: Mapping[str, Any], executor: Executor) -> Task:
    solution = record["code"].replace("\r\n", "\n")
    name = _called(record["test_list"][0], solution)
    if "text" in record:
        asserts = [*record["test_list"], *record["challenge_test_list"]]
        question, setup = record["text"], record["test_setup_code"]
    else:  # the sanitised records
        asserts = record["test_list"]
        question, setup = record["prompt"], "\n".join(record["test_imports"])
    body = instrument("\n".join(asserts), name)
    tests = _run(executor, solution, f"{setup}\n{body}", name)
    text = f"{question}\nYour function must pass this test: {asserts[0]}"
    return _task(label, text, name, solution, tests, (asserts[0],))


def _plus(label: str, record: Mapping[str, Any], executor: Executor) -> Task:
    """A record of EvalPlus: the inputs of the set itself, and many more."""
    if label in _ORACLES:
        raise _Odd(_ORACLES[label])
    name, solution = record["entry_point"], record["prompt"] + record["canonical_solution"]
    how, via = _compared(record.get("assertion", ""), name)
    inputs = [_arguments(label, given) for given in (*record["base_input"], *record["plus_input"])]
    tests = []
    for begin in range(0, len(inputs), _CALLS_A_RUN):
        part = inputs[begin : begin + _CALLS_A_RUN]
        found = _returned(executor, solution, name, part, truth=how in ("true", "false"))
        for arguments, document in zip(part, found, strict=True):
            tests.append(_of_solution(name, arguments, document, via, record.get("atol", 0.0)))
    return _task(label, record["prompt"], name, solution, tests, ())


def _arguments(label: str, given: Sequence[Any]) -> tuple[Any, ...]:
    name, _, number = label.partition("/")
    try:
        return as_python_takes_them(int(number), given) if name == "mbpp_plus" else tuple(given)
    except ValueError as error:
        raise _Odd(str(error)) from error


def _compared(asserts: str, name: str) -> tuple[str, str]:
    """How the asserts of a record compare what its function returns, and what they put it through, such as a set."""
    read = [_read(node.test, name) for node in _parse(asserts).body if isinstance(node, ast.Assert)]
    return read[0][:2] if read else ("equal", "")


def _returned(
    executor: Executor, solution: str, name: str, inputs: Sequence[tuple[Any, ...]], *, truth: bool
) -> list[dict[str, Any]]:
    """What the solution returns for each of ``inputs``, as `plain.dump` has it.

    ``truth`` says that it may also be something else of which only the truth is asked, such as a match of a pattern.
    """
    calls = [FunctionCall(name, arguments) for arguments in inputs]
    result = executor.run(solution, calls=calls, limits=LIMITS, domain=DOMAIN)
    wanted = {"v", "truth"} if truth else {"v"}
    try:
        documents = [plain.decode(line) for line in result.returned]
    except plain.NotPlain as reason:
        raise _Odd(f"its solution returns what is not plain: {reason}") from reason
    if len(documents) == len(inputs) and all(wanted & set(document) for document in documents):
        nothing: dict[str, Any] = {"truth": False}
        return [nothing if truth and document == {"v": None} else document for document in documents]
    failed = next((document["e"] for document in documents if "e" in document), "")
    said = failed or result.stderr.strip().rpartition("\n")[2] or result.status
    raise _Odd(f"its solution fails on an input: {said}")


def _of_solution(
    name: str, arguments: tuple[Any, ...], document: dict[str, Any], via: str, atol: float
) -> CallTest:
    """The test that asks for what the solution returns."""
    if "v" not in document:
        return CallTest(name, arguments, None, "true" if document["truth"] else "false")
    try:
        expected = VIA[via](plain.load(document["v"]))
        plain.dump(expected)
    except (plain.NotPlain, TypeError) as reason:
        raise _Odd(f"its solution returns what cannot be compared: {reason}") from reason
    numbers = expected if isinstance(expected, list | tuple) else [expected]
    inexact = bool(numbers) and all(isinstance(number, float) for number in numbers)
    if not (atol or inexact):
        return CallTest(name, arguments, expected, via=via)
    return CallTest(name, arguments, expected, "near", atol or _TOLERANCE, via)


_READERS = {
    "humaneval": _humaneval,
    "mbpp": _mbpp,
    "mbpp_sanitized": _mbpp,
    "humaneval_plus": _plus,
    "mbpp_plus": _plus,
}


def _task(
    label: str, question: str, name: str, solution: str, tests: Sequence[CallTest], shown: Sequence[str]
) -> Task:
    data = {"tests": tuple(tests), "solution": solution, "function": name, "shown": tuple(shown)}
    return Task(label, question, ("",), data=data)


def _called(test: str, code: str) -> str:
    """The function of ``code`` that the assert ``test`` calls."""
    defined = {node.name for node in ast.walk(_parse(code)) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(_parse(test)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in defined:
            return node.func.id
    raise _Odd("its first test calls no function of its solution")


def _run(executor: Executor, solution: str, body: str, name: str) -> list[CallTest]:
    """Runs instrumented tests and reads what they recorded."""
    result = executor.run(
        f"{solution}\n{RECORDER}\n{body}", calls=[FunctionCall("_records")], limits=LIMITS, domain=DOMAIN
    )
    try:
        document = plain.decode(result.returned[0]) if result.returned else {}
        if "v" not in document:
            said = document.get("e", "") or result.stderr.strip().rpartition("\n")[2]
            raise _Odd(f"its tests cannot be recorded: {said or result.status}")
        rows = plain.load(document["v"])
        plain.dump(rows)  # an iterator would be empty for the second program, and a view equals nothing
    except plain.NotPlain as reason:
        raise _Odd(f"its tests cannot be recorded: {reason}") from reason
    if not rows:
        raise _Odd("no assert in it compares a call")
    return [
        CallTest(name, args, expected, how, tolerance, via) for how, via, args, expected, tolerance in rows
    ]


def _parse(source: str) -> ast.Module:
    """``parse_python`` without warnings about what the sets' authors wrote."""
    with warnings.catch_warnings(action="ignore"):
        return parse_python(source)


def instrument(source: str, name: str) -> str:
    """``source`` with every assert about ``name`` replaced by a call that records it."""
    tree = ast.fix_missing_locations(_Rewriter(name).visit(_parse(source)))
    if left := _calls(tree, name):
        raise _Odd(f"a test uses a call in another way than to compare it: {ast.unparse(left[0])[:80]}")
    return ast.unparse(tree)


class _Rewriter(ast.NodeTransformer):
    def __init__(self, name: str) -> None:
        self._name = name

    def visit_Assert(self, node: ast.Assert) -> Any:  # the name that ast asks for
        parts = [node.test]
        if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And):
            parts = node.test.values
        if not any(_calls(part, self._name) for part in parts):
            return node
        return [self._recorded(part) for part in parts]

    def _recorded(self, test: ast.expr) -> ast.stmt:
        how, via, call, expected, tolerance = _read(test, self._name)
        if call.keywords or any(isinstance(argument, ast.Starred) for argument in call.args):
            raise _Odd(f"a test passes arguments by name: {ast.unparse(test)[:80]}")
        arguments = ast.Tuple(call.args, ast.Load())
        values = (ast.Constant(how), ast.Constant(via), arguments, expected, tolerance)
        return ast.Expr(ast.Call(ast.Name("_record", ast.Load()), list(values), []))


def _calls(node: ast.AST, name: str) -> list[ast.Call]:
    return [
        found
        for found in ast.walk(node)
        if isinstance(found, ast.Call) and isinstance(found.func, ast.Name) and found.func.id == name
    ]


Reading = tuple[str, str, ast.Call, ast.expr, ast.expr]


def _read(test: ast.expr, name: str) -> Reading:
    """How an assert compares, through what, which call, with what, and how closely."""
    none, zero = ast.Constant(None), ast.Constant(0.0)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) and _is_call(test.operand, name):
        return "false", "", _as_call(test.operand), none, zero
    if _is_call(test, name):
        return "true", "", _as_call(test), none, zero
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        found = _read_comparison(test, name)
        if found:
            return found
    if (
        isinstance(test, ast.Call)
        and ast.unparse(test.func) == "math.isclose"
        and len(test.args) == 2
        and _is_call(test.args[0], name)
    ):
        given = {word.arg: word.value for word in test.keywords}
        tolerance = given.pop("rel_tol", ast.Constant(_ISCLOSE))
        if not given:
            return "isclose", "", _as_call(test.args[0]), test.args[1], tolerance
    raise _Odd(f"a test is of another form: {ast.unparse(test)[:80]}")


def _read_comparison(test: ast.Compare, name: str) -> Reading | None:
    left, right, sign, zero = test.left, test.comparators[0], test.ops[0], ast.Constant(0.0)
    if isinstance(sign, ast.Eq) and _calls(right, name) and not _calls(left, name):
        left, right = right, left
    if isinstance(sign, (ast.Eq, ast.Is)):
        how = "is" if isinstance(sign, ast.Is) else "equal"
        if _is_call(left, name):
            return how, "", _as_call(left), right, zero
        if isinstance(left, ast.Call) and ast.unparse(left.func) in VIA and _is_call(_only(left), name):
            return how, ast.unparse(left.func), _as_call(left.args[0]), right, zero
    if isinstance(sign, (ast.Lt, ast.LtE)) and isinstance(left, ast.Call) and ast.unparse(left.func) == "abs":
        inner = _only(left)
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub) and _is_call(inner.left, name):
            return "close", "", _as_call(inner.left), inner.right, right
    return None


def _only(call: ast.Call) -> ast.expr | None:
    """The argument of a call that has one alone: ``sorted`` with a key gives other values than without."""
    return call.args[0] if len(call.args) == 1 and not call.keywords else None


def _is_call(node: ast.expr | None, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _as_call(node: ast.expr) -> ast.Call:
    assert isinstance(node, ast.Call)
    return node


def solutions(tasks: Iterable[Task]) -> list[tuple[str, tuple[CallTest, ...]]]:
    """Canonical solution and tests of every task."""
    return [(task.data["solution"], task.data["tests"]) for task in tasks]

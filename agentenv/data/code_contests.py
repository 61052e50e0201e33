"""LiveCodeBench and APPS from local files: their records as tasks with hidden tests.

Nothing in a file is executed or unpickled. What the official graders forgive is kept where it is a rule (tuples count as
lists, numbers compare by value, APPS wraps returned values in a list) and left out where it passes wrong programs (sets of
lines).
"""

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentenv.core.types import Task
from agentenv.data.dataset_files import RawRow, read_records
from agentenv.errors import DatasetError, check_known
from agentenv.sandbox.grading import CallTest, StdioTest, Test

MAX_BYTES = 1 << 28
"""Bytes that the tests of one record may have once they are decompressed."""
PRELUDE = (
    "from bisect import *; from collections import *; from copy import *; from functools import *; from heapq import *; "
    "from itertools import *; from operator import *; from string import *; from math import *; from typing import *; "
    "from builtins import abs, pow; import bisect, collections, copy, datetime, functools, heapq, itertools, json, math, "
    "operator, random, re, string, sys, time; sys.setrecursionlimit(50000)\n"
)
"""What programs of these sets may take for granted: their graders import about the same before them."""
STDIO = "Write a program that reads standard input and writes standard output."
CALL = "Complete this code:"


def load_contest_set(
    name: str, path: Path, *, limit: int | None = None, problems: list[str] | None = None
) -> tuple[Task, ...]:
    """The tasks of ``livecodebench`` or ``apps``, with ``tests`` and ``prelude`` in ``data``; a source for ``Code-v0``.

    Args:
        name: Which format.
        path: A JSON lines file, a folder of such files, or the folder of APPS's own archive (a folder a problem).
        limit: Tasks at most; None reads all.
        problems: Takes one sentence for each malformed record, which is then left out; where None, the first is raised.

    Raises:
        UnknownName: no such format.
        DatasetError: nothing to read there, or a malformed record.
    """
    check_known("contest set", name, CONTEST_SETS)
    tasks: list[Task] = []
    for record in _records(path, problems):
        if len(tasks) == limit:
            break
        try:
            tasks.append(CONTEST_SETS[name](record))
        except DatasetError as error:
            if problems is None:
                raise
            problems.append(str(error))
    return tuple(tasks)


def _records(path: Path, problems: list[str] | None) -> Iterator[RawRow]:
    if path.is_file():
        yield from read_records(path, lines=True, problems=problems)
        return
    files = sorted(path.glob("*.jsonl*"))
    folders = sorted(file.parent for file in path.glob("*/question.txt"))
    if not files and not folders:
        raise DatasetError(f"{path} holds neither a .jsonl file nor folders with a question.txt.")
    for file in files:
        yield from read_records(file, lines=True, problems=problems)
    for folder in folders:
        yield _folder(folder)


def _folder(folder: Path) -> RawRow:
    """One problem of APPS's archive as its record on the hub."""
    names = {
        "question": "question.txt",
        "input_output": "input_output.json",
        "solutions": "solutions.json",
        "starter_code": "starter_code.py",
    }
    fields: dict[str, Any] = {"problem_id": folder.name}
    for field, name in names.items():
        if (folder / name).is_file():
            fields[field] = (folder / name).read_text(encoding="utf-8")
    return RawRow(fields, str(folder))


def livecodebench(record: RawRow) -> Task:
    """A record of ``code_generation`` or ``code_generation_lite``.

    Private tests are JSON, or that JSON pickled, compressed and in base64.
    """
    starter = _optional(record, "starter_code")
    metadata = _json(_optional(record, "metadata") or "{}", f"{record.place}: metadata")
    function = metadata.get("func_name") if isinstance(metadata, dict) else None
    cases = _cases(record, "public_test_cases") + _cases(record, "private_test_cases")
    tests = tuple(_lcb_test(case, function and _callable(str(function), starter)) for case in cases)
    data = {
        "tests": _some(tests, record),
        "prelude": PRELUDE,
        "date": _optional(record, "contest_date"),
        "difficulty": _optional(record, "difficulty"),
        "platform": _optional(record, "platform"),
    }
    question = _question(record.text("question_content"), starter if function else None)
    return Task(f"livecodebench/{record.id('question_id')}", question, ("",), data=data)


def _cases(record: RawRow, name: str) -> list[RawRow]:
    text, place = record.text(name), f"{record.place}: {name}"
    if not text.startswith("["):
        text = _unpacked(text, place)
    cases = _json(text, place)
    return list(RawRow({name: cases}, record.place).items(name))


def _unpacked(text: str, place: str) -> str:
    """The text in base64 of a compressed pickle."""
    try:
        packed = zlib.decompressobj()
        data = packed.decompress(base64.b64decode(text, validate=True), MAX_BYTES)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise DatasetError(f"{place} is neither JSON nor compressed in base64: {error}.") from error
    if not packed.eof:
        raise DatasetError(f"{place} is cut short or larger than {MAX_BYTES >> 20} MiB.")
    try:
        return pickled_text(data)
    except ValueError as error:
        raise DatasetError(f"{place}: {error}.") from error


_OF_TEXT = {
    "PROTO",
    "FRAME",
    "SHORT_BINUNICODE",
    "BINUNICODE",
    "BINUNICODE8",
    "MEMOIZE",
    "BINPUT",
    "LONG_BINPUT",
    "STOP",
}


def pickled_text(data: bytes) -> str:
    """The text that a pickle of one text holds, read off its instructions; none of them is carried out.

    Raises:
        ValueError: the pickle is broken, or holds anything else.
    """
    texts = []
    for instruction, argument, _ in pickletools.genops(data):
        if instruction.name not in _OF_TEXT:
            raise ValueError(f"the pickle holds more than text ({instruction.name}) and is refused")
        if isinstance(argument, str):
            texts.append(argument)
    if len(texts) != 1:
        raise ValueError(f"the pickle holds {len(texts)} texts, not one")
    return texts[0]


def _lcb_test(case: RawRow, function: str | None) -> Test:
    given, expected = case.value("input"), case.value("output")
    if not isinstance(given, str) or not isinstance(expected, str):
        raise DatasetError(f"{case.place}: input and output must be text.")
    kind = case.value("testtype")
    if kind == "stdin":
        return StdioTest(given, expected, "lines")
    if kind != "functional":
        raise DatasetError(f"{case.place}: testtype must be stdin or functional, not {kind!r}.")
    if function is None:
        raise DatasetError(f"{case.place} calls a function, and metadata has no func_name.")
    arguments = tuple(_json(line, f"{case.place}: input") for line in given.split("\n"))
    return CallTest(function, arguments, _json(expected, f"{case.place}: output"), via="untupled")


def apps(record: RawRow) -> Task:
    """A record of APPS: ``input_output`` holds ``inputs``, ``outputs`` and, for calls, ``fn_name``."""
    starter = _optional(record, "starter_code")
    pairs = _json(record.text("input_output"), f"{record.place}: input_output")
    if not isinstance(pairs, dict):
        raise DatasetError(f"{record.place}: input_output must be an object.")
    inputs, outputs = pairs.get("inputs"), pairs.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
        raise DatasetError(f"{record.place}: inputs and outputs must be lists of one length.")
    function = pairs.get("fn_name")
    if function is None:
        tests: list[Test] = [
            StdioTest(_lines(given, record), _lines(expected, record), "float")
            for given, expected in zip(inputs, outputs, strict=True)
        ]
    else:
        called = _callable(str(function), starter)
        tests = [_apps_call(called, *pair, record) for pair in zip(inputs, outputs, strict=True)]
    data: dict[str, Any] = {
        "tests": _some(tests, record),
        "prelude": PRELUDE,
        "difficulty": _optional(record, "difficulty"),
    }
    solutions = _json(_optional(record, "solutions") or "[]", f"{record.place}: solutions")
    if isinstance(solutions, list) and solutions:
        data["solution"] = str(solutions[0])
    question = _question(record.text("question"), None if function is None else starter)
    return Task(f"apps/{record.id('problem_id', 'id')}", question, ("",), data=data)


def _apps_call(function: str, given: Any, expected: Any, record: RawRow) -> CallTest:
    if not isinstance(given, list):
        raise DatasetError(f"{record.place}: the arguments of a call must be a list, not {given!r:.60}.")
    wrapped = [_keyed(item) for item in expected] if isinstance(expected, list) else _keyed(expected)
    return CallTest(function, tuple(map(_keyed, given)), wrapped, "wrapped", via="untupled")


def _keyed(value: Any) -> Any:
    """JSON made the whole numbers among keys into text; this makes them numbers again."""
    if isinstance(value, dict) and value and all(key.lstrip("-").isdecimal() for key in value):
        return {int(key): item for key, item in value.items()}
    return value


def _lines(value: Any, record: RawRow) -> str:
    """Text, or a list of lines."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if not isinstance(value, str):
        raise DatasetError(
            f"{record.place}: inputs and outputs must be text or lists of lines, not {value!r:.60}."
        )
    return value


def _callable(function: str, starter: str) -> str:
    return f"Solution.{function}" if "class Solution" in starter else function


def _question(text: str, starter: str | None) -> str:
    """The statement, and the form that the answer takes; ``starter`` is None for programs that read and write."""
    return f"{text}\n\n{STDIO}" if starter is None else f"{text}\n\n{CALL}\n{starter}"


def _some(tests: Sequence[Test], record: RawRow) -> tuple[Test, ...]:
    if not tests:
        raise DatasetError(f"{record.place} has no tests.")
    return tuple(tests)


def _optional(record: RawRow, name: str) -> str:
    value = record.fields.get(name)
    return value if isinstance(value, str) else ""


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{place} is no valid JSON: {error}.") from error


CONTEST_SETS: Mapping[str, Callable[[RawRow], Task]] = {"livecodebench": livecodebench, "apps": apps}

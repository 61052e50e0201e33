"""The parts that need no jail: plain values, bounded output, files without links, the judge of signals, grading."""

import collections
import itertools
import json
import math
import os
import re
import resource
import subprocess
import sys
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentenv.errors import ConfigurationError, SandboxFault, UnknownName
from agentenv.sandbox.encoding import packed_call
from agentenv.sandbox.fakes import FakeExecutor
from agentenv.sandbox.grading import (
    VIA,
    CallTest,
    CaseOutcome,
    StdioTest,
    Test,
    grade,
    judge_call,
    matches_text,
)
from agentenv.sandbox.jail import confine, frames, plain, trees
from agentenv.sandbox.jail.output import Bounded
from agentenv.sandbox.jail.signal_filter import SignalFilter
from agentenv.sandbox.jail.worker import answer_call, digest
from agentenv.sandbox.types import ExecResult, ExecStatus, FunctionCall

atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
values = st.recursive(
    atoms,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(keys, inner) | st.sets(keys),
    max_leaves=20,
)


@given(values)
def test_plain_values_survive_the_wall_with_their_types(value: Any) -> None:
    back = plain.load(json.loads(frames.encode(plain.dump(value))))
    assert repr(back) == repr(value) or back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "value", [1j, frozenset({1}), range(1, 9, 2), math.inf, -0.0, 1 << 200, bytearray(b"x")]
)
def test_rare_values_survive_too(value: Any) -> None:
    assert plain.load(plain.dump(value)) == value


class Point(NamedTuple):
    x: int


class Liar(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __int__(self) -> int:
        return 42


def test_subclasses_become_the_builtin_inside_them() -> None:
    for value, inner in ((Point(1), (1,)), (collections.Counter("aa"), {"a": 2}), (Liar(7), 7)):
        back = plain.load(plain.dump(value))
        assert type(back) is type(inner)
        assert back == inner


@pytest.mark.parametrize("value", [object(), len, type, {1: object()}])
def test_other_objects_do_not_cross(value: Any) -> None:
    with pytest.raises(plain.NotPlain):
        plain.dump(value)


def test_too_many_items_do_not_cross() -> None:
    for value in ([0] * (plain.MAX_ITEMS + 1), itertools.count()):
        with pytest.raises(plain.NotPlain, match="items"):
            plain.dump(value, returned=True)


@pytest.mark.parametrize(
    "value",
    [(x for x in "ab"), map(str, "ab"), {"a": 1, "b": 2}.keys(), collections.deque("ab"), reversed("ba")],
)
def test_what_is_gone_through_equals_no_list_and_becomes_one_where_asked(value: Any) -> None:
    sized = hasattr(value, "__len__")
    document = {"v": plain.dump(value, returned=True)}
    for expected, via in (
        (["a", "b"], "list"),
        (("a", "b"), "tuple"),
        ({"b", "a"}, "set"),
        (["a", "b"], "sorted"),
    ):
        assert judge_call(CallTest("f", (), expected, via=via), document) is CaseOutcome.PASSED
    assert judge_call(CallTest("f", (), ["b", "a"], via="list"), document) is CaseOutcome.WRONG
    assert judge_call(CallTest("f", (), ["a", "b"]), document) is CaseOutcome.WRONG
    length = judge_call(CallTest("f", (), 2, via="len"), document)
    assert length is (CaseOutcome.PASSED if sized else CaseOutcome.WRONG)


@pytest.mark.parametrize(
    ("empty", "truth"),
    [({}.keys(), False), ({}.values(), False), (collections.deque(), False), (iter([]), True)],
)
def test_what_is_gone_through_is_as_true_as_python_has_it(empty: Any, truth: bool) -> None:
    document = {"v": plain.dump(empty, returned=True)}
    assert judge_call(CallTest("f", (), None, "true" if truth else "false"), document) is CaseOutcome.PASSED
    assert judge_call(CallTest("f", (), None, "false" if truth else "true"), document) is CaseOutcome.WRONG


@pytest.mark.parametrize(
    ("value", "expected", "way"),
    [
        (Decimal("2.50"), 2.5, ""),
        (Decimal("0.1"), 0.1, ""),
        (Decimal("1e-40"), 0, ""),
        (Decimal("Infinity"), math.inf, ""),
        (Decimal("NaN"), math.nan, ""),
        ([Decimal(1), Fraction(-1, 2)], [1, -0.5], ""),
        ({Decimal(1): {Fraction(4, 2)}}, {1: {2}}, ""),
        (Decimal("1.50"), "1.50", "str"),
        (Fraction(1, 2), "1/2", "str"),
        (Decimal("7.9"), 7, "int"),
        ([Decimal(3), Fraction(5, 2), 1 << 5000, -1 << 5000], [-1 << 5000, 2.5, 3, 1 << 5000], "sorted"),
        ({1: 2, 3: [4]}.keys(), {3, 1}, ""),
        ({1: 2}.keys(), {1, 2}, ""),
        ({1: 2}.items(), {(1, 2)}, ""),
        ({1: 2}.items(), [(1, 2)], ""),
        ({}.items(), set(), ""),
        ({1: [2]}.items(), [(1, [2])], "list"),
    ],
)
def test_what_python_calls_equal_passes_and_nothing_else(value: Any, expected: Any, way: str) -> None:
    line = json.dumps({"v": plain.dump(value, returned=True)})
    right = VIA[way](value) == expected
    outcome = judge_call(CallTest("f", (), expected, via=way), plain.decode(line))
    assert outcome is (CaseOutcome.PASSED if right else CaseOutcome.WRONG)


def test_a_decimal_is_as_close_as_python_lets_it_be() -> None:
    """It is subtracted from an integer and from no float, and a fraction from both."""
    for value, expected, how, passes in (
        (Decimal("1.5"), 1.5, "isclose", True),
        (Decimal("1.5"), 2, "close", True),
        (Decimal("1.5"), 1.5, "close", False),
        (Fraction(3, 2), 1.5, "close", True),
        (Decimal(0), None, "false", True),
        (Fraction(1, 2), None, "true", True),
    ):
        document = {"v": plain.dump(value, returned=True)}
        test: Any = CallTest("f", (), expected, how, 0.5)  # type: ignore[arg-type]
        assert (judge_call(test, document) is CaseOutcome.PASSED) is passes


@pytest.mark.parametrize("argument", [iter([1, 2]), {1: 2}.keys(), collections.deque([1]), Decimal(1)])
def test_what_is_gone_through_is_no_argument(argument: Any) -> None:
    """An iterator would be empty for the second program, and a right one would fail."""
    with pytest.raises(ConfigurationError, match="arguments of f"):
        packed_call(FunctionCall("f", ([argument],)))


def test_numbers_of_numpy_become_pythons() -> None:
    numpy = pytest.importorskip("numpy")
    for value, inner in (
        (numpy.int64(3), 3),
        (numpy.bool_(True), True),
        (numpy.float32(0.5), 0.5),
        ([numpy.uint8(7)], [7]),
    ):
        back = plain.load(plain.dump(value))
        assert back == inner
        assert type(back) is type(inner)
    for other in (numpy.array([1, 2]), numpy.longdouble(1)):
        with pytest.raises(plain.NotPlain):
            plain.dump(other)


def test_of_other_objects_the_truth_crosses() -> None:
    """A match of a pattern passes an assert that asks for nothing else, and no other."""
    scope = {"f": lambda text: re.search("ab", text), "g": lambda: [object()]}
    found, none = (answer_call(scope, "f", plain.dump((text,))) for text in ("cab", "c"))
    assert judge_call(CallTest("f", (), None, "true"), found) is CaseOutcome.PASSED
    assert judge_call(CallTest("f", (), None, "false"), found) is CaseOutcome.WRONG
    assert judge_call(CallTest("f", (), True), found) is CaseOutcome.ERROR
    assert judge_call(CallTest("f", (), None, "false"), none) is CaseOutcome.PASSED
    assert (
        judge_call(CallTest("g", (), None, "true"), answer_call(scope, "g", plain.dump(())))
        is CaseOutcome.PASSED
    )
    for forged in ({"e": "x", "truth": 1}, {"truth": "yes"}, {"e": "x"}, [True], None):
        assert judge_call(CallTest("f", (), None, "true"), forged) is CaseOutcome.ERROR


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"x": 1},
        {"l": 3},
        {"i": "zz"},
        {"d": [[1]]},
        {"s": [{"l": []}]},
        [1],
        1.5,
        {"m": "x"},
        {"m": 1},
        {"m": "1E+601"},
        {"m": "1E-601"},
        {"m": "1" * 9999},
        {"p": ["0x1", "0x0"]},
        {"p": ["1"]},
        {"p": ["f" * 600, "1"]},
        {"j": [1]},
        {"k": [{"l": []}]},
    ],
)
def test_what_is_no_document_is_refused(document: Any) -> None:
    with pytest.raises(plain.NotPlain):
        plain.load(document)


def test_bounded_output_keeps_head_and_tail() -> None:
    record = Bounded(10, 100)
    for part in (b"abc", b"defgh", b"x" * 50, b"12345"):
        record.add(part)
    assert record.text == "abcde\n[53 bytes left out]\n12345"
    assert record.truncated
    assert not record.offends
    record.add(b"y" * 40)
    assert record.offends
    record.forgive()
    assert not record.offends


@pytest.mark.parametrize("size", [0, 1, 5, 9, 10])
def test_bounded_output_that_fits_is_whole(size: int) -> None:
    record = Bounded(10, 100)
    for index in range(size):
        record.add(b"%d" % index)
    assert record.text == "0123456789"[:size]
    assert not record.truncated


def test_files_are_copied_as_they_are(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d" / "empty").mkdir(parents=True)
    (source / "d" / "f").write_bytes(b"x" * 10_000)
    (source / "link").symlink_to("/nowhere")
    (source / "d" / "f").chmod(0o640)
    os.mkfifo(source / "pipe")
    with (source / "sparse").open("wb") as stream:
        stream.truncate(1 << 20)
    assert trees.copy(str(source), str(tmp_path / "copy")) == 10_000 + (1 << 20)
    copy = tmp_path / "copy"
    assert (copy / "d" / "f").read_bytes() == b"x" * 10_000
    assert (copy / "d" / "f").stat().st_mode == (source / "d" / "f").stat().st_mode
    assert (copy / "link").readlink() == Path("/nowhere")
    assert (copy / "sparse").stat().st_size == 1 << 20
    assert not (copy / "pipe").exists()
    trees.clear(str(copy))
    assert list(copy.iterdir()) == []


def test_reading_and_writing_follow_no_link(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    root = tmp_path / "root"
    root.mkdir()
    (root / "out").symlink_to(tmp_path)
    (root / "leaf").symlink_to(tmp_path / "secret")
    for name in ("out/secret", "leaf"):
        with pytest.raises(trees.PathRefused):
            trees.read(str(root), name, 100)
        with pytest.raises(trees.PathRefused):
            trees.write(str(root), name, b"x")
    trees.write(str(root), "a/b/c", b"deep")
    assert trees.read(str(root), "a/b/c", 100) == b"deep"
    with pytest.raises(trees.PathRefused, match=r"'a/b/c'.*\b3\b"):
        trees.read(str(root), "a/b/c", 3)
    assert (tmp_path / "secret").read_text() == "s"


def test_the_judge_knows_whose_process_it_is() -> None:
    own, parent, group = os.getpid(), os.getppid(), os.getpgid(os.getppid())
    signal_filter = SignalFilter(lambda: {own}, template=parent)
    kill = 62
    assert signal_filter.allows(own, kill, (own, 9))
    for target in (parent, 1, -1, -group):
        assert not signal_filter.allows(own, kill, (target & 0xFFFFFFFF, 9))


def test_the_judge_lets_a_signal_reach_a_group_only_where_all_of_it_is_the_callers() -> None:
    own, kill = os.getpid(), 62
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as child:
        assert SignalFilter(lambda: {own}, template=1).allows(own, kill, (-child.pid & 0xFFFFFFFF, 9))
        assert SignalFilter(lambda: {child.pid}, template=1).allows(child.pid, kill, (0, 9))
        assert not SignalFilter(lambda: {own, child.pid}, template=1).allows(
            own, kill, (-child.pid & 0xFFFFFFFF, 9)
        )
        child.communicate(b"\n")
    with subprocess.Popen(command, stdin=subprocess.PIPE) as sibling:  # in this process's group
        assert not SignalFilter(lambda: {own, sibling.pid}, template=1).allows(own, kill, (0, 9))
        sibling.communicate(b"\n")


def test_the_digest_sees_values_and_ignores_addresses() -> None:
    assert digest({"a": [1, {2}]}) == digest({"a": [1, {2}]})
    assert digest({"a": [1]}) != digest({"a": [2]})
    assert digest({"a": object()}) == digest({"a": object()})
    assert digest({"a": True}) != digest({"a": 1})


def test_grading_counts_each_test() -> None:
    tests: list[Test] = [
        CallTest("f", (2,), 4),
        CallTest("f", (3,), 7),
        CallTest("f", ("a",), 0),
        CallTest("missing", (), 0),
        CallTest("f", (1,), 2.4, "close", 0.5),
        CallTest("f", (0,), None, "false"),
        CallTest("f", ([2, 2],), {2}, via="set"),
    ]
    found = grade(FakeExecutor(), "def f(x): return x * 2 if x != 'a' else 1 / 0", tests)
    passed, wrong, error = CaseOutcome.PASSED, CaseOutcome.WRONG, CaseOutcome.ERROR
    assert found.outcomes == (passed, wrong, error, error, passed, passed, passed)
    assert (found.passed, found.all_passed, found.fraction) == (4, False, 4 / 7)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (ExecStatus.OK, CaseOutcome.PASSED),
        (ExecStatus.ERROR, CaseOutcome.ERROR),
        (ExecStatus.KILLED, CaseOutcome.ERROR),
        (ExecStatus.TIMEOUT, CaseOutcome.TIMEOUT),
        (ExecStatus.OOM, CaseOutcome.LIMIT),
        (ExecStatus.OUTPUT_LIMIT, CaseOutcome.LIMIT),
    ],
)
def test_the_right_output_counts_only_of_a_run_that_went_well(
    status: ExecStatus, outcome: CaseOutcome
) -> None:
    class Ended(FakeExecutor):
        def run(self, code: str, **options: Any) -> ExecResult:
            return ExecResult(status, "23\n", "trouble")

    found = grade(Ended(), "", [StdioTest("", "23")])
    assert found.outcomes == (outcome,)
    assert found.stderr == ("" if outcome is CaseOutcome.PASSED else "trouble")


@pytest.mark.parametrize("ending", ["raise ValueError", "import sys; sys.exit(3)"])
def test_the_right_output_of_a_program_that_failed_is_no_pass(ending: str) -> None:
    tests: list[Test] = [StdioTest("", "23"), StdioTest("", "24")]
    assert grade(FakeExecutor(), f"print(23)\n{ending}", tests).outcomes == (CaseOutcome.ERROR,) * 2


@pytest.mark.parametrize(
    "document",
    [
        {"v": 4, "x": 1},
        {"v": 4, "e": ""},
        {"v": 4, "": None},
        {"V": 4},
        {"e": "4"},
        {"x": 4},
        {},
        {"v": {"v": 4}},
        [["v", 4]],
        "v",
        4,
        None,
    ],
)
def test_only_a_document_with_a_value_and_nothing_else_is_a_verdict(document: Any) -> None:
    assert judge_call(CallTest("f", (), 4), {"v": 4}) is CaseOutcome.PASSED
    assert judge_call(CallTest("f", (), 4), document) is CaseOutcome.ERROR


def test_a_value_is_wrong_and_not_an_error_where_the_run_failed_after_it() -> None:
    """What was answered before a program died is judged by its value."""

    class Died(FakeExecutor):
        def run(self, code: str, **options: Any) -> ExecResult:
            whole = super().run(code, **options)
            return replace(whole, status=ExecStatus.TIMEOUT, returned=whole.returned[:2])

    found = grade(Died(), "def f(x): return x", [CallTest("f", (n,), 1) for n in (1, 2, 3)])
    assert found.outcomes == (CaseOutcome.PASSED, CaseOutcome.WRONG, CaseOutcome.TIMEOUT)


def test_grading_compares_text() -> None:
    program = "print(int(input()) / 3)"
    tests = [StdioTest("1\n", "0.333", "float", 1e-2), StdioTest("3\n", "1.0"), StdioTest("x\n", "1.0")]
    assert grade(FakeExecutor(), program, tests).outcomes == (
        CaseOutcome.PASSED,
        CaseOutcome.PASSED,
        CaseOutcome.ERROR,
    )


@pytest.mark.parametrize(
    ("compare", "wanted", "text", "same"),
    [
        ("exact", "a b\nc", "a b \nc\n\n", True),
        ("exact", "a b", "a  b", False),
        ("exact", "a", "\na", False),
        ("exact", "a\nb\n", "a\r\nb", True),
        ("exact", "", "\n \n", True),
        ("exact", "a\nb", "a\x0cb", False),
        ("exact", "a\nb", "a\u2028b", False),
        ("exact", "a\nb", "a\rb", False),
        ("tokens", "a b\nc", "a\nb c", True),
        ("tokens", "1.0", "1", False),
        ("float", "1.0 x", "1 x", True),
        ("float", "1 2", "1", False),
        ("float", "1", "nan", False),
        ("float", "0", "0.0000001", True),  # by .0000001, a tenth of the tolerance
        ("float", "0", "0.00001", False),
        ("float", "1000000", "1000000.5", True),  # by a half of a millionth of it
        ("float", "1000000", "1000002", False),
        ("lines", "1.50 2\nx y", "\n  1.5 2.0 \n x y\n", True),
        ("lines", "50000000000000001", "50000000000000000", False),
        ("lines", "1 2", "1\n2", False),
        ("lines", "1\n\n2", "1\n2", False),
        ("lines", "a  b", "a b", False),
        ("lines", "1", "one", False),
        ("lines", "1", "sNaN", False),
    ],
)
def test_text_is_compared_as_asked(compare: Any, wanted: str, text: str, same: bool) -> None:
    assert matches_text(StdioTest("", wanted, compare), text) is same


CHECKERS = """
def divisor(stdin, expected, printed):
    return int(stdin) % int(printed) == 0 and int(printed) >= int(expected)

def odd(stdin, expected, printed):
    return "yes"
"""


@pytest.mark.parametrize(
    ("text", "right"), [("2", True), ("7\n", True), ("1", False), ("3", False), ("two", False), ("0", False)]
)
def test_a_checker_of_one_s_own_takes_every_right_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, right: bool
) -> None:
    """A divisor of 14 of at least 2; what the checker cannot read, or fails on, is wrong and no fault."""
    (tmp_path / "checkers_of_divisors.py").write_text(CHECKERS)
    monkeypatch.chdir(tmp_path)
    test = StdioTest("14\n", "2", "checker", checker="checkers_of_divisors:divisor")
    assert matches_text(test, text) is right
    outcome = CaseOutcome.PASSED if right else CaseOutcome.WRONG
    assert grade(FakeExecutor(), f"print({text.strip()!r})", [test]).outcomes == (outcome,)


def test_a_checker_that_cannot_judge_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "checkers_of_all.py").write_text(CHECKERS)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="'yes'"):
        matches_text(StdioTest("", "", "checker", checker="checkers_of_all:odd"), "1")
    with pytest.raises(ConfigurationError, match="none_such"):
        matches_text(StdioTest("", "", "checker", checker="checkers_of_all:none_such"), "1")
    with pytest.raises(UnknownName, match="checker"):
        matches_text(StdioTest("", "", "checker"), "1")


def test_a_value_of_another_type_is_wrong_where_the_type_counts() -> None:
    assert judge_call(CallTest("f", (), 1, "is"), {"v": True}) is CaseOutcome.WRONG
    assert judge_call(CallTest("f", (), 1), {"v": True}) is CaseOutcome.PASSED
    assert judge_call(CallTest("f", (), 1, "close"), {"v": "x"}) is CaseOutcome.WRONG
    assert judge_call(CallTest("f", (), 1), {"e": "ValueError"}) is CaseOutcome.ERROR
    assert judge_call(CallTest("f", (), 1), ["v"]) is CaseOutcome.ERROR


@pytest.mark.parametrize(
    ("expected", "value", "outcome"),
    [
        ([3], 3, CaseOutcome.PASSED),
        ([3], [3], CaseOutcome.PASSED),
        ([[1, 2]], (1, 2), CaseOutcome.PASSED),
        ([[[1], 2]], [([1], 2)], CaseOutcome.PASSED),
        (3, 3, CaseOutcome.PASSED),
        ([], [], CaseOutcome.PASSED),
        ([3], [[3]], CaseOutcome.WRONG),
        ([3, 4], 4, CaseOutcome.WRONG),
        ([], None, CaseOutcome.WRONG),
        ("ab", "a", CaseOutcome.WRONG),
    ],
)
def test_a_wrapped_value_is_expected_as_it_is_or_without_its_list(
    expected: Any, value: Any, outcome: CaseOutcome
) -> None:
    test = CallTest("f", (), expected, "wrapped", via="untupled")
    assert judge_call(test, {"v": plain.dump(value)}) is outcome


@pytest.mark.parametrize(
    ("expected", "value", "outcome"),
    [
        # With a tolerance of 1e-6: 1000 may be off by 1e-6 + 1e-4.
        (1000.0, 1000.0001, CaseOutcome.PASSED),
        (1000.0, 1000.0002, CaseOutcome.WRONG),
        ([0.5, 1.0], [0.5, 1.000001], CaseOutcome.PASSED),
        ([0.5, 1.0], [0.5, 1.00001], CaseOutcome.WRONG),
        ([0.5, 1.0], [0.5], CaseOutcome.WRONG),
        ([0.5], (0.5,), CaseOutcome.WRONG),
        (2.0, 2, CaseOutcome.PASSED),  # equal
        (2.0, "2.0", CaseOutcome.WRONG),
        (2.0, float("nan"), CaseOutcome.WRONG),
        (float("inf"), float("inf"), CaseOutcome.PASSED),
        (float("inf"), 3.0, CaseOutcome.WRONG),  # a share of infinity would allow every number
        ([0.5, float("inf")], [0.5, 1.0], CaseOutcome.WRONG),
        ([0.5, float("inf")], [0.5, float("inf")], CaseOutcome.PASSED),
        (-float("inf"), float("inf"), CaseOutcome.WRONG),
    ],
)
def test_floats_are_near_by_the_rule_of_evalplus(expected: Any, value: Any, outcome: CaseOutcome) -> None:
    test = CallTest("f", (), expected, "near", 1e-6)
    assert judge_call(test, {"v": plain.dump(value)}) is outcome


def test_floats_are_close_by_the_rule_of_math() -> None:
    test = CallTest("f", (), 100.0, "isclose", 0.001)
    for value, outcome in (
        (100.1, CaseOutcome.PASSED),  # .1 is at most .001 * 100.1
        (99.9, CaseOutcome.PASSED),
        (100.2, CaseOutcome.WRONG),
        (float("nan"), CaseOutcome.WRONG),
        ("100", CaseOutcome.WRONG),
    ):
        assert judge_call(test, {"v": plain.dump(value)}) is outcome


def test_tuples_count_as_lists_where_asked() -> None:
    for value, outcome in (
        ((1, (2,)), CaseOutcome.PASSED),
        ([1, [2]], CaseOutcome.PASSED),
        ("12", CaseOutcome.WRONG),
    ):
        assert judge_call(CallTest("f", (), [1, [2]], via="untupled"), {"v": plain.dump(value)}) is outcome
    assert (
        judge_call(CallTest("f", (), {"a": [1]}, via="untupled"), {"v": plain.dump({"a": (1,)})})
        is CaseOutcome.PASSED
    )


def test_a_fault_is_never_a_grade() -> None:
    with pytest.raises(SandboxFault):
        grade(FakeExecutor(faults=1), "def f(): return 1", [CallTest("f", (), 1)])


class Dying(FakeExecutor):
    """Answers one call a run, then dies."""

    def run(self, code: str, **options: Any) -> ExecResult:
        whole = super().run(code, **options)
        return replace(whole, returned=whole.returned[:1])


def test_calls_after_a_death_run_again_but_not_for_ever() -> None:
    found = grade(Dying(), "def f(x): return x", [CallTest("f", (i,), i) for i in range(9)])
    passed, error = CaseOutcome.PASSED, CaseOutcome.ERROR
    assert found.outcomes == (passed, error, passed, error, passed, error, error, error, error)


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes private copies of mounts")
def test_a_folder_in_the_temporary_one_stays_reachable(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    code = f"import os; from agentenv.sandbox import launch; print(os.listdir(launch.reachable([{str(tmp_path)!r}])[0]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    if "Operation not permitted" in done.stderr:
        pytest.skip("mounts are not permitted here")
    assert done.stdout == "['here']\n", done.stderr


def test_trees_of_any_depth_are_copied_and_removed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    at = os.open(source, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.fchmod(at, 0o100)
        os.close(at)
        at = inner
    os.close(os.open("leaf", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    assert trees.copy(str(source), str(tmp_path / "copy")) == 0
    assert source.stat().st_mode & 0o777 == 0o100
    for tree in ("source", "copy"):
        trees.remove(str(tmp_path / tree))
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_many_names_is_copied_within_the_room_alone(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "f").write_bytes(b"x" * 5000)
    for number in range(9):
        os.link(tmp_path / "s" / "f", tmp_path / "s" / f"f{number}")
    assert trees.copy(str(tmp_path / "s"), str(tmp_path / "whole"), 50_000) == 50_000
    with pytest.raises(OSError, match="names"):
        trees.copy(str(tmp_path / "s"), str(tmp_path / "part"), 20_000)


def test_a_program_cannot_sleep_through_all_of_its_tests() -> None:
    class Slow(FakeExecutor):
        def run(self, code: str, **options: Any) -> ExecResult:
            return replace(super().run(code, **options), wall_s=100.0)

    tests = [StdioTest("", "1\n")] * 90
    slow = Slow()
    found = grade(slow, "print(1)", tests)
    assert (found.passed, len(slow.programs), len(found.outcomes)) == (3, 3, 90)
    assert set(found.outcomes[3:]) == {CaseOutcome.TIMEOUT}


def test_a_limit_of_the_caller_that_is_below_a_programs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less than it was promised would let a program fail for reasons that are not its own."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (10, 10))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, values: pytest.fail("it was set"))
    with pytest.raises(ValueError, match=r"RLIMIT_NOFILE.*10.*64"):
        confine._set_limit(resource.RLIMIT_NOFILE, 64, 64)

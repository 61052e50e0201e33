"""What a call gives back is decoded and judged by the owner: no value of a program exhausts it or takes its time."""

import itertools
import json
import resource
import time
from typing import Any

import pytest

from agentenv.core.grammar import encodable
from agentenv.sandbox.encoding import result_of
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.grading import CallTest, CaseOutcome, grade, judge_call
from agentenv.sandbox.jail import plain
from agentenv.sandbox.types import ExecutionLimits


@pytest.fixture(name="box")
def _box(box_of_module: JailExecutor) -> JailExecutor:
    return box_of_module


LIMITS = ExecutionLimits(wall_s=30.0, cpu_s=10.0, memory_mb=512)
PRIME = (1 << 61) - 1
"""What Python's hash of a number is the rest by."""
ROOM_KB = 256 << 10

# Programs that write their answer past the harness, on the descriptor that it uses.
FORGED = f"""
import os
def say(text):
    data = memoryview(text.encode("utf-8", "surrogatepass") + b"\\n")
    while data: data = data[os.write(3, data):]
    os._exit(0)
def number(k): return '{{"i":"%s"}}' % hex(k * {PRIME})
def power(k): return '{{"f":"%r"}}' % 2.0 ** (61 * k)
numbers = [number(k) for k in range(230_000)]
"""


def forged(tag: str, items: str) -> str:
    """A program that answers with a container of ``items``."""
    return f"""{FORGED}\nsay('{{"v":{{"{tag}":[' + ','.join({items}) + ']' + '}}' * 2)"""


RETURNED = {
    "colliding numbers in a set": forged("s", "numbers"),
    "colliding numbers in a frozen set": forged("z", "numbers"),
    "colliding keys": forged("d", "'[%s,0]' % one for one in numbers"),
    "colliding tuples": forged(
        "s", """'{"t":[%s,%s]}' % (number(a), number(b)) for a in range(150) for b in range(150)"""
    ),
    "colliding floats": forged(
        "s", """'{"t":[%s,%s]}' % (power(a), power(b)) for a in range(16) for b in range(16)"""
    ),
    "70 colliding numbers a thousand times": forged(
        "l", """['{"s":[%s]}' % ','.join(numbers[:70])] * 1000"""
    ),
    "an honest set of colliding numbers": f"f = lambda n: {{k * {PRIME} for k in range(2000)}}",
    "a list of colliding numbers": f"f = lambda n: [k * {PRIME} for k in range(20000)]",
    "endless brackets": FORGED + "say('{\"v\":' + '[' * 7_000_000)",
    "endless objects": FORGED + "say('{\"v\":' + '{\"l\":[' * 1_000_000)",
    "millions of lists": FORGED + "say('{\"v\":{\"l\":[' + '[],' * 2_500_000 + '[]]}}')",
    "millions of objects": FORGED + "say('{\"v\":{\"l\":[' + '{\"\":0},' * 1_100_000 + '0]}}')",
    "iterators": FORGED + "say('{\"v\":{\"l\":[' + '{\"g\":[0]},' * 390_000 + '0]}}')",
    "views": FORGED + "say('{\"v\":{\"l\":[' + '{\"q\":[0]},' * 390_000 + '0]}}')",
    "millions of texts": FORGED
    + "say('{\"v\":{\"l\":[' + ','.join(f'\"{i:x}\"' for i in range(800_000)) + ']}}')",
    "a text of quotes": FORGED + "say('{\"v\":\"' + '\\\\\"' * 4_000_000)",
    "a text of brackets": FORGED + "say('{\"v\":\"' + '[' * 8_000_000 + '\"}')",
    "millions of lines": FORGED + "say('\\n' * 8_000_000)",
    "a number of 8 million digits": FORGED + "say('{\"v\":' + '9' * 8_000_000 + '}')",
    "a number of 8 million hex digits": FORGED + "say('{\"v\":{\"i\":\"0x' + 'f' * 8_000_000 + '\"}}')",
    "a float of 8 million digits": FORGED + "say('{\"v\":{\"f\":\"' + '9' * 8_000_000 + '\"}}')",
    "text of 8 million digits": FORGED + "say('{\"v\":\"' + '9' * 8_000_000 + '\"}')",
    "text of 2 million letters": FORGED + "say('{\"v\":\"' + '\\u4e2d' * 2_000_000 + '\"}')",
    "text of half pairs": FORGED + "say('{\"v\":\"' + '\\\\ud800' * 1_000_000 + '\"}')",
    "an infinite number": FORGED + "say('{\"v\":1e999}')",
    "no number": FORGED + 'say(\'{"v":{"f":"nan"}}\')',
    "an infinite complex": FORGED + 'say(\'{"v":{"c":["0x1p99999","0x0p0"]}}\')',
    "a range without end": "f = lambda n: range(10 ** 15)",
    "a range beyond every index": "f = lambda n: range(-10 ** 300, 10 ** 300)",
    "a range of three": FORGED + 'say(\'{"v":{"r":[0,1,0]}}\')',
    "a complex number without parts": FORGED + 'say(\'{"v":{"c":[]}}\')',
    "a complex number of an empty text": FORGED + 'say(\'{"v":{"c":""}}\')',
    "decimals that would be millions of digits": FORGED
    + "say('{\"v\":{\"l\":[' + ','.join('{\"m\":\"1E+600\"}' for i in range(190_000)) + ']}}')",
    "keys of one hash": FORGED + "say('{\"v\":{\"k\":[' + ','.join(numbers) + ']}}')",
    "bytes without end": "f = lambda n: bytes(2_000_000)",
    "a list in itself": "def f(n):\n x = []\n x.append(x)\n return x",
    "a list that doubles": "def f(n):\n x = [0]\n for _ in range(40): x = [x, x]\n return x",
}
WAYS = [
    CallTest("f", (1,), {1, 2}, via="set"),
    CallTest("f", (1,), [1, 2], via="list"),
    CallTest("f", (1,), (1, 2), via="tuple"),
    CallTest("f", (1,), [1, 2], via="sorted"),
    CallTest("f", (1,), [1, 2], via="untupled"),
    CallTest("f", (1,), "1", via="str"),
    CallTest("f", (1,), 12, via="int"),
    CallTest("f", (1,), 1.5, "close", 1e-6),
    CallTest("f", (1,), {1: 2}),
    CallTest("f", (1,), [[1]], "wrapped"),
    CallTest("f", (1,), {"a"}, "is"),
]


@pytest.mark.parametrize("case", RETURNED)
def test_no_returned_value_exhausts_the_owner(box: JailExecutor, case: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = grade(box, RETURNED[case], WAYS[:1], limits=LIMITS)
    assert found.outcomes[0] in (CaseOutcome.ERROR, CaseOutcome.WRONG, CaseOutcome.LIMIT)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < ROOM_KB


@pytest.mark.parametrize("test", WAYS, ids=lambda test: test.via or test.compare)
@pytest.mark.parametrize(
    "document",
    [
        {"r": [0, 10**15, 1]},
        {"r": [0, 10**300, 1]},
        {"i": "0x" + "f" * 1_000_000},
        {"l": [{"i": hex(k * PRIME)} for k in range(20_000)]},
        {"b": "00" * 1_000_000},
        "9" * 1_000_000,
        "\ud800",
        {"f": "1e999"},
        {"f": "nan"},
        {"c": ["0x1p1", "inf"]},
        {"c": []},
        {"c": ""},
        {"c": ["0x1p1"]},
    ],
    ids=lambda document: repr(document)[:20],
)
def test_every_comparison_of_every_value_comes_to_an_end(test: CallTest, document: object) -> None:
    assert judge_call(test, {"v": document}) in (CaseOutcome.WRONG, CaseOutcome.ERROR)


def test_decimals_and_fractions_are_sorted_with_a_number_of_millions_of_digits() -> None:
    """Python's own decimals would take hours: it writes the number in base 10 for each comparison."""
    items: list[Any] = [{"i": "0x" + "f" * 7_000_000}, {"i": "-0x" + "f" * 100_000}]
    items += [{"m": f"{k}.5"} for k in range(400)]
    items += [{"p": [hex(2**2000 + k), hex(2**2000 - 1 - k)]} for k in range(400)]
    assert judge_call(CallTest("f", (), [1], via="sorted"), {"v": {"l": items}}) is CaseOutcome.WRONG


def nested(width: int, depth: int, last: int) -> dict[str, Any]:
    """A frozen set of ``width`` frozen sets, ``depth`` times, of numbers of one hash; ``last`` tells it from its equals."""
    if not depth:
        return {"i": hex(PRIME * (last + 1))}
    members = [nested(width, depth - 1, k) for k in range(width - 1)]
    return {"z": [*members, nested(width, depth - 1, 1000 + last)]}


@pytest.mark.parametrize(("width", "depth", "count"), [(64, 1, 1500), (8, 3, 120), (4, 6, 24), (16, 2, 300)])
@pytest.mark.parametrize("tag", ["s", "l"])
def test_sets_in_sets_are_not_compared_for_hours(tag: str, width: int, depth: int, count: int) -> None:
    """Two frozen sets of members of one hash have one hash too, and comparing them compares each member with each."""
    items = [nested(width, depth, k % 60) for k in range(count)]
    test = CallTest("f", (), {1}, via="set" if tag == "l" else "")
    before = time.process_time()
    assert judge_call(test, plain.decode(json.dumps({"v": {tag: items}}))) is CaseOutcome.ERROR
    assert time.process_time() - before < 2.0


def test_values_that_a_program_may_return_are_judged_as_before() -> None:
    large = [*range(50_000), "text", (1, 2), None]
    for value, via in (
        (set(range(0, 1 << 62, 1 << 46)), "set"),
        ([3, 1, 2] * 20_000, "sorted"),
        ({(a, b): a for a in range(200) for b in range(200)}, ""),
        (range(10**15), ""),
        (large, ""),
        ("[" * 150_000, ""),
        ('{"quoted\\": [' * 10_000, ""),
        ([0.5] * 50_000, "tuple"),
        ([-1, -2] * 100, "set"),
        (set(itertools.product(range(-2, 3), repeat=6)), ""),
        ({frozenset((k, k + 1, k + 2)) for k in range(30_000)}, ""),
        ([frozenset(range(-2, 8))] * 15_000, "set"),
    ):
        line = json.dumps({"v": plain.dump(value)})
        convert: Any = {"set": set, "sorted": sorted, "tuple": tuple, "": lambda v: v}[via]
        test = CallTest("f", (), convert(value), "is", via=via)
        assert judge_call(test, plain.decode(line)) is CaseOutcome.PASSED


def answer(**parts: object) -> dict[str, object]:
    whole = {"status": "ok", "stdout": "", "stderr": "", "truncated": False, "files": {}, "refused": {}}
    return whole | parts


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\ud83d\ude00", "ä\ud800", "\udc80" * 1000])
def test_no_text_of_a_result_holds_half_a_pair(text: str) -> None:
    error = {"type": text, "message": text, "line": 1}
    result = result_of(answer(stdout=text, stderr=text, value=text, error=error, refused={"f": text}))
    assert result.error is not None
    assert result.value is not None
    texts = (result.stdout, result.stderr, result.value, result.error.type, result.error.message)
    for shown in (*texts, *result.refused.values()):
        shown.encode()
        assert shown


def test_text_that_can_be_encoded_is_left_as_it_is() -> None:
    for text in ("", "a", "ä", "😀", "\0\x7f\u2028"):
        assert encodable(text) == text


def test_only_as_many_whole_lines_are_answers_as_there_were_calls() -> None:
    for text, calls, wanted in (
        ("a\nb\n", 2, ("a", "b")),
        ("a\nb\n", 3, ("a", "b")),
        ("a\nb\nc\n", 2, ("a", "b")),
        ("a\nb", 2, ("a",)),
        ("", 1, ()),
        ("a\n", 0, ()),
    ):
        assert result_of(answer(returned=text), calls=calls).returned == wanted

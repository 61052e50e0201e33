"""Readers of tool calls one by one: the content around the marks, every value, and what is said of a broken call."""

import time
import tracemalloc
from typing import Any

import pytest

from agentenv.core.assistant_turns import Call, MalformedCall, NativeCall
from agentenv.core.call_readers import (
    CallReader,
    argument_tags,
    bare_json,
    deepseek,
    function_tags,
    harmony_call,
    json_tags,
    kimi,
    mistral,
    python_calls,
)

TAGS = json_tags("<a>", "</a>")
OPEN = json_tags("<a>", "", closes=False)
PYTHON = python_calls("<p>", "</p>")
SCHEMAS = {
    "f": {
        "properties": {
            "n": {"type": "integer"},
            "s": {"type": "string"},
            "either": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
            "one": {"oneOf": [{"type": "number"}, {"type": "null"}]},
            "list": {"type": ["array", "null"]},
            "free": {},
            "whatever": True,
            "any": {"anyOf": [True, {"type": "string"}]},
        }
    }
}
SEP, BEGIN, END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001
SECTION = "<｜tool▁calls▁begin｜>"  # noqa: RUF001
PLACE, MOON = "<|tool_call_argument_begin|>", "<|tool_calls_section_begin|>"


def called(name: str, id: str = "", **arguments: Any) -> Call:
    return NativeCall(name, arguments, id)


@pytest.mark.parametrize(
    ("reader", "text", "content", "calls"),
    [
        (TAGS, "no call", "no call", []),
        (TAGS, 'x<a>{"name": "f"}</a>y<a>{"name": "g", "arguments": {"n": 1}, "id": "7"}</a>z', "xyz",
         [called("f"), called("g", "7", n=1)]),
        (TAGS, '<a>[{"name": "f", "id": 3}, {"name": "g"}]</a>', "", [called("f"), called("g")]),
        (OPEN, 'x <a> {"name": "f"} ', "x ", [called("f")]),
        (function_tags, "x<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n<parameter=s>\n4\n</parameter>\n"
         "</function>\n</tool_call>y", "xy", [called("f", n=3, s="4")]),
        (function_tags, "<tool_call><function=f><parameter=s>\n\na\nb\n\n</parameter></function></tool_call>", "",
         [called("f", s="\na\nb\n")]),
        (function_tags, "<tool_call><function= f ><parameter= n >[x]</parameter></function></tool_call>", "",
         [called("f", n="[x]")]),
        (argument_tags, "x<tool_call> f \n<arg_key> either </arg_key> <arg_value>1</arg_value><arg_key>one</arg_key>"
         "<arg_value> 1.5 </arg_value></tool_call>", "x", [called("f", either=1, one=1.5)]),
        (argument_tags, "<tool_call>f<arg_key>list</arg_key><arg_value>[1, 2]</arg_value><arg_key>free</arg_key>"
         "<arg_value>3</arg_value><arg_key>more</arg_key><arg_value>4</arg_value></tool_call>", "",
         [called("f", list=[1, 2], free=3, more=4)]),
        (argument_tags, "<tool_call>f<arg_key>whatever</arg_key><arg_value>[3]</arg_value><arg_key>any</arg_key>"
         "<arg_value>x</arg_value></tool_call>", "", [called("f", whatever=[3], any="x")]),
        (argument_tags, "<tool_call>g<arg_key>n</arg_key><arg_value>3</arg_value></tool_call>", "", [called("g", n=3)]),
        (bare_json, '{"name": "f", "parameters": {"n": 1}}', "", [called("f", n=1)]),
        (bare_json, ' <|python_tag|>{"name": "f"}', ' <|python_tag|>{"name": "f"}', []),
        (bare_json, '<|python_tag|> {"name": "f", "arguments": {"n": 2}} ', "", [called("f", n=2)]),
        (bare_json, '{"n": 1}', '{"n": 1}', []),
        (bare_json, 'so {"name": "f"}', 'so {"name": "f"}', []),
        (mistral, 'x[TOOL_CALLS]f{"n": 1}[TOOL_CALLS]g.h-1[CALL_ID]ab1[ARGS]{"n": 2}', "x",
         [called("f", n=1), called("g.h-1", "ab1", n=2)]),
        (mistral, 'x[TOOL_CALLS][{"name": "f", "arguments": {"n": 1}, "id": "q"}]', "x", [called("f", "q", n=1)]),
        (mistral, "plain", "plain", []),
        (deepseek, f"x{SECTION}{BEGIN}function{SEP}f\n```json\n{{\"n\": 1}}\n```{END}{BEGIN}g{SEP}{{}}{END}y", "x",
         [called("f", n=1), called("g")]),
        (deepseek, f"{SECTION}{BEGIN} f {SEP}{END}", "", [called("f")]),
        (deepseek, f"{BEGIN}f{SEP}{{}}{END}", f"{BEGIN}f{SEP}{{}}{END}", []),
        (kimi, f'x{MOON}<|tool_call_begin|> functions.f:0 {PLACE}{{"n": 1}}<|tool_call_end|>'
         f"<|tool_call_begin|>g:12{PLACE}<|tool_call_end|>", "x", [called("f", "functions.f:0", n=1), called("g", "g:12")]),
        (kimi, "plain", "plain", []),
        (PYTHON, "x<p>f(n=1)\ng(a='b', c=None, d=True, e=-2.5)</p>y", "xy",
         [called("f", n=1), called("g", a="b", c=None, d=True, e=-2.5)]),
        (PYTHON, "<p>[f(a=true, b=false, c=null), m.g(t=(1, 'x'), d={'k': [2], 3: None})]</p>", "",
         [called("f", a=True, b=False, c=None), called("m.g", t=[1, "x"], d={"k": [2], "3": None})]),
        (PYTHON, "<p>f()</p><p>g()</p>", "", [called("f"), called("g")]),
    ],
)  # fmt: skip
def test_calls_and_the_content_around_them(
    reader: CallReader, text: str, content: str, calls: list[Call]
) -> None:
    assert reader(text, SCHEMAS) == (content, calls)


@pytest.mark.parametrize(
    ("reader", "text", "content", "whole", "named"),
    [
        (TAGS, "x<a>{</a>y", "xy", "<a>{</a>", "JSON"),
        (TAGS, 'x<a>{"name": "f"}', "x", '<a>{"name": "f"}', "</a>"),
        (TAGS, '<a>{"name": 3}</a>', "", '<a>{"name": 3}</a>', '"arguments"'),
        (TAGS, "<a>[]</a>", "", "<a>[]</a>", "empty"),
        (TAGS, "<a>3</a>", "", "<a>3</a>", '"name"'),
        (function_tags, "<tool_call><function=f>ab<parameter=n>1</parameter></function></tool_call>", "",
         "<tool_call><function=f>ab<parameter=n>1</parameter></function></tool_call>", "'ab'"),
        (function_tags, "<tool_call>f</tool_call>", "", "<tool_call>f</tool_call>", "function="),
        (argument_tags, "<tool_call>f<arg_key>n</arg_key>rest</tool_call>", "",
         "<tool_call>f<arg_key>n</arg_key>rest</tool_call>", "rest"),
        (argument_tags, "<tool_call> <arg_key>n</arg_key><arg_value>1</arg_value></tool_call>", "",
         "<tool_call> <arg_key>n</arg_key><arg_value>1</arg_value></tool_call>", "name"),
        (bare_json, '{"name": 3}', "", '{"name": 3}', '"parameters"'),
        (mistral, "x[TOOL_CALLS]f[ARGS]{[TOOL_CALLS]", "x", "[TOOL_CALLS]f[ARGS]{", "f are"),
        (deepseek, f"x{SECTION}y", "x", f"{SECTION}y", "end"),
        (deepseek, f"x{SECTION}{BEGIN}f{END}", "x", f"{BEGIN}f{END}", "JSON"),
        (deepseek, f"x{SECTION}{BEGIN}f{SEP}{{{END}", "x", f"{BEGIN}f{SEP}{{{END}", "f are"),
        (kimi, f"x{MOON}y", "x", f"{MOON}y", "end"),
        (kimi, f"x{MOON}<|tool_call_begin|>f{PLACE}{{}}<|tool_call_end|>", "x",
         f"<|tool_call_begin|>f{PLACE}{{}}<|tool_call_end|>", "functions"),
        (PYTHON, "x<p>f(1)</p>", "x", "<p>f(1)</p>", "names"),
        (PYTHON, "<p>f(**a)</p>", "", "<p>f(**a)</p>", "names"),
        (PYTHON, "<p>f(a=g)</p>", "", "<p>f(a=g)</p>", "'g'"),
        (PYTHON, "<p>f(a=-'x')</p>", "", "<p>f(a=-'x')</p>", "-'x'"),
        (PYTHON, "<p>a = 1</p>", "", "<p>a = 1</p>", "something else"),
        (PYTHON, "<p>[]</p>", "", "<p>[]</p>", "something else"),
        (PYTHON, "<p>f</p>", "", "<p>f</p>", "names"),
    ],
)  # fmt: skip
def test_a_broken_call_is_kept_whole_with_what_is_wrong(
    reader: CallReader, text: str, content: str, whole: str, named: str
) -> None:
    found, calls = reader(text, SCHEMAS)
    bad = calls[0]
    assert found == content
    assert isinstance(bad, MalformedCall)
    assert bad.text == whole
    assert named in bad.complaint


def test_only_the_first_of_several_bare_objects_is_called() -> None:
    first, rest = bare_json('{"name": "f", "parameters": {"n": 1}}; {"name": "g"} \n{"name": "h"}', SCHEMAS)[
        1
    ]
    assert first == called("f", n=1)
    assert rest == MalformedCall('{"name": "g"}; {"name": "h"}', "only one tool can be called in a turn")
    (broken,) = bare_json('{"name": "f"} and {', SCHEMAS)[1]
    assert isinstance(broken, MalformedCall)


def test_a_message_to_a_tool_is_a_call_whose_body_is_json() -> None:
    assert harmony_call("f", ' {"n": 1} ') == called("f", n=1)
    assert harmony_call("f", "") == called("f")
    bad = harmony_call("f", "{")
    assert isinstance(bad, MalformedCall)
    assert (bad.text, "f" in bad.complaint) == ("{", True)


def test_a_complaint_is_short_and_can_be_encoded() -> None:
    (bad,) = PYTHON(f"<p>f(a={'g' * 5000})</p>", SCHEMAS)[1]
    assert isinstance(bad, MalformedCall)
    assert len(bad.complaint) < 500
    (half,) = argument_tags(
        "<tool_call>f<arg_key>s</arg_key><arg_value>\ud800</arg_value></tool_call>", SCHEMAS
    )[1]
    assert isinstance(half, NativeCall)
    half.arguments["s"].encode()
    (text,) = PYTHON(r"<p>f(a='\ud800', b='\d')</p>", SCHEMAS)[1]
    assert isinstance(text, NativeCall)
    text.arguments["a"].encode()
    assert text.arguments["b"] == r"\d"


ARGUMENT = "<arg_key>a</arg_key><arg_value>"
LONG = {
    "parameters that do not end": (function_tags, "<tool_call><function=f>", "<parameter=a>", "</function></tool_call>"),
    "keys that do not end": (argument_tags, "<tool_call>f", "<arg_key>", "</tool_call>"),
    "keys without a value": (argument_tags, "<tool_call>f", "<arg_key>a</arg_key>", "</tool_call>"),
    "values that do not end": (argument_tags, "<tool_call>f", ARGUMENT, "</tool_call>"),
    "blanks between arguments": (
        argument_tags, "<tool_call>f", ARGUMENT + "1</arg_value>" + " " * 200, "</tool_call>",
    ),
    "blanks as a name of DeepSeek": (deepseek, SECTION + BEGIN, " ", END),
    "blanks as a name of Kimi": (kimi, MOON + "<|tool_call_begin|>", " ", "<|tool_call_end|>"),
    "places of Kimi": (kimi, MOON + "<|tool_call_begin|>f", ":1", f" x{PLACE}{{}}<|tool_call_end|>"),
    "many objects of Llama": (bare_json, "", '{"name":1};', ""),
    "a path of names in Python": (PYTHON, "<p>import a", ".a", "</p>"),
}  # fmt: skip
"""What repeats in a text until an expression that looks for pairs would take the square or the cube of their number."""


@pytest.mark.parametrize("case", LONG)
def test_the_time_for_a_call_grows_with_its_length_and_no_faster(case: str) -> None:
    """The square took from 5 s to minutes for each of these; 4,000 tokens are enough for such a text."""
    reader, begin, part, end = LONG[case]
    started = time.process_time()
    reader(begin + part * (600_000 // len(part)) + end, SCHEMAS)
    assert time.process_time() - started < 4


@pytest.mark.parametrize("reader", [mistral, json_tags("[TOOL_CALLS]", "", closes=False)])
def test_the_memory_for_a_list_of_broken_calls_grows_with_its_length_and_no_faster(
    reader: CallReader,
) -> None:
    """The text of the whole list in each of its calls took 800 MB for 40,000 letters."""
    tracemalloc.start()
    _, calls = reader("[TOOL_CALLS][" + "0," * 5_000 + "0]", SCHEMAS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 << 20
    texts = [call.text for call in calls if isinstance(call, MalformedCall)]
    # What is shown again is shown once.
    assert texts == ["[TOOL_CALLS][" + "0," * 5_000 + "0]"] + [""] * 5_000

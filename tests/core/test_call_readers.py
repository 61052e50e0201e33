"""What each family's text is read as: malformed calls, calls in thinking, typed arguments, hostile text."""

from typing import Any

import pytest

from agentenv.core.assistant_turns import CUT_OFF, AssistantTurn, MalformedCall, NativeCall
from agentenv.core.model_families import FAMILIES, MOST_CALLS, family_of, get_family
from agentenv.errors import UnknownName

NUMBERS = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "text": {"type": "string"},
        "maybe": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "sure": {"type": "boolean"},
        "note": {"type": ["string", "null"]},
        "any": {},
        "size": {"enum": ["1", "2"]},
    },
}
SCHEMAS = {"f": NUMBERS}


def read(family: str, text: str, *, opened: bool = False) -> AssistantTurn:
    return get_family(family).read(text, opened, SCHEMAS)


@pytest.mark.parametrize(
    ("family", "text", "arguments"),
    [
        ("qwen", '<tool_call>{"name": "f", "arguments": {"n": 1}}</tool_call>', {"n": 1}),
        ("qwen-coder", "<tool_call><function=f><parameter=n>\n1\n</parameter></function></tool_call>", {"n": 1}),
        ("qwen-coder", "<tool_call><function=f><parameter=text>1</parameter></function></tool_call>", {"text": "1"}),
        ("qwen-coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>", {}),
        ("glm", "<tool_call>f\n<arg_key>maybe</arg_key>\n<arg_value>null</arg_value>\n</tool_call>", {"maybe": None}),
        ("glm", "<tool_call>f</tool_call>", {}),
        ("llama", '<|python_tag|>{"name": "f", "parameters": {"n": 1}}', {"n": 1}),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"n": 1}', {"n": 1}),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"n": 1}}]', {"n": 1}),
        ("deepseek", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"n\": 1}"  # noqa: RUF001
         "<｜tool▁call▁end｜><｜tool▁calls▁end｜>", {"n": 1}),  # noqa: RUF001
        ("olmo", "<function_calls>\nf(n=-1, text='a', maybe=null)\n</function_calls>",
         {"n": -1, "text": "a", "maybe": None}),
        ("lfm", "<|tool_call_start|>[f(n=[1, {'a': True}])]<|tool_call_end|>", {"n": [1, {"a": True}]}),
        ("gpt-oss", '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"n": 1}', {"n": 1}),
    ],
)  # fmt: skip
def test_a_call_is_read(family: str, text: str, arguments: dict[str, Any]) -> None:
    (call,) = read(family, text).calls
    assert isinstance(call, NativeCall)
    assert (call.name, call.arguments) == ("f", arguments)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("qwen", "<tool_call>{bad</tool_call>"),
        ("qwen", '<tool_call>{"name": "f", "arguments": {}}'),  # it does not end
        ("qwen", '<tool_call>{"arguments": {}}</tool_call>'),
        ("qwen", "<tool_call>[]</tool_call>"),
        ("qwen", "<tool_call>" + "[" * 100_000 + "</tool_call>"),
        ("qwen-coder", "<tool_call>f(1)</tool_call>"),
        ("qwen-coder", "<tool_call><function=f>stray</function></tool_call>"),
        ("glm", "<tool_call><arg_key>n</arg_key></tool_call>"),
        ("glm", "<tool_call>f<arg_key>n</arg_key>1</tool_call>"),
        ("llama", '{"name": "f", "parameters": '),
        ("mistral", "[TOOL_CALLS]f[ARGS]{"),
        ("mistral", "[TOOL_CALLS]f"),
        ("deepseek", "<｜tool▁calls▁begin｜>f"),  # noqa: RUF001
        ("kimi", "<|tool_calls_section_begin|>"),
        ("kimi", "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_end|>"),
        ("olmo", "<function_calls>f(1)</function_calls>"),
        ("olmo", "<function_calls>f(n=g())</function_calls>"),
        ("olmo", "<function_calls>import os</function_calls>"),
        ("olmo", "<function_calls>" + "(" * 10_000 + "</function_calls>"),
        ("olmo", "<function_calls>\x00</function_calls>"),
        ("granite", "<|tool_call|>[{"),
        ("phi", '<|tool_call|>[{"name": "f"}]'),
        ("gpt-oss", "<|channel|>commentary to=functions.f<|message|>{"),
    ],
)
def test_a_call_that_cannot_be_read_says_why(family: str, text: str) -> None:
    (call,) = read(family, text).calls
    assert isinstance(call, MalformedCall)
    assert 0 < len(call.complaint) < 1000


CALLS = {
    "qwen": '<tool_call>{"name": "f", "arguments": {"text": "ab"}}</tool_call>',
    "phi": '<|tool_call|>[{"name": "f", "arguments": {"text": "ab"}}]<|/tool_call|>',
    "granite": '<|tool_call|>[{"name": "f", "arguments": {"text": "ab"}}]',
    "qwen-coder": "<tool_call><function=f><parameter=text>ab</parameter></function></tool_call>",
    "glm": "<tool_call>f<arg_key>text</arg_key><arg_value>ab</arg_value></tool_call>",
    "llama": '{"name": "f", "parameters": {"text": "ab"}}',
    "mistral": '[TOOL_CALLS]f[ARGS]{"text": "ab"}',
    "deepseek": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"text": "ab"}'  # noqa: RUF001
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",  # noqa: RUF001
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    '{"text": "ab"}<|tool_call_end|><|tool_calls_section_end|>',
    "olmo": "<function_calls>f(text='ab')</function_calls>",
    "lfm": "<|tool_call_start|>[f(text='ab')]<|tool_call_end|>",
    "gpt-oss": '<|channel|>commentary to=functions.f<|message|>{"text": "ab"}',
}


@pytest.mark.parametrize("family", [name for name, one in FAMILIES.items() if one.calls_tools])
def test_a_call_that_a_budget_cut_off_says_so_wherever_it_was_cut(family: str) -> None:
    text = CALLS[family]
    turns = [read(family, text[:end]) for end in range(1, len(text) + 1)]
    broken = [turn for turn in turns if turn.calls and isinstance(turn.calls[-1], MalformedCall)]
    assert len(broken) > 10
    for turn in broken:
        (call,) = turn.cut_off().calls
        assert isinstance(call, MalformedCall)
        assert call.complaint == CUT_OFF != turn.calls[-1].complaint  # type: ignore[union-attr]
    (whole,) = turns[-1].calls
    assert whole == NativeCall("f", {"text": "ab"}, whole.id)
    assert turns[-1].cut_off() is turns[-1]


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("qwen", "<tool_call>{bad</tool_call>"),
        ("qwen", "<tool_call>{bad</tool_call> and then"),
        ("glm", "<tool_call>f<arg_key>n</arg_key>1</tool_call>"),
        ("llama", '{"name": "f", "parameters": {}} and then'),
        ("granite", '<|tool_call|>[{"name": "f"}] and then'),
        ("mistral", '[TOOL_CALLS]f[ARGS]{"n": 1} and then'),
        ("olmo", "<function_calls>f(1)</function_calls>"),
    ],
)
def test_a_call_that_is_wrong_as_it_stands_is_told_what_is_wrong_where_the_turn_is_cut_behind_it(
    family: str, text: str
) -> None:
    turn = read(family, text)
    assert isinstance(turn.calls[-1], MalformedCall)
    assert turn.cut_off() is turn


def test_calls_before_the_one_that_was_cut_off_stand() -> None:
    turn = read("qwen", CALLS["qwen"] + "<tool_call>{bad</tool_call>" + CALLS["qwen"][:30]).cut_off()
    first, bad, last = turn.calls
    assert first == NativeCall("f", {"text": "ab"})
    assert isinstance(bad, MalformedCall)
    assert bad.complaint != CUT_OFF
    assert isinstance(last, MalformedCall)
    assert last.complaint == CUT_OFF


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("sure", "True", True), ("sure", "False", False), ("sure", "true", True), ("sure", "yes", "yes"),
        ("maybe", "None", None), ("maybe", "null", None), ("maybe", "1.5", 1.5),
        ("note", "None", None), ("note", "null", None), ("note", "True", "True"), ("note", "1", "1"),
        ("text", "None", "None"), ("text", "null", "null"),
        ("any", "1", 1), ("any", "True", True), ("any", "[1, {}]", [1, {}]), ("any", "a b", "a b"),
        ("size", "1", "1"), ("size", "3", 3),
    ],
)  # fmt: skip
def test_a_value_between_tags_is_what_the_template_of_qwen_coder_writes_for_it(
    name: str, text: str, value: Any
) -> None:
    # That template writes ``args_value | string``, so True and None are spelt as in Python, and JSON for lists and objects.
    said = f"<tool_call>\n<function=f>\n<parameter={name}>\n{text}\n</parameter>\n</function>\n</tool_call>"
    (call,) = read("qwen-coder", said).calls
    assert isinstance(call, NativeCall)
    assert repr(call.arguments) == repr({name: value})


@pytest.mark.parametrize(
    ("name", "text", "value"), [("note", "null", None), ("note", "None", "None"), ("any", "2", 2)]
)
def test_a_value_between_tags_of_glm_is_json(name: str, text: str, value: Any) -> None:
    (call,) = read(
        "glm", f"<tool_call>f<arg_key>{name}</arg_key><arg_value>{text}</arg_value></tool_call>"
    ).calls
    assert isinstance(call, NativeCall)
    assert call.arguments == {name: value}


def test_a_message_of_harmony_that_lacks_its_end_hides_no_call() -> None:
    said = "<|channel|>analysis<|message|>Hm.<|start|>assistant to=functions.f<|channel|>commentary json<|message|>"
    turn = read("gpt-oss", said + '{"n": 1}<|call|>')
    assert (turn.thinking, turn.closed) == ("Hm.", True)
    assert [call.arguments for call in turn.calls if isinstance(call, NativeCall)] == [{"n": 1}]


def test_one_bad_call_leaves_the_others() -> None:
    good = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    first, bad, last = read("qwen", f"So: {good}\n<tool_call>{{</tool_call>{good} done").calls
    assert first == last == NativeCall("f", {})
    assert bad.text == "<tool_call>{</tool_call>" if isinstance(bad, MalformedCall) else False


def test_a_call_inside_the_thinking_is_none() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    turn = read("qwen", f"<think>maybe {call}</think>\n\nNo.")
    assert turn == AssistantTurn(f"maybe {call}", "No.")
    cut = read("qwen", f"so {call}", opened=True)  # the prompt opened it, and it never ended
    assert cut == AssistantTurn(f"so {call}", "", closed=False)
    harmony = read("gpt-oss", "<|channel|>analysis<|message|>hm")
    assert (harmony.thinking, harmony.calls, harmony.closed) == ("hm", (), False)


def test_without_tools_nothing_is_a_call() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert get_family("qwen").read(text, False, {}) == AssistantTurn(None, text)


def test_a_turn_makes_a_bounded_number_of_calls() -> None:
    turn = read("qwen", '<tool_call>{"name": "f", "arguments": {}}</tool_call>' * (MOST_CALLS + 5))
    assert len(turn.calls) == MOST_CALLS + 1
    assert isinstance(turn.calls[-1], MalformedCall)


def test_kimi_says_its_own_ids() -> None:
    text = '<|tool_call_begin|>functions.f:7<|tool_call_argument_begin|>{"n": 2}<|tool_call_end|>'
    (call,) = read("kimi", f"<|tool_calls_section_begin|>{text}<|tool_calls_section_end|>").calls
    assert call == NativeCall("f", {"n": 2}, "functions.f:7")


def test_a_family_is_found_by_its_template_or_by_name() -> None:
    assert family_of("{{ messages }}").name == "text"
    assert family_of("<tool_call> arguments").name == "qwen"
    with pytest.raises(UnknownName, match="qwem"):
        get_family("qwem")
    assert all(name == family.name for name, family in FAMILIES.items())


def test_kimi_writes_arguments_over_several_lines() -> None:
    text = '<|tool_call_begin|>f:0<|tool_call_argument_begin|>{\n  "n":\n  2\n}\n<|tool_call_end|>'
    (call,) = read("kimi", f"<|tool_calls_section_begin|>{text}<|tool_calls_section_end|>").calls
    assert call == NativeCall("f", {"n": 2}, "f:0")

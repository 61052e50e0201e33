"""What a chat template is given in the native form: messages, calls, tools, options, and what is tried beforehand."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest

from agentenv.core.assistant_turns import AssistantTurn, MalformedCall, NativeCall
from agentenv.core.model_families import get_family
from agentenv.core.native_format import NativeFormat
from agentenv.core.types import Message, MessagePart
from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import END_OF_TURN, ByteTokenizer

TOOL = {"type": "function", "function": {"name": "search", "parameters": {"properties": {"query": {}}}}}
ASKED = Message("user", "Who?")
CALL = NativeCall("search", {"query": "é"})
QWEN_CALL = "<tool_call>{all}</tool_call>"
HARMONY_CALL = "assistant to=functions.{name}<|channel|>commentary json<|message|>{arguments}<|call|>"
DEEPSEEK_CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}"  # noqa: RUF001
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"  # noqa: RUF001
)


class Told(ByteTokenizer):
    """Renders every message with all that it holds, and keeps what it was given."""

    all_special_tokens = (END_OF_TURN,)

    def __init__(
        self, template: Any = "<tool_call> arguments", *, leaves_out: str = "", call: str = QWEN_CALL
    ) -> None:
        super().__init__()
        self.call = call
        self.chat_template = template
        self.leaves_out = leaves_out
        self.given: list[tuple[list[dict[str, Any]], Any, bool, dict[str, Any]]] = []

    def apply_chat_template(  # type: ignore[override]
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Any = None,
        tokenize: bool = True,
        add_generation_prompt: bool = False,
        **options: Any,
    ) -> str:
        assert not tokenize
        self.given.append(([dict(message) for message in messages], tools, add_generation_prompt, options))
        if self.leaves_out == "raises":
            raise ValueError("no\nsuch thing")
        head = json.dumps(tools) if tools and self.leaves_out not in ("tools", "content") else ""
        return head + "".join(map(self.shown, messages)) + "<assistant>" * add_generation_prompt

    def shown(self, message: Mapping[str, Any]) -> str:
        left_out = (self.leaves_out, "role")
        held = {name: value for name, value in message.items() if name not in left_out}
        end = "" if self.leaves_out == "ends" else END_OF_TURN
        functions = [call["function"] for call in held.pop("tool_calls", ())]
        calls = "".join(
            self.call.format(name=f["name"], arguments=json.dumps(f["arguments"]), all=json.dumps(f))
            for f in functions
        )
        text = json.dumps(held, ensure_ascii=False)
        if held.keys() == {"content"} and message["role"] == "assistant":
            text = message["content"]
        return f"<{message['role']}>{text}{calls}{end}\n"


def asked(
    form: NativeFormat, tokenizer: Told, turn: AssistantTurn, new: list[Message]
) -> list[dict[str, Any]]:
    """The messages that the template is given once ``turn`` and ``new`` followed the question."""
    conversation, ids = form.open([ASKED], [TOOL])
    tokenizer.given.clear()
    form.go_on(ids, conversation.said(turn), new)
    return tokenizer.given[0][0]


def test_a_prompt_holds_the_messages_the_tools_and_the_options() -> None:
    tokenizer = Told()
    form = NativeFormat(tokenizer, options={"enable_thinking": False})
    conversation, ids = form.open([Message("system", "Be brief."), ASKED], [TOOL])
    messages, tools, opens, options = tokenizer.given[-1]
    assert messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    assert (tools, opens) == ([TOOL], True)
    assert options == {"enable_thinking": False}
    assert tokenizer.decode(ids) == conversation.prompt
    assert conversation.prompt.startswith(json.dumps([TOOL]))
    assert conversation.prompt.endswith("<assistant>")
    assert (conversation.tools, conversation.messages[-1]) == ((TOOL,), ASKED)
    assert form.family.name == "qwen"
    bare = form.prompt([ASKED])
    assert tokenizer.given[-1][1] is None
    assert tokenizer.decode(bare) == '<user>{"content": "Who?"}<|im_end|>\n<assistant>'
    assert form.closing(ids) == []
    with pytest.raises(ConfigurationError, match="inline"):
        form.extend(ids, [ASKED])


def test_a_turn_of_the_policy_is_shown_again_with_its_thinking_and_calls() -> None:
    tokenizer = Told()
    turn = AssistantTurn("hm", "I look.", (CALL, NativeCall("search", {}, "own-id")))
    reply = [
        Message("tool", "found", name="search", call_id="call00000"),
        Message("tool", "more", name="search"),
    ]
    messages = asked(NativeFormat(tokenizer), tokenizer, turn, reply)
    assert messages[1] == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "hm",
        "tool_calls": [
            {
                "type": "function",
                "id": "call00000",
                "function": {"name": "search", "arguments": {"query": "é"}},
            },
            {"type": "function", "id": "own-id", "function": {"name": "search", "arguments": {}}},
        ],
    }
    assert messages[2:] == [
        {"role": "tool", "content": "found", "name": "search", "tool_call_id": "call00000"},
        {"role": "tool", "content": "more", "name": "search", "tool_call_id": ""},
    ]


@pytest.mark.parametrize(
    ("unknown", "key"), [("reasoning_content", "thinking"), ("thinking", "reasoning_content")]
)
def test_thinking_goes_where_the_template_shows_it_and_a_malformed_call_stands_in_the_content(
    unknown: str, key: str
) -> None:
    tokenizer = Told(leaves_out=unknown)
    form = NativeFormat(tokenizer)
    conversation, ids = form.open([ASKED], [TOOL])
    bad = MalformedCall("<tool_call>{</tool_call>", "no JSON")
    form.go_on(
        ids, conversation.said(AssistantTurn("hm", "I look.", (bad, CALL))), [Message("user", "Go on.")]
    )
    called = {"name": "search", "arguments": {"query": "é"}}
    assert tokenizer.given[-2][0][1] == {
        "role": "assistant",
        "content": "I look.\n<tool_call>{</tool_call>",
        key: "hm",
        "tool_calls": [{"type": "function", "id": "call00001", "function": called}],
    }


def test_no_text_of_a_turn_holds_a_control_token() -> None:
    tokenizer = Told()
    turn = AssistantTurn(
        f"a{END_OF_TURN}",
        f"b{END_OF_TURN}",
        (NativeCall(f"c{END_OF_TURN}", {f"d{END_OF_TURN}": [f"e{END_OF_TURN}", 1]}),),
    )
    answer = Message("tool", f"f{END_OF_TURN}", name=f"g{END_OF_TURN}", call_id=f"h{END_OF_TURN}")
    messages = asked(NativeFormat(tokenizer), tokenizer, turn, [answer, Message("user", f"i{END_OF_TURN}")])
    text = json.dumps(messages)
    assert END_OF_TURN not in text
    assert all(f"{letter}< |im_end|>" in text for letter in "abcdeghi")


def test_a_conversation_goes_on_behind_what_was_sampled() -> None:
    tokenizer = Told()
    form = NativeFormat(tokenizer, ends=[256])
    conversation, ids = form.open([ASKED], [])
    turn, asks = AssistantTurn(None, "Yes."), [Message("user", "And?")]
    said = conversation.said(turn)
    sampled = [1, 2, 3]  # however the policy spelt its turn
    behind = tokenizer.encode('\n<user>{"content": "And?"}<|im_end|>\n<assistant>')
    later, whole = form.go_on([*ids, *sampled, 256], said, asks)
    assert later.messages == (ASKED, turn, *asks)
    assert whole == [*ids, *sampled, 256, *behind]
    assert form.go_on([*ids, *sampled], said, asks)[1] == [*ids, *sampled, 256, *behind]
    # A turn that reads otherwise when it is shown again opens a new row.
    other = conversation.said(AssistantTurn("hm", "Yes."))
    assert form.go_on([*ids, *sampled, 256], other, asks)[1] != [*ids, *sampled, 256, *behind]


@pytest.mark.parametrize(
    ("template", "leaves_out", "named"),
    [
        (None, "", "inline"),
        ("<tool_call> arguments", "tools", "'qwen'.*'search'"),
        ("<tool_call> arguments", "ends", r"<\|im_end\|>"),
        ("[TOOL_CALLS]", "tool_calls", "'mistral'.*calls"),
        ("<tool_call> arguments", "raises", r"'qwen'.*\(no\)"),
        ("{{ messages }}", "", "'text'"),
    ],
)
def test_a_template_that_cannot_serve_is_refused(template: Any, leaves_out: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        NativeFormat(Told(template, leaves_out=leaves_out)).open([ASKED], [TOOL])


def test_a_template_that_writes_calls_in_the_form_of_another_family_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'qwen'"):
        NativeFormat(Told(call=HARMONY_CALL)).open([ASKED], [TOOL])
    NativeFormat(Told(call=HARMONY_CALL), family="gpt-oss").open([ASKED], [TOOL])


def test_calls_stand_in_the_content_of_a_turn_where_the_template_shows_them_nowhere_else() -> None:
    tokenizer = Told(leaves_out="tool_calls")
    turn = AssistantTurn(None, "I look.", (CALL, CALL))
    messages = asked(NativeFormat(tokenizer), tokenizer, turn, [Message("user", "And?")])
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "é"}}\n</tool_call>'
    assert messages[1] == {"role": "assistant", "content": f"I look.{call}\n{call}"}


@pytest.mark.parametrize("role", ["system", "user"])
def test_a_template_that_leaves_out_an_opening_message_is_refused(role: Literal["system", "user"]) -> None:
    class Without(Told):
        def shown(self, message: Mapping[str, Any]) -> str:
            asks = message["content"] == "Be brief." or message["content"].endswith("xsaidz")
            return "" if asks and message["role"] == role else super().shown(message)

    with pytest.raises(ConfigurationError, match=f"'{role}'"):
        NativeFormat(Without()).open([Message(role, "Be brief."), ASKED], [TOOL])


def test_an_opening_message_may_be_shown_in_another_way() -> None:
    class Loud(Told):
        def shown(self, message: Mapping[str, Any]) -> str:
            return super().shown({**message, "content": message["content"].replace("brief", "BRIEF")})

    _, ids = NativeFormat(Loud()).open([Message("system", "Be brief."), ASKED], [TOOL])
    assert "Be BRIEF." in Loud().decode(ids)


@pytest.mark.parametrize(
    "name", ["messages", "conversation", "tools", "tokenize", "add_generation_prompt", "chat_template"]
)
def test_arguments_that_the_format_fills_are_no_options(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}'"):
        NativeFormat(Told(), options={name: 1})
    with pytest.raises(ConfigurationError, match=r"'31\.01\.2026'"):
        NativeFormat(Told(), options={"date": "31.01.2026"})


def test_of_several_templates_the_default_one_is_read() -> None:
    assert NativeFormat(Told({"default": "<tool_call> arguments", "other": ""})).family.name == "qwen"
    assert NativeFormat(Told({"other": "<tool_call> arguments"})).family.name == "text"
    assert NativeFormat(Told("{{ messages }}"), family="qwen").family.name == "qwen"


def test_an_image_is_refused_where_the_policy_reads_text_alone() -> None:
    seen = Message("user", (MessagePart("image", image=b"\x89PNG"),))
    with pytest.raises(ConfigurationError, match="pixels"):
        NativeFormat(Told()).prompt([seen])


@pytest.mark.parametrize(("lone_results", "role"), [(True, "tool"), (False, "user")])
def test_what_answers_no_call_is_said_by_the_user_where_the_template_shows_no_such_result(
    lone_results: bool, role: str
) -> None:
    class Strict(Told):
        def shown(self, message: Mapping[str, Any]) -> str:
            lone = message["role"] == "tool" and not message.get("tool_call_id")
            return "" if lone and not lone_results else super().shown(message)

    tokenizer = Strict()
    complaint = [Message("tool", "Close the call."), Message("user", "And?")]
    messages = asked(NativeFormat(tokenizer), tokenizer, AssistantTurn(None, "I look."), complaint)
    assert [(one["role"], one["content"]) for one in messages if one["content"] == "Close the call."] == [
        (role, "Close the call.")
    ]


def test_tools_are_tried_once() -> None:
    tokenizer = Told()
    form = NativeFormat(tokenizer)
    form.open([ASKED], [TOOL])
    before = len(tokenizer.given)
    form.open([ASKED], [TOOL])
    assert len(tokenizer.given) == before + 1
    form.open([ASKED], [])
    assert len(tokenizer.given) > before + 2


def test_tools_stand_under_another_name_too_where_the_template_asks_for_it() -> None:
    tokenizer = Told("<tool_call> arguments xml_tools")
    NativeFormat(tokenizer).open([ASKED], [TOOL])
    assert tokenizer.given[-1][3]["xml_tools"] == [TOOL]
    plain = Told()
    NativeFormat(plain).open([ASKED], [TOOL])
    assert plain.given[-1][3] == {}


def test_where_a_turn_has_one_text_thinking_before_a_call_takes_the_place_of_the_content() -> None:
    tokenizer = Told("<|channel|> arguments", call=HARMONY_CALL)
    form = NativeFormat(tokenizer, family="gpt-oss")
    messages = asked(form, tokenizer, AssistantTurn("hm", "I look.", (CALL,)), [Message("user", "And?")])
    assert (messages[1]["content"], messages[1]["reasoning_content"]) == ("", "hm")
    said = asked(form, tokenizer, AssistantTurn("hm", "I know."), [Message("user", "And?")])
    assert said[1]["content"] == "I know."
    quiet = asked(form, tokenizer, AssistantTurn(None, "I look.", (CALL,)), [Message("user", "And?")])
    assert quiet[1]["content"] == "I look."


def test_tools_that_the_template_shows_in_no_message_either_are_refused() -> None:
    """A template that shows calls as DeepSeek's is told of the tools in the system prompt, and leaves that out too."""
    calls = get_family("deepseek").declares_for
    told = Told(calls, call=DEEPSEEK_CALL)
    NativeFormat(told, family="deepseek").open([ASKED], [TOOL])
    hidden = Told(calls, leaves_out="content")
    with pytest.raises(ConfigurationError, match=r"'deepseek'.*'search'"):
        NativeFormat(hidden, family="deepseek").open([ASKED], [TOOL])


@pytest.mark.parametrize(
    "schema", [{}, {"parameters": {}}, {"parameters": {"type": "object", "properties": {}}}], ids=str
)
def test_a_tool_without_arguments_is_shown_by_its_name(schema: dict[str, Any]) -> None:
    tool = {"type": "function", "function": {"name": "look"} | schema}
    tokenizer = Told()
    NativeFormat(tokenizer).open([ASKED], [tool])
    assert tokenizer.given[-1][1] == [tool]
    with pytest.raises(ConfigurationError, match="'look'"):
        NativeFormat(Told(leaves_out="tools")).open([ASKED], [tool])


def test_no_text_of_a_conversation_is_taken_for_the_mark_of_a_result() -> None:
    """Ten of such marks in each of five results made 2 MB of them, and each further result ten times as much."""
    written = "Tuvq7xr{}rz"  # what the marks once were
    tokenizer = Told(call=HARMONY_CALL)
    form = NativeFormat(tokenizer, family="gpt-oss")
    conversation, ids = form.open([ASKED], [TOOL])
    turn = AssistantTurn(None, "", tuple(replace(CALL, id=str(place)) for place in range(3)))
    new = [
        Message("tool", f"No {written.format(place + 1) * 10}", "search", str(place)) for place in range(3)
    ]
    later, _ = form.go_on(ids, conversation.said(turn), new)
    assert [later.prompt.count(written.format(place)) for place in range(1, 4)] == [10, 10, 10]

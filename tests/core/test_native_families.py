"""Every family in every case: ids against the template's own rendering, and the table of the documentation.

The oracle is the tokenizer's ``apply_chat_template`` over a conversation that the test writes down itself.
Templates that TRL ships are read from there, and those that it lacks from the folder ``templates``. All are the models' own.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.assistant_turns import AssistantTurn, NativeCall
from agentenv.core.chat import ends_of_turn
from agentenv.core.conversation import Conversation, Unrenderable
from agentenv.core.native_format import NativeFormat
from agentenv.core.tool_replies import replies
from agentenv.core.types import Message
from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import chat_tokenizer

pytest.importorskip("transformers", reason="needs the train extra")

OWN = Path(__file__).parent / "templates"
PAGE = Path(__file__).parents[2] / "docs" / "chat_formats.md"
SCHEMA = {
    "type": "object",
    "properties": {"query": {"type": "string", "description": "What."}},
    "required": ["query"],
}
TOOLS = [
    {"type": "function", "function": {"name": "search", "description": "Finds pages.", "parameters": SCHEMA}}
]
TODAY = re.compile(r"""strftime_now\((["'])(.*?)\1\)""")


_TOKENS = re.compile(r"<[|｜][^<>'\"{}\s]*[|｜]>|</?s>|\[/?[A-Z_]+\]|<(?:start|end)_of_turn>")  # noqa: RUF001
_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


@dataclass(frozen=True)
class Model:
    """One family as a model of it speaks."""

    template: str
    """Name of a template of TRL or in the folder ``templates``."""
    eos: str
    end: str
    """What ends a turn of text."""
    call: str = '<tool_call>\n{{"name": "{name}", "arguments": {json}}}\n</tool_call>'
    """One call, with ``name``, ``json`` and ``place``."""
    calls: str = "{}"
    """All calls of a turn, joined by ``between``."""
    between: str = "\n"
    call_end: str = ""
    """What ends a turn with calls, where that is another mark."""
    text: str = "{}"
    """A turn of text alone."""
    think: str = ""
    """Thinking before the rest; empty where the family does not think."""
    empty: str = ""
    """What stands in the place of the thinking where the model thinks nothing, unless it is turned off."""
    off: Mapping[str, Any] = field(default_factory=dict)
    """Template options that turn the thinking off."""
    key: str = "reasoning_content"
    ids: bool = False
    """Whether a call says its id, ``functions.NAME:PLACE``."""
    xml: str = ""
    """One argument, where calls are no JSON."""
    in_content: bool = False
    """Whether the template shows calls where they stand in the content alone."""
    declared: str = ""
    """What declares the tools behind the system prompt, where the template shows none."""
    declared_after: str = "\n\n"

    def source(self) -> str:
        """The template."""
        if (own := OWN / f"{self.template}.jinja").is_file():
            return own.read_text(encoding="utf-8")
        trl = pytest.importorskip("trl", reason="needs the interop extra, which brings the templates")
        return (Path(trl.__file__).parent / "chat_templates" / f"{self.template}.jinja").read_text(
            encoding="utf-8"
        )

    def tokenizer(self) -> Any:
        """A tokenizer with the tokens of the template."""
        source = self.source()
        marks = {*_TOKENS.findall(source), self.end, self.call_end} - {""}
        return chat_tokenizer(
            source, eos=self.eos, special=sorted(marks), added=[tag for tag in _TAGS if tag in source]
        )

    def written(
        self, thinking: str, content: str, calls: list[tuple[str, dict[str, Any]]], *, off: bool = False
    ) -> str:
        """A turn as the model writes it, with its end."""
        said = self.called(calls) if calls else self.text.format(content)
        end = self.call_end if calls and self.call_end else self.end
        thought = self.think.format(thinking) if thinking else self.empty * (not off)
        return thought + said + end

    def called(self, calls: list[tuple[str, dict[str, Any]]]) -> str:
        """The calls of a turn as the model writes them."""
        made = [self._call(place, name, arguments) for place, (name, arguments) in enumerate(calls)]
        return self.calls.format(self.between.join(made))

    def _call(self, place: int, name: str, arguments: dict[str, Any]) -> str:
        text = json.dumps(arguments, ensure_ascii=False)
        pairs = "".join(self.xml.format(key=key, value=value) for key, value in arguments.items())
        python = ", ".join(
            f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items()
        )
        return self.call.format(name=name, json=text, place=place, pairs=pairs, python=python)


_PHI_TOOLS = f"<|tool|>{json.dumps([TOOLS[0]['function']])}<|/tool|>"

_QWEN: dict[str, Any] = {"eos": "<|endoftext|>", "end": "<|im_end|>"}
_LLAMA: dict[str, Any] = {
    "eos": "<|eot_id|>",
    "end": "<|eot_id|>",
    "call": '{{"name": "{name}", "parameters": {json}}}',
    "between": "; ",
}
_GLM: dict[str, Any] = {
    "eos": "<|endoftext|>",
    "end": "<|user|>",
    "call": "\n<tool_call>{name}\n{pairs}</tool_call>",
    "between": "",
    "xml": "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
    "call_end": "<|observation|>",
    "text": "\n{}",
    "think": "\n<think>{}</think>",
    "empty": "\n<think></think>",
    "off": {"enable_thinking": False},
}
_DEEPSEEK: dict[str, Any] = {
    "eos": "<｜end▁of▁sentence｜>",  # noqa: RUF001
    "end": "<｜end▁of▁sentence｜>",  # noqa: RUF001
    "call": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{json}\n```<｜tool▁call▁end｜>",  # noqa: RUF001
    "calls": "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>",  # noqa: RUF001
    "think": "{}\n</think>\n\n",
    "empty": "\n</think>\n\n",
}
_V3_1_TOOLS = f"""\
## Tools
You have access to the following tools:

### search
Description: Finds pages.

Parameters: {json.dumps(SCHEMA)}

IMPORTANT: ALWAYS adhere to this exact format for tool use:
<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>\
{{additional_tool_calls}}<｜tool▁calls▁end｜>

Where:
- `tool_call_name` must be an exact match to one of the available tools
- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema
- For multiple tool calls, chain them directly without separators or spaces
"""  # noqa: RUF001
_XML = "<tool_call>\n<function={name}>\n{pairs}</function>\n</tool_call>"
_LIST: dict[str, Any] = {"call": '{{"name": "{name}", "arguments": {json}}}', "between": ", "}

MODELS: dict[str, Model] = {
    "Qwen2.5": Model("qwen2_5", **_QWEN),
    "Qwen3": Model("qwen3", think="<think>\n{}\n</think>\n\n", off={"enable_thinking": False}, **_QWEN),
    "Qwen3, template for training": Model(
        "qwen3_training",
        think="<think>\n{}\n</think>\n\n",
        empty="<think>\n\n</think>\n\n",
        off={"enable_thinking": False},
        **_QWEN,
    ),
    "Qwen3-2507": Model("qwen3_instruct_2507", **_QWEN),
    "Qwen3.5 (calls as Qwen3-Coder)": Model(
        "qwen3_5_nothink", call=_XML, xml="<parameter={key}>\n{value}\n</parameter>\n", **_QWEN
    ),
    "Qwen3-Coder": Model("qwen3_coder", call=_XML, xml="<parameter={key}>\n{value}\n</parameter>\n", **_QWEN),
    "Llama 3.1 and 3.3": Model("llama3_1", **_LLAMA),
    "Llama 3.2": Model("llama3_2", **_LLAMA),
    "gpt-oss": Model(
        "gptoss",
        eos="<|return|>",
        end="<|return|>",
        call=" to=functions.{name}<|channel|>commentary json<|message|>{json}",
        call_end="<|call|>",
        text="<|channel|>final<|message|>{}",
        think="<|channel|>analysis<|message|>{}<|end|><|start|>assistant",
        key="thinking",
        between="<|call|><|start|>assistant",
    ),
    "GLM-4.5": Model("glm4moe", **_GLM),
    "GLM-4.6": Model("glm_4_6", **_GLM),
    "GLM-4.7": Model(
        "glm_4_7_flash",
        **_GLM
        | {"call": "<tool_call>{name}{pairs}</tool_call>", "text": "{}"}
        | {"xml": "<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"}
        | {"think": "{}</think>", "empty": "</think>"},
    ),
    "DeepSeek-V3": Model("deepseekv3", **_DEEPSEEK),
    "DeepSeek-R1 (distilled)": Model("deepseek_r1_distill", **_DEEPSEEK),
    "DeepSeek-V3.1": Model(
        "deepseek_v3_1",
        **_DEEPSEEK
        | {"think": "", "empty": "", "between": "", "declared": _V3_1_TOOLS}
        | {"call": "<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json}<｜tool▁call▁end｜>"},  # noqa: RUF001
    ),
    "Kimi-K2": Model(
        "kimi_k2",
        eos="<|im_end|>",
        end="<|im_end|>",
        call="<|tool_call_begin|>functions.{name}:{place}<|tool_call_argument_begin|>{json}<|tool_call_end|>",
        calls="<|tool_calls_section_begin|>{}<|tool_calls_section_end|>",
        between="",
        ids=True,
    ),
    "Mistral (v11)": Model(
        "mistral_small_3_2",
        eos="</s>",
        end="</s>",
        call="[TOOL_CALLS]{name}[CALL_ID]call{place:05d}[ARGS]{json}",
        between="",
    ),
    "Mistral (v13)": Model(
        "ministral_3",
        eos="</s>",
        end="</s>",
        call="[TOOL_CALLS]{name}[ARGS]{json}",
        between="",
        think="[THINK]{}[/THINK]",
    ),
    "Mistral (v3)": Model("mistral_nemo", eos="</s>", end="</s>", calls="[TOOL_CALLS][{}]", **_LIST),
    "Phi-4-mini": Model(
        "phi_4_mini",
        eos="<|endoftext|>",
        end="<|end|>",
        calls="<|tool_call|>[{}]<|/tool_call|>",
        in_content=True,
        declared=_PHI_TOOLS,
        declared_after="",
        **_LIST,
    ),
    "Phi-4": Model("phi_4", eos="<|im_end|>", end="<|im_end|>"),
    "OLMo 3": Model("olmo_3", call="{name}({python})", calls="<function_calls>{}</function_calls>", **_QWEN),
    "OLMo 3 Think": Model("olmo_3_think", think="{}</think>", empty="</think>", **_QWEN),
    "SmolLM3": Model(
        "smollm3",
        think="<think>\n{}\n</think>\n\n",
        off={"enable_thinking": False},
        in_content=True,
        eos="<|im_end|>",
        end="<|im_end|>",
    ),
    "Granite 3": Model(
        "granite_3_3",
        eos="<|end_of_text|>",
        end="<|end_of_text|>",
        calls="<|tool_call|>[{}]",
        in_content=True,
        **_LIST,
    ),
    "Granite 4": Model("granite_4_0", eos="<|end_of_text|>", end="<|end_of_text|>"),
    "Gemma 3": Model("gemma3", eos="<eos>", end="<end_of_turn>"),
    "Phi-3": Model("phi_3_5", eos="<|endoftext|>", end="<|end|>"),
}


@dataclass(frozen=True)
class Turn:
    """What the policy says, and what it is shown after that."""

    content: str = ""
    queries: tuple[str, ...] = ()
    thinking: str = ""
    shown: tuple[str, ...] = ()
    ended: bool = True


@dataclass(frozen=True)
class Case:
    """A conversation."""

    turns: tuple[Turn, ...]
    system: str = ""
    off: bool = False
    tools: bool = True


CALL = Turn(queries=("who",), shown=("Ada",))
CASES: dict[str, Case] = {
    "one turn": Case((Turn("Yes."),), tools=False),
    "several turns": Case((Turn("Yes.", shown=("And?",)), Turn("No.", shown=("Why?",))), tools=False),
    "call and result": Case((CALL, Turn(queries=("where",), shown=("Here",)))),
    "two calls": Case((Turn(queries=("who", "where"), shown=("Ada", "Here")),)),
    "thinking": Case((Turn(queries=("who",), thinking="Hm.", shown=("Ada",)), CALL)),
    "thinking off": Case((CALL, CALL), off=True),
    "system prompt": Case((CALL,), system="Be brief."),
    "empty result": Case((Turn(queries=("who",), shown=("",)),)),
    "unicode": Case((Turn(queries=("Wér ist 日本 🙂?",), shown=('Zoë "said"\n\\ 日本 🙂',)),)),
    "cut turn": Case((Turn("I was going to", shown=("Go on.",), ended=False),), tools=False),
}
OUTCOMES = ("same row", "new row", "refused", "none")


def messages_of(model: Model, case: Case) -> list[dict[str, Any]]:
    """The conversation in the form that templates take, without a line of the code under test."""
    system = model.declared_after.join(filter(None, (case.system, model.declared * case.tools)))
    found: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    found.append({"role": "user", "content": "Who is it?"})
    for turn in case.turns:
        said: dict[str, Any] = {"role": "assistant", "content": turn.content}
        if turn.thinking:
            said |= (
                {model.key: turn.thinking}
                if model.key in model.source()
                else {"content": model.think.format(turn.thinking) + turn.content}
            )
        ids = [
            f"functions.search:{place}" if model.ids else f"call{place:05d}"
            for place in range(len(turn.queries))
        ]
        if turn.queries and model.in_content:
            said["content"] += model.called([("search", {"query": query}) for query in turn.queries])
        elif turn.queries:
            said["tool_calls"] = [
                {"type": "function", "id": id_, "function": {"name": "search", "arguments": {"query": query}}}
                for id_, query in zip(ids, turn.queries, strict=True)
            ]
        found.append(said)
        for place, text in enumerate(turn.shown):
            answer = (
                {"role": "tool", "content": text, "name": "search", "tool_call_id": ids[place]}
                if turn.queries
                else {"role": "user", "content": text}
            )
            found.append(answer)
    return found


def oracle(model: Model, tokenizer: Any, case: Case, options: Mapping[str, Any], *, plain: bool) -> list[int]:
    """Ids of the template's own rendering."""
    messages = messages_of(model, case)
    if not case.turns[-1].shown:
        messages.pop()
    tools = TOOLS if case.tools else None
    template = tokenizer.get_chat_template(tools=tools)
    text = tokenizer.apply_chat_template(
        messages,
        tools=tools,
        tokenize=False,
        add_generation_prompt=True,
        chat_template=TODAY.sub(lambda asked: repr(date(2026, 1, 1).strftime(asked[2])), template),
        **options,
    )
    for turn in case.turns if plain and case.tools else ():
        for shown in turn.shown:
            text = text.replace(json.dumps(shown, ensure_ascii=False), shown)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def played(name: str, case: Case) -> str:
    """Plays a case; every turn is read back as it was meant, and every prompt is the template's own."""
    model = MODELS[name]
    if (case.off and not model.off) or (any(turn.thinking for turn in case.turns) and not model.think):
        return "none"
    tokenizer, options = model.tokenizer(), dict(model.off) if case.off else {}
    chat = NativeFormat(tokenizer, options=options, ends=ends_of_turn(tokenizer))
    opening = [Message("system", case.system)] * bool(case.system) + [Message("user", "Who is it?")]
    try:
        conversation, ids = chat.open(opening, TOOLS if case.tools else [])
    except ConfigurationError:
        return "refused"
    first = Case((Turn(),), case.system, case.off, case.tools)
    assert ids == oracle(model, tokenizer, first, options, plain=False)
    outcome = "same row"
    for place, turn in enumerate(case.turns):
        written = model.written(
            turn.thinking,
            turn.content,
            [("search", {"query": query}) for query in turn.queries],
            off=case.off,
        )
        if not turn.ended:
            written = written.removesuffix(model.end)
        sampled = tokenizer.encode(written, add_special_tokens=False)
        held = [*ids, *sampled]
        said = conversation.read(tokenizer.decode(sampled[:-1] if turn.ended else sampled))
        assert (said.thinking or "", said.content) == (turn.thinking, turn.content)
        conversation = conversation.said(said)
        if not turn.shown:
            continue
        conversation, ids = chat.go_on(
            held, conversation, replies(said, tuple(Message("tool", one) for one in turn.shown))
        )
        so_far = Case(case.turns[: place + 1], case.system, case.off, case.tools)
        called = [call.arguments for call in said.calls if isinstance(call, NativeCall)]
        if len(called) == len(turn.queries):
            assert called == [{"query": query} for query in turn.queries]
            assert ids == oracle(model, tokenizer, so_far, options, plain=chat.family.plain_results)
        if ids[: len(held)] != held:
            outcome = "new row"
    return outcome


ONE_CALL = ("Llama 3.1 and 3.3", "Llama 3.2", "gpt-oss")
"""Models whose template has no form for two calls of one turn."""


def unwritable(name: str, case: str) -> bool:
    """Whether the template of a model has no way to write the turns of a case behind their prompt."""
    return case == "two calls" and name in ONE_CALL


SPELT: dict[str, Case] = {
    **{name: case for name, case in CASES.items() if case.turns[0].ended},
    "thinking before the answer": Case(
        (
            Turn(queries=("who",), thinking="Hm.", shown=("Ada",)),
            Turn(queries=("where",), thinking="And?", shown=("Here",)),
            Turn("Yes.", thinking="So.", shown=("Why?",)),
            Turn("No.", thinking="Well."),
        )
    ),
    "text under a system prompt": Case(
        (Turn("Yes.", shown=("And?",)), CALL, Turn("No.")), system="Be brief."
    ),
}


def opened(name: str, case: Case) -> tuple[NativeFormat, Conversation, list[int]] | None:
    """The format of a model and the opening of a case; None where it has no such case or refuses it."""
    model = MODELS[name]
    if (case.off and not model.off) or (any(turn.thinking for turn in case.turns) and not model.think):
        return None
    tokenizer, options = model.tokenizer(), dict(model.off) if case.off else {}
    chat = NativeFormat(tokenizer, options=options, ends=ends_of_turn(tokenizer))
    opening = [Message("system", case.system)] * bool(case.system) + [Message("user", "Who is it?")]
    try:
        return chat, *chat.open(opening, TOOLS if case.tools else [])
    except ConfigurationError:
        return None


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("case", SPELT)
def test_a_turn_is_spelt_as_the_model_writes_it(name: str, case: str) -> None:
    model, played = MODELS[name], SPELT[case]
    tokenizer, begun = model.tokenizer(), opened(name, played)
    if begun is None:
        return
    chat, conversation, ids = begun
    for turn in played.turns:
        calls = [("search", {"query": query}) for query in turn.queries]
        wanted = AssistantTurn(
            turn.thinking or None, turn.content, tuple(NativeCall(*call) for call in calls)
        )
        if unwritable(name, case):
            with pytest.raises(Unrenderable, match="no way to write the turn"):
                chat.encode_turn(conversation, wanted)
            return
        spelt = chat.encode_turn(conversation, wanted)
        found = "".join(tokenizer.decode(spelt).split())
        written = "".join(model.written(turn.thinking, turn.content, calls, off=played.off).split())
        if name == "Mistral (v3)" and calls:  # its template writes ids, which the model does not
            found = re.sub(r',"id":"call\d{5}"', "", found)
        assert found == written
        conversation = conversation.said(conversation.read(tokenizer.decode(spelt[:-1])))
        if turn.shown:
            said = conversation.messages[-1]
            assert isinstance(said, AssistantTurn)
            shown = replies(said, tuple(Message("tool", one) for one in turn.shown))
            conversation, ids = chat.go_on([*ids, *spelt], conversation, shown)


@pytest.mark.parametrize("name", [*(name for name, model in MODELS.items() if model.off), "DeepSeek-V3.1"])
def test_thinking_is_left_out_where_the_prompt_closes_it(name: str) -> None:
    """DeepSeek-V3.1 closes it unless it is asked to think, and shows no such tag after a result."""
    begun = opened(name, Case((CALL, CALL), off=name != "DeepSeek-V3.1"))
    assert begun is not None
    chat, conversation, ids = begun
    for _ in range(2):
        call = (NativeCall("search", {"query": "who"}),)
        spelt = chat.encode_turn(conversation, AssistantTurn("Hm.", "", call))
        assert spelt == chat.encode_turn(conversation, AssistantTurn(None, "", call))
        said = conversation.read(MODELS[name].tokenizer().decode(spelt[:-1]))
        assert (said.thinking or "", said.content) == ("", "")
        shown = replies(said, (Message("tool", "Ada"),))
        conversation, ids = chat.go_on([*ids, *spelt], conversation.said(said), shown)


def test_thinking_is_left_out_where_the_system_prompt_turns_it_off() -> None:
    """SmolLM3 reads a switch there."""
    case = Case((Turn("Yes."),), system="/no_think", tools=False)
    begun = opened("SmolLM3", case)
    assert begun is not None
    chat, conversation, _ = begun
    spelt = chat.encode_turn(conversation, AssistantTurn("Hm.", "Yes."))
    assert MODELS["SmolLM3"].tokenizer().decode(spelt) == "Yes.<|im_end|>"


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.think])
def test_thinking_may_speak_of_the_marks_of_the_model(name: str) -> None:
    begun = opened(name, Case((Turn(thinking="Hm."),)))
    if begun is None:
        return
    chat, conversation, _ = begun
    family = chat.family
    thought = f"After {family.thinking_end} or {MODELS[name].end} it ends"
    spelt = chat.encode_turn(conversation, AssistantTurn(thought, "Yes."))
    said = conversation.read(MODELS[name].tokenizer().decode(spelt[:-1]))
    assert said.content == "Yes."
    assert "".join((said.thinking or "").split()) == "".join(thought.split())


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.off])
def test_tools_without_arguments_are_called_where_thinking_is_off(name: str) -> None:
    tokenizer = MODELS[name].tokenizer()
    chat = NativeFormat(tokenizer, options=MODELS[name].off, ends=ends_of_turn(tokenizer))
    parameters = {"type": "object", "properties": {}}
    ping = {"type": "function", "function": {"name": "ping", "description": "", "parameters": parameters}}
    conversation, _ = chat.open([Message("user", "Is it there?")], [ping])
    spelt = chat.encode_turn(conversation, AssistantTurn(None, "", (NativeCall("ping", {}),)))
    (call,) = conversation.read(tokenizer.decode(spelt[:-1])).calls
    assert isinstance(call, NativeCall)
    assert (call.name, call.arguments) == ("ping", {})


class Measured:
    """A tokenizer that keeps the lengths of what it encoded."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.lengths = tokenizer, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **options: Any) -> Any:
        self.lengths.append(len(text))
        return self._tokenizer.encode(text, **options)


def test_a_turn_is_spelt_without_encoding_the_conversation() -> None:
    """It would take the square of the length of an episode."""
    tokenizer = Measured(MODELS["Qwen3"].tokenizer())
    chat = NativeFormat(tokenizer, ends=ends_of_turn(tokenizer))
    conversation, _ = chat.open([Message("user", "Who is it? " * 1000)], TOOLS)
    tokenizer.lengths.clear()
    chat.encode_turn(conversation, AssistantTurn(None, "", (NativeCall("search", {"query": "who"}),)))
    assert 0 < max(tokenizer.lengths) < 1000


def table() -> dict[str, dict[str, str]]:
    """The table family x case of the documentation."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("| ")
    ]
    head = next(row for row in rows if row[0] == "model" and row[1] == "one turn")
    begin = rows.index(head) + 1
    named = [row for row in rows[begin:] if row[0] in MODELS]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in named}


def test_the_table_names_every_family_and_every_case() -> None:
    assert list(table()) == list(MODELS)
    assert all(list(row) == list(CASES) for row in table().values())


@pytest.mark.parametrize("name", MODELS)
def test_a_family_does_in_every_case_what_the_table_says(name: str) -> None:
    assert {case: played(name, CASES[case]) for case in CASES} == table()[name]


@pytest.mark.parametrize(
    ("model", "name", "argument"),
    [("OLMo 3", "get-page", "query"), ("OLMo 3", "search", "from"), ("gpt-oss", "get page", "query")],
)
def test_a_tool_that_the_family_cannot_write_is_refused(model: str, name: str, argument: str) -> None:
    schema = {"type": "object", "properties": {argument: {"type": "string"}}}
    tool = {"type": "function", "function": {"name": name, "description": "Finds.", "parameters": schema}}
    tokenizer = MODELS[model].tokenizer()
    with pytest.raises(ConfigurationError, match=re.escape(f"{name}({argument})")):
        NativeFormat(tokenizer, ends=ends_of_turn(tokenizer)).open([Message("user", "Who?")], [tool])
    other = MODELS["Qwen2.5"].tokenizer()
    NativeFormat(other, ends=ends_of_turn(other)).open([Message("user", "Who?")], [tool])

"""The model families: how each is recognised by its chat template, how it writes calls, and what ends its turns."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.core.assistant_turns import AssistantTurn, Call, MalformedCall, Schemas
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
from agentenv.errors import check_known

TurnReaderFunction = Callable[[str, bool, Schemas], AssistantTurn]
"""A function of the text of a turn, whether its prompt opened the thinking, and the tools' schemas; it returns the turn."""

MOST_CALLS = 32
"""The largest number of calls in one turn. Further ones are not run."""


@dataclass(frozen=True)
class Family:
    """Models that were trained with the same conversation format."""

    name: str
    read: TurnReaderFunction
    marks: tuple[tuple[str, ...], ...] = ()
    """How the family is recognised: its chat template contains all texts of one of these groups."""
    thinking: str = "<think>"
    """The text that begins the thinking."""
    thinking_as_text: str = "<think>\n{}\n</think>\n\n"
    """How thinking is written before the content of a turn, if a template of the family has no key for it."""
    ends: tuple[str, ...] = ()
    """Tokens that end a turn, in addition to those of the tokenizer."""
    closers: tuple[str, ...] = ()
    """Further tokens with which the template ends an earlier turn."""
    plain_results: bool = False
    """Whether tool results are put into the prompt as plain text, although the template would quote them as JSON."""
    one_text: bool = False
    """Whether the template shows either the thinking or the content of a turn with calls, and not both."""
    calls_tools: bool = True
    calls_as_text: Callable[[Sequence[str]], str] | None = None
    """Converts the calls of a turn, each as JSON, to text, for templates that show calls only in the content."""
    call_id: str = ""
    """Format string of a call's id with ``name`` and ``place`` (its index in the conversation), if the family needs one."""
    declare: Callable[[Sequence[Mapping[str, Any]]], str] | None = None
    """Returns the text that declares tools, as the family documents it, for templates that ignore tools."""
    declares_for: str = ""
    """A text that identifies the templates for which ``declare`` is documented."""
    declares_after: str = "\n\n"
    """The text between the system prompt and the declaration of the tools."""

    @property
    def thinking_end(self) -> str:
        """The text that ends the thinking of a turn."""
        return self.thinking_as_text.partition("{}")[2].strip()

    def read_alone(self, text: str, schemas: Schemas) -> AssistantTurn:
        """Parses a turn whose prompt is unknown.

        If the turn ends a thinking block that it did not begin, the prompt is assumed to have begun it.
        """
        before, ended, _ = text.partition(self.thinking_end)
        return self.read(text, bool(ended) and self.thinking not in before, schemas)


def _tagged(
    read_calls: CallReader | None, opening: str = "<think>", closing: str = "</think>"
) -> TurnReaderFunction:
    """Makes the parser of a family that thinks between two tags and calls tools after that."""

    def read(text: str, opened: bool, schemas: Schemas) -> AssistantTurn:
        thinking, text, closed = without_thinking(text, opened, opening, closing)
        if not closed or read_calls is None or not schemas:
            return AssistantTurn(thinking, text.strip(), closed=closed)
        content, calls = read_calls(text, schemas)
        return AssistantTurn(thinking, content.strip(), _bounded(calls))

    return read


def without_thinking(text: str, opened: bool, opening: str, closing: str) -> tuple[str | None, str, bool]:
    """Returns the thinking, the text after it, and whether the thinking ended.

    Args:
        text: The text of a turn.
        opened: Whether its prompt opened the thinking.
        opening: The tag that begins thinking.
        closing: The tag that ends it.
    """
    stripped = text.lstrip()
    if not opened and not stripped.startswith(opening):
        return None, text, True
    inside = text if opened else stripped[len(opening) :]
    thinking, found, rest = inside.partition(closing)
    return thinking.strip(), rest, bool(found)


def _bounded(calls: list[Call]) -> tuple[Call, ...]:
    if len(calls) <= MOST_CALLS:
        return tuple(calls)
    complaint = f"{len(calls)} calls in one turn; only the first {MOST_CALLS} were run"
    return (*calls[:MOST_CALLS], MalformedCall("", complaint))


def _harmony(text: str, opened: bool, schemas: Schemas) -> AssistantTurn:
    """Parses messages on the channels ``analysis`` (thinking), ``commentary`` (calls and texts before them), ``final``."""
    thinking: list[str] = []
    content: list[str] = []
    calls: list[Call] = []
    closed = False
    # The last message may lack its end token.
    for message in re.split(r"<\|end\|>|<\|call\|>|<\|return\|>|<\|start\|>", text):
        header, begun, body = message.partition("<|message|>")
        if not begun:
            continue
        recipient = re.search(r"to=(?:functions\.)?([^\s<]+)", header)
        closed = recipient is not None or "analysis" not in header
        if recipient is not None and schemas:
            calls.append(harmony_call(recipient[1], body))
        elif closed:
            content.append(body)
        else:
            thinking.append(body)
    said = "\n".join(thinking).strip() if thinking else None
    return AssistantTurn(said, "\n".join(content).strip(), _bounded(calls), closed)


def _phi_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """Declares tools as the model card of Phi-4-mini documents; its template expects them in a key of the system message."""
    return f"<|tool|>{json.dumps([tool['function'] for tool in tools], ensure_ascii=False)}<|/tool|>"


_END_TOOL_CALLS = "<｜tool▁calls▁begin｜>"  # noqa: RUF001


def _deepseek_tools(tools: Sequence[Mapping[str, Any]]) -> str:
    """Declares tools after the system prompt, as the model card of DeepSeek-V3.1 documents."""
    listed_tools = "".join(
        f"\n### {function['name']}\nDescription: {function.get('description', '')}\n\n"
        f"Parameters: {json.dumps(function.get('parameters', {}), ensure_ascii=False)}\n"
        for function in (tool["function"] for tool in tools)
    )
    form = (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>"  # noqa: RUF001
        "{additional_tool_calls}<｜tool▁calls▁end｜>"  # noqa: RUF001
    )
    return (
        f"## Tools\nYou have access to the following tools:\n{listed_tools}\n"
        f"IMPORTANT: ALWAYS adhere to this exact format for tool use:\n{form}\n\nWhere:\n"
        "- `tool_call_name` must be an exact match to one of the available tools\n"
        "- `tool_call_arguments` must be valid JSON that strictly follows the tool's Parameters Schema\n"
        "- For multiple tool calls, chain them directly without separators or spaces\n"
    )


FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        Family(
            "gpt-oss",
            _harmony,
            marks=(("<|channel|>", "<|start|>assistant"),),
            ends=("<|return|>", "<|call|>"),
            thinking="<|channel|>analysis<|message|>",
            closers=("<|end|>",),
            plain_results=True,
            one_text=True,
        ),
        Family(
            "deepseek",
            _tagged(deepseek),
            marks=((_END_TOOL_CALLS,),),
            declare=_deepseek_tools,
            declares_for="'<｜tool▁sep｜>' + tool['function']['arguments']",  # noqa: RUF001
        ),
        Family(
            "kimi",
            _tagged(kimi),
            marks=(("<|tool_calls_section_begin|>",),),
            ends=("<|im_end|>",),
            call_id="functions.{name}:{place}",
        ),
        Family(
            "glm",
            _tagged(argument_tags),
            marks=(("<arg_key>", "<arg_value>"),),
            ends=("<|user|>", "<|observation|>"),
        ),
        Family(
            "qwen-coder", _tagged(function_tags), marks=(("<function=", "<parameter="),), ends=("<|im_end|>",)
        ),
        Family(
            "mistral",
            _tagged(mistral, "[THINK]", "[/THINK]"),
            marks=(("[TOOL_CALLS]",),),
            thinking="[THINK]",
            thinking_as_text="[THINK]{}[/THINK]",
            ends=("</s>",),
        ),
        Family(
            "olmo",
            _tagged(python_calls("<function_calls>", "</function_calls>")),
            marks=(("<function_calls>",),),
            ends=("<|im_end|>",),
        ),
        Family(
            "lfm",
            _tagged(python_calls("<|tool_call_start|>", "<|tool_call_end|>")),
            marks=(("<|tool_call_start|>",),),
            ends=("<|im_end|>",),
        ),
        Family(
            "phi",
            _tagged(json_tags("<|tool_call|>", "<|/tool_call|>")),
            marks=(("<|tool_call|>", "<|/tool_call|>"), ("<|tool|>", "<|/tool|>")),
            ends=("<|end|>",),
            calls_as_text=lambda calls: f"<|tool_call|>[{', '.join(calls)}]<|/tool_call|>",
            declare=_phi_tools,
            declares_for="message['tools']",
            declares_after="",
        ),
        Family(
            "granite",
            _tagged(json_tags("<|tool_call|>", "", closes=False)),
            marks=(("<|tool_call|>",),),
            calls_as_text=lambda calls: f"<|tool_call|>[{', '.join(calls)}]",
        ),
        Family(
            "qwen",
            _tagged(json_tags("<tool_call>", "</tool_call>")),
            marks=(("<tool_call>", "arguments"),),
            ends=("<|im_end|>",),
            calls_as_text=lambda calls: "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls),
        ),
        Family(
            "llama",
            _tagged(bare_json),
            marks=(("<|start_header_id|>", '"parameters": '), ("<|start_header_id|>", "ipython")),
            ends=("<|eot_id|>", "<|eom_id|>"),
            plain_results=True,
        ),
        Family(
            "gemma", _tagged(None), marks=(("<start_of_turn>",),), ends=("<end_of_turn>",), calls_tools=False
        ),
        Family("text", _tagged(None), calls_tools=False),
    )
}
"""The families by name. The first one whose ``marks`` are in a template is used, and ``text`` if none is."""


def family_of(template: str) -> Family:
    """Returns the family to which a chat template belongs."""
    for family in FAMILIES.values():
        if any(all(mark in template for mark in group) for group in family.marks):
            return family
    return FAMILIES["text"]


def get_family(name: str) -> Family:
    """Returns the family of that name.

    Raises:
        UnknownName: there is none; the error carries the nearest name.
    """
    check_known("model family", name, FAMILIES)
    return FAMILIES[name]

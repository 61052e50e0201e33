"""How the families write tool calls: one reader for each way, from text to content and calls.

A reader never raises: what cannot be read is a `MalformedCall`, because the text is the policy's own.
"""

import ast
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentenv.core.assistant_turns import Call, MalformedCall, NativeCall, Schemas
from agentenv.core.grammar import breaks_off, encodable, read_json, shortened
from agentenv.syntax_trees import parse_python

CallReader = Callable[[str, Schemas], tuple[str, list[Call]]]
"""From the text of a turn after its thinking, and the schemas of the tools, to content and calls."""

_COMPLAINT_CHARS = 400


@dataclass(frozen=True)
class _Tagged:
    """How a template writes arguments between tags."""

    opening: re.Pattern[str]
    """What begins an argument; its group is the key. It does not look far for what may be missing, so that a text of any
    length is read in one pass."""
    closing: str
    """What ends one."""
    words: Mapping[str, bool | None]
    """What it writes for values that are no text and no JSON."""
    on_lines: bool = False
    """Whether each value stands on lines of its own."""


_PARAMETERS = _Tagged(
    re.compile(r"\s*<parameter=([^>\n]+)>"),
    "</parameter>",
    {
        "null": None,
        "None": None,
        "True": True,
        "False": False,
    },  # the template of Qwen3-Coder writes them as Python does
    on_lines=True,
)
_ARGUMENTS = _Tagged(
    re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>"), "</arg_value>", {"null": None}
)
_LONG_PATH = re.compile(r"(?:\.\s*\w+\s*){500}")
"""A path of so many names that no call has it; Python's own parser takes the square of its length after ``import``."""
_UNCLOSED = "the tool call does not end"


def json_tags(opening: str, closing: str, *, closes: bool = True) -> CallReader:
    """Calls as JSON objects, or a list of them, between two marks; ``closes`` says whether the second has to be there."""
    return lambda text, schemas: _between(text, opening, closing, lambda body: _json_calls(body), closes)


def function_tags(text: str, schemas: Schemas) -> tuple[str, list[Call]]:
    """``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`` (Qwen3-Coder)."""
    return _between(text, "<tool_call>", "</tool_call>", lambda body: _function_body(body, schemas))


def argument_tags(text: str, schemas: Schemas) -> tuple[str, list[Call]]:
    """``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`` (GLM-4.5)."""
    return _between(text, "<tool_call>", "</tool_call>", lambda body: _argument_body(body, schemas))


def bare_json(text: str, schemas: Schemas) -> tuple[str, list[Call]]:
    """A turn that is a JSON object and nothing else (Llama 3.1); only its first call can be made."""
    body = text.removeprefix("<|python_tag|>").strip()
    if not (body.startswith("{") and '"name"' in body):
        return text, []
    first, *others = _json_documents(body)
    if not others:
        return "", _json_calls(first, key="parameters")
    rest: Call = MalformedCall("; ".join(others), "only one tool can be called in a turn")
    return "", [*_json_calls(first, key="parameters"), rest]


def mistral(text: str, schemas: Schemas) -> tuple[str, list[Call]]:
    """``[TOOL_CALLS][{...}]``, and ``[TOOL_CALLS]NAME[ARGS]{...}`` with or without a ``[CALL_ID]`` between."""
    content, *bodies = text.split("[TOOL_CALLS]")
    calls: list[Call] = []
    for body in bodies:
        named = re.match(r"\s*([\w.-]+)(?:\[CALL_ID\](\w+))?(?:\[ARGS\])?\s*(\{.*)", body, re.DOTALL)
        found = _json_calls(body) if named is None else [_call(named[1], named[3], named[2] or "")]
        calls += _wholes(found, f"[TOOL_CALLS]{body}")
    return content, calls


_SEP, _BEGIN, _END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001


def deepseek(text: str, schemas: Schemas) -> tuple[str, list[Call]]:
    """The marks of DeepSeek: V3 and R1 fence the arguments, V3.1 writes them as they are."""
    content, found, section = text.partition("<｜tool▁calls▁begin｜>")  # noqa: RUF001
    if not found:
        return text, []
    _, calls = _between(section, _BEGIN, _END, _deepseek_body)
    return content, calls or [MalformedCall(found + section, _UNCLOSED, unfinished=True)]


def kimi(text: str, schemas: Schemas) -> tuple[str, list[Call]]:
    """``<|tool_call_begin|>functions.NAME:PLACE<|tool_call_argument_begin|>{...}<|tool_call_end|>`` in a section."""
    content, found, section = text.partition("<|tool_calls_section_begin|>")
    if not found:
        return text, []
    _, calls = _between(section, "<|tool_call_begin|>", "<|tool_call_end|>", _kimi_body)
    return content, calls or [MalformedCall(found + section, _UNCLOSED, unfinished=True)]


def harmony_call(name: str, arguments: str) -> Call:
    """A message to a tool in Harmony (gpt-oss), whose body is JSON."""
    call = _call(name, arguments)
    return _whole(call, arguments)


def python_calls(opening: str, closing: str) -> CallReader:
    """Calls as Python writes them, ``name(key=value)``, on lines of their own or in a list (OLMo 3, LFM2)."""
    return lambda text, schemas: _between(text, opening, closing, _python_calls)


def _between(
    text: str, opening: str, closing: str, read: Callable[[str], Sequence[Call]], closes: bool = True
) -> tuple[str, list[Call]]:
    """Content outside of the marks, and what ``read`` finds between them."""
    content, calls, at = "", list[Call](), 0
    while (start := text.find(opening, at)) >= 0:
        content += text[at:start]
        inside = start + len(opening)
        end = text.find(closing, inside) if closing else -1
        at = len(text) if end < 0 else end + len(closing)
        whole = text[start:at]
        if end < 0 and closes:
            calls.append(MalformedCall(whole, f"{_UNCLOSED}: {closing} is missing", unfinished=True))
        else:
            found = _wholes(read(text[inside : at if end < 0 else end]), whole)
            calls += found if end < 0 else map(_finished, found)
    return content + text[at:], calls


def _whole(call: Call, text: str) -> Call:
    """``call``, with the text of the whole of it where it is malformed."""
    return replace(call, text=text) if isinstance(call, MalformedCall) else call


def _finished(call: Call) -> Call:
    """``call``, whose end was written."""
    return replace(call, unfinished=False) if isinstance(call, MalformedCall) else call


def _wholes(calls: Sequence[Call], text: str) -> list[Call]:
    """``calls``, the first malformed one with the whole text and further ones with none.

    A list that was written once is shown once, however many of its calls could not be read.
    """
    found = list(calls)
    broken = (place for place, call in enumerate(found) if isinstance(call, MalformedCall))
    for place in broken:
        found[place], text = _whole(found[place], text), ""
    return found


def _json_calls(body: str, key: str = "arguments") -> list[Call]:
    try:
        document = read_json(body.strip())
    except ValueError as error:
        said = _said(f"the tool call is not JSON: {error}")
        return [MalformedCall(body, said, unfinished=breaks_off(body))]
    found = document if isinstance(document, list) else [document]
    return [_json_call(one, body, key) for one in found] or [
        MalformedCall(body, "the list of tool calls is empty")
    ]


def _json_call(call: Any, body: str, key: str) -> Call:
    if not (isinstance(call, dict) and isinstance(call.get("name"), str)):
        return MalformedCall(body, f'a tool call is an object with "name" and "{key}"')
    id_ = call.get("id")
    arguments = call.get(key, call.get("arguments", {}))
    return NativeCall(call["name"], arguments, id_ if isinstance(id_, str) else "")


def _call(name: str, arguments: str, id_: str = "") -> Call:
    """A call of ``name`` whose arguments are JSON."""
    try:
        return NativeCall(name, read_json(arguments.strip() or "{}"), id_)
    except ValueError as error:
        said = _said(f"the arguments of {name} are not JSON: {error}")
        return MalformedCall(arguments, said, unfinished=breaks_off(arguments))


def _json_documents(text: str) -> list[str]:
    """The JSON objects of ``text``, which semicolons or white space separate; all of it where it is not JSON."""
    import json

    found, at = list[str](), 0
    try:
        while at < len(text):
            _, end = json.JSONDecoder().raw_decode(text, at)
            found.append(text[at:end])
            while end < len(text) and text[end] in "; \n":
                end += 1
            at = end
    except (ValueError, RecursionError):
        return [text]
    return found


def _function_body(body: str, schemas: Schemas) -> list[Call]:
    function = re.fullmatch(r"\s*<function=([^>\n]+)>(.*)</function>\s*", body, re.DOTALL)
    if function is None:
        return [MalformedCall(body, "a tool call is <function=NAME> ... </function>")]
    return [_pairs(function[1].strip(), body, _PARAMETERS, function[2], schemas)]


def _argument_body(body: str, schemas: Schemas) -> list[Call]:
    name, key, pairs = body.partition("<arg_key>")
    if not name.strip():
        return [MalformedCall(body, "a tool call begins with the name of the tool")]
    return [_pairs(name.strip(), body, _ARGUMENTS, key + pairs, schemas)]


def _pairs(name: str, body: str, form: _Tagged, text: str, schemas: Schemas) -> Call:
    """A call whose arguments stand between tags, each typed by the schema of the tool.

    Args:
        name: of the tool.
        body: the call as it was written.
        form: the tags.
        text: the arguments.
        schemas: of the tools.
    """
    properties = schemas.get(name, {}).get("properties", {})
    values, at = dict[str, Any](), 0
    text = text.strip()
    while at < len(text):
        begun = form.opening.match(text, at)
        end = text.find(form.closing, begun.end()) if begun else -1
        if begun is None or end < 0:
            left = text[at : at + _COMPLAINT_CHARS].strip()
            left = re.split(r"(?<!^)<(?:parameter=|arg_key>)", left, maxsplit=1)[0]
            return MalformedCall(body, _said(f"between the arguments of {name} stands {left!r:.80}"))
        key = begun[1].strip()
        value = text[begun.end() : end]
        if form.on_lines:
            value = value.removeprefix("\n").removesuffix("\n")
        values[key], at = _typed(value, properties.get(key, {}), form.words), end + len(form.closing)
    return NativeCall(name, values)


def _typed(text: str, schema: Any, words: Mapping[str, bool | None]) -> Any:
    """The value that ``text`` stands for: itself where only text is allowed, else JSON where it can be read as such.

    Several types, or none, are read as JSON where they are, because otherwise no number could be given there. Where only
    text and null are allowed, the word for null is null: the templates write it so.
    """
    whole = schema if isinstance(schema, Mapping) else {}  # the schema true allows any value
    choices = (*whole.get("anyOf", ()), *whole.get("oneOf", ()))
    parts = [whole, *(part for part in choices if isinstance(part, Mapping))]
    kinds = {kind for part in parts for kind in _kinds(part.get("type"))}
    word = text.strip()
    if kinds == {"string"} or any(text in part.get("enum", ()) for part in parts):
        return encodable(text)
    if kinds == {"string", "null"}:
        return None if words.get(word, text) is None else encodable(text)
    try:
        return read_json(word)
    except ValueError:
        # A schema that wants no text refuses it, and says what it wants.
        return words.get(word, encodable(text))


def _kinds(named: Any) -> list[str]:
    return [named] if isinstance(named, str) else list(named or ())


def _deepseek_body(body: str) -> list[Call]:
    fenced = re.fullmatch(rf"\s*\w+{_SEP}([^\n]+)\n```json\n(.*)\n```\s*", body, re.DOTALL)
    if fenced is not None:
        return [_call(fenced[1].strip(), fenced[2])]
    before, found, arguments = body.partition(_SEP)
    name = before.strip()
    if not (found and name) or "\n" in name:
        return [MalformedCall(body, f"a tool call is the name of the tool, {_SEP} and JSON")]
    return [_call(name, arguments)]


def _kimi_body(body: str) -> list[Call]:
    id_, found, arguments = body.partition("<|tool_call_argument_begin|>")
    name, placed, place = id_.strip().removeprefix("functions.").rpartition(":")
    if not (found and name and placed) or re.fullmatch(r"\d+", place) is None:
        wanted = "functions.NAME:PLACE, <|tool_call_argument_begin|> and JSON"
        return [MalformedCall(body, f"a tool call is {wanted}")]
    return [_call(name, arguments, id_.strip())]


def _python_calls(body: str) -> list[Call]:
    try:
        if _LONG_PATH.search(body):
            raise ValueError("it names a path of hundreds of names")
        with warnings.catch_warnings():  # of escapes that Python does not know
            warnings.simplefilter("ignore")
            lines = parse_python(body.strip()).body
        values = [line.value for line in lines if isinstance(line, ast.Expr)]
        calls = [
            call for value in values for call in (value.elts if isinstance(value, ast.List) else [value])
        ]
        if len(values) != len(lines) or not calls:
            raise ValueError("it is something else")
        return [_python_call(call) for call in calls]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return [MalformedCall(body, _said(f"a tool call is name(key=value) of literals: {error}"))]


def _python_call(call: ast.expr) -> Call:
    if not (isinstance(call, ast.Call) and not call.args and all(word.arg for word in call.keywords)):
        raise ValueError("arguments need names")
    arguments = {str(word.arg): _literal(word.value) for word in call.keywords}
    return NativeCall(ast.unparse(call.func), arguments)


def _literal(value: ast.expr) -> Any:
    """The value of a literal, as JSON has it; ``true``, ``false`` and ``null`` are taken as well."""
    match value:
        case ast.Name(id=("true" | "false" | "null") as word):
            return {"true": True, "false": False, "null": None}[word]
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_literal(part) for part in parts]
        case ast.Dict(keys=keys, values=values):
            return {str(_literal(key)): _literal(one) for key, one in zip(keys, values, strict=True) if key}
        case ast.Constant(value=str() as text):
            return encodable(text)
        case ast.Constant(value=bool() | int() | float() | None as plain):
            return plain
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
    raise ValueError(f"{ast.unparse(value)[:40]!r} is no literal")


def _said(complaint: str) -> str:
    return encodable(shortened(complaint, _COMPLAINT_CHARS))

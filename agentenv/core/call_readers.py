"""Parsers of tool calls: one for each syntax in which a model family writes calls. Each splits text into content and calls.

A parser never raises, because the policy writes the text: a call that cannot be parsed becomes a `MalformedCall`.
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
"""A function of the text of a turn after its thinking, and of the tools' schemas; it returns the content and the calls."""

_COMPLAINT_CHARS = 400


@dataclass(frozen=True)
class _ArgumentTags:
    """The syntax in which a chat template writes arguments between tags."""

    opening: re.Pattern[str]
    """Matches the opening tag of an argument; group 1 is the argument's name. The pattern has no unbounded lookahead, so a
    text of any length is parsed in one pass."""
    closing: str
    """The closing tag of an argument."""
    words: Mapping[str, bool | None]
    """The words that the template writes for null and booleans, with their values."""
    on_lines: bool = False
    """Whether each value is written on lines of its own."""


_PARAMETERS = _ArgumentTags(
    re.compile(r"\s*<parameter=([^>\n]+)>"),
    "</parameter>",
    {
        "null": None,
        "None": None,
        "True": True,
        "False": False,
    },  # the template of Qwen3-Coder writes Python literals
    on_lines=True,
)
_ARGUMENTS = _ArgumentTags(
    re.compile(r"\s*<arg_key>([^<]*)</arg_key>\s*<arg_value>"), "</arg_value>", {"null": None}
)
_LONG_PATH = re.compile(r"(?:\.\s*\w+\s*){500}")
"""A dotted path with hundreds of names, which no real call has. Python's parser takes quadratic time for one after
``import``."""
_UNCLOSED = "the tool call does not end"


def json_tags(opening: str, closing: str, *, closes: bool = True) -> CallReader:
    """Makes a parser of JSON objects or lists of them between two delimiters; ``closes``: the second is required."""
    return lambda text, schemas: _between(text, opening, closing, lambda body: _json_calls(body), closes)


def function_tags(text: str, schemas: Schemas) -> tuple[str, list[Call]]:
    """Parses ``<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`` (Qwen3-Coder)."""
    return _between(text, "<tool_call>", "</tool_call>", lambda body: _function_body(body, schemas))


def argument_tags(text: str, schemas: Schemas) -> tuple[str, list[Call]]:
    """Parses ``<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`` (GLM-4.5)."""
    return _between(text, "<tool_call>", "</tool_call>", lambda body: _argument_body(body, schemas))


def bare_json(text: str, schemas: Schemas) -> tuple[str, list[Call]]:
    """Parses a turn that is a JSON object and nothing else (Llama 3.1). Only its first call is run."""
    body = text.removeprefix("<|python_tag|>").strip()
    if not (body.startswith("{") and '"name"' in body):
        return text, []
    first, *others = _json_documents(body)
    if not others:
        return "", _json_calls(first, key="parameters")
    rest: Call = MalformedCall("; ".join(others), "only one tool can be called in a turn")
    return "", [*_json_calls(first, key="parameters"), rest]


def mistral(text: str, schemas: Schemas) -> tuple[str, list[Call]]:
    """Parses ``[TOOL_CALLS][{...}]``, and ``[TOOL_CALLS]NAME[ARGS]{...}`` with an optional ``[CALL_ID]`` in between."""
    content, *bodies = text.split("[TOOL_CALLS]")
    calls: list[Call] = []
    for body in bodies:
        named = re.match(r"\s*([\w.-]+)(?:\[CALL_ID\](\w+))?(?:\[ARGS\])?\s*(\{.*)", body, re.DOTALL)
        found = _json_calls(body) if named is None else [_call(named[1], named[3], named[2] or "")]
        calls += _with_whole_text(found, f"[TOOL_CALLS]{body}")
    return content, calls


_SEP, _BEGIN, _END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001


def deepseek(text: str, schemas: Schemas) -> tuple[str, list[Call]]:
    """Parses DeepSeek's special tokens. V3 and R1 write the arguments in a code fence, V3.1 writes them without one."""
    content, found, section = text.partition("<｜tool▁calls▁begin｜>")  # noqa: RUF001
    if not found:
        return text, []
    _, calls = _between(section, _BEGIN, _END, _deepseek_body)
    return content, calls or [MalformedCall(found + section, _UNCLOSED, unfinished=True)]


def kimi(text: str, schemas: Schemas) -> tuple[str, list[Call]]:
    """Parses Kimi's ``<|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>{...}<|tool_call_end|>``."""
    content, found, section = text.partition("<|tool_calls_section_begin|>")
    if not found:
        return text, []
    _, calls = _between(section, "<|tool_call_begin|>", "<|tool_call_end|>", _kimi_body)
    return content, calls or [MalformedCall(found + section, _UNCLOSED, unfinished=True)]


def harmony_call(name: str, arguments: str) -> Call:
    """Parses a message to a tool in Harmony (gpt-oss), whose body is JSON."""
    call = _call(name, arguments)
    return _whole(call, arguments)


def python_calls(opening: str, closing: str) -> CallReader:
    """Makes a parser of calls in Python syntax, ``name(key=value)``, one per line or in a list (OLMo 3, LFM2)."""
    return lambda text, schemas: _between(text, opening, closing, _python_calls)


def _between(
    text: str, opening: str, closing: str, read: Callable[[str], Sequence[Call]], closes: bool = True
) -> tuple[str, list[Call]]:
    """Returns the content outside of the delimiters, and the calls that ``read`` finds between them."""
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
            found = _with_whole_text(read(text[inside : at if end < 0 else end]), whole)
            calls += found if end < 0 else map(_finished, found)
    return content + text[at:], calls


def _whole(call: Call, text: str) -> Call:
    """Returns ``call``; if it is malformed, ``text``, the whole call with its delimiters, replaces its text."""
    return replace(call, text=text) if isinstance(call, MalformedCall) else call


def _finished(call: Call) -> Call:
    """Returns ``call`` marked as complete, because its closing delimiter was found."""
    return replace(call, unfinished=False) if isinstance(call, MalformedCall) else call


def _with_whole_text(calls: Sequence[Call], text: str) -> list[Call]:
    """Returns ``calls`` with ``text`` as the text of the first malformed one, and no text for further malformed ones.

    A list that the policy wrote once is thus shown once, however many of its calls are malformed.
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
    """Makes a call of the tool ``name`` from arguments in JSON."""
    try:
        return NativeCall(name, read_json(arguments.strip() or "{}"), id_)
    except ValueError as error:
        said = _said(f"the arguments of {name} are not JSON: {error}")
        return MalformedCall(arguments, said, unfinished=breaks_off(arguments))


def _json_documents(text: str) -> list[str]:
    """Splits ``text`` into its JSON objects, separated by semicolons or white space; returns it whole if it is not JSON."""
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


def _pairs(name: str, body: str, form: _ArgumentTags, text: str, schemas: Schemas) -> Call:
    """Parses a call whose arguments are written between tags. The tool's schema gives each argument its type.

    Args:
        name: The name of the tool.
        body: The whole call as it was written.
        form: The tags of the arguments.
        text: The part of the call that holds the arguments.
        schemas: The schemas of the tools.
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
    """Returns the value of ``text``: the text itself if the schema allows only text, otherwise its JSON value if it has one.

    If the schema allows several types, or gives none, text that is valid JSON is read as JSON, because otherwise no number
    could be passed. If it allows only text and null, the template's word for null is read as null.
    """
    # A schema may also be ``true``, which allows any value.
    whole = schema if isinstance(schema, Mapping) else {}
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
        # If the schema does not allow text, the later check against it refuses this value and names the type that it
        # requires.
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
        with warnings.catch_warnings():  # about unknown escape sequences
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
    """Returns the value of a Python literal as JSON would have it; ``true``, ``false`` and ``null`` are accepted too."""
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

"""Tools: every declaration of a tool is derived from one typed function with a Google-style docstring.

A policy calls a tool by writing ``<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>``;
several calls in one action run in order. Text without a call is the final answer.
"""

import asyncio
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from agentenv.core.assistant_turns import AssistantTurn, Call, MalformedCall, call_text
from agentenv.core.chat import TEXT_ALONE
from agentenv.core.conversation import ConversationFormat
from agentenv.core.env import AsyncEnv, StateT
from agentenv.core.grammar import breaks_off, encodable, read_json, shortened
from agentenv.core.json_schema import check_schema, complaints
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.tool_results import ImageResult, as_result, returns_passages
from agentenv.core.types import EndReason, Message, MessagePart, Step, ToolResult, ToolStatus
from agentenv.errors import ConfigurationError, Fault, UnknownName

F = TypeVar("F", bound=Callable[..., Any])

MAX_CALLS = 32
"""The largest number of calls in one action. Further ones are not run."""
_COMPLAINT_CHARS = 1000
_CUT_OFF = (
    "the tool call breaks off before it is complete and </tool_call> is missing: the turn was cut at its limit of tokens or "
    "ended too early; write less before the call, or a shorter one"
)

RESERVED_NAMES = frozenset(
    {"reset", "step", "state", "close", "get_reward", "verify", "seed_session", "aggregate_metrics", "mcp"}
)
"""Names with a special meaning in OpenEnv, TRL or NeMo Gym; names that begin with ``_`` are reserved too."""


@dataclass(frozen=True)
class Tool:
    """A function that a policy may call, with everything needed to declare it in other systems."""

    name: str
    description: str
    json_schema: Mapping[str, Any]
    """JSON Schema of the arguments object."""
    function: Callable[..., Any]
    takes_self: bool = False
    """Whether the function is a method, to be called on an environment."""
    timeout_s: float | None = None
    """Time limit of one call in seconds; None is no limit."""
    finds: bool = False
    """Whether it returns passages, so that an empty list is a search that found nothing."""
    _model: Any = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Checks a tool that was not made by ``from_function``.

        Raises:
            ConfigurationError: a reserved name, a schema with an unsupported part, or a function that is not callable.
        """
        _check_name(self.name)
        if self._model is None:
            check_schema(self.json_schema, self.name)
        if not callable(self.function):
            raise ConfigurationError(
                f"the function of tool {self.name!r} is {self.function!r:.80}, which cannot be called"
            )

    @classmethod
    def from_schema(
        cls,
        name: str,
        description: str,
        json_schema: Mapping[str, Any],
        function: Callable[..., Any],
        *,
        timeout_s: float | None = None,
    ) -> "Tool":
        """Makes a tool from a JSON Schema, such as one of an MCP server. Arguments are checked against the schema.

        Example:
            ```python
            schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
            Tool.from_schema("double", "Doubles a number.", schema, lambda a: 2 * a)
            ```

        Args:
            name: The name by which a policy calls it.
            description: What it does, in words for the policy.
            json_schema: The schema of the object of its arguments.
            function: A plain or async function that takes the arguments by name, unchanged.
            timeout_s: Time limit of one call in seconds; None is no limit.

        Raises:
            ConfigurationError: a reserved name, or a schema with an unsupported part.
        """
        return cls(name, description, json_schema, function, timeout_s=timeout_s)

    @classmethod
    def from_function(cls, function: Callable[..., Any], *, timeout_s: float | None = None) -> "Tool":
        """Makes a tool from the name, annotations and docstring of ``function``.

        Args:
            function: A plain or async function or method. Every argument needs an annotation and a description under
                ``Args:``.
            timeout_s: Time limit of one call in seconds; None is no limit. A plain function that exceeds it is abandoned.

        Raises:
            ConfigurationError: a reserved name, a missing annotation or description, or ``*args``.
        """
        import pydantic

        name = function.__name__
        _check_name(name)
        description, described = _read_docstring(name, inspect.getdoc(function) or "")
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = list(inspect.signature(function).parameters.values())
        takes_self = bool(parameters) and parameters[0].name == "self"
        fields: dict[str, Any] = {}
        for parameter in parameters[takes_self:]:
            fields[parameter.name] = (
                _annotation(name, parameter, hints),
                pydantic.Field(
                    ... if parameter.default is parameter.empty else parameter.default,
                    description=_description(name, parameter.name, described),
                ),
            )
        config = pydantic.ConfigDict(extra="forbid")
        model: Any = pydantic.create_model(name, __config__=config, **fields)
        schema = _untitled(model.model_json_schema())
        finds = returns_passages(hints.get("return"))
        return cls(name, description, schema, function, takes_self, timeout_s, finds, model)

    def to_openai(self) -> dict[str, Any]:
        """Returns the declaration in the form of OpenAI's chat completions, which chat templates and verl use as well."""
        function = {"name": self.name, "description": self.description, "parameters": dict(self.json_schema)}
        return {"type": "function", "function": function}

    def to_mcp(self) -> dict[str, Any]:
        """Returns the declaration in the form of MCP's ``tools/list``."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": dict(self.json_schema),
        }

    async def call(self, arguments: Any, owner: object = None) -> ToolResult:
        """Runs the function once.

        Args:
            arguments: The arguments from the policy, which are checked against the schema.
            owner: The environment, if the function is a method.

        Returns:
            ``ok`` with the returned value, converted by `as_result`; ``format_error`` if the arguments do not fit the
            schema; ``error`` with the class of the exception that the function raised; ``timeout``; or the ``ToolResult``
            that the function returned itself.

        Raises:
            Fault: the function reported an infrastructure failure, or returned a type that no tool may return.
        """
        values, complaint = self._read(arguments)
        if complaint:
            return ToolResult(self.name, ToolStatus.FORMAT_ERROR, complaint, "ValidationError")
        limit = asyncio.timeout(self.timeout_s)
        try:
            async with limit:
                value = await self._run((owner,) if self.takes_self else (), values)
        except Fault:
            raise
        except Exception as error:
            if limit.expired():
                text = f"{self.name} took longer than {self.timeout_s} s"
                return ToolResult(self.name, ToolStatus.TIMEOUT, text, "TimeoutError")
            kind = type(error).__name__
            return ToolResult(self.name, ToolStatus.ERROR, _complaint(f"{kind}: {error}"), kind)
        return as_result(self.name, value, finds=self.finds)

    def _read(self, arguments: Any) -> tuple[dict[str, Any], str]:
        """Returns the arguments for the function, or what is wrong with them."""
        import pydantic

        if self._model is None:
            found = _complaint("; ".join(complaints(arguments, self.json_schema)))
            return ({}, found) if found else (arguments, "")
        try:
            parsed = self._model.model_validate(arguments)
        except pydantic.ValidationError as error:
            return {}, _complaints(error)
        return {key: getattr(parsed, key) for key in type(parsed).model_fields}, ""

    async def _run(self, owner: tuple[object, ...], values: dict[str, Any]) -> Any:
        if inspect.iscoroutinefunction(self.function):
            return await self.function(*owner, **values)
        return await asyncio.to_thread(self._run_plain, owner, values)

    def _run_plain(self, owner: tuple[object, ...], values: dict[str, Any]) -> Any:
        try:
            return self.function(*owner, **values)
        except StopIteration as error:  # a future rejects StopIteration, and its caller would wait for ever
            raise RuntimeError(f"StopIteration: {error}") from error


def _check_name(name: str) -> None:
    if name in RESERVED_NAMES or name.startswith("_"):
        raise ConfigurationError(f"a tool cannot be called {name!r}: other frameworks reserve the name")


def _read_docstring(name: str, text: str) -> tuple[str, dict[str, str]]:
    """Returns the description of a Google-style docstring, and those of its arguments."""
    sections = re.split(
        r"^(Args|Returns|Raises|Yields|Example|Examples|Note):[ ]*$", text, flags=re.MULTILINE
    )
    description = sections[0].strip()
    if not description:
        raise ConfigurationError(f"tool {name!r} has no docstring; say in it what the tool does")
    bodies = dict(zip(sections[1::2], sections[2::2], strict=True))
    entries = re.findall(
        r"^ +\*{0,2}(\w+)(?: *\([^)]*\))?: *(.+(?:\n {8,}.+)*)", bodies.get("Args", ""), re.MULTILINE
    )
    return description, {argument: " ".join(words.split()) for argument, words in entries}


def _annotation(name: str, parameter: inspect.Parameter, hints: Mapping[str, Any]) -> Any:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ConfigurationError(f"tool {name!r} takes {parameter}; name every argument")
    if parameter.name not in hints:
        raise ConfigurationError(f"argument {parameter.name!r} of tool {name!r} has no annotation")
    return hints[parameter.name]


def _description(name: str, argument: str, described: Mapping[str, str]) -> str:
    if argument not in described:
        raise ConfigurationError(
            f"argument {argument!r} of tool {name!r} is not described; add to its docstring a line `Args:` "
            f"and, indented below it, `{argument}: what it means`"
        )
    return described[argument]


def _untitled(schema: Any) -> Any:
    """Removes pydantic's titles from ``schema``, because they only repeat the names."""
    if isinstance(schema, dict):
        return {
            key: _untitled(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_untitled(value) for value in schema] if isinstance(schema, list) else schema


def _complaints(error: Any) -> str:
    found = error.errors(include_url=False, include_context=False)
    return _complaint("; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in found))


def _complaint(text: str) -> str:
    """Shortens the message about a failed call, because it may repeat a text of the policy of any length."""
    return encodable(shortened(text, _COMPLAINT_CHARS))


def tool(function: F) -> F:
    """Marks a method of a ``ToolEnv`` as a tool."""
    vars(function)["is_tool"] = True
    return function


class ToolEnv(AsyncEnv[StateT]):
    """An environment with tools: methods marked ``@tool``, and functions given to the constructor.

    A subclass implements ``areset`` and ``answer``. Methods are called on the environment that is stepping, so tools work
    after forks and snapshots without further code. A tool keeps its changes in ``self.state``.
    """

    call_markers: ClassVar[tuple[str, ...]] = ("<tool_call>",)
    reports_searches: ClassVar[bool] = True
    refuses_half_escapes: ClassVar[bool] = True
    max_turns: ClassVar[int] = 8
    """An episode without an answer is cut after so many actions."""

    def __init__(
        self,
        *,
        tools: Iterable[Callable[..., Any] | Tool] = (),
        tool_timeout_s: float | None = None,
        pixels: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Collects the tools.

        Args:
            tools: Functions in addition to the marked methods.
            tool_timeout_s: Time limit of one call in seconds; None is no limit.
            pixels: Whether images that tools return are shown, which requires a policy that reads images. Otherwise a text
                says that there is one.
            render_mode: As in Gymnasium.

        Raises:
            ConfigurationError: a tool cannot be declared, or two tools have the same name.
        """
        super().__init__(render_mode=render_mode)
        self.pixels = pixels
        methods = [m for _, m in inspect.getmembers(type(self), inspect.isfunction) if hasattr(m, "is_tool")]
        self.tools: dict[str, Tool] = {}
        for given in (*methods, *tools):
            made = given if isinstance(given, Tool) else Tool.from_function(given, timeout_s=tool_timeout_s)
            if made.name in self.tools:
                raise ConfigurationError(f"two tools are called {made.name!r}")
            self.tools[made.name] = made

    def use_policy(self, policy: Policy, chat: ChatFormat) -> None:
        """Refuses a policy that reads only text if images are to be shown.

        Raises:
            ConfigurationError: the policy reads only text.
        """
        if not self.pixels:
            return
        if getattr(chat, "image_reader", self) is None:
            raise ConfigurationError(f"the tools of this environment may return images, and {TEXT_ALONE}")
        if not hasattr(chat, "image_reader") and not isinstance(chat, ConversationFormat):
            # A text-only format raises an error for this image.
            chat.extend([], (Message("user", (MessagePart("image"),)),))

    def answer(self, text: str) -> Step:
        """Ends the episode with the final answer. A subclass scores the answer and returns ``self.result(...)``."""
        raise NotImplementedError(f"{type(self).__name__} has no answer(); write `def answer(self, text)`")

    def tool_prompt(self) -> str:
        """Declares the tools and explains how to call them, for the opening message; empty in the native form."""
        return "" if self.native else calls_prompt([made.to_openai() for made in self.tools.values()])

    def native_tools(self) -> Sequence[Tool]:
        """Returns all tools of the environment."""
        return tuple(self.tools.values())

    def native_action(self, turn: AssistantTurn) -> str:
        """Returns the calls of ``turn`` as text, or its content, which is the final answer."""
        return called_text("" if turn.calls else turn.content, turn.calls)

    async def astep(self, action: str) -> Step:
        """Runs the calls in ``action``. Without a call, ``action`` is the final answer.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            Fault: a tool failed for a reason that is not the policy's mistake.
        """
        self.check_running(action)
        calls = read_calls(action, native=self.native)
        if not calls:
            return self.answer(action)
        rendered = [self._rendered(await self._call(call)) for call in calls]
        results = [result for result, _ in rendered]
        images = tuple(image for _, shown in rendered for image in shown)
        texts = (result.text if self.native else response_text(result.text) for result in results)
        observation = tuple(Message("tool", text) for text in texts)
        if images:  # after all results, because few templates can show an image in a result
            observation = (*observation, Message("user", images))
        valid = all(result.status is not ToolStatus.FORMAT_ERROR for result in results)
        over = self._turn + 1 >= self.max_turns
        end = EndReason.TURN_LIMIT if over else None
        return self.result(observation, end=end, truncated=over, valid=valid, tool_results=results)

    def _rendered(self, result: ToolResult) -> tuple[ToolResult, tuple[MessagePart, ...]]:
        return result.rendered(shown=self.pixels) if isinstance(result, ImageResult) else (result, ())

    async def _call(self, call: "ToolCall | ToolResult") -> ToolResult:
        if isinstance(call, ToolResult):
            return call
        if call.name not in self.tools:
            name = shortened(call.name, 80)
            text = str(UnknownName.among("tool", name, self.tools))
            return ToolResult(name, ToolStatus.FORMAT_ERROR, text, "UnknownTool")
        return await self.tools[call.name].call(call.arguments, self)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One parsed tool call."""

    name: str
    arguments: Any


def read_calls(text: str, *, native: bool = False) -> Sequence[ToolCall | ToolResult]:
    """Parses the tool calls in ``text``, in order. One that cannot be parsed, or is too many, becomes a ``format_error``.

    Args:
        text: The text that the policy wrote, or that ``called_text`` made from its native turn.
        native: Whether ``called_text`` made it. A malformed call is then represented by the complaint about it.
    """
    bodies = re.findall(r"<tool_call>(.*?)(</tool_call>|\Z)", text, re.DOTALL)
    calls = [_read_call(body, bool(closing), native) for body, closing in bodies[:MAX_CALLS]]
    if len(bodies) > MAX_CALLS:
        complaint = f"{len(bodies)} calls in one action; only the first {MAX_CALLS} were run"
        calls.append(ToolResult("none", ToolStatus.FORMAT_ERROR, complaint, "TooManyCalls"))
    return calls


def _read_call(body: str, closed: bool, native: bool) -> ToolCall | ToolResult:
    try:
        call = read_json(body)
    except ValueError as error:
        # Depends only on the text and not on how the turn ended, so that a replay of the action gives the same result.
        cut = not closed and breaks_off(body)
        complaint = _CUT_OFF if cut else _complaint(f"the tool call is not JSON: {error}")
        return ToolResult("none", ToolStatus.FORMAT_ERROR, complaint, "JSONDecodeError")
    if native and isinstance(call, str):
        return ToolResult("none", ToolStatus.FORMAT_ERROR, _complaint(call), "MalformedCall")
    if not (isinstance(call, dict) and isinstance(call.get("name"), str)):
        complaint = 'a tool call is an object with "name" and "arguments"'
        return ToolResult("none", ToolStatus.FORMAT_ERROR, complaint, "TypeError")
    return ToolCall(call["name"], call.get("arguments", {}))


def _call_body(call: Call) -> str:
    """Writes a call in the form that `read_calls` parses; a malformed call is written as its complaint."""
    if isinstance(call, MalformedCall):
        return _without_call_tags(json.dumps(call.complaint, ensure_ascii=False))
    return _without_call_tags(call_text(call))


def _without_call_tags(text: str) -> str:
    """Escapes the tags of calls in ``text``, which is JSON or a part of it, without changing its meaning."""
    return text.replace("tool_call>", "tool_call\\u003e")


def calls_prompt(tools: Sequence[Mapping[str, Any]]) -> str:
    """Explains ``tools``, given in OpenAI's form, and how to call them, to a policy that writes plain text."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    example = '<tool_call>{"name": <name>, "arguments": <object>}</tool_call>'
    return f"These tools can be called:\n<tools>\n{listed}\n</tools>\nTo call one, write {example}.\n"


def called_text(content: str, calls: Sequence[Call]) -> str:
    """Writes ``content`` and ``calls`` in the form that `read_calls` parses. Nothing in ``content`` is read as a call."""
    return _without_call_tags(content) + "".join(
        f"<tool_call>{_call_body(call)}</tool_call>" for call in calls
    )


def response_text(text: str) -> str:
    """Writes the result of a tool as a policy that writes plain text sees it."""
    return f"\n<tool_response>\n{text}\n</tool_response>\n"

"""Tools: forms of one declaration, refused ones, calls and their failures, and the environment around them."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pydantic
import pytest

from agentenv.core.assistant_turns import AssistantTurn, MalformedCall, NativeCall
from agentenv.core.json_schema import complaints
from agentenv.core.tools import MAX_CALLS, RESERVED_NAMES, Tool, ToolCall, ToolEnv, read_calls, tool
from agentenv.core.types import EndReason, Info, Message, Observation, Step, ToolResult, ToolStatus
from agentenv.errors import ConfigurationError, EnvFault, EpisodeOver


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C") -> dict[str, Any]:
    """Looks up the weather.

    The forecast is invented.

    Args:
        city: Name of the city,
            as people write it.
        days: How many days.
        unit: Celsius or Fahrenheit.

    Returns:
        The forecast.
    """
    return {"city": city, "days": days, "unit": unit}


def test_what_an_annotation_adds_to_a_type_is_part_of_the_schema() -> None:
    def look(page: Annotated[int, pydantic.Field(ge=1, le=9)]) -> str:
        """Looks.

        Args:
            page: Which page.
        """
        return str(page)

    made = Tool.from_function(look)
    page = {"type": "integer", "minimum": 1, "maximum": 9, "description": "Which page."}
    assert made.json_schema["properties"] == {"page": page}
    assert asyncio.run(made.call({"page": 10})).status is ToolStatus.FORMAT_ERROR


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Name of the city, as people write it."},
        "days": {"type": "integer", "description": "How many days.", "default": 1},
        "unit": {
            "type": "string",
            "enum": ["C", "F"],
            "description": "Celsius or Fahrenheit.",
            "default": "C",
        },
    },
    "required": ["city"],
    "additionalProperties": False,
}
ABOUT = "Looks up the weather.\n\nThe forecast is invented."


def test_one_declaration_gives_every_form() -> None:
    made = Tool.from_function(weather)
    assert made.json_schema == SCHEMA
    function = {"name": "weather", "description": ABOUT, "parameters": SCHEMA}
    assert made.to_openai() == {"type": "function", "function": function}
    assert made.to_mcp() == {"name": "weather", "description": ABOUT, "inputSchema": SCHEMA}


def call(made: Tool, arguments: Any) -> ToolResult:
    return asyncio.run(made.call(arguments))


def test_a_call_returns_json_or_the_string_itself() -> None:
    made = Tool.from_function(weather)
    assert call(made, {"city": "Köln", "days": 2}) == ToolResult(
        "weather", ToolStatus.OK, '{"city": "Köln", "days": 2, "unit": "C"}'
    )

    async def hello(name: str) -> str:
        """Greets.

        Args:
            name: Whom.
        """
        return f"Hello, {name}"

    assert call(Tool.from_function(hello), {"name": "Ada"}).text == "Hello, Ada"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "city: Field required"),
        ({"city": "Bonn", "dayz": 3}, "dayz: Extra inputs"),
        ({"city": "Bonn", "days": "many"}, "days: Input should be a valid integer"),
        ({"city": "Bonn", "unit": "K"}, "unit: Input should be 'C' or 'F'"),
        ([1], "arguments: "),
        (None, "arguments: "),
    ],
)
def test_arguments_that_do_not_fit_are_a_format_error(arguments: Any, words: str) -> None:
    result = call(Tool.from_function(weather), arguments)
    assert result.status is ToolStatus.FORMAT_ERROR
    assert words in result.text


def slow(seconds: float) -> str:
    """Sleeps.

    Args:
        seconds: How long; negative numbers fail, 99 is down.
    """
    if seconds == 99:
        raise EnvFault("the sandbox is down")
    if seconds == 98:
        raise TimeoutError("the tool's own")
    time.sleep(seconds)
    return "done"


def test_failures_are_typed() -> None:
    made = Tool.from_function(slow, timeout_s=0.05)
    assert call(made, {"seconds": 0}).status is ToolStatus.OK
    assert call(made, {"seconds": 0.3}) == ToolResult(
        "slow", ToolStatus.TIMEOUT, "slow took longer than 0.05 s", "TimeoutError"
    )
    error = call(made, {"seconds": -1})
    assert (error.status, error.error_class) == (ToolStatus.ERROR, "ValueError")
    assert call(made, {"seconds": 98}).status is ToolStatus.ERROR
    with pytest.raises(EnvFault, match="sandbox"):
        call(made, {"seconds": 99})


@pytest.mark.parametrize("name", [*sorted(RESERVED_NAMES), "_hidden", "__init__"])
def test_reserved_names_are_refused(name: str) -> None:
    def function() -> None:
        """Does nothing."""

    function.__name__ = name
    with pytest.raises(ConfigurationError, match=f"'{name}'"):
        Tool.from_function(function)


def bare(a: int) -> int:
    return a


def untyped(a) -> int:  # type: ignore[no-untyped-def]
    """Adds.

    Args:
        a: A number.
    """
    return int(a)


def undescribed(a: int, b: int) -> int:  # noqa: D417
    """Adds.

    Args:
        a: A number.
    """
    return a + b


def many(*numbers: int) -> int:
    """Adds.

    Args:
        numbers: Numbers.
    """
    return sum(numbers)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (bare, "'bare'"),
        (untyped, "'a'.*'untyped'"),
        (undescribed, "'b'.*'undescribed'"),
        (many, r"'many'.*\*numbers"),
    ],
)
def test_half_declared_tools_are_refused(function: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Tool.from_function(function)


def test_calls_are_read_in_order() -> None:
    text = 'I add. <tool_call>{"name": "a", "arguments": {"x": 1}}</tool_call> <tool_call>\n{"name": "b"}\n</tool_call>'
    assert read_calls(text) == [ToolCall("a", {"x": 1}), ToolCall("b", {})]
    assert read_calls("no call") == []


@pytest.mark.parametrize(
    "body", ["", "{", "[]", '"a"', '{"name": 3}', '{"arguments": {}}', '{"name": "a"} and more']
)
def test_a_call_that_cannot_be_read_is_a_format_error(body: str) -> None:
    (result,) = read_calls(f"<tool_call>{body}</tool_call>")
    assert isinstance(result, ToolResult)
    assert result.status is ToolStatus.FORMAT_ERROR


def test_a_call_without_its_end_is_read_to_the_end_of_the_text() -> None:
    assert read_calls('<tool_call>{"name": "a"}') == [ToolCall("a", {})]


def test_a_call_that_breaks_off_is_told_so_and_not_how_its_json_is_wrong() -> None:
    text = '<tool_call>{"name": "a", "arguments": {"b": "c"}}'
    for end in range(len("<tool_call>"), len(text)):
        (result,) = read_calls(text[:end])
        assert isinstance(result, ToolResult)
        assert result.status is ToolStatus.FORMAT_ERROR
        assert "limit of tokens" in result.text
        assert "JSON" not in result.text
    for wrong in (text + " and then", text[:-1] + "</tool_call>"):
        (result,) = read_calls(wrong)
        assert isinstance(result, ToolResult)
        assert "not JSON" in result.text


def test_a_text_in_place_of_a_call_is_a_complaint_of_the_native_form_alone() -> None:
    text = '<tool_call>"the answer is 5"</tool_call>'
    native, plain = (read_calls(text, native=native)[0] for native in (True, False))
    assert isinstance(native, ToolResult)
    assert isinstance(plain, ToolResult)
    assert (native.text, native.status) == ("the answer is 5", ToolStatus.FORMAT_ERROR)
    assert "5" not in plain.text


@dataclass
class ListState:
    items: list[str] = field(default_factory=list)


class Shopping(ToolEnv[ListState]):
    """Keeps a list."""

    max_turns = 3

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed)
        self.state = ListState()
        return (Message("user", self.tool_prompt()),), {}

    @tool
    def add(self, item: str) -> str:
        """Adds an item.

        Args:
            item: What to buy.
        """
        if item == "nothing":
            raise EnvFault("the shop is closed")
        self.state.items.append(item)
        return ", ".join(self.state.items)

    def answer(self, text: str) -> Step:
        right = text == ", ".join(self.state.items)
        return self.result((), reward=float(right), end=EndReason.ANSWERED)


def adds(*items: str) -> str:
    return "".join(
        f'<tool_call>{{"name": "add", "arguments": {{"item": "{item}"}}}}</tool_call>' for item in items
    )


def begun(**kwargs: Any) -> Shopping:
    env = Shopping(**kwargs)
    env.reset(seed=0)
    return env


def test_calls_of_one_action_run_in_order_and_text_is_the_answer() -> None:
    env = begun()
    step = env.step(f"Two things. {adds('milk', 'tea')}")
    assert [message.text for message in step.observation] == [
        "\n<tool_response>\nmilk\n</tool_response>\n",
        "\n<tool_response>\nmilk, tea\n</tool_response>\n",
    ]
    assert [message.role for message in step.observation] == ["tool", "tool"]
    assert step.info["valid"] is True
    assert env.step("milk, tea").reward == 1.0
    with pytest.raises(EpisodeOver):
        env.step(adds("jam"))
    assert env.state.items == ["milk", "tea"]


def test_mistakes_are_observations() -> None:
    step = begun().step('<tool_call>{"name": "ad"}</tool_call><tool_call>{</tool_call>' + adds("tea"))
    assert [result.status for result in step.info["tool_results"]] == ["format_error", "format_error", "ok"]
    assert "Did you mean 'add'?" in step.observation[0].text
    assert step.info["valid"] is False
    assert (step.reward, step.terminated) == (0.0, False)


def test_the_turn_limit_truncates() -> None:
    env = begun()
    for _ in range(2):
        assert not env.step(adds("tea")).truncated
    step = env.step(adds("tea"))
    assert step.truncated
    assert step.info["end_reason"] is EndReason.TURN_LIMIT


def test_a_fault_of_a_tool_is_raised() -> None:
    with pytest.raises(EnvFault, match="shop is closed"):
        begun().step(adds("nothing"))


def test_methods_act_on_the_fork_that_steps() -> None:
    env = begun()
    (fork,) = env.fork()
    fork.step(adds("milk"))
    assert (env.state.items, fork.state.items) == ([], ["milk"])


def test_functions_stand_beside_methods() -> None:
    env = begun(tools=[weather], tool_timeout_s=1.0)
    assert list(env.tools) == ["add", "weather"]
    assert '"name": "weather"' in env.reset(seed=0)[0][0].text
    assert env.tools["weather"].timeout_s == 1.0
    assert list(env.tools["add"].json_schema["properties"]) == ["item"]
    with pytest.raises(ConfigurationError, match="'weather'"):
        Shopping(tools=[weather, weather])


class Repeats(ToolEnv[None]):
    """Gives back what it is called with."""

    def __init__(self) -> None:
        super().__init__()
        self.ran = 0

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed)
        self.state, self.ran = None, 0
        return (Message("user", "Call."),), {}

    @tool
    def repeat(self, value: Any) -> Any:
        """Gives ``value`` back.

        Args:
            value: Anything.
        """
        self.ran += 1
        return value

    @tool
    def squared(self, value: int) -> int:
        """Gives the square of ``value``.

        Args:
            value: A number.
        """
        return value * value

    @tool
    def first(self, value: list[int]) -> int:
        """Gives the first item.

        Args:
            value: Numbers.
        """
        return next(iter(value))

    @tool
    async def nested(self, value: int) -> Any:
        """Gives so many lists in each other.

        Args:
            value: How many.
        """
        found: list[Any] = []
        for _ in range(value):
            found = [found]
        return found

    @tool
    def character(self, code: int) -> str:
        """Gives the character of a number.

        Args:
            code: The number.
        """
        return chr(code)

    @tool
    def fails(self, code: int) -> str:
        """Fails with the character of a number.

        Args:
            code: The number.
        """
        raise ValueError(chr(code))

    def answer(self, text: str) -> Step:
        return self.result((), end=EndReason.ANSWERED)


HOSTILE_CALLS = {
    "1,200 brackets": ("[" * 1200, ToolStatus.FORMAT_ERROR),
    "1,200 brackets for a value": (
        '{"name":"repeat","arguments":{"value":' + "[" * 1200,
        ToolStatus.FORMAT_ERROR,
    ),
    "1,200 closed brackets": (
        '{"name":"repeat","arguments":{"value":' + "[" * 1200 + "]" * 1200 + "}}",
        ToolStatus.FORMAT_ERROR,
    ),
    "200 closed brackets": (
        '{"name":"repeat","arguments":{"value":' + "[" * 200 + "]" * 200 + "}}",
        ToolStatus.FORMAT_ERROR,
    ),
    "half a pair": ('{"name":"repeat","arguments":{"value":"\\ud800"}}', ToolStatus.FORMAT_ERROR),
    "half a pair for a name": ('{"name":"\\ud800","arguments":{}}', ToolStatus.FORMAT_ERROR),
    "half a pair for an argument": ('{"name":"repeat","arguments":{"\\udfff":1}}', ToolStatus.FORMAT_ERROR),
    "not a number": ('{"name":"repeat","arguments":{"value":NaN}}', ToolStatus.FORMAT_ERROR),
    "infinite": ('{"name":"squared","arguments":{"value":1e999}}', ToolStatus.FORMAT_ERROR),
    "9,000 digits": ('{"name":"squared","arguments":{"value":' + "9" * 9000 + "}}", ToolStatus.FORMAT_ERROR),
    "a square of 8,000 digits": (
        '{"name":"squared","arguments":{"value":' + "9" * 4000 + "}}",
        ToolStatus.ERROR,
    ),
    "nothing to iterate": ('{"name":"first","arguments":{"value":[]}}', ToolStatus.ERROR),
    "a result that is too deep": ('{"name":"nested","arguments":{"value":5000}}', ToolStatus.ERROR),
    "a result with half a pair": ('{"name":"character","arguments":{"code":55296}}', ToolStatus.OK),
    "an error with half a pair": ('{"name":"fails","arguments":{"code":55296}}', ToolStatus.ERROR),
    "a name of a megabyte": ('{"name":"' + "x" * (1 << 20) + '","arguments":{}}', ToolStatus.FORMAT_ERROR),
    "an argument of a megabyte": (
        '{"name":"repeat","arguments":{"' + "x" * (1 << 20) + '":1}}',
        ToolStatus.FORMAT_ERROR,
    ),
    "10,000 arguments": (
        '{"name":"repeat","arguments":{' + ",".join(f'"a{n}":1' for n in range(10_000)) + "}}",
        ToolStatus.FORMAT_ERROR,
    ),
    "a list for arguments": ('{"name":"repeat","arguments":[1]}', ToolStatus.FORMAT_ERROR),
    "a list for a name": ('{"name":["repeat"],"arguments":{}}', ToolStatus.FORMAT_ERROR),
}


@pytest.mark.parametrize("case", HOSTILE_CALLS)
def test_whatever_a_policy_calls_with_is_its_own_mistake(case: str) -> None:
    env = Repeats()
    env.reset(seed=0)
    body, status = HOSTILE_CALLS[case]
    step = env.step(f"<tool_call>{body}</tool_call>")
    (result,) = step.info["tool_results"]
    assert result.status is status
    assert len(result.text) < 2000
    for text in (result.name, result.text, result.error_class, step.observation[0].text):
        text.encode()


def test_calls_beyond_the_most_are_named_and_not_run() -> None:
    env = Repeats()
    env.reset(seed=0)
    step = env.step('<tool_call>{"name":"repeat","arguments":{"value":1}}</tool_call>' * 5000)
    results = step.info["tool_results"]
    assert (env.ran, len(results), step.info["valid"]) == (MAX_CALLS, MAX_CALLS + 1, False)
    assert results[-1].status is ToolStatus.FORMAT_ERROR
    assert "5000" in results[-1].text


@pytest.mark.parametrize("value", [10**400, -(10**400), float("inf"), float("nan"), 1e308, [10**400]])
@pytest.mark.parametrize("more", [{}, {"maximum": 5}, {"enum": [1]}, {"multipleOf": 0.5}, {"type": "number"}])
def test_numbers_beyond_all_others_are_checked_too(value: Any, more: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"} | more}}
    for found in complaints({"n": value}, schema):
        assert isinstance(found, str)


@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("<tool_call>{</tool_call>", "none", "JSONDecodeError"),
        ("<tool_call>[]</tool_call>", "none", "TypeError"),
        ('<tool_call>{"name": 3}</tool_call>', "none", "TypeError"),
        ('<tool_call>{"name": "ad"}</tool_call>', "ad", "UnknownTool"),
        (f'<tool_call>{{"name": "{"x" * 500}"}}</tool_call>', "x" * 40, "UnknownTool"),
        ('<tool_call>{"name": "add", "arguments": {}}</tool_call>', "add", "ValidationError"),
    ],
)
def test_a_mistake_names_the_tool_and_its_kind(text: str, name: str, kind: str) -> None:
    (result,) = begun().step(text).info["tool_results"]
    assert (result.status, result.name[:40], result.error_class) == (ToolStatus.FORMAT_ERROR, name, kind)
    assert len(result.name) < 120


def test_calls_beyond_the_most_are_a_result_of_their_own() -> None:
    last = read_calls(adds(*"x" * (MAX_CALLS + 2)))[-1]
    assert isinstance(last, ToolResult)
    assert (last.name, last.status, last.error_class) == ("none", ToolStatus.FORMAT_ERROR, "TooManyCalls")
    assert str(MAX_CALLS + 2) in last.text
    assert str(MAX_CALLS) in last.text
    assert all(isinstance(one, ToolCall) for one in read_calls(adds(*"x" * MAX_CALLS)))


def test_a_call_that_takes_too_long_says_how_long_it_may_take() -> None:
    result = call(Tool.from_function(slow, timeout_s=0.01), {"seconds": 0.3})
    assert (result.name, result.status, result.error_class) == ("slow", ToolStatus.TIMEOUT, "TimeoutError")
    assert "0.01 s" in result.text


def test_what_a_tool_raises_is_told_by_its_kind_and_words_as_far_as_they_fit() -> None:
    def failing(size: int) -> None:
        """Fails.

        Args:
            size: Of the message; 0 ends an iteration.
        """
        if not size:
            raise StopIteration("no more")
        raise KeyError("x" * size)

    made = Tool.from_function(failing)
    result = call(made, {"size": 3})
    assert result == ToolResult("failing", ToolStatus.ERROR, "KeyError: 'xxx'", "KeyError")
    assert len(call(made, {"size": 5000}).text) < 1100
    stopped = call(made, {"size": 0})
    assert (stopped.error_class, stopped.text) == ("RuntimeError", "RuntimeError: StopIteration: no more")


def test_complaints_stand_side_by_side_with_their_places() -> None:
    text = call(Tool.from_function(weather), {"days": "many", "dayz": 1}).text
    assert [part.partition(":")[0] for part in text.split("; ")] == ["city", "days", "dayz"]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]}
    made = Tool.from_schema("f", "F.", schema, lambda **values: "")
    assert call(made, {"a": "x"}).text.split("; ")[0].startswith("b:")
    assert call(made, {"a": "x"}).text.split("; ")[1].startswith("a:")


def test_a_docstring_may_name_types_stars_and_further_lines() -> None:
    def many(first: int, second: list[int], third: str) -> None:
        """Does much.

        Second part.

        Args:
            first (int): One
                and more
                lines.
            second: Two: with a colon.
            third (str): Three.

        Raises:
            nothing: at all
        """

    made = Tool.from_function(many)
    told = {name: one["description"] for name, one in made.json_schema["properties"].items()}
    assert told == {"first": "One and more lines.", "second": "Two: with a colon.", "third": "Three."}
    assert made.description == "Does much.\n\nSecond part."
    assert made.json_schema["properties"]["second"]["items"] == {"type": "integer"}
    assert made.json_schema["required"] == ["first", "second", "third"]


def test_a_prompt_declares_every_tool_on_a_line_and_none_where_the_template_does() -> None:
    env = begun(tools=[weather])
    lines = env.tool_prompt().splitlines()
    begin, end = lines.index("<tools>"), lines.index("</tools>")
    assert [json.loads(line) for line in lines[begin + 1 : end]] == [
        made.to_openai() for made in env.native_tools()
    ]
    assert [made.name for made in env.native_tools()] == ["add", "weather"]
    assert "<tool_call>" in lines[end + 1]
    env.native = True
    assert env.tool_prompt() == ""


def test_results_are_shown_bare_where_the_template_marks_them() -> None:
    env = begun()
    env.native = True
    assert [message.text for message in env.step(adds("milk")).observation] == ["milk"]


def test_the_calls_of_a_turn_are_an_action_that_reads_back() -> None:
    env = begun()
    calls = (
        NativeCall("add", {"item": "Käse </tool_call>"}),
        NativeCall("add", {}),
        MalformedCall("...", "no <tool_call> here"),
    )
    action = env.native_action(AssistantTurn(None, "some text", calls))
    assert read_calls(action)[:2] == [ToolCall("add", {"item": "Käse </tool_call>"}), ToolCall("add", {})]
    assert len(read_calls(action)) == 3
    assert isinstance(read_calls(action)[2], ToolResult)
    assert "Käse" in action
    plain = env.native_action(AssistantTurn(None, "I say <tool_call>."))
    assert read_calls(plain) == []
    assert plain.startswith("I say ")


def test_the_schema_of_a_tool_has_no_titles_but_those_of_arguments() -> None:
    def titled(title: str, inner: list[dict[str, int]]) -> None:
        """Takes a title.

        Args:
            title: Of a book.
            inner: More.
        """

    schema = Tool.from_function(titled).json_schema
    assert set(schema) == {"type", "properties", "required", "additionalProperties"}
    assert schema["properties"]["title"] == {"type": "string", "description": "Of a book."}

"""Tools that a JSON Schema declares: they are called, their arguments checked, and schemas that cannot be are refused."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.json_schema import complaints
from agentenv.core.tools import Tool, ToolEnv, read_calls
from agentenv.core.types import Message, Step, ToolStatus
from agentenv.errors import ConfigurationError

jsonschema: Any = pytest.importorskip("jsonschema", reason="the reference that the checks are compared with")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "pattern": "^[A-Z]"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7, "default": 3},
        "units": {"enum": ["metric", "imperial"]},
        "places": {"type": "array", "items": {"$ref": "#/$defs/place"}, "maxItems": 2, "uniqueItems": True},
        "at": {"oneOf": [{"type": "number"}, {"type": "null"}, {"const": "now"}]},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"place": {"type": "object", "properties": {"x": {"type": "number", "exclusiveMinimum": 0}}}},
}


async def weather(city: str, days: int = 3, **others: Any) -> str:
    return f"{city} for {days} days, {sorted(others)}"


def made(function: Any = weather, schema: Any = SCHEMA, **options: Any) -> Tool:
    return Tool.from_schema("weather", "Tells the weather.", schema, function, **options)


GOOD: list[Any] = [
    {"city": "Kiel"},
    {"city": "Kiel", "days": 7},
    {"city": "Kiel", "days": 2.0},
    {"city": "Kiel", "at": None, "places": [{"x": 1}, {}]},
    {"city": "Kiel", "at": "now", "units": "metric"},
]
BAD: list[tuple[Any, str]] = [
    ({}, "city"),
    ({"city": ""}, "city"),
    ({"city": "kiel"}, "city"),
    ({"city": 4}, "city"),
    ({"city": "Kiel", "days": 0}, "days"),
    ({"city": "Kiel", "days": 8}, "days"),
    ({"city": "Kiel", "days": 1.5}, "days"),
    ({"city": "Kiel", "days": True}, "days"),
    ({"city": "Kiel", "units": "stone"}, "units"),
    ({"city": "Kiel", "places": [{"x": 0}]}, "places.0.x"),
    ({"city": "Kiel", "places": [{}, {"x": 1}, {"x": 2}]}, "places"),
    ({"city": "Kiel", "places": [{"x": 1}, {"x": 1}]}, "places"),
    ({"city": "Kiel", "at": "then"}, "at"),
    ({"city": "Kiel", "moon": 1}, "moon"),
    ([], "object"),
    (None, "object"),
]


@pytest.mark.parametrize("call", [tool.call for tool in (made(), Tool("weather", "Tells.", SCHEMA, weather))])
def test_a_tool_of_a_schema_is_called_with_what_was_given(call: Any) -> None:
    result = asyncio.run(call({"city": "Kiel", "at": 2}))
    assert (result.status, result.text) == (ToolStatus.OK, "Kiel for 3 days, ['at']")


@pytest.mark.parametrize("arguments", GOOD)
def test_arguments_that_fit_are_taken(arguments: Any) -> None:
    assert complaints(arguments, SCHEMA) == []
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(arguments)


@pytest.mark.parametrize(("arguments", "place"), BAD)
def test_arguments_that_do_not_fit_are_the_policy_s_mistake_and_named(arguments: Any, place: str) -> None:
    result = asyncio.run(made().call(arguments))
    assert (result.status, result.error_class) == (ToolStatus.FORMAT_ERROR, "ValidationError")
    assert place in result.text
    assert not jsonschema.Draft202012Validator(SCHEMA).is_valid(arguments)


def test_a_value_nested_without_end_is_a_complaint() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#"}}, "additionalProperties": False}
    value: dict[str, Any] = {}
    for _ in range(100_000):
        value = {"a": value}
    assert "deep" in complaints(value, schema)[0]
    while value:  # freed level by level
        value = value["a"]


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "object", "propertys": {}}, "propertys"),
        ({"type": "object", "properties": {"a": {"type": "int"}}}, "int"),
        ({"type": "object", "properties": {"a": {"unevaluatedProperties": False}}}, "unevaluatedProperties"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "#/$defs/b"),
        ({"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}, "http://x/y"),
        ({"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}, "weather"),
        ({"type": "array"}, "array"),
        ("text", "text"),
        ({"type": "object", "properties": 3}, "weather"),
    ],
)
def test_a_schema_that_cannot_be_checked_is_refused_when_the_tool_is_declared(
    schema: Any, named: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        made(schema=schema)
    assert named in str(error.value)


def test_names_and_functions_are_checked_as_those_of_functions_are() -> None:
    with pytest.raises(ConfigurationError, match="'reset'"):
        Tool.from_schema("reset", "Resets.", {"type": "object"}, weather)
    with pytest.raises(ConfigurationError, match="None"):
        made(function=None)


class Forecast(ToolEnv[None]):
    def answer(self, text: str) -> Step:
        raise NotImplementedError


def test_an_environment_calls_it_as_any_other_tool() -> None:
    env = Forecast(tools=[made(lambda city: {"sun": city == "Kiel"})])
    assert '"name": "weather"' in env.tool_prompt()
    env._over, env.state = False, None
    action = '<tool_call>{"name": "weather", "arguments": {"city": "Kiel"}}</tool_call>'
    assert len(read_calls(action)) == 1
    step = asyncio.run(env.astep(action))
    assert step.observation == (Message("tool", '\n<tool_response>\n{"sun": true}\n</tool_response>\n'),)
    wrong = asyncio.run(env.astep(action.replace("city", "town")))
    assert not wrong.info["valid"]


def test_the_example_of_the_documentation_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    (example,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.S) if "from_schema" in code)
    exec(compile(example, "docs/serving.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out.splitlines() == re.findall(r"print\(.*\)  # (.*)", example)


def test_a_value_of_two_forms_that_exclude_each_other_is_refused() -> None:
    schema = {"oneOf": [{"type": "integer"}, {"type": "number"}, {"type": "string"}]}
    assert complaints(1, schema) != []
    assert complaints(1.5, schema) == complaints("1", schema) == []


def test_the_only_value_that_is_taken_is_told_as_it_has_to_be_written() -> None:
    (complaint,) = complaints("Bonn", {"const": "Zürich"})
    assert "Zürich" in complaint

"""Schemas in the words that Inspect knows."""

from typing import Any

import pytest

from agentenv.serving.inspect_schemas import plain_schema

TEXT = {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "plain"),
    [
        ({"$ref": "#/$defs/a", "$defs": {"a": TEXT}}, TEXT),
        ({"$ref": "#/definitions/a~1b", "definitions": {"a/b": TEXT}}, TEXT),
        ({"$ref": "#/$defs/a", "description": "d", "$defs": {"a": TEXT}}, {**TEXT, "description": "d"}),
        ({"$ref": "#/$defs/missing"}, {}),
        ({"oneOf": [TEXT, {"type": "null"}]}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"const": 3}, {"enum": [3]}),
        ({"properties": {"a": True}}, {"properties": {"a": {}}}),
        ({"items": {"const": 1}}, {"items": {"enum": [1]}}),
        ({"type": "array", "items": [TEXT]}, {"type": "array"}),
        ({"additionalProperties": False}, {"additionalProperties": False}),
        ({"additionalProperties": {"const": 1}}, {"additionalProperties": {"enum": [1]}}),
        (
            {
                "allOf": [{"properties": {"a": TEXT}, "required": ["a"]}, {"properties": {"b": TEXT}}],
                "required": ["b"],
            },
            {"properties": {"a": TEXT, "b": TEXT}, "required": ["a", "b"]},
        ),
        ({"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 1}),
    ],
)
def test_what_inspect_does_not_know_is_said_in_other_words(
    schema: dict[str, Any], plain: dict[str, Any]
) -> None:
    assert plain_schema(schema) == plain


def test_a_definition_that_contains_itself_is_expanded_once() -> None:
    tree = {"type": "object", "properties": {"child": {"$ref": "#/$defs/tree"}}}
    schema = {"properties": {"root": {"$ref": "#/$defs/tree"}}, "$defs": {"tree": tree}}
    once = {"type": "object", "properties": {"child": {}}}
    assert plain_schema(schema) == {"properties": {"root": once}}

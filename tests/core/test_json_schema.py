"""Every keyword of JSON Schema at its bound, places of nested values, and schemas that are refused."""

import time
from typing import Any

import pytest

from agentenv.core.json_schema import check_schema, complaints
from agentenv.errors import ConfigurationError, UnknownName

jsonschema: Any = pytest.importorskip("jsonschema", reason="the reference that the checks are compared with")

DEEP = {"a/b": {"type": "integer"}, "c~d": {"const": 1}}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, ["", "a"], [1, None]),
        ({"type": "number"}, [1, 1.5], [True, "1"]),
        ({"type": "integer"}, [1, -2, 2.0], [1.5, True, "1"]),
        ({"type": "boolean"}, [True, False], [1, 0, None]),
        ({"type": "array"}, [[]], [{}, "a"]),
        ({"type": "object"}, [{}], [[], None]),
        ({"type": "null"}, [None], [0, False, ""]),
        ({"type": ["string", "null"]}, ["a", None], [1]),
        ({"minimum": 2}, [2, 3, "1"], [1.99]),
        ({"maximum": 2}, [2, 1, "3"], [2.01]),
        ({"exclusiveMinimum": 2}, [2.01, "1"], [2, 1]),
        ({"exclusiveMaximum": 2}, [1.99, "3"], [2, 3]),
        ({"multipleOf": 3}, [0, 6, "1"], [1, 7]),
        ({"minLength": 2}, ["ab", 1], ["a"]),
        ({"maxLength": 2}, ["ab", 123], ["abc"]),
        ({"pattern": "b+"}, ["abbc", 1], ["ac"]),
        ({"minItems": 1}, [[1], "x"], [[]]),
        ({"maxItems": 1}, [[1], "xy"], [[1, 2]]),
        ({"uniqueItems": True}, [[1, 2], [{"a": 1}, {"a": 2}]], [[1, 1], [{"a": 1, "b": 2}, {"b": 2, "a": 1}]]),
        ({"uniqueItems": False}, [[1, 1]], []),
        ({"minProperties": 1}, [{"a": 1}, []], [{}]),
        ({"maxProperties": 1}, [{"a": 1}], [{"a": 1, "b": 2}]),
        ({"enum": [1, "a", None]}, [1, 1.0, "a", None], [2, True, "b"]),
        ({"const": {"a": [1, 2], "b": 1}}, [{"b": 1, "a": [1, 2]}], [{"a": [2, 1], "b": 1}, 1]),
        ({"const": True}, [True], [1, False]),
        ({"not": {"type": "string"}}, [1], ["a"]),
        ({"anyOf": [{"type": "string"}, {"minimum": 5}]}, ["a", 5], [4]),
        ({"oneOf": [{"minimum": 2}, {"maximum": 5}]}, [1, 6], [2, 3, 5]),
        ({"allOf": [{"minimum": 2}, {"maximum": 5}]}, [2, 5], [1, 6]),
        ({"items": {"type": "integer"}}, [[], [1, 2], "a"], [[1, "a"]]),
        ({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, [["a"], ["a", 1]], [[1], ["a", "b"]]),
        ({"prefixItems": [{"type": "string"}]}, [["a", None]], [[1]]),
        ({"required": ["a", "b"]}, [{"a": 1, "b": 2}, 1], [{"a": 1}, {"b": 1}]),
        ({"properties": {"a": {"type": "integer"}}}, [{}, {"a": 1, "b": "x"}], [{"a": "x"}]),
        ({"properties": {"a": True}, "additionalProperties": False}, [{"a": 1}, {}], [{"b": 1}]),
        ({"additionalProperties": {"type": "integer"}}, [{"a": 1}], [{"a": "x"}]),
        ({"properties": {"a": False}}, [{}, {"b": 1}], [{"a": 1}]),
        ({"patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 2}}, "additionalProperties": False},
         [{}, {"a": 1}, {"ab": 2}, 1], [{"a": "x"}, {"ab": 1}, {"c": 1}]),
        ({"properties": {"ab": {"minimum": 1}}, "patternProperties": {"b$": {"maximum": 3}}},
         [{"ab": 2}], [{"ab": 0}, {"ab": 4}]),
        ({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}},
         [{}, {"a": 1}], [{"c": 1}, {"a": "x"}]),
        ({"dependentRequired": {"a": ["b"]}}, [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
        ({"if": {"type": "integer"}, "then": {"minimum": 2}, "else": {"type": "string"}}, [2, "a"], [1, None]),
        ({"if": {"type": "integer"}, "then": False}, ["a"], [1]),
        ({"contains": {"type": "integer"}}, [[1], ["a", 1], "x"], [[], ["a"]]),
        ({"contains": {"type": "integer"}, "minContains": 2, "maxContains": 2}, [[1, 2]], [[1], [1, 2, 3]]),
        ({"contains": {"type": "integer"}, "minContains": 0}, [[], ["a"]], []),
        ({"type": "string", "contentEncoding": "base64", "contentMediaType": "image/png"}, ["x"], [1]),
        ({"$ref": "#/$defs/a~1b", "$defs": DEEP}, [1], ["x"]),
        ({"$ref": "#/definitions/c~0d", "definitions": DEEP}, [1], [2]),
        ({"format": "date", "title": "t", "default": 1, "examples": [1]}, ["x", 1], []),
    ],
)  # fmt: skip
def test_a_keyword_takes_and_refuses_what_the_reference_does(
    schema: dict[str, Any], good: list[Any], bad: list[Any]
) -> None:
    whole = {"type": "object", "properties": {"x": schema}}
    if "$ref" in schema:
        whole = {key: value for key, value in schema.items() if key != "$ref"} | {
            "type": "object",
            "properties": {"x": {"$ref": schema["$ref"]}},
        }
    check_schema(whole, "f")
    reference = jsonschema.Draft202012Validator(whole)
    for value in good:
        assert complaints({"x": value}, whole) == []
        assert reference.is_valid({"x": value})
    for value in bad:
        said = complaints({"x": value}, whole)
        assert said
        assert all(one.startswith("x") for one in said)
        assert not reference.is_valid({"x": value})


@pytest.mark.parametrize(
    ("value", "places"),
    [
        ({"list": [1, {"x": "a"}], "b": 1}, ["list.1.x", "b"]),
        ([], ["arguments"]),
        ({"b": {}, "list": 1}, ["b.c", "list"]),
        ({"list": []}, ["b"]),
    ],
)
def test_a_complaint_begins_with_its_place(value: Any, places: list[str]) -> None:
    schema = {
        "type": "object",
        "properties": {
            "list": {"type": "array", "items": {"properties": {"x": {"type": "integer"}}}},
            "b": {"type": "object", "required": ["c"]},
        },
        "required": ["b"],
    }
    said = [one.partition(":")[0] for one in complaints(value, schema)]
    assert said == places


def test_what_is_allowed_is_told() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "kind": {"type": ["string", "null"]},
            "unit": {"enum": ["°C", "K"]},
            "days": {"minimum": 3},
            "either": {"anyOf": [{"type": "string"}, {"const": "ä"}, {"type": "string"}]},
            "one": {"oneOf": [{"minimum": 1}, {"maximum": 5}, {"multipleOf": 2}]},
        },
    }
    said = complaints({"kind": 1, "unit": "F", "days": 2, "either": 5, "one": 4}, schema)
    told = dict(one.split(": ", 1) for one in said)
    assert "string or null" in told["kind"]
    assert '["°C", "K"]' in told["unit"]
    assert "3" in told["days"]
    assert '"ä"' in told["either"]
    assert told["either"].count("string") == 1
    assert "3 of" in told["one"]


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf")])
def test_numbers_that_cannot_be_divided_are_a_complaint(value: Any) -> None:
    schema = {"type": "object", "properties": {"x": {"multipleOf": 0.1}}}
    assert isinstance(complaints({"x": value}, schema), list)
    assert complaints({"x": float("inf")}, {"type": "object", "properties": {"x": {"type": "integer"}}})


@pytest.mark.parametrize(
    ("schema", "error", "named"),
    [
        ({"propertys": {}}, UnknownName, "'f'.*'propertys'.*'properties'"),
        ({"properties": {"a": {"items": {"minimun": 1}}}}, UnknownName, "minimum"),
        ({"anyOf": [{"maxItem": 1}]}, UnknownName, "maxItems"),
        ({"prefixItems": [{"maxItem": 1}]}, UnknownName, "maxItems"),
        ({"additionalProperties": {"maxItem": 1}}, UnknownName, "maxItems"),
        ({"not": {"maxItem": 1}}, UnknownName, "maxItems"),
        ({"if": {"maxItem": 1}}, UnknownName, "maxItems"),
        ({"contains": {"maxItem": 1}}, UnknownName, "maxItems"),
        ({"propertyNames": {"maxItem": 1}}, UnknownName, "maxItems"),
        ({"patternProperties": {"a": {"maxItem": 1}}}, UnknownName, "maxItems"),
        ({"items": [{"maxItem": 1}]}, UnknownName, "maxItems"),
        ({"patternProperties": {"(": {}}}, ConfigurationError, "'f'"),
        ({"$defs": {"a": {"maxItem": 1}}}, UnknownName, "maxItems"),
        ({"definitions": {"a": {"maxItem": 1}}}, UnknownName, "maxItems"),
        ({"properties": {"a": {"type": "integr"}}}, UnknownName, "'f'.*'integr'.*'integer'"),
        ({"properties": {"a": {"type": ["string", "nul"]}}}, UnknownName, "'null'"),
        ({"properties": {"a": {"type": 3}}}, UnknownName, "'3'"),
        ({"properties": {"a": {"pattern": "("}}}, ConfigurationError, "'f'"),
        ({"properties": {"a": {"$ref": "x"}}}, ConfigurationError, "'x'"),
        ({"properties": {"a": {"$ref": "#/$defs/b"}}}, ConfigurationError, "'#/\\$defs/b'"),
        ({"default": object()}, ConfigurationError, "'f'"),
        ({"type": "array"}, ConfigurationError, "'f'.*array"),
        ([], ConfigurationError, r"'f'.*\[\]"),
    ],
)
def test_a_schema_is_refused_by_what_is_wrong_with_it(
    schema: Any, error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        check_schema(schema, "f")


def test_a_schema_may_leave_out_its_type_and_refer_to_itself() -> None:
    check_schema({"properties": {"a": {"$ref": "#"}}}, "f")
    check_schema({"properties": {"a": True, "b": False}, "additionalProperties": False}, "f")
    (said,) = complaints({"a": {"a": 1}}, {"type": "object", "properties": {"a": {"$ref": "#"}}})
    assert said.startswith("a.a: ")


def test_what_generators_add_is_read_over() -> None:
    kinds = {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "null"}], "discriminator": {"propertyName": "kind"}}
    schema = {"properties": {"x": kinds}, "$defs": {"a": {"type": "object", "x-order": 1, "nullable": True}}}
    check_schema(schema, "f")
    assert complaints({"x": {}}, schema) == complaints({"x": None}, schema) == []
    assert complaints({"x": 1}, schema)


def test_keywords_of_earlier_drafts_have_their_meaning() -> None:
    pair: dict[str, Any] = {
        "type": "array",
        "items": [{"type": "string"}],
        "additionalItems": {"type": "integer"},
    }
    schema = {"properties": {"x": pair, "y": {"minimum": 0, "exclusiveMinimum": True}}}
    check_schema(schema, "f")
    assert complaints({"x": ["a", 1], "y": 0.5}, schema) == []
    assert [one.partition(":")[0] for one in complaints({"x": [1, "a"]}, schema)] == ["x.0", "x.1"]
    assert complaints({"y": -1}, schema)


def tree(depth: int, kind: str) -> dict[str, Any]:
    value: dict[str, Any] = {"kind": kind}
    for _ in range(depth):
        value = {"children": [value], "kind": "a"}
    return {"tree": value}


def test_forms_that_hold_each_other_are_looked_at_once_for_each_part_of_a_value() -> None:
    """Every form of a tree goes on below: three of them took 3 to the power of its depth, at depth 10 22 s."""
    children = {"type": "array", "items": {"$ref": "#/$defs/n"}}
    forms = [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, "children": children},
            "required": ["kind"],
        }
        for kind in "abc"
    ]
    every = {"properties": {"tree": {"$ref": "#/$defs/n"}}, "$defs": {"n": {"anyOf": forms}}}
    twice = {
        "properties": {"tree": {"$ref": "#/$defs/n"}},
        "$defs": {"n": {"allOf": [forms[0], forms[0] | {"title": "again"}]}},
    }
    began = time.process_time()
    for schema in (every, twice):
        check_schema(schema, "f")
        assert complaints(tree(40, "a"), schema) == []
        wrong = complaints(tree(40, "z"), schema)
        assert wrong
        assert sum(map(len, wrong)) < 20_000
    assert time.process_time() - began < 2.0


def test_forms_that_lead_to_the_same_form_are_looked_at_once_for_a_word_too() -> None:
    forms: dict[str, Any] = {
        f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}, {"const": n}]}
        for n in range(40)
    }
    schema = {"properties": {"x": {"$ref": "#/$defs/d0"}}, "$defs": forms | {"d40": {"const": "z"}}}
    check_schema(schema, "f")
    began = time.process_time()
    assert complaints({"x": "q"}, schema)
    assert complaints({"x": "z"}, schema) == []
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("words", [{"enum": [f"{n:0100}" for n in range(2_000)]}, {"const": "c" * 4_000_000}])
def test_a_list_of_words_takes_no_product_of_its_length_and_that_of_the_words(words: dict[str, Any]) -> None:
    schema = {"properties": {"x": {"items": words}}}
    began = time.process_time()
    assert complaints({"x": ["b"] * 3_000}, schema)
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("pattern", [r"^([a-z]+\s?)+$", r"^(\w*)*!$", r"^(a|aa)+$", r"(.*,)+x"])
def test_no_text_keeps_a_pattern_busy(pattern: str) -> None:
    """Python's own engine takes twice as long for each further letter, days for 40, and nothing else goes on meanwhile."""
    schema = {"properties": {"x": {"pattern": pattern}}, "patternProperties": {pattern: False}}
    began = time.process_time()
    assert complaints({"x": "a" * 5_000 + "?"}, schema)
    assert complaints({"a" * 5_000 + "?": 1}, schema) == []
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize("pattern", [r"^(?!b)([a-z]+\s?)+$", r"(a)\1"])
def test_a_pattern_that_cannot_be_compared_in_bounded_time_refuses_nothing(pattern: str) -> None:
    """The form of an address of mail that zod declares is one, so that servers with it have to be usable."""
    schema = {"properties": {"x": {"pattern": pattern}}}
    check_schema(schema, "f")
    began = time.process_time()
    assert complaints({"x": "a" * 5_000 + "?"}, schema) == []
    assert time.process_time() - began < 2.0
    with pytest.raises(ConfigurationError, match=r"'f'.*patternProperties.*bounded time"):
        check_schema({"patternProperties": {pattern: False}}, "f")


@pytest.mark.parametrize(
    ("pattern", "good", "bad"), [(r"^\p{L}+$", "äß", "a1"), (r"^(?<year>\d{4})$", "2024", "24")]
)
def test_patterns_that_python_does_not_know_are_compared(pattern: str, good: str, bad: str) -> None:
    schema = {"properties": {"x": {"pattern": pattern}}}
    check_schema(schema, "f")
    assert complaints({"x": good}, schema) == []
    assert complaints({"x": bad}, schema)


@pytest.mark.parametrize(("pattern", "fitting"), [(r"^\<b\>$", "<b>"), (r"^\\<a$", "\\<a")])
def test_an_escaped_angle_bracket_is_one(pattern: str, fitting: str) -> None:
    """In the engine of pydantic it is the border of a word."""
    schema = {"properties": {"x": {"pattern": pattern}}}
    assert complaints({"x": fitting}, schema) == []
    assert complaints({"x": "?"}, schema)


def test_sets_of_characters_are_not_read_as_sets_within_each_other() -> None:
    """In the engine of pydantic && joins two sets, so that such a pattern is not compared."""
    assert complaints({"x": "&&"}, {"properties": {"x": {"pattern": "^[&&]+$"}}}) == []

"""Validates JSON values against the subset of JSON Schema that tools use to describe their arguments.

A schema with an unknown keyword is refused when the tool is declared, so that no value passes unchecked. Keywords have the
meaning of draft 2020-12, except that ``items`` may be a list as in earlier drafts. ``format``, annotations and extensions
that begin with ``x-`` are ignored. So is a ``pattern`` with lookaround or back-references: engines that support these can
take days for a short text, and a policy writes the text.
"""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any

from agentenv.core.grammar import shortened
from agentenv.errors import ConfigurationError, UnknownName, check_known

Schema = Mapping[str, Any] | bool

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "format", "deprecated", "readOnly", "writeOnly"}
    | {"$schema", "$id", "$anchor", "$comment", "$defs", "definitions"}
    | {"contentEncoding", "contentMediaType", "contentSchema"}
    | {"discriminator", "nullable", "example", "enumNames", "errorMessage"}  # from OpenAPI and form builders
)
_TYPES: dict[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": lambda value: _is_number(value),
    "integer": lambda value: (isinstance(value, int) and not isinstance(value, bool)) or _is_whole(value),
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
_BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool], str]] = {
    "minimum": ("number", lambda value, bound: value >= bound, "must be at least {}"),
    "maximum": ("number", lambda value, bound: value <= bound, "must be at most {}"),
    "exclusiveMinimum": ("number", lambda value, bound: _is_flag(bound) or value > bound, "must be above {}"),
    "exclusiveMaximum": ("number", lambda value, bound: _is_flag(bound) or value < bound, "must be below {}"),
    "multipleOf": ("number", lambda value, bound: not value % bound, "must be a multiple of {}"),
    "minLength": ("string", lambda value, bound: len(value) >= bound, "must have {} characters or more"),
    "maxLength": ("string", lambda value, bound: len(value) <= bound, "must have {} characters or fewer"),
    "pattern": ("string", lambda value, bound: _matches(bound, value), "must match {}"),
    "minItems": ("array", lambda value, bound: len(value) >= bound, "must have {} entries or more"),
    "maxItems": ("array", lambda value, bound: len(value) <= bound, "must have {} entries or fewer"),
    "uniqueItems": ("array", lambda value, bound: not bound or _unique(value), "must have no entry twice"),
    "minProperties": ("object", lambda value, bound: len(value) >= bound, "must have {} entries or more"),
    "maxProperties": ("object", lambda value, bound: len(value) <= bound, "must have {} entries or fewer"),
}
_ENUM_MESSAGES = {"enum": "must be one of", "const": "must be"}
_COMBINATIONS = ("anyOf", "oneOf", "allOf")
_KNOWN_KEYWORDS = _ANNOTATIONS | _BOUNDS.keys() | {*_COMBINATIONS, "type", "enum", "const", "not", "$ref"}
_KNOWN_KEYWORDS |= {
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "dependentRequired",
}
_KNOWN_KEYWORDS |= {
    "items",
    "prefixItems",
    "additionalItems",
    "contains",
    "minContains",
    "maxContains",
    "if",
    "then",
    "else",
}
_SUBSCHEMA_KEYWORDS = (
    "items",
    "additionalItems",
    "contains",
    "additionalProperties",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
)
"""Keywords whose value is a single schema."""
_NESTED_SETS = re.compile(r"\[[^\]]*(?:&&|--|~~|\[)")
"""Matches nested character sets in a pattern without its escapes; only pydantic's engine gives them this meaning."""
_MOST_COMPLAINTS, _COMPLAINT_CHARS = 16, 1000
"""Limits for one value. Without them, branches that refer to each other would repeat the complaints of every depth."""


@dataclass(frozen=True)
class _Root:
    """A whole schema, with the results found so far for one value."""

    schema: Mapping[str, Any]
    known: dict[tuple[int, int, str], list[str]] = field(default_factory=dict)
    """Complaints by the identity of a value, the identity of a schema, and the path of the value. Without this cache,
    several branches that lead to the same schema would each check everything below: with three branches, 3 to the power of
    the depth."""
    listed: dict[tuple[int, str], tuple[set[Any], str]] = field(default_factory=dict)
    """Results of `allowed`, by the identity of a schema and its keyword."""

    def allowed(self, schema: Mapping[str, Any], keyword: str) -> tuple[set[Any], str]:
        """Returns the canonical forms of the values that ``enum`` or ``const`` allows, and their text for errors.

        They are computed once; otherwise checking a list would take the product of the two lengths.
        """
        key = (id(schema), keyword)
        if key not in self.listed:
            held = schema[keyword]
            shown = shortened(json.dumps(held, ensure_ascii=False), _COMPLAINT_CHARS)
            self.listed[key] = set(map(_canonical_form, held if keyword == "enum" else [held])), shown
        return self.listed[key]


def check_schema(schema: Any, name: str) -> None:
    """Checks that ``schema`` describes an object and contains only supported keywords.

    Args:
        schema: The schema of a tool's arguments.
        name: The name of the tool.

    Raises:
        ConfigurationError: it is not a schema of an object, or it contains an unknown keyword, type or reference.
    """
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise ConfigurationError(f"the schema of tool {name!r} must be that of an object, not {schema!r:.80}")
    try:
        _check(schema, schema, name)
        json.dumps(dict(schema))
    except (TypeError, ValueError, AttributeError, RecursionError, re.error) as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"the schema of tool {name!r} cannot be read: {error}") from error


def complaints(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with ``value`` according to ``schema``, each with its path; empty if the value is valid."""
    try:
        return _complaints(value, schema, _Root(schema), "")
    except RecursionError:
        return ["arguments: they are nested too deeply"]
    except (ArithmeticError, ValueError) as error:  # numbers too large for Python to divide or print
        return [f"arguments: cannot be checked: {error}"]


def _check(schema: Any, root: Mapping[str, Any], name: str) -> None:
    if isinstance(schema, bool):
        return
    for keyword in schema:
        if not str(keyword).startswith("x-"):
            check_known(f"keyword of JSON Schema that tool {name!r} may use:", keyword, _KNOWN_KEYWORDS)
    for kind in _list(schema.get("type", [])):
        if kind not in _TYPES:
            raise UnknownName.among(f"type of JSON Schema in tool {name!r}:", str(kind), _TYPES)
    if "pattern" in schema and _linear_time_validator(schema["pattern"]) is None:
        re.compile(schema["pattern"])  # an invalid regular expression is refused
    for pattern in schema.get("patternProperties", {}):
        if _linear_time_validator(pattern) is None:
            raise ValueError(f"the name {pattern!r} in patternProperties cannot be compared in bounded time")
    if "$ref" in schema:
        _resolved(schema["$ref"], root)
    for child in _children(schema):
        _check(child, root, name)


def _children(schema: Mapping[str, Any]) -> list[Any]:
    holders = ("properties", "patternProperties", "$defs", "definitions")
    named = [child for key in holders for child in schema.get(key, {}).values()]
    listed = [child for key in (*_COMBINATIONS, "prefixItems") for child in schema.get(key, ())]
    return (
        named
        + listed
        + [child for key in _SUBSCHEMA_KEYWORDS if key in schema for child in _list(schema[key])]
    )


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    if not reference.startswith("#"):
        raise ConfigurationError(
            f"the reference {reference!r} must begin with '#': it must be within the schema"
        )
    found: Any = root
    for part in reference.removeprefix("#").removeprefix("/").split("/"):
        if part:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, Mapping) or key not in found:
                raise ConfigurationError(f"the reference {reference!r} leads to nothing in the schema")
            found = found[key]
    return found


def _complaints(value: Any, schema: Any, root: _Root, place: str) -> list[str]:
    where = place or "arguments"
    if isinstance(schema, bool):
        return [] if schema else [f"{where}: is not allowed"]
    found = []
    kinds = _list(schema.get("type", []))
    if kinds and not any(_TYPES[kind](value) for kind in kinds):
        return [f"{where}: must be of the type {' or '.join(kinds)}"]
    key = (id(value), id(schema), place)
    if key in root.known:
        return root.known[key]
    for keyword, words in _ENUM_MESSAGES.items():
        if keyword in schema and _canonical_form(value) not in root.allowed(schema, keyword)[0]:
            found.append(f"{where}: {words} {root.allowed(schema, keyword)[1]}")
    for keyword, (kind, holds, words) in _BOUNDS.items():
        if keyword in schema and _TYPES[kind](value) and not holds(value, schema[keyword]):
            found.append(f"{where}: {words.format(schema[keyword])}")
    if "$ref" in schema:
        found += _complaints(value, _resolved(schema["$ref"], root.schema), root, place)
    found += _complaints_of_combinations(value, schema, root, where)
    if isinstance(value, dict):
        found += _complaints_of_object(value, schema, root, place)
    if isinstance(value, list):
        found += _complaints_of_array(value, schema, root, place)
    found = [shortened(said, _COMPLAINT_CHARS) for said in found[:_MOST_COMPLAINTS]]
    root.known[key] = found
    return found


def _complaints_of_combinations(value: Any, schema: Mapping[str, Any], root: _Root, where: str) -> list[str]:
    found = []
    for choice in schema.get("allOf", ()):
        found += _complaints(value, choice, root, where)
    for keyword in ("anyOf", "oneOf"):
        tries = [_complaints(value, choice, root, where) for choice in schema.get(keyword, ())]
        fitting = sum(not complained for complained in tries)
        if tries and not fitting:
            found.append(" or ".join(dict.fromkeys(complained[0] for complained in tries)))
        elif keyword == "oneOf" and fitting > 1:
            found.append(f"{where}: fits {fitting} of the forms that exclude each other")
    if "not" in schema and not _complaints(value, schema["not"], root, where):
        found.append(f"{where}: is of a form that is not allowed")
    if "if" in schema:
        branch = "else" if _complaints(value, schema["if"], root, where) else "then"
        found += _complaints(value, schema.get(branch, True), root, where)
    return found


def _complaints_of_object(
    value: dict[str, Any], schema: Mapping[str, Any], root: _Root, place: str
) -> list[str]:
    known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    needed = list(schema.get("required", ()))
    needed += [
        one for key, others in schema.get("dependentRequired", {}).items() if key in value for one in others
    ]
    found = [f"{_child_path(place, key)}: is missing" for key in dict.fromkeys(needed) if key not in value]
    for key, one in value.items():
        of_one = [known[key]] if key in known else []
        of_one += [child for pattern, child in patterns.items() if _matches(pattern, key)]
        rest = schema.get("additionalProperties", True)
        if not of_one and rest is False:
            found.append(f"{_child_path(place, key)}: is not known")
            continue
        for child in of_one or [rest]:
            found += _complaints(one, child, root, _child_path(place, key))
        if wrong := _complaints(key, schema.get("propertyNames", True), root, _child_path(place, key)):
            found.append(f"{wrong[0]} (said of the name)")
    return found


def _complaints_of_array(value: list[Any], schema: Mapping[str, Any], root: _Root, place: str) -> list[str]:
    first: Sequence[Any] = schema.get("prefixItems", ())
    rest = schema.get("items", True)
    if isinstance(rest, list):  # drafts before 2020-12
        first, rest = rest, schema.get("additionalItems", True)
    found = []
    for index, one in enumerate(value):
        of_one = first[index] if index < len(first) else rest
        found += _complaints(one, of_one, root, _child_path(place, str(index)))
    if "contains" in schema:
        fitting = sum(not _complaints(one, schema["contains"], root, place) for one in value)
        least, most = schema.get("minContains", 1), schema.get("maxContains", len(value))
        if not least <= fitting <= most:
            found.append(
                f"{place or 'arguments'}: {fitting} entries have the form that {least} or more and {most} or fewer must have"
            )
    return found


def _matches(pattern: str, text: str) -> bool:
    """Whether ``pattern`` matches in ``text``, in linear time; True for a pattern that is not supported."""
    adapter = _linear_time_validator(pattern)
    if adapter is None:
        return True
    try:
        adapter.validate_python(text)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=1024)
def _linear_time_validator(pattern: str) -> Any:
    """Returns a validator of ``pattern`` in pydantic's engine; None if that rejects it or gives it another meaning."""
    import pydantic
    from pydantic_core import SchemaError

    if _NESTED_SETS.search(re.sub(r"(?s)\\.", "", pattern)):
        return None
    # In that engine, escaped angle brackets match the boundaries of a word, so their escapes are removed.
    same = re.sub(r"(?s)\\(.)", lambda pair: pair[1] if pair[1] in "<>" else pair[0], pattern)
    try:
        return pydantic.TypeAdapter(Annotated[str, pydantic.StringConstraints(pattern=same)])
    except (SchemaError, pydantic.PydanticUserError):
        return None


def _child_path(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_flag(bound: Any) -> bool:
    """Whether an exclusive bound is a boolean, as in draft 4, which makes ``minimum`` or ``maximum`` exclusive."""
    return isinstance(bound, bool)


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value) and value.is_integer()


def _canonical_form(value: Any) -> Any:
    """Returns the canonical form of a JSON value: equal values have equal forms, and true differs from 1."""
    return value if _is_number(value) else json.dumps(value, sort_keys=True)


def _unique(values: list[Any]) -> bool:
    return len({json.dumps(value, sort_keys=True) for value in values}) == len(values)

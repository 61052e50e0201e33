"""JSON Schemas of tools in the part of the language that Inspect passes on to a model.

Inspect reads a schema into a record of its own, which knows neither references nor several other words, and drops what it
does not know. The model would then see a parameter of any kind.
"""

from collections.abc import Mapping
from functools import reduce
from typing import Any

_REWRITTEN = frozenset(
    {
        "$ref",
        "$defs",
        "definitions",
        "allOf",
        "anyOf",
        "oneOf",
        "const",
        "properties",
        "items",
        "additionalProperties",
    }
)
"""Words whose values are written anew."""


def plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """``schema`` without references, and with ``anyOf`` for ``oneOf``, ``enum`` for ``const``, one object for ``allOf``.

    Definitions stand where they are used; one that contains itself is expanded once and allows anything below. What has no
    counterpart (such as ``not`` and ``minItems``) stays as it is, so that the plain schema is never narrower.
    """
    return _plain(schema, schema, frozenset())


def _plain(schema: Any, root: Mapping[str, Any], above: frozenset[str]) -> dict[str, Any]:
    """``schema`` as `plain_schema` gives it.

    Args:
        schema: A schema within ``root``; also True or False.
        root: The whole, to which references refer.
        above: References that are being expanded.
    """
    if not isinstance(schema, Mapping):
        return {}
    plain = {key: value for key, value in schema.items() if key not in _REWRITTEN}
    parts = [_plain(part, root, above) for part in schema.get("allOf", ())]
    if (reference := schema.get("$ref")) is not None:
        known = {} if reference in above else _target(reference, root)
        parts.append(_plain(known, root, above | {reference}))
    if "properties" in schema:
        plain["properties"] = {name: _plain(of, root, above) for name, of in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            plain[key] = _plain(schema[key], root, above)
    if isinstance(schema.get("additionalProperties"), bool):
        plain["additionalProperties"] = schema["additionalProperties"]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        plain["anyOf"] = [_plain(choice, root, above) for choice in choices]
    if "const" in schema:
        plain["enum"] = [schema["const"]]
    return reduce(_both, [*parts, plain])


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    """What a reference such as ``#/$defs/Place`` refers to; True, which allows anything, if it is not in ``root``."""
    found: Any = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, Mapping) or name not in found:
            return True
        found = found[name]
    return found


def _both(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """A schema of objects that has the properties of both; ``other`` decides on everything else."""
    both = {**one, **other}
    if "properties" in one and "properties" in other:
        both["properties"] = {**one["properties"], **other["properties"]}
    if "required" in one and "required" in other:
        both["required"] = list(dict.fromkeys((*one["required"], *other["required"])))
    return both

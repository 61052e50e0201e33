"""Shared parts of pydantic models: the base class of configurations, and the message of a validation error."""

from pydantic import BaseModel, ConfigDict, ValidationError


class Frozen(BaseModel):
    """Base class of every configuration: immutable; unknown keys and numbers that are not finite are errors.

    A field in which infinity means "no bound" allows it itself (``allow_inf_nan``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def sentence(error: ValidationError) -> str:
    """Returns the first problem of an input, as a sentence."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    given = "" if first["type"] in ("missing", "json_invalid") else f", not {str(first['input'])[:60]!r}"
    return f"{place or 'body'}: {first['msg']}{given}."

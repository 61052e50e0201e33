"""What pydantic models share: the base of configurations, and one sentence on what is wrong with an input."""

from pydantic import BaseModel, ConfigDict, ValidationError


class Frozen(BaseModel):
    """Base of every configuration: immutable, a misspelt key is an error, and so is a number that is not finite.

    A field in which infinity means that there is no bound says so itself (``allow_inf_nan``).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def sentence(error: ValidationError) -> str:
    """The first thing that is wrong with an input."""
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    given = "" if first["type"] in ("missing", "json_invalid") else f", not {str(first['input'])[:60]!r}"
    return f"{place or 'body'}: {first['msg']}{given}."

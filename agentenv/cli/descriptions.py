"""What ``--help`` of a command says above its flags, and of each flag."""

import contextlib
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints


def description(cls: type) -> str:
    """The docstring of a command: its paragraphs filled to the width of the terminal, its examples as they stand.

    A paragraph with indented lines, such as a list of examples, keeps its lines, so that each can be copied.
    """
    width = max(40, shutil.get_terminal_size().columns)
    paragraphs = (inspect.getdoc(cls) or "").split("\n\n")
    filled = [text if _is_list(text) else textwrap.fill(text, width) for text in paragraphs]
    filled.append(textwrap.fill("--json prints the result as one JSON document and nothing else.", width))
    return "\n\n".join(filled) + "\n"


@contextlib.contextmanager
def joined_field_docs(cls: type) -> Iterator[None]:
    """Within the block tyro finds the docstring of each field of ``cls``, and of the models in it, on one line.

    From the source it would take the line breaks over, which then stand in mid-paragraph. What stands in the docstring of
    the class, or in the description of a field of pydantic, goes before the source.
    """
    before = {model: model.__doc__ for model in _models(cls)}
    for model in before:
        _join_field_docs(model)
    try:
        yield
    finally:
        for model, doc in before.items():
            model.__doc__ = doc


def _join_field_docs(model: Any) -> None:
    import docstring_parser

    for field in getattr(model, "model_fields", {}).values():
        field.description = " ".join((field.description or "").split()) or None
    fields = docstring_parser.parse_from_object(model).params
    rows = [f"    {field.arg_name}: {' '.join((field.description or '').split())}" for field in fields]
    summary = (model.__doc__ or "").partition("\n")[0]
    model.__doc__ = "\n".join([summary, "", "Attributes:", *rows])


def _models(hint: Any) -> Iterator[type]:
    """The configuration classes in a type hint, and those of their fields."""
    for part in get_args(hint):
        yield from _models(part)
    if isinstance(hint, type) and hint.__module__.startswith("agentenv.") and "__annotations__" in vars(hint):
        yield hint
        for inner in get_type_hints(hint).values():
            yield from _models(inner)


def _is_list(paragraph: str) -> bool:
    return re.search(r"^(Examples?:|  )", paragraph, re.MULTILINE) is not None

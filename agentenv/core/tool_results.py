"""Converts what a tool returns to a result, and decides which results are those of searches.

A tool may return text, a JSON value, images mixed with texts, a complete `ToolResult`, or what it found: passages or
documents in order, or one such list for each of its queries. The ids of found passages are recorded, so that an evaluation
can count the searches of an episode and check whether they found what the question needs.
"""

import json
import re
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentenv.core.grammar import encodable
from agentenv.core.images import image_digest
from agentenv.core.types import Document, MessagePart, Passage, ToolResult, ToolStatus
from agentenv.errors import EnvFault

_HEAD = re.compile(r"^Doc \d+\(Title: ", re.MULTILINE)
_END_OF_TITLE = re.compile(r"\)(?: |\Z)")
_READING = "read"  # a tool of this name shows again what a search had found


@dataclass(frozen=True, slots=True)
class ImageResult(ToolResult):
    """A result with images, before it is decided whether they are shown."""

    parts: tuple[MessagePart, ...] = ()

    def rendered(self, *, shown: bool) -> tuple[ToolResult, tuple[MessagePart, ...]]:
        """Returns the result as text with a marker for each image and the images' digests as data, and the images to show.

        Args:
            shown: Whether the images are shown. Otherwise the markers say that they are not.
        """
        mark = "[image]" if shown else "[image, which is not shown]"
        text = "\n".join(part.text if part.kind == "text" else mark for part in self.parts)
        images = tuple(part for part in self.parts if part.kind == "image")
        digests = [image_digest(part.image) for part in images]
        told = ToolResult(self.name, self.status, text, self.error_class, {"images": digests})
        return told, images if shown else ()


def as_result(name: str, value: Any, *, finds: bool = False) -> ToolResult:
    """Makes the result of the tool ``name`` from the return value of its function.

    Args:
        name: The name of the tool.
        value: The return value of the function.
        finds: Whether its annotation says that it returns passages, so that an empty list is a search without a hit.

    Raises:
        EnvFault: the value has a type that a tool may not return.
    """
    if isinstance(value, ToolResult):
        return replace(value, name=name, text=encodable(value.text))
    if isinstance(value, str):
        return ToolResult(name, ToolStatus.OK, encodable(value))
    if parts := _parts(value):
        return ImageResult(name, ToolStatus.OK, parts=parts)
    if (rankings := _rankings(value, finds)) is not None:
        ids = [[one.id for one in ranking] for ranking in rankings]
        text = "".join(map(passage_lines, rankings)) or "Nothing was found."
        return ToolResult(name, ToolStatus.OK, text, data={"ids": ids})
    try:
        return ToolResult(name, ToolStatus.OK, encodable(json.dumps(value, ensure_ascii=False)))
    except (ValueError, RecursionError) as error:  # too large or too deeply nested
        return ToolResult(name, ToolStatus.ERROR, f"{type(error).__name__}: {error}", type(error).__name__)
    except TypeError as error:
        kind = type(value).__name__
        raise EnvFault(
            f"tool {name!r} returned a {kind}; return text, JSON, passages, images or a ToolResult"
        ) from error


def returns_passages(annotation: Any) -> bool:
    """Whether the return annotation of a function names passages or documents."""
    inner = typing.get_args(annotation)
    return annotation in (Passage, Document) or any(map(returns_passages, inner))


def passage_lines(passages: Iterable[Passage | Document]) -> str:
    """Writes one line for each passage, numbered from 1: ``Doc 1(Title: t) text``."""
    return "".join(f"Doc {i}(Title: {p.title}) {p.text}\n" for i, p in enumerate(passages, 1))


def read_passage_lines(page: str) -> list[tuple[str, str]]:
    """Parses titles and texts from the lines that ``passage_lines`` wrote; drops a last one that is cut within its title.

    A title ends at the first closing bracket after which its own brackets are balanced, as in ``Doc 1(Title: (500) Days of
    Summer)``; if they never are, at the first closing bracket.
    """
    heads = list(_HEAD.finditer(page))
    borders = [*(head.start() for head in heads), len(page)]
    passages = []
    for head, end in zip(heads, borders[1:], strict=True):
        rest = page[head.end() : end]
        if (border := _end_of_title(rest)) is not None:
            passages.append((rest[:border], rest[border + 2 :]))
    return passages


def _end_of_title(rest: str) -> int | None:
    """Returns the index of the bracket that ends the title with which ``rest`` begins."""
    first, read, open_ = None, 0, 1
    for bracket in _END_OF_TITLE.finditer(rest):
        at = bracket.start()
        open_ += rest.count("(", read, at) - rest.count(")", read, at + 1)
        if open_ == 0:
            return at
        read, first = at + 1, at if first is None else first
    return first


def is_search(result: ToolResult) -> bool:
    """Whether a result is that of a search: it lists what was found, or its tool is called ``search``."""
    return result.name == "search" or ("ids" in result.data and result.name != _READING)


def searches_of(results: Iterable[ToolResult], *, complete: bool = True) -> list[list[str]] | None:
    """Returns the ids that each query of an episode's searches found, best first.

    Returns None if this is unknown: no result lists documents, and tools answered or the environment may have searched
    without a tool call.

    Args:
        results: The results of the episode.
        complete: Whether they include all its searches (``Env.reports_searches``).
    """
    done = [result for result in results if result.status is ToolStatus.OK]
    searches = [result for result in done if "ids" in result.data and is_search(result)]
    if (done or not complete) and not any("ids" in result.data for result in done):
        return None
    return [list(ids) for result in searches for ids in result.data["ids"]]


def _parts(value: Any) -> tuple[MessagePart, ...]:
    """Returns texts and images as message parts; empty if ``value`` is not a list of these."""
    given = value if isinstance(value, list | tuple) else [value]
    if not any(isinstance(one, MessagePart) for one in given):
        return ()
    if not all(isinstance(one, MessagePart | str) for one in given):
        return ()
    parts = (MessagePart("text", one) if isinstance(one, str) else one for one in given)
    return tuple(replace(part, text=encodable(part.text)) for part in parts)


def _rankings(value: Any, finds: bool) -> Sequence[Sequence[Passage | Document]] | None:
    if isinstance(value, Passage | Document):
        return [[value]]
    if not isinstance(value, list | tuple) or not (value or finds):
        return None
    if all(isinstance(one, Passage | Document) for one in value):
        return [value]
    if all(
        isinstance(one, list | tuple) and all(isinstance(p, Passage | Document) for p in one) for one in value
    ):
        return value if finds or any(value) else None
    return None

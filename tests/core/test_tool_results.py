"""What a tool may return, and which results count as searches."""

import asyncio
from typing import Any

import pytest

from agentenv.core.images import image_digest
from agentenv.core.tool_results import ImageResult, passage_lines, read_passage_lines, searches_of
from agentenv.core.tools import Tool
from agentenv.core.types import Document, MessagePart, Passage, ToolResult, ToolStatus
from agentenv.errors import EnvFault

PICTURE = MessagePart("image", image=b"\x89PNG\r\n\x1a\n")
ONE, TWO = Passage("a", "Halvik", "A town.", 0.9), Passage("b", "Herring", "A fish.", 0.1)


def result_of(value: Any, annotation: Any = Any) -> ToolResult:
    def lookup(query: str) -> Any:
        """Looks something up.

        Args:
            query: what to look up.
        """
        return value

    lookup.__annotations__["return"] = annotation
    return asyncio.run(Tool.from_function(lookup).call({"query": "x"}))


@pytest.mark.parametrize(
    ("value", "ids"),
    [
        ([ONE, TWO], [["a", "b"]]),
        ((TWO,), [["b"]]),
        (ONE, [["a"]]),
        (Document("c", "Cod", "Fish."), [["c"]]),
        ([[ONE], [TWO, ONE]], [["a"], ["b", "a"]]),
        ([[], [TWO]], [[], ["b"]]),
    ],
)
def test_passages_that_a_tool_returns_are_recorded_with_their_ids(value: Any, ids: list[list[str]]) -> None:
    result = result_of(value)
    assert (result.name, result.status, result.data) == ("lookup", ToolStatus.OK, {"ids": ids})
    assert "Doc 1(Title: " in result.text


def test_an_empty_list_is_a_search_where_the_annotation_says_so() -> None:
    assert result_of([], list[Passage]).data == {"ids": [[]]}
    assert result_of([[], []], list[list[Passage]] | None).data == {"ids": [[], []]}
    assert result_of([]) == ToolResult("lookup", ToolStatus.OK, "[]")


def test_a_tool_may_build_its_result_itself() -> None:
    made = ToolResult("?", ToolStatus.ERROR, "nothing here", "NoHit", {"ids": [["z"]], "pages": 3})
    assert result_of(made) == ToolResult("lookup", ToolStatus.ERROR, "nothing here", "NoHit", made.data)


@pytest.mark.parametrize(
    ("value", "text"), [("plain", "plain"), ({"a": [1]}, '{"a": [1]}'), ([1, 2], "[1, 2]"), (None, "null")]
)
def test_other_values_are_text_or_json_as_before(value: Any, text: str) -> None:
    assert result_of(value) == ToolResult("lookup", ToolStatus.OK, text)


@pytest.mark.parametrize("value", [object(), {1, 2}, [ONE, "text"], b"bytes", [PICTURE, 3]])
def test_what_no_tool_may_return_is_a_fault_that_names_the_tool(value: Any) -> None:
    with pytest.raises(EnvFault, match="'lookup'"):
        result_of(value)


@pytest.mark.parametrize(
    "value", [PICTURE, [PICTURE], ("A chart:", PICTURE, MessagePart("text", "Done."), PICTURE)]
)
def test_images_that_a_tool_returns_are_marked_in_the_text_and_given_apart(value: Any) -> None:
    result = result_of(value)
    assert isinstance(result, ImageResult)
    count = sum(part is PICTURE for part in (value if isinstance(value, list | tuple) else [value]))
    told, images = result.rendered(shown=True)
    assert (told.name, told.status, images) == ("lookup", ToolStatus.OK, (PICTURE,) * count)
    assert told.data == {"images": [image_digest(PICTURE.image)] * count}
    assert told.text.split("\n").count("[image]") == count
    hidden, none = result.rendered(shown=False)
    assert (hidden.text.count("not shown"), none, hidden.data) == (count, (), told.data)
    if count == 2:
        assert told.text == "A chart:\n[image]\nDone.\n[image]"


def ok(name: str, **data: Any) -> ToolResult:
    return ToolResult(name, ToolStatus.OK, data=data)


@pytest.mark.parametrize(
    ("results", "found"),
    [
        ([], []),
        ([ok("search", ids=[["a"], ["b"]]), ok("read", ids=[["a"]])], [["a"], ["b"]]),
        ([ok("lookup", ids=[["a"]]), ok("add")], [["a"]]),
        ([ok("lookup")], None),
        ([ok("search")], None),
        ([ToolResult("none", ToolStatus.FORMAT_ERROR)], []),
        ([ToolResult("lookup", ToolStatus.TIMEOUT)], []),
        ([ok("read", ids=[["a"]])], []),
    ],
)
def test_what_the_searches_of_an_episode_found(results: list[ToolResult], found: Any) -> None:
    assert searches_of(results) == found


def test_lines_of_passages_are_read_back() -> None:
    documents = [
        Document("a", "(500) Days of Summer", "A film (2009)."),
        Document("b", "Sad :(", "It is."),
        Document("c", "", ""),
    ]
    assert read_passage_lines(passage_lines(documents)) == [(one.title, one.text + "\n") for one in documents]
    assert read_passage_lines("") == []
    assert read_passage_lines("Doc 1(Title: a) b\nDoc 2(Title: cut with") == [("a", "b\n")]

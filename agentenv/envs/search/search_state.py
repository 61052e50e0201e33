"""The record of a search episode: what a tool is asked, what it replies, and everything that a reward may look at."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentenv.core.types import EndReason, Passage, Task, ToolResult, ToolStatus


class TagCall(NamedTuple):
    """What one pair of tags of an action asks for."""

    tag: str
    text: str
    """What stands between the tags, stripped."""
    action: str
    """The whole action."""
    rest: str
    """What the policy wrote after the closing tag."""


@dataclass(frozen=True, slots=True)
class ToolReply:
    """What a tool gives back; with the action that called it, the record of a turn."""

    page: str = ""
    """The observation; an empty one shows the policy nothing."""
    result: ToolResult | None = None
    """The entry of ``info["tool_results"]``."""
    end: EndReason | None = None
    """Why the episode ends here, or None where it goes on."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of ``info``."""
    action: str = ""
    """What the policy wrote; the environment fills it in."""

    @property
    def valid(self) -> bool:
        """Whether the action could be acted on."""
        if self.result is not None:
            return self.result.status is ToolStatus.OK
        return self.end not in (EndReason.TURN_LIMIT, EndReason.PARSE_ERROR)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ToolReply":
        """Itself: what has happened does not change, so snapshots and forks share it."""
        return self


ToolFunction = Callable[[TagCall, Any], Awaitable[ToolReply]]
"""A tool, from a call and the state of the episode to a reply; what it finds, it adds to the state."""


@dataclass
class SearchState:
    """All that changes within an episode."""

    task: Task
    seed: int
    by_id: dict[str, Passage] = field(default_factory=dict)
    """Every passage seen so far, in the order of their first appearance; passages of one document share a title."""
    queries: list[str] = field(default_factory=list)
    """What was searched."""
    retrieved: list[list[str]] = field(default_factory=list)
    """Ids of the passages that each query returned, best first."""
    record: list[ToolReply] = field(default_factory=list)
    """Every turn so far, the one that ended the episode included."""
    answer: str | None = None
    tagged: bool = True
    """Whether actions are written with tags; a model that calls tools in its own form keeps its thoughts elsewhere."""

    @property
    def last(self) -> ToolReply:
        """The latest turn."""
        return self.record[-1]

    @property
    def turns(self) -> int:
        """Turns after which the episode went on."""
        return len(self.record) - bool(self.record and self.last.end)

    @property
    def mistakes(self) -> int:
        """Turns that could not be acted on."""
        results = [turn.result for turn in self.record]
        return sum(result is not None and result.status is ToolStatus.FORMAT_ERROR for result in results)

    @property
    def lookups(self) -> int:
        """Queries that were asked and pages that were read, several of them in one turn included."""
        results = [turn.result for turn in self.record if turn.result is not None]
        done = [result for result in results if result.status is not ToolStatus.FORMAT_ERROR]
        return sum(len(result.data.get("ids", (None,))) for result in done)

    @property
    def pages(self) -> list[str]:
        """The observation of each turn after which the episode went on."""
        return [turn.page for turn in self.record[: self.turns]]

    def add_passages(self, passages: Sequence[Passage]) -> None:
        """Notes what was found."""
        self.by_id |= {passage.id: passage for passage in passages}

    def titled(self, title: str) -> list[Passage]:
        """The passages with this title that were seen."""
        return [passage for passage in self.by_id.values() if passage.title == title]

"""The record of a search episode: tool calls, replies, and everything that a reward may use."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from agentenv.core.types import EndReason, Passage, Task, ToolResult, ToolStatus


class TagCall(NamedTuple):
    """The call in one pair of tags of an action."""

    tag: str
    text: str
    """The stripped text between the tags."""
    action: str
    """The whole action."""
    rest: str
    """The policy's text after the closing tag."""


@dataclass(frozen=True, slots=True)
class ToolReply:
    """The reply of a tool. Together with the action that called it, it is the record of a turn."""

    page: str = ""
    """The observation; an empty one shows nothing to the policy."""
    result: ToolResult | None = None
    """The entry of ``info["tool_results"]``."""
    end: EndReason | None = None
    """Why the episode ends here; None if it continues."""
    info: Mapping[str, Any] = field(default_factory=dict)
    """Further entries of ``info``."""
    action: str = ""
    """The policy's text, which the environment fills in."""

    @property
    def valid(self) -> bool:
        """Whether the action could be executed."""
        if self.result is not None:
            return self.result.status is ToolStatus.OK
        return self.end not in (EndReason.TURN_LIMIT, EndReason.PARSE_ERROR)

    def __deepcopy__(self, memo: dict[int, Any]) -> "ToolReply":
        """Returns the object itself: past replies never change, so snapshots and forks share them."""
        return self


ToolFunction = Callable[[TagCall, Any], Awaitable[ToolReply]]
"""A tool: a function of a call and the episode's state that returns a reply, and adds what it finds to the state."""


@dataclass
class SearchState:
    """All that changes within an episode."""

    task: Task
    seed: int
    by_id: dict[str, Passage] = field(default_factory=dict)
    """Every passage seen so far by its id, in order of appearance; passages of one document share a title."""
    queries: list[str] = field(default_factory=list)
    """The search queries so far."""
    retrieved: list[list[str]] = field(default_factory=list)
    """Ids of the passages that each query found, best first."""
    record: list[ToolReply] = field(default_factory=list)
    """Every turn so far, including the one that ended the episode."""
    answer: str | None = None
    tagged: bool = True
    """Whether actions are written in tags; in the native form, thoughts are separate from them."""

    @property
    def last(self) -> ToolReply:
        """The latest turn."""
        return self.record[-1]

    @property
    def turns(self) -> int:
        """Number of turns after which the episode continued."""
        return len(self.record) - bool(self.record and self.last.end)

    @property
    def mistakes(self) -> int:
        """Number of turns that could not be executed."""
        results = [turn.result for turn in self.record]
        return sum(result is not None and result.status is ToolStatus.FORMAT_ERROR for result in results)

    @property
    def lookups(self) -> int:
        """Number of queries and of pages read, even if several were in one turn."""
        results = [turn.result for turn in self.record if turn.result is not None]
        done = [result for result in results if result.status is not ToolStatus.FORMAT_ERROR]
        return sum(len(result.data.get("ids", (None,))) for result in done)

    @property
    def pages(self) -> list[str]:
        """The observation of each turn after which the episode continued."""
        return [turn.page for turn in self.record[: self.turns]]

    def add_passages(self, passages: Sequence[Passage]) -> None:
        """Adds passages that were found."""
        self.by_id |= {passage.id: passage for passage in passages}

    def titled(self, title: str) -> list[Passage]:
        """Returns the passages seen so far with this title."""
        return [passage for passage in self.by_id.values() if passage.title == title]

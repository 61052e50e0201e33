"""ASearcher's way of reading (Gao et al. 2025): a separate thought after every result, and a page part by part.

The policy stops at the end of the thought that follows a result. If the result was a part of a page, the next part is shown
without a request. After the last part, and after search results, the policy acts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentenv.core.types import EndReason, ToolResult, ToolStatus
from agentenv.envs.search.search_state import SearchState, TagCall, ToolReply

THOUGHT, END_OF_THOUGHT = "think", "</think>"
GO_ON = "\nSearch, read a page or answer.\n"
"""Shown after a thought if there is nothing more to read."""


class Pages(Protocol):
    """The interface of a tool that shows pages part by part."""

    async def has_more(self, address: str, state: Any) -> bool:
        """Whether the page at ``address`` has a part that was not shown yet."""

    async def __call__(self, call: TagCall, state: Any) -> ToolReply:
        """Returns the next part of the page that the call names."""


@dataclass(frozen=True)
class ReadingParser:
    """Parses an action like another parser, but a text that closes a thought and opens no action is a thought."""

    inner: Callable[[str], TagCall | None]
    tags: Sequence[str]
    """The tags of actions."""

    def __call__(self, action: str) -> TagCall | None:
        """Parses ``action``; None if it is malformed."""
        if END_OF_THOUGHT in action and not any(f"<{tag}>" in action for tag in self.tags):
            return TagCall(THOUGHT, "", action, "")
        return self.inner(action)


def follows_result(state: SearchState) -> bool:
    """Whether the latest turn showed results of a search or a part of a page."""
    result = state.last.result if state.record else None
    return result is not None and result.status is ToolStatus.OK


@dataclass(frozen=True)
class ReadingThought:
    """Replies to a thought with the next part of the page, or with the request to act.

    A thought that follows no result is not a valid action.
    """

    pages: Pages
    correction: str | None
    """Shown after a turn without an action; None ends the episode there."""

    async def __call__(self, call: TagCall, state: SearchState) -> ToolReply:
        """Returns the next part of the page, or the request to act.

        Raises:
            RetrieverFault: the server of the corpus failed.
        """
        result = state.last.result if follows_result(state) else None
        if result is None:
            if self.correction is None:
                return ToolReply(end=EndReason.PARSE_ERROR, info={"answer": None})
            error = ToolResult("none", ToolStatus.FORMAT_ERROR, error_class="no complete action")
            return ToolReply(self.correction, error)
        if result.name == "access" and await self.pages.has_more(result.text, state):
            return await self.pages(TagCall("access", result.text, call.action, ""), state)
        return ToolReply(GO_ON)

"""ASearcher's reading (Gao et al. 2025): a thought of its own after every result, and the parts of a page one by one.

The policy stops at the end of the thought that follows a result. If that was a part of a page, the next part is shown
without being asked for; behind the last one, and behind the results of a search, the policy acts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from agentenv.core.types import EndReason, ToolResult, ToolStatus
from agentenv.envs.search.search_state import SearchState, TagCall, ToolReply

THOUGHT, END_OF_THOUGHT = "think", "</think>"
GO_ON = "\nSearch, read a page or answer.\n"
"""What is shown after a thought behind which nothing is left to read."""


class Pages(Protocol):
    """Shows pages part by part."""

    async def has_more(self, address: str, state: Any) -> bool:
        """Whether a part of the page at ``address`` was not shown yet."""

    async def __call__(self, call: TagCall, state: Any) -> ToolReply:
        """The next part of the page that the call asks for."""


@dataclass(frozen=True)
class ReadingParser:
    """Reads an action as another parser does, and one that closes a thought and opens no action as a thought."""

    inner: Callable[[str], TagCall | None]
    tags: Sequence[str]
    """Of actions."""

    def __call__(self, action: str) -> TagCall | None:
        """What ``action`` asks for; None where it is malformed."""
        if END_OF_THOUGHT in action and not any(f"<{tag}>" in action for tag in self.tags):
            return TagCall(THOUGHT, "", action, "")
        return self.inner(action)


def follows_result(state: SearchState) -> bool:
    """Whether the latest turn showed what was searched or read."""
    result = state.last.result if state.record else None
    return result is not None and result.status is ToolStatus.OK


@dataclass(frozen=True)
class ReadingThought:
    """What is shown after a thought: the next part of the page that it read, or that the policy has to act.

    A thought that follows no result is no action.
    """

    pages: Pages
    correction: str | None
    """What is shown after a turn without an action; None ends the episode there."""

    async def __call__(self, call: TagCall, state: SearchState) -> ToolReply:
        """The next part of the page, or what is due.

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

"""What a replaced context keeps of the episode so far: the beginnings of pages, or the end of the history (ASearcher)."""

from collections.abc import Sequence

from agentenv.core.types import Message, ToolStatus
from agentenv.envs.search.native_tools import untagged
from agentenv.envs.search.page_format import information
from agentenv.envs.search.search_state import ToolReply

SHORTENED = (
    "These are the question and your turns so far. Of pages that you have read, only the beginnings are kept."
)
"""The beginning of a replaced context that contains only the beginnings of pages."""
CUT = "These are the question and the latest of your turns. What came before them is left out."
"""The beginning of a replaced context that contains only the end of the history."""


def short_form(page: str, chars: int) -> str:
    """ASearcher's short form of a part of a page: its heading and the first ``chars`` characters (published: 100)."""
    heading, _, part = untagged(page).partition("\n")
    return page if len(part) <= chars else information(f"{heading}\n{part[:chars]} ...")


def short_history(record: Sequence[ToolReply], chars: int) -> list[str]:
    """Returns what the context shows of each turn: all but the latest part of a page in short form, the rest unchanged."""
    *read, latest = record
    return [short_form(turn.page, chars) if has_read(turn) else turn.page for turn in read] + [latest.page]


def last_chars(messages: Sequence[Message], chars: int) -> list[Message]:
    """Returns the end of ``messages`` with at most ``chars`` characters; the first message is cut at its beginning."""
    kept: list[Message] = []
    for message in reversed(messages):
        if chars <= 0:
            break
        kept.append(Message(message.role, message.text[-chars:]))
        chars -= len(message.text)
    return kept[::-1]


def has_read(turn: ToolReply) -> bool:
    """Whether a turn showed a part of a page."""
    return turn.result is not None and turn.result.name == "access" and turn.result.status is ToolStatus.OK

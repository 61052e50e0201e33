"""Exports solved episodes as chat messages, in the form that other libraries use for fine-tuning on conversations."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentenv.core.assistant_turns import AssistantTurn, NativeCall
from agentenv.core.tool_replies import call_id, replies
from agentenv.core.types import Observation, as_shown, is_context
from agentenv.errors import ConfigurationError
from agentenv.evaluation.recorded_conversations import (
    evaluations_in,
    native_turn,
    observation_after,
    recorded_opening,
    why_not_restorable,
)
from agentenv.evaluation.records import TOOL_CALL_FORM, EpisodeRecord

_SEALED = "are of a benchmark that is sealed so that nothing learns from it"
_UNDECLARED = (
    "hold no declarations of tools: they changed within the episode, or an earlier version recorded it"
)
_MALFORMED = "have a call that cannot be read"


@dataclass
class Exported:
    """Counts of exported and excluded episodes."""

    episodes: int = 0
    conversations: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of episodes with enough reward that were left out, by reason."""


def conversations(folders: Sequence[Path], least: float, done: Exported) -> Iterator[dict[str, Any]]:
    """Yields the conversations of all episodes with a reward of at least ``least``, one for each of an episode's contexts.

    Each has ``id``, ``reward``, ``messages`` as the chat templates of transformers expect them (the arguments of a call are
    an object), and ``tools`` in OpenAI's form if the policy called tools natively.

    Args:
        folders: Folders of finished evaluations or of their samples.
        least: The smallest reward of an exported episode.
        done: Updated with the counts of exported and excluded episodes.

    Raises:
        ConfigurationError: a folder contains no finished evaluation.
        DatasetError: a record is damaged.
    """
    for folder in folders:
        for evaluation in evaluations_in(folder):
            family = evaluation.results["settings"].get(TOOL_CALL_FORM, "")
            done.episodes += len(evaluation.records)
            for record in evaluation.records:
                if not record["valid"] or record.get("reward", 0.0) < least:
                    continue
                if why := _exclusion_reason(record, family):
                    done.left_out[why] += 1
                    continue
                named = {"id": record["id"], "reward": record.get("reward", 0.0)}
                for conversation in conversations_of(record, family):
                    done.conversations += 1
                    yield named | conversation


def _exclusion_reason(record: EpisodeRecord, family: str) -> str:
    if "canary" in record:
        return _SEALED
    if why := why_not_restorable(record):
        return why
    if family and "tools" not in record:
        return _UNDECLARED
    turns = (
        [native_turn(turn["action"], family, record["tools"]) for turn in record["turns"]] if family else []
    )
    read = all(isinstance(call, NativeCall) for turn in turns for call in turn.calls)
    return "" if read else _MALFORMED


def conversations_of(record: EpisodeRecord, family: str) -> list[dict[str, Any]]:
    """Returns the messages of an episode and, in the native form, its tools: one conversation for each of its contexts.

    A conversation ends with the policy's turn, because the policy never saw what was shown after its last one.

    Args:
        record: A record whose texts are complete; see `agentenv.evaluation.recorded_conversations.why_not_restorable`.
        family: The form of its turns: a model family, ``ENDPOINT``, or empty for tags in plain text. With plain text,
            results of tools become user messages, because no native call asked for them.
    """
    tools = {"tools": record["tools"]} if family and record["tools"] else {}
    messages = _shown(as_shown(recorded_opening(record)), native=bool(family))
    found = [{"messages": messages} | tools]
    for place, turn in enumerate(record["turns"]):
        said = native_turn(turn["action"], family, record["tools"]) if family else None
        messages.append(
            {"role": "assistant", "content": turn["action"]} if said is None else _assistant(said)
        )
        if place + 1 == len(record["turns"]):
            break
        shown = observation_after(record, place)
        if is_context(shown):
            messages = _shown(as_shown(shown), native=bool(family))
            found.append({"messages": messages} | tools)
        else:
            messages += _shown(shown if said is None else replies(said, shown), native=bool(family))
    return found


def _assistant(turn: AssistantTurn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.content}
    if turn.thinking:
        message["reasoning_content"] = turn.thinking
    calls = [
        {
            "type": "function",
            "id": call.id or call_id(place),
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for place, call in enumerate(turn.calls)
        if isinstance(call, NativeCall)
    ]
    return message | ({"tool_calls": calls} if calls else {})


def _shown(observation: Observation, *, native: bool) -> list[dict[str, Any]]:
    return [
        {"role": "tool", "name": message.name, "tool_call_id": message.call_id, "content": message.text}
        if native and message.name
        else {"role": "user" if message.role == "tool" else message.role, "content": message.text}
        for message in observation
    ]


def require_some(done: Exported, least: float) -> None:
    """Refuses an export without any conversation.

    Raises:
        ConfigurationError: there is none; the message says why.
    """
    if done.conversations:
        return
    reasons = "; ".join(f"{count} {why}" for why, count in done.left_out.most_common())
    raise ConfigurationError(
        f"none of {done.episodes} episodes earns {least:g} and can be written as messages"
        + (f": {reasons}" if reasons else ": ask for less with --least, or give other folders")
    )

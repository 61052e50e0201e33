"""Restores conversations from recorded episodes: what each turn said, and the messages that were shown around it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentenv.core.action_turns import recorded_turn
from agentenv.core.assistant_turns import AssistantTurn
from agentenv.core.model_families import get_family
from agentenv.core.types import Message, Observation
from agentenv.evaluation.records import (
    ENDPOINT,
    EPISODES,
    SUITE,
    EpisodeRecord,
    Evaluation,
    read_evaluation,
    read_suite_summary,
)

_SAMPLES = "sample-*"
_PICTURES = "show pictures"
_JOINED = "show several messages at a time, which records of earlier versions do not tell apart"
_EARLIER_TURNS = "show earlier turns of an assistant, of which a record holds the text alone"
_EMPTY = "have no opening or no turn"
_CUT = "have a turn that a budget of tokens cut off"


def evaluations_in(folder: Path) -> list[Evaluation]:
    """Reads the evaluation in ``folder``, or those of its samples, or those of all sets of a suite.

    Raises:
        ConfigurationError: there is no finished evaluation.
        DatasetError: a line of it cannot be read.
    """
    if (folder / SUITE).is_file():
        return [one for name in read_suite_summary(folder)["sets"] for one in evaluations_in(folder / name)]
    samples = sorted(path for path in folder.glob(_SAMPLES) if path.is_dir())
    alone = (folder / EPISODES).exists() or not samples
    return [read_evaluation(one) for one in ([folder] if alone else samples)]


def why_not_restorable(record: EpisodeRecord) -> str:
    """Returns why an episode cannot be restored from its recorded texts; empty if it can."""
    turns = record.get("turns") or []
    if not (turns and record.get("prompt")):
        return _EMPTY
    if "images" in record or any("scene" in turn or "images" in turn for turn in turns):
        return _PICTURES
    if any(turn.get("cut") for turn in turns):
        return _CUT
    opening, *later = record.get("roles") or [["user"]]
    if "assistant" in opening or any("assistant" in roles for roles in later):
        return _EARLIER_TURNS
    counts = [len(turn.get("messages") or [turn["observation"]]) for turn in turns]
    apart = len(record.get("opening") or [record["prompt"]]) == len(opening) and all(
        len(roles) in (0, count) for roles, count in zip(later, counts, strict=False)
    )
    return "" if apart else _JOINED


def recorded_opening(record: EpisodeRecord) -> Observation:
    """Returns the opening messages of an episode that can be restored."""
    texts = record.get("opening") or [record["prompt"]]
    return _messages((record.get("roles") or [["user"]])[0], texts)


def observation_after(record: EpisodeRecord, place: int) -> Observation:
    """Returns the observation after turn ``place``; without recorded roles, it is the result of a tool, or empty."""
    turn = record["turns"][place]
    if len(roles := record.get("roles") or ()) > place + 1:
        return _messages(roles[place + 1], turn.get("messages") or [turn["observation"]])
    return (Message("tool", turn["observation"]),) if turn["observation"] else ()


def _messages(roles: Sequence[str], texts: Sequence[str]) -> Observation:
    # If nothing was shown, there are no roles and the text is empty.
    return tuple(Message(role, text) for role, text in zip(roles, texts, strict=bool(roles)))  # type: ignore[arg-type]


def native_turn(action: str, family: str, tools: Sequence[Mapping[str, Any]]) -> AssistantTurn:
    """Parses a recorded action of a policy that uses the native form.

    Args:
        action: The recorded text.
        family: The model family whose form it has, or ``ENDPOINT``.
        tools: The declared tools in OpenAI's form.
    """
    if family == ENDPOINT:
        return recorded_turn(action, tools)
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    return get_family(family).read_alone(action, schemas)

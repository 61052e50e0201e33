"""The messages between a server of environments and its callers: OpenEnv's WebSocket frames, and further ones.

A frame is ``{"type": ..., "data": {...}}``. OpenEnv's types are ``reset``, ``step``, ``state``, ``mcp`` and ``close``; the
answers are ``observation``, ``state``, ``mcp`` and ``error``. Snapshots and everything else that OpenEnv lacks use one
further type, ``agentenv``, which a plain client never sends. Values for which OpenEnv has no field are in ``metadata``:
``terminated``, ``truncated``, ``anchor_key``, ``cut_reward``, the whole ``info``, and how the next turn is sampled
(``agentenv.serving.asking``).
"""

import base64
import dataclasses
import json
import math
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

import agentenv.errors
from agentenv.core.assistant_turns import NativeCall
from agentenv.core.conversation import openai_call
from agentenv.core.images import joined_text
from agentenv.core.types import (
    EndReason,
    Info,
    Message,
    MessagePart,
    Observation,
    Step,
    Task,
    ToolResult,
    ToolStatus,
)
from agentenv.core.validation import sentence
from agentenv.errors import AgentEnvError, ConfigurationError, EnvFault, Fault
from agentenv.web.gate import SERVE_TOKEN_VARIABLE
from agentenv.web.secrets import without_keys

VERSION = "v1"
TOKEN_VARIABLE = SERVE_TOKEN_VARIABLE
"""Environment variable with the bearer token that server and client share."""

_MOST_ERROR_CHARS = 4_000  # characters of a server's message that an error quotes
INVALID_JSON, UNKNOWN_TYPE, VALIDATION_ERROR = "INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR"
EXECUTION_ERROR, CAPACITY_REACHED = "EXECUTION_ERROR", "CAPACITY_REACHED"
FACTORY_ERROR, SESSION_ERROR = "FACTORY_ERROR", "SESSION_ERROR"


class Frame(BaseModel):
    """A message from a caller."""

    type: str
    data: dict[str, Any] = {}


class ResetData(BaseModel):
    """Data of ``reset``. Unknown fields are ignored, as OpenEnv's server does, because other environments may take them."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    seed: int | None = Field(None, ge=0)
    """Seed of the episode; null continues the random generator of the session."""
    episode_id: str | None = None
    """Id of the episode in ``state``; null makes one."""
    options: dict[str, Any] | None = None
    """The client's choices: a ``task`` by its ``id``, or, if the server takes whole tasks, with ``id``, ``question``,
    ``answers``, ``split`` and ``data``; and further options that the environment opens to clients."""
    native: bool = False
    """Whether the policy calls tools in its model's native format. ``metadata`` then has the tools to declare, and steps are
    sent as turns."""


class TaskData(BaseModel):
    """A task in a message."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    id: str = ""
    """Id of the task; empty uses the question as id."""
    question: str
    """The question."""
    answers: tuple[str, ...] = ()
    """Accepted answers; a single one may be given as a string."""
    split: str = ""
    """The split of the data set that the task is from."""
    data: dict[str, Any] = {}
    """Further data for the environment."""

    @field_validator("answers", mode="before")
    @classmethod
    def _as_list(cls, answers: Any) -> Any:
        return (answers,) if isinstance(answers, str) else answers

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "TaskData":
        """Reads the task in ``given``.

        Raises:
            ConfigurationError: it is malformed, or contains an unpaired surrogate, which no tokenizer takes.
        """
        try:
            # Checked here, because pydantic accepts an unpaired surrogate, and the tokenizer would fail within an episode.
            json.dumps(given, ensure_ascii=False).encode()
            task = cls.model_validate(given)
        except ValidationError as error:
            raise ConfigurationError(f"options.task: {sentence(error)}") from error
        except UnicodeEncodeError as error:
            raise ConfigurationError(
                "options.task holds half a surrogate pair; send whole characters"
            ) from error
        return task.model_copy(update={"id": task.id or task.question})


class TasksQuery(BaseModel):
    """Query of ``/tasks``: which of the environment's tasks a caller wants."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    n: int = Field(ge=0, le=10_000)
    """Number of tasks."""
    seed: int = Field(0, ge=0)
    """Seed of their random choice."""
    split: str = "train"
    """The split of the tasks."""


class ActionData(BaseModel):
    """Data of ``step``. Only one field is required, so that a client may send plain text as the action."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    text: str
    """What the policy wrote."""
    turn: dict[str, Any] | None = None
    """The turn in native format, after a reset with ``native``: ``thinking``, ``content``, ``calls`` and ``closed``. It is
    used in place of ``text``."""
    metadata: dict[str, Any] = {}
    """A field of OpenEnv; ignored."""

    @field_validator("text", mode="before")
    @classmethod
    def _as_written(cls, text: Any) -> Any:
        """Some callers parse the policy's text as JSON, so that ``42`` arrives as a number."""
        return text if isinstance(text, str) or text is None else json.dumps(text)


class ObservationData(BaseModel):
    """An observation, for the schema that clients request."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    text: str
    """The texts of all messages, joined."""
    messages: list[dict[str, Any]]
    """Each has ``role`` and ``content`` (a string, or parts of type text or image in base64), and ``name``, ``call_id`` and
    ``calls`` if set."""


class ExtensionData(BaseModel):
    """Data of ``agentenv`` frames: the verbs beyond OpenEnv's."""

    model_config = ConfigDict(extra="forbid")

    verb: Literal["snapshot", "restore", "release", "fork", "attach", "expert", "render"]
    id: str = ""


def read_json(text: str) -> Any:
    """Parses ``text`` as JSON.

    Raises:
        ValueError: it is not JSON, contains NaN or infinity, or is nested too deeply.
    """

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON")

    def finite(number: str) -> float:
        if math.isinf(read := float(number)):  # 1e999
            raise ValueError(f"{number:.40} is larger than any number that is read")
        return read

    try:
        return json.loads(text, parse_constant=refuse, parse_float=finite)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def frame(type: str, data: Mapping[str, Any]) -> str:
    """Returns a message as text; other characters than ASCII are escaped, which also preserves unpaired surrogates."""
    # NaN fails here, where the cause is known; some clients could not parse a frame with it.
    return json.dumps({"type": type, "data": data}, allow_nan=False)


def plain(value: Any) -> Any:
    """Returns ``value`` as JSON values: records become objects, tuples lists, and paths strings.

    Raises:
        EnvFault: it contains NaN, infinity or an object without a JSON form; null in its place could be read as no reward.
    """
    # This precedes text and numbers, because some enums of this package are strings or integers.
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if not isinstance(value, float) and callable(item := getattr(value, "item", None)):  # a scalar of numpy
        return plain(item())
    raise EnvFault(f"{value!r:.80} of type {type(value).__name__} cannot be sent over the wire")


def observation_out(observation: Observation, *, opens: bool) -> dict[str, Any]:
    """Returns an observation as JSON values; ``opens`` tells whether it is the first of an episode."""
    return {
        "text": joined_text(observation, opens=opens),
        "messages": [_message_out(message) for message in observation],
    }


def observation_in(data: Any) -> Observation:
    """Reads an observation from JSON values."""
    return tuple(
        Message(
            entry["role"],
            _content_in(entry["content"]),
            entry.get("name", ""),
            entry.get("call_id", ""),
            tuple(map(call_in, entry.get("calls", ()))),
        )
        for entry in data["messages"]
    )


def _message_out(message: Message) -> dict[str, Any]:
    # Empty values are left out, since most are empty.
    of_call = {name: value for name in ("name", "call_id") if (value := getattr(message, name))}
    made = {"calls": [*map(openai_call, message.calls)]} if message.calls else {}
    return {"role": message.role, "content": _content_out(message.content), **of_call, **made}


def call_in(data: Any) -> NativeCall:
    """Reads a call in OpenAI's form. Its arguments are JSON text, which may contain values that a frame may not."""
    function = data["function"]
    return NativeCall(function["name"], json.loads(function["arguments"]), data["id"])


def _content_out(content: str | tuple[MessagePart, ...]) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part.text}
        if part.kind == "text"
        else {"type": "image", "image": base64.b64encode(part.image).decode()}
        for part in content
    ]


def _content_in(content: Any) -> str | tuple[MessagePart, ...]:
    if isinstance(content, str):
        return content
    return tuple(
        MessagePart("text", part["text"])
        if part["type"] == "text"
        else MessagePart("image", image=base64.b64decode(part["image"]))
        for part in content
    )


def opening_out(
    observation: Observation,
    info: Info,
    anchor_key: str | None,
    cut_reward: float | None = 0.0,
    *,
    opens: bool = True,
) -> dict[str, Any]:
    """Returns the answer to ``reset``; it has no reward."""
    metadata = {
        "terminated": False,
        "truncated": False,
        "anchor_key": anchor_key,
        "cut_reward": cut_reward,
        "info": plain(info),
    }
    return {
        "observation": observation_out(observation, opens=opens),
        "reward": None,
        "done": False,
        "metadata": metadata,
    }


def step_out(step: Step, anchor_key: str | None, cut_reward: float | None = 0.0) -> dict[str, Any]:
    """Returns the answer to ``step``.

    Raises:
        EnvFault: the reward is not a finite number, or ``info`` cannot be sent.
    """
    data = opening_out(step.observation, step.info, anchor_key, cut_reward, opens=False)
    ends = {"terminated": bool(step.terminated), "truncated": bool(step.truncated)}
    data["metadata"] |= ends
    return data | {"reward": plain(float(step.reward)), "done": any(ends.values())}


def info_in(data: Any) -> Info:
    """Reads ``info`` with its typed entries: ``end_reason`` and ``tool_results``."""
    info = dict(data)
    if "end_reason" in info:
        info["end_reason"] = EndReason(info["end_reason"])
    if "tool_results" in info:
        entries = ({**entry, "status": ToolStatus(entry["status"])} for entry in info["tool_results"])
        info["tool_results"] = tuple(ToolResult(**entry) for entry in entries)
    return info


def step_in(data: Any) -> Step:
    """Reads a step from JSON values."""
    metadata = data["metadata"]
    return Step(
        observation_in(data["observation"]),
        float(data["reward"]),
        metadata["terminated"],
        metadata["truncated"],
        info_in(metadata["info"]),
    )


def options_out(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Returns options of ``reset`` as JSON values.

    Raises:
        ConfigurationError: an option cannot be sent.
    """
    try:
        return None if options is None else {name: plain(value) for name, value in options.items()}
    except EnvFault as error:
        raise ConfigurationError(f"options of reset: {error}") from error


def options_in(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Reads options of ``reset`` from a trusted sender for an environment: a ``task`` becomes a `Task`.

    Raises:
        ConfigurationError: the task is malformed.
    """
    if options is None or not isinstance(given := options.get("task"), Mapping):
        return None if options is None else dict(options)
    task = TaskData.read(given)
    return {**options, "task": Task(task.id, task.question, task.answers, task.split, task.data)}


def error_out(error: Exception, code: str = EXECUTION_ERROR) -> dict[str, Any]:
    """Returns an error as JSON values: its message, its class, and whether it is an infrastructure failure."""
    ours = isinstance(error, Fault) or not isinstance(error, AgentEnvError)
    said = str(error) if isinstance(error, AgentEnvError) else f"{type(error).__name__}: {error}"
    kind = getattr(error, "kind", type(error).__name__)  # a refusal has a kind of its own
    return {"message": said, "code": code, "kind": kind, "fault": ours}


def error_in(data: Mapping[str, Any], sender: str) -> AgentEnvError:
    """Returns the error that a server sent, in its original class; an `EnvFault` if the class is unknown."""
    kind = getattr(agentenv.errors, str(data.get("kind", "")), None)
    said = without_keys(str(data.get("message", "an error without a message")))[:_MOST_ERROR_CHARS]
    # The class name comes from outside, so only errors of this package are made by it.
    if isinstance(kind, type) and issubclass(kind, AgentEnvError) and data.get("code") == EXECUTION_ERROR:
        return kind(said)
    return EnvFault(f"{sender} says {data.get('code')}: {said}")

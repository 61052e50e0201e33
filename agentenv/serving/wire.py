"""What travels between an environment's server and its callers: OpenEnv's WebSocket frames, and ours beside them.

A frame is ``{"type": ..., "data": {...}}``. OpenEnv's types are ``reset``, ``step``, ``state``, ``mcp`` and ``close``;
the answers are ``observation``, ``state``, ``mcp`` and ``error``. Time travel and the rest of our contract go under the
one further type ``agentenv``, which a plain client never sends. Everything that OpenEnv has no field for stands in
``metadata``: ``terminated``, ``truncated``, ``anchor_key``, ``cut_reward``, the whole ``info``, and how the policy is to be
asked next (``agentenv.serving.asking``).
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

_SAID = 4_000  # characters of a server's own words in an error
INVALID_JSON, UNKNOWN_TYPE, VALIDATION_ERROR = "INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR"
EXECUTION_ERROR, CAPACITY_REACHED = "EXECUTION_ERROR", "CAPACITY_REACHED"
FACTORY_ERROR, SESSION_ERROR = "FACTORY_ERROR", "SESSION_ERROR"


class Frame(BaseModel):
    """One message from a caller."""

    type: str
    data: dict[str, Any] = {}


class ResetData(BaseModel):
    """Data of ``reset``. What other environments take and we do not know is ignored, as OpenEnv's server does."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    seed: int | None = Field(None, ge=0)
    """Seed of the episode; null goes on with the session's generator."""
    episode_id: str | None = None
    """Name of the episode in ``state``; null makes one."""
    options: dict[str, Any] | None = None
    """What the client chooses: a ``task`` by its ``id``, or as a whole where the server takes whole tasks, with ``id``,
    ``question``, ``answers``, ``split`` and ``data``; and what the environment lets clients set."""
    native: bool = False
    """Whether the policy calls tools in the form that its model was trained in. ``metadata`` then has the tools to declare,
    and the steps come as turns."""


class TaskData(BaseModel):
    """A task as it is sent."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    id: str = ""
    """Empty takes the question."""
    question: str
    """What is asked."""
    answers: tuple[str, ...] = ()
    """Accepted answers; a single one may be given as text."""
    split: str = ""
    """The part of a data set that it is from."""
    data: dict[str, Any] = {}
    """Whatever else the environment needs."""

    @field_validator("answers", mode="before")
    @classmethod
    def _as_list(cls, answers: Any) -> Any:
        return (answers,) if isinstance(answers, str) else answers

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> "TaskData":
        """The task in ``given``.

        Raises:
            ConfigurationError: it is malformed, or a text in it holds half a surrogate pair, which no tokenizer takes.
        """
        try:
            # Tried here: pydantic takes half a surrogate pair, and the tokenizer would fail on it within an episode.
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
    """Which of the environment's own tasks a caller asks for."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    n: int = Field(ge=0, le=10_000)
    """How many."""
    seed: int = Field(0, ge=0)
    """Seeds their draw."""
    split: str = "train"
    """The part of the tasks that they are from."""


class ActionData(BaseModel):
    """Data of ``step``: one required field, so that a client may send plain text as the action."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    text: str
    """What the policy wrote."""
    turn: dict[str, Any] | None = None
    """What it wrote as its model's form has it, after a reset with ``native``: ``thinking``, ``content``, ``calls`` and
    ``closed``. It is acted on in place of ``text``."""
    metadata: dict[str, Any] = {}
    """OpenEnv's; not read."""

    @field_validator("text", mode="before")
    @classmethod
    def _as_written(cls, text: Any) -> Any:
        """Some callers parse what a policy wrote, so that ``42`` arrives as a number."""
        return text if isinstance(text, str) or text is None else json.dumps(text)


class ObservationData(BaseModel):
    """What an observation holds; for the schema that clients ask for."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    text: str
    """The messages' texts, one after the other."""
    messages: list[dict[str, Any]]
    """``role`` and ``content``: a string, or parts of type text or image (base64); ``name``, ``call_id`` and ``calls`` where
    set."""


class ExtensionData(BaseModel):
    """Data of ``agentenv``: our verbs beside OpenEnv's."""

    model_config = ConfigDict(extra="forbid")

    verb: Literal["snapshot", "restore", "release", "fork", "attach", "expert", "render"]
    id: str = ""


def read_json(text: str) -> Any:
    """Parses ``text`` as JSON.

    Raises:
        ValueError: it is no JSON, holds NaN or infinity, or nests too deeply.
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
    """A message as text; characters beyond ASCII are escaped, so that half a surrogate pair travels too."""
    # NaN in a frame would be read as no JSON by some clients, so it fails here, where the reason is known.
    return json.dumps({"type": type, "data": data}, allow_nan=False)


def plain(value: Any) -> Any:
    """``value`` as JSON has it: records become objects, tuples lists, and paths texts.

    Raises:
        EnvFault: NaN, infinity or an object that JSON has no form for; null in its place would read as no reward.
    """
    # Before text and numbers, because the enums of this package are texts or numbers as well.
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
    """An observation as it is sent; ``opens`` says whether an episode begins with it."""
    return {
        "text": joined_text(observation, opens=opens),
        "messages": [_message_out(message) for message in observation],
    }


def observation_in(data: Any) -> Observation:
    """An observation as it was before it was sent."""
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
    # Left out where they are empty, as nearly always.
    of_call = {name: value for name in ("name", "call_id") if (value := getattr(message, name))}
    made = {"calls": [*map(openai_call, message.calls)]} if message.calls else {}
    return {"role": message.role, "content": _content_out(message.content), **of_call, **made}


def call_in(data: Any) -> NativeCall:
    """A call that was sent in OpenAI's form: its arguments are JSON in a text, which may hold what a frame does not."""
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
    """The answer to ``reset``; it has no reward."""
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
    """The answer to ``step``.

    Raises:
        EnvFault: the reward is no finite number, or ``info`` cannot be sent.
    """
    data = opening_out(step.observation, step.info, anchor_key, cut_reward, opens=False)
    ends = {"terminated": bool(step.terminated), "truncated": bool(step.truncated)}
    data["metadata"] |= ends
    return data | {"reward": plain(float(step.reward)), "done": any(ends.values())}


def info_in(data: Any) -> Info:
    """``info`` with its typed entries: ``end_reason`` and ``tool_results``."""
    info = dict(data)
    if "end_reason" in info:
        info["end_reason"] = EndReason(info["end_reason"])
    if "tool_results" in info:
        entries = ({**entry, "status": ToolStatus(entry["status"])} for entry in info["tool_results"])
        info["tool_results"] = tuple(ToolResult(**entry) for entry in entries)
    return info


def step_in(data: Any) -> Step:
    """A step as it was before it was sent."""
    metadata = data["metadata"]
    return Step(
        observation_in(data["observation"]),
        float(data["reward"]),
        metadata["terminated"],
        metadata["truncated"],
        info_in(metadata["info"]),
    )


def options_out(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Options of ``reset`` as they are sent.

    Raises:
        ConfigurationError: one cannot be sent.
    """
    try:
        return None if options is None else {name: plain(value) for name, value in options.items()}
    except EnvFault as error:
        raise ConfigurationError(f"options of reset: {error}") from error


def options_in(options: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Options of ``reset`` from a trusted sender, as an environment takes them: a ``task`` is a `Task`.

    Raises:
        ConfigurationError: the task is malformed.
    """
    if options is None or not isinstance(given := options.get("task"), Mapping):
        return None if options is None else dict(options)
    task = TaskData.read(given)
    return {**options, "task": Task(task.id, task.question, task.answers, task.split, task.data)}


def error_out(error: Exception, code: str = EXECUTION_ERROR) -> dict[str, Any]:
    """A failure as it is sent: what went wrong, which error it is, and whether it is ours and no reward."""
    ours = isinstance(error, Fault) or not isinstance(error, AgentEnvError)
    said = str(error) if isinstance(error, AgentEnvError) else f"{type(error).__name__}: {error}"
    kind = getattr(error, "kind", type(error).__name__)  # a refusal says of what kind it is
    return {"message": said, "code": code, "kind": kind, "fault": ours}


def error_in(data: Mapping[str, Any], sender: str) -> AgentEnvError:
    """The error that a server sent, as the class it was; one that we do not know is an `EnvFault`."""
    kind = getattr(agentenv.errors, str(data.get("kind", "")), None)
    said = without_keys(str(data.get("message", "an error without a message")))[:_SAID]
    # The name of a class comes from outside, so only errors of this package are made of it.
    if isinstance(kind, type) and issubclass(kind, AgentEnvError) and data.get("code") == EXECUTION_ERROR:
        return kind(said)
    return EnvFault(f"{sender} says {data.get('code')}: {said}")

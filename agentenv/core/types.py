"""The basic records of agentenv: tasks, messages, steps, queries, passages and completions.

An environment shows messages to a policy and receives text. A policy receives and returns token ids. A retriever receives
queries and returns passages. Everything else in the package is built from these immutable records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Literal, NamedTuple

from agentenv.core.assistant_turns import AssistantTurn, NativeCall
from agentenv.errors import ConfigurationError

Role = Literal["system", "user", "assistant", "tool"]
Info = dict[str, Any]


class EndReason(StrEnum):
    """Why an episode ended. The value is also the name of its metric."""

    ANSWERED = "answered"  # the policy gave an answer
    SUBMITTED = "submitted"  # the policy handed in work other than an answer
    TURN_LIMIT = "turn_limit"  # the turn budget is spent
    TOKEN_LIMIT = "token_limit"  # the next turn would not fit the context
    TIME_LIMIT = "time_limit"  # the wall-clock budget is spent
    PATCH_BUDGET = "patch_budget"  # a semi-online episode used all its expert patches
    # the policy's text is no valid action, and the environment gives no second try
    PARSE_ERROR = "parse_error"
    # the service of the policy's model refuses the conversation, for example by a content filter
    REFUSED = "refused"
    ENV_FAULT = "env_fault"  # infrastructure failure of the environment; the episode is masked
    POLICY_FAULT = "policy_fault"  # infrastructure failure of the policy's engine; the episode is masked
    ABORTED = "aborted"  # stopped from outside

    @property
    def is_fault(self) -> bool:
        """Whether an infrastructure failure ended the episode, so that its reward means nothing."""
        return self in (EndReason.ENV_FAULT, EndReason.POLICY_FAULT, EndReason.ABORTED)


class ToolStatus(StrEnum):
    """The outcome of one tool call."""

    OK = "ok"
    ERROR = "error"  # the tool ran and says that the call was wrong
    TIMEOUT = "timeout"  # the policy's own work took too long
    FORMAT_ERROR = "format_error"  # the call could not be parsed
    ENV_FAULT = "env_fault"  # infrastructure failure


class StateCapability(IntEnum):
    """How much of an environment's state ``snapshot`` captures. Each level includes the lower ones."""

    NONE = 0
    REPLAY = 1  # reset with the same seed and repeat the actions; observation hashes are checked
    MEMORY = 2  # the Python state of the environment
    FILES = 3  # also a file tree
    PROCESS = 4  # also a live process


@dataclass(frozen=True, slots=True)
class MessagePart:
    """One piece of a multi-part message: text, or an image as PNG bytes."""

    kind: Literal["text", "image"]
    text: str = ""
    image: bytes = b""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Message:
    """One message of a conversation."""

    role: Role
    content: str | tuple[MessagePart, ...]
    name: str = ""
    """The name of the tool whose result this is; empty for other messages."""
    call_id: str = ""
    """The id of the call that this message answers."""
    calls: tuple[NativeCall, ...] = ()
    """The tool calls of an earlier assistant turn, in an observation that replaces the context."""

    @property
    def text(self) -> str:
        """The textual part of the content."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


Observation = tuple[Message, ...]


def is_context(observation: Observation) -> bool:
    """Whether ``observation`` replaces the whole context: it begins with a system message, which may be empty."""
    return bool(observation) and observation[0].role == "system"


def as_shown(context: Observation) -> Observation:
    """Returns a replaced context without an empty system message, which serves only as a marker."""
    return context[1:] if is_context(context) and not context[0].text else context


class Step(NamedTuple):
    """The return value of ``Env.step``, which unpacks as Gymnasium's five values."""

    observation: Observation  # the new messages; a whole context if `is_context`
    reward: float  # reward of this turn
    terminated: bool  # the task itself ended
    truncated: bool  # a budget ended it
    info: Info  # always "turn", "tool_results", "valid"; at the end "end_reason"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of one tool call, in typed fields, so that nobody has to parse its text."""

    name: str
    status: ToolStatus
    text: str = ""
    error_class: str = ""  # for example "ZeroDivisionError"; empty when status is ok
    data: Mapping[str, Any] = field(default_factory=dict)  # for example the ids of retrieved passages


@dataclass(frozen=True, slots=True)
class Task:
    """One task: a question with its accepted answers, or a prompt."""

    id: str
    question: str
    answers: tuple[str, ...] = ()
    split: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)  # for example "supporting_ids", "hops", "family"


@dataclass(frozen=True, slots=True)
class QueryContext:
    """What a contextual retriever (a simulator or a recording) may know about the episode that searches."""

    episode: str
    question: str = ""
    answers: tuple[str, ...] = ()
    step: int = 0
    split: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Query:
    """A search query. Wherever queries are accepted, a plain ``str`` means ``Query(text)``."""

    text: str
    context: QueryContext | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """One entry of a corpus."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    """A document as returned by a search, with its score."""

    id: str
    title: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class RetrieverInfo:
    """A retriever's description of itself, which every results file contains."""

    name: str
    documents: int
    fingerprint: str  # changes whenever results may change
    # whether results depend on the context; they are then never shared across contexts
    contextual: bool = False


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are sampled."""

    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0  # 1 keeps the whole distribution
    stop: tuple[str, ...] = ()  # the first of these ends the chunk and stays part of it
    seed: int = 0  # differs for each episode and turn

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.temperature < 0 or not 0 < self.top_p <= 1:
            raise ConfigurationError(
                f"sampling needs max_tokens >= 1, temperature >= 0 and 0 < top_p <= 1, not {self.max_tokens}, "
                f"{self.temperature} and {self.top_p}"
            )


class FinishReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"  # a stop string
    EOS = "eos"  # the end-of-turn token
    LENGTH = "length"  # max_tokens
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """The tokens of one turn of a policy."""

    prompt: int = 0
    """Number of tokens before the turn."""
    completion: int = 0
    """Number of tokens that the policy sampled."""
    truncated: bool = False
    """Whether a budget of tokens ended the turn, and not the policy."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What a policy sampled. ``ids`` is the record; ``text`` is derived from it.

    ``logprobs[i]`` is the natural log-probability of ``ids[i]`` under the sampling distribution (temperature applied).
    """

    ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish: FinishReason
    version: int = 0  # version of the weights
    exact_tokens: bool = True
    """False if the engine returned only text. ``ids`` then encode that text, and the log-probs are NaN."""
    versions: tuple[int, ...] = ()
    """Version of each id if the weights were updated while they were sampled; empty if ``version`` applies to all."""
    turn: AssistantTurn | None = None
    """The parsed turn, if a service (an endpoint) parses it; None if it is parsed from the text."""

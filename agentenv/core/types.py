"""The theory of agentenv in one file: what a task, a message, a step and a query are.

An environment shows a policy messages and takes text; a policy sees token ids and gives token ids; a retriever takes
queries and gives passages. Everything else in the package is built from these records, all of them immutable.
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
    PARSE_ERROR = (
        "parse_error"  # the policy's text could not be acted on and the environment gives no second chance
    )
    REFUSED = (
        "refused"  # the service of the policy's model refuses the conversation, as a content filter does
    )
    ENV_FAULT = "env_fault"  # ours: the environment broke; the sample is masked
    POLICY_FAULT = "policy_fault"  # ours: the engine broke; the sample is masked
    ABORTED = "aborted"  # stopped from outside

    @property
    def is_fault(self) -> bool:
        """Whether the end is ours, so that no reward may be read from the episode."""
        return self in (EndReason.ENV_FAULT, EndReason.POLICY_FAULT, EndReason.ABORTED)


class ToolStatus(StrEnum):
    """How one tool call went."""

    OK = "ok"
    ERROR = "error"  # the tool ran and says that the call was wrong
    TIMEOUT = "timeout"  # the policy's own work took too long
    FORMAT_ERROR = "format_error"  # the call could not be parsed
    ENV_FAULT = "env_fault"  # ours


class StateCapability(IntEnum):
    """How much of an environment ``snapshot`` captures; each level includes the ones below."""

    NONE = 0
    REPLAY = 1  # reset with the same seed and repeat the actions; observation hashes are checked
    MEMORY = 2  # the Python state of the environment
    FILES = 3  # a file tree too
    PROCESS = 4  # a live process too


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
    """The name of the tool whose result this is; empty where no tool was called by name."""
    call_id: str = ""
    """The id of the call that this answers."""
    calls: tuple[NativeCall, ...] = ()
    """Tool calls of an earlier turn of the assistant, where a whole context shows it."""

    @property
    def text(self) -> str:
        """The textual part of the content."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


Observation = tuple[Message, ...]


def is_context(observation: Observation) -> bool:
    """Whether ``observation`` replaces all that was said before: it begins with a system message, which may be empty."""
    return bool(observation) and observation[0].role == "system"


def as_shown(context: Observation) -> Observation:
    """A whole context without the empty system message that only marks it as one."""
    return context[1:] if is_context(context) and not context[0].text else context


class Step(NamedTuple):
    """What ``Env.step`` returns; unpacks as Gymnasium's five."""

    observation: Observation  # new since the last action; a whole context where `is_context`
    reward: float  # reward of this turn
    terminated: bool  # the task itself ended
    truncated: bool  # a budget of ours ended it
    info: Info  # always "turn", "tool_results", "valid"; at the end "end_reason"


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of one tool call, typed so that nobody has to search its text."""

    name: str
    status: ToolStatus
    text: str = ""
    error_class: str = ""  # for example "ZeroDivisionError"; empty when status is ok
    data: Mapping[str, Any] = field(default_factory=dict)  # for example the ids of retrieved passages


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to do: a question with its accepted answers, or a prompt."""

    id: str
    question: str
    answers: tuple[str, ...] = ()
    split: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)  # for example "supporting_ids", "hops", "family"


@dataclass(frozen=True, slots=True)
class QueryContext:
    """What a contextual retriever (a simulator, a cassette) may know about the episode that asks."""

    episode: str
    question: str = ""
    answers: tuple[str, ...] = ()
    step: int = 0
    split: str = ""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Query:
    """A search; a plain ``str`` stands for ``Query(text)`` wherever queries are taken."""

    text: str
    context: QueryContext | None = None


@dataclass(frozen=True, slots=True)
class Document:
    """One row of a corpus."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Passage:
    """A document as one search returned it."""

    id: str
    title: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class RetrieverInfo:
    """What a retriever says about itself; stands in every results file."""

    name: str
    documents: int
    fingerprint: str  # changes whenever results may change
    contextual: bool = False  # results depend on the context: never cached or shared across contexts


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw tokens."""

    max_tokens: int
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0  # 1 keeps the whole distribution
    stop: tuple[str, ...] = ()  # the first of these ends the chunk and stays part of it
    seed: int = 0  # per episode and turn

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
    """What a policy sampled. ``ids`` is the record; ``text`` is a view of it.

    ``logprobs[i]`` is the natural log-probability of ``ids[i]`` under the sampling distribution (temperature applied).
    """

    ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    finish: FinishReason
    version: int = 0  # of the weights
    exact_tokens: bool = True
    """False where the engine gave text alone: ``ids`` are a coding of it and no log-prob is known (NaN)."""
    versions: tuple[int, ...] = ()
    """Version of each id where an update came while they were sampled; empty where ``version`` is that of all."""
    turn: AssistantTurn | None = None
    """What the policy said, where a service reads it (an endpoint); None where it is read from the text."""

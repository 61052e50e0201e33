"""An agent of your own as a policy: any function from the messages of an episode to the next action, for evaluation alone.

Such an agent shows no tokens. An episode records each message under one id of a table that the policy keeps, marked
``exact_tokens=False``: it can be read, scored and counted, and training on it is refused (`Trajectory.loss_mask`).
"""

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agentenv.core.concurrency.threads import DaemonThreads
from agentenv.core.io.digests import value_digest
from agentenv.core.registry import describe_error
from agentenv.core.types import Completion, FinishReason, Message, Sampling
from agentenv.errors import ConfigurationError, PolicyFault
from agentenv.policies.endpoint_formats import content_of
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.openai import restored
from agentenv.policies.wires import Reply

AGENT = "agent:"
"""How the names of agents begin in results."""

Agent = Callable[[list[dict[str, Any]]], str | Awaitable[str]]
"""``act(messages)`` gives the next action as text; plain or ``async``. Each message is a dict with ``role`` and ``content``,
as chat endpoints take them: a text, or a list of parts of the types ``text`` and ``image_url`` where there are pictures."""


class MessageTable:
    """A chat format in which every message is one id: its place in a table.

    What a tool said goes in the user's name, as the role ``tool`` needs calls by id, which tags do not have.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._ids: dict[Message, int] = {}

    def id_of(self, message: Message) -> int:
        """The id of ``message``; equal messages have one id."""
        if message not in self._ids:
            self._ids[message] = len(self._messages)
            self._messages.append(message)
        return self._ids[message]

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """One id a message."""
        return [self.id_of(message) for message in messages]

    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """``ids`` and one more for each message."""
        return [*ids, *self.prompt(messages)]

    def closing(self, ids: Sequence[int]) -> list[int]:
        """Nothing: an action is a whole message."""
        return []

    def conversation(self, ids: Sequence[int]) -> list[dict[str, Any]]:
        """The messages of ``ids`` as chat endpoints take them."""
        return [_as_sent(self._messages[i]) for i in ids]


def _as_sent(message: Message) -> dict[str, Any]:
    return {"role": "user" if message.role == "tool" else message.role, "content": content_of(message)}


class AgentPolicy:
    """Asks a function for every action.

    Args:
        act: the agent.
        threads: calls of a plain function that may run at a time; coroutines run on the loop of the evaluation.

    Raises:
        ConfigurationError: ``act`` cannot be called.
    """

    version = 0
    tokenizer = ByteTokenizer()
    """For the length of observations, which environments cut; no text is ever encoded for the agent."""

    def __init__(self, act: Agent, *, threads: int = 1) -> None:
        if not callable(act):
            raise ConfigurationError(
                f"an agent is a function from messages to text, not {type(act).__name__}"
            )
        self.act = act
        self.chat = MessageTable()
        self._threads = DaemonThreads(threads, "agentenv-agent")

    @property
    def is_async(self) -> bool:
        """Whether calls of it are coroutines, of which many may be under way."""
        called = (self.act, getattr(type(self.act), "__call__", None))  # noqa: B004 (an object may define it)
        return any(map(inspect.iscoroutinefunction, called))

    @property
    def name(self) -> str:
        """The name of the agent in results."""
        named = self.act if hasattr(self.act, "__qualname__") else type(self.act)
        return f"{AGENT}{named.__module__}.{named.__qualname__}"

    @property
    def digest(self) -> str:
        """The digest of the agent's source, as far as it can be read: a folder is not continued with another agent."""
        try:
            return value_digest(
                inspect.getsource(self.act if inspect.isroutine(self.act) else type(self.act))
            )
        except (OSError, TypeError):  # built in, or typed into an interpreter
            return self.name

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        """The agent's next action, cut where the environment's actions end.

        Raises:
            PolicyFault: the agent raised an exception, or gave something else than text.
        """
        try:
            given = await self._ask(self.chat.conversation(prompt_ids))
        except Exception as error:
            raise PolicyFault(f"the agent raised {describe_error(error)}") from error
        if not isinstance(given, str):
            raise PolicyFault(f"the agent gave {given!r:.80} of type {type(given).__name__}, not a text")
        text, _ = restored(Reply(given, "stop"), sampling.stop)
        ids = (self.chat.id_of(Message("assistant", text)),)
        return Completion(ids, text, (math.nan,), FinishReason.EOS, self.version, exact_tokens=False)

    async def _ask(self, messages: list[dict[str, Any]]) -> Any:
        if self.is_async:
            given: Any = self.act(messages)
        else:
            given = await asyncio.get_running_loop().run_in_executor(self._threads, self.act, messages)
        return await given if inspect.isawaitable(given) else given

    def release(self, episode: str) -> None:
        """Nothing is kept for an episode."""

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        """Refuses, because an agent gives no log-probs.

        Raises:
            ConfigurationError: always: an agent gives no log-probs.
        """
        raise ConfigurationError(f"{self.name} gives no log-probs; score with hf:PATH")

    def close(self) -> None:
        """Ends its threads; nobody waits for a call that is under way."""
        self._threads.shutdown()

"""Language models that are asked in messages, wherever they run, and a file that keeps what they replied."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from agentenv.core.chat import InlineFormat
from agentenv.core.io.cassette import Cassette
from agentenv.core.protocols import Policy
from agentenv.core.types import Message, Sampling
from agentenv.policies.endpoint import Chat, ChatClient, ChatOptions
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.policies.policy_spec import is_endpoint, make_policy
from agentenv.policies.wires import ChatMessage, Reply

_DEFAULTS: dict[str, Any] = {"temperature": 0.0, "top_p": 1.0, "stop": (), "seed": None}


class PolicyChat:
    """A policy in this process behind the interface of a chat model.

    Args:
        policy: The policy that answers; has a tokenizer.
        model: Its name.
    """

    def __init__(self, policy: Policy, model: str) -> None:
        self._policy, self.model = policy, model
        self._format = InlineFormat(policy.tokenizer)  # type: ignore[attr-defined]

    async def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> Reply:
        """One reply.

        Raises:
            PolicyFault: the policy failed.
            ContextTooSmall: the messages alone fill the context.
        """
        ids = self._format.prompt([Message(message["role"], message["content"]) for message in messages])
        sampling = Sampling(max_tokens, temperature, top_p, tuple(stop), seed or 0)
        completion = await self._policy.generate(ids, sampling)
        return Reply(completion.text, completion.finish.value)


class RecordedChat:
    """Keeps every reply of a model in a file, so that work which was interrupted asks nothing twice.

    Args:
        chat: Asked what the file lacks.
        path: The file; one that exists must hold replies of the same model.

    Raises:
        ConfigurationError: the file holds replies of another model, is something else, or cannot be written.
    """

    def __init__(self, chat: Chat, path: Path) -> None:
        self._chat = chat
        self._tape = Cassette.record(path, {"model": chat.model})

    @property
    def model(self) -> str:
        """Name of the model."""
        return self._chat.model

    async def complete(self, messages: Sequence[ChatMessage], **options: Unpack[ChatOptions]) -> Reply:
        """The reply in the file, else that of the model.

        Raises:
            Fault: the model gave no reply; nothing is kept then.
            ConfigurationError: the model is not configured as it should be.
        """

        async def ask() -> list[str]:
            reply = await self._chat.complete(messages, **options)
            return [reply.text, reply.finish]

        request = {"messages": [dict(m) for m in messages], **_DEFAULTS, **options}
        text, finish = await self._tape.play(request, ask)
        return Reply(text, finish)


def make_chat(spec: str) -> Chat:
    """The model that ``spec`` names, behind an endpoint or in this process.

    Args:
        spec: ``openai:MODEL@URL#options``, ``anyllm:PROVIDER/MODEL``, ``hf:PATH`` or ``tiny``.

    Raises:
        UnknownName: no such kind of policy.
        ConfigurationError: no such address, service or option.
        MissingExtra: what it needs is not installed.
        CheckpointMismatch: the folder holds no model.
    """
    return ChatClient(Endpoint.of(spec)) if is_endpoint(spec) else PolicyChat(make_policy(spec), spec)


class ChatModels:
    """The models that a command asks, each opened once even if it has several tasks.

    Args:
        replies: Folder with one file of replies for each model (see `RecordedChat`); None keeps none.
    """

    def __init__(self, replies: Path | None = None) -> None:
        self._replies = replies
        self._opened: dict[str, Chat] = {}
        self._asked: dict[str, Chat] = {}

    def open(self, spec: str) -> Chat:
        """The model that ``spec`` names, see `make_chat`.

        Raises:
            AgentEnvError: it cannot be opened, or the file holds replies of another model.
        """
        if spec not in self._opened:
            self._asked[spec] = chat = make_chat(spec)
            if self._replies is not None:
                chat = RecordedChat(chat, self._replies / f"replies-{len(self._opened) + 1}.jsonl")
            self._opened[spec] = chat
        return self._opened[spec]

    def usage(self) -> dict[str, Any]:
        """What each endpoint was asked, by its name; a model in this process counts nothing."""
        return {
            chat.model: chat.usage_report() for chat in self._asked.values() if isinstance(chat, ChatClient)
        }

"""A policy behind an OpenAI-compatible chat endpoint: text in, text out.

Such an endpoint shows neither the ids that it sampled nor their log-probs. What is recorded is a coding of the
text, marked ``exact_tokens=False``: an episode can be read, scored and counted, and training on it is refused
(`Trajectory.loss_mask`). Budgets in tokens are estimates; what was really used is in ``client.usage``.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

from agentenv.core.types import Completion, FinishReason, Message, Role, Sampling
from agentenv.errors import ConfigurationError, EndpointFault, PolicyFault
from agentenv.policies.card import EpisodeCard
from agentenv.policies.endpoint import ChatClient, Reply

END = 0
_ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")  # the id of a role is its place from 1
_FIRST_PIECE = 256  # below are marks; a piece has a leading byte of 1 before its own bytes
_PIECE = re.compile(rb" ?[0-9A-Za-z\x80-\xff]{1,6}|[^0-9A-Za-z\x80-\xff]{1,3}")


class PieceTokenizer:
    """Cuts text into pieces of at most seven bytes, about as many as a real tokenizer would.

    An id holds the bytes of its piece, so that decoding needs no vocabulary and gives exactly what went in.
    """

    chat_template = None
    eos_token = ""
    eos_token_id = END

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        """The ids of ``text``; no text can give the id of a mark."""
        data = text.encode(errors="replace")  # half a surrogate pair is no character
        return [int.from_bytes(b"\x01" + piece, "big") for piece in _PIECE.findall(data)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids`` without marks; a cut character becomes U+FFFD."""
        pieces = (i.to_bytes((i.bit_length() + 7) // 8, "big")[1:] for i in ids if i >= _FIRST_PIECE)
        return b"".join(pieces).decode(errors="replace")


class MessageFormat:
    """A conversation as ids: a mark for the role, the text, a mark for the end."""

    def __init__(self) -> None:
        self._tokenizer = PieceTokenizer()

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The messages, then the mark of the assistant's turn."""
        return self.extend([], messages)

    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """``ids``, the messages, and the mark of the assistant's turn."""
        added: list[int] = []
        for message in messages:
            added += [_mark(message.role), *self._tokenizer.encode(message.text), END]
        return [*ids, *added, _mark("assistant")]

    def closing(self, ids: Sequence[int]) -> list[int]:
        """The end of the assistant's turn where it is still open."""
        return [] if ids and ids[-1] == END else [END]

    def messages(self, ids: Sequence[int]) -> list[dict[str, str]]:
        """The conversation of ``ids`` as an endpoint takes it, without the open turn.

        What a tool said goes in the user's name: the role ``tool`` needs calls by id, which tags do not have.
        """
        found: list[dict[str, str]] = []
        start = 0
        for place, i in enumerate(ids):
            if 0 < i <= len(_ROLES):
                start = place
            elif i == END:
                role = _ROLES[ids[start] - 1]
                text = self._tokenizer.decode(ids[start:place])
                found.append({"role": "user" if role == "tool" else role, "content": text})
        return found


def _mark(role: Role) -> int:
    return _ROLES.index(role) + 1


class OpenAIPolicy:
    """Asks a chat endpoint for every turn; for evaluation only."""

    version = 0

    def __init__(self, client: ChatClient) -> None:
        self.client = client
        self.tokenizer = PieceTokenizer()
        self.chat = MessageFormat()

    @property
    def card(self) -> EpisodeCard:
        """How it is asked: with room for a model that thinks at length."""
        endpoint = self.client.endpoint
        return EpisodeCard(turn_tokens=endpoint.turn_tokens, context_tokens=endpoint.context_tokens)

    @property
    def context_tokens(self) -> int:
        """The bound of an episode; the endpoint itself says when its own is reached."""
        return self.client.endpoint.context_tokens

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        """The model's next turn; its stop string, which an endpoint leaves out, is put back.

        Raises:
            PolicyFault: the endpoint failed.
            ContextTooSmall: the conversation does not fit the model's context.
            ConfigurationError: the endpoint refuses the key or has no such model.
        """
        try:
            reply = await self.client.complete(
                self.chat.messages(prompt_ids),
                max_tokens=sampling.max_tokens,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                stop=sampling.stop,
                seed=sampling.seed % 2**31,
            )
        except EndpointFault as error:
            raise PolicyFault(str(error)) from error
        text, finish = restored(reply, sampling.stop)
        ids = self.tokenizer.encode(text)
        if finish is FinishReason.EOS:
            ids.append(END)
        return Completion(tuple(ids), text, (math.nan,) * len(ids), finish, self.version, exact_tokens=False)

    def release(self, episode: str) -> None:
        """Nothing is kept."""

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        """Refuses.

        Raises:
            ConfigurationError: always: an endpoint gives no log-probs of given tokens.
        """
        raise ConfigurationError(f"{self.client.model} gives no log-probs; score with hf:PATH.")

    def usage(self) -> dict[str, Any]:
        """Requests and tokens so far."""
        return self.client.usage_report()


def restored(reply: Reply, stops: Sequence[str]) -> tuple[str, FinishReason]:
    """The text with the stop string that ended it, and why it ended.

    Most endpoints cut the stop string off and do not say which it was. A closing tag is put back where its
    own tag was opened last and is still open; without such a tag the turn simply ended. A stop string that an
    endpoint left in the text cuts it.
    """
    ends = [reply.text.index(stop) + len(stop) for stop in stops if stop in reply.text]
    if ends:
        return reply.text[: min(ends)], FinishReason.STOP
    if reply.finish == "length":
        return reply.text, FinishReason.LENGTH
    if reply.stop in stops:
        return f"{reply.text}{reply.stop}", FinishReason.STOP
    opened = {stop: reply.text.rfind(stop.replace("</", "<", 1)) for stop in stops if stop.startswith("</")}
    last = max(opened, key=lambda stop: opened[stop], default="")
    if reply.finish == "stop" and last and opened[last] >= 0:
        return reply.text + last, FinishReason.STOP
    return reply.text, FinishReason.EOS

"""A policy behind an endpoint: text in, text out.

Such an endpoint shows neither the ids that it sampled nor their log-probs. What is recorded is a coding of the
text, marked ``exact_tokens=False``: an episode can be read, scored and counted, and training on it is refused
(`Trajectory.loss_mask`). Budgets in tokens are estimates; what was really used is in ``client.usage``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentenv.core.action_turns import action_text
from agentenv.core.assistant_turns import AssistantTurn
from agentenv.core.env_outputs import TOKEN_CHARS
from agentenv.core.model_families import without_thinking
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import ConfigurationError, EndpointFault, EndpointRefusal, PolicyFault, PolicyRefusal
from agentenv.policies.card import EpisodeCard
from agentenv.policies.endpoint import ChatClient
from agentenv.policies.endpoint_formats import END, MessageFormat, PieceTokenizer, ToolFormat
from agentenv.policies.wires import Reply

_FINISHES = {"length": FinishReason.LENGTH}
_THOUGHT, _THOUGHT_OUT = "<think>", "</think>"


class OpenAIPolicy:
    """Asks a model behind an endpoint for every turn; for evaluation only.

    Args:
        client: Sends the requests.
        chat: How a conversation is sent: `ToolFormat` declares tools and reads calls. None sends messages of text and
            pictures, in which tools are called by the tags of the environment.
    """

    version = 0

    def __init__(self, client: ChatClient, chat: MessageFormat | ToolFormat | None = None) -> None:
        self.client = client
        self.tokenizer = PieceTokenizer()
        self.chat: MessageFormat | ToolFormat = chat or MessageFormat(images=client.endpoint.images)

    def in_format(self, name: str, family: str, template_options: Mapping[str, Any]) -> "OpenAIPolicy":
        """The same model, asked in the format ``native``, or by messages of text in ``inline`` and ``template`` alike.

        Raises:
            ConfigurationError: a model family is named, which a service decides itself, or options go where none are heeded.
        """
        endpoint = self.client.endpoint
        if family:
            raise ConfigurationError(
                f"the family {family!r} cannot be chosen for {self.client.model}: the service itself renders and reads"
            )
        if template_options and (endpoint.provider or endpoint.wire != "chat"):
            raise ConfigurationError(
                f"the template option {min(template_options)!r} needs a server that renders a chat template (wire=chat of "
                "openai:MODEL@URL); what other services take are the options behind the # of the policy"
            )
        if name != "native":
            return OpenAIPolicy(self.client)
        chat = ToolFormat(
            images=endpoint.images,
            sends_reasoning=endpoint.send_reasoning,
            template_options=template_options,
        )
        return OpenAIPolicy(self.client, chat)

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
            PolicyRefusal: a content filter of the service refuses the conversation.
            PolicyFault: the endpoint failed.
            ContextTooSmall: the conversation does not fit the model's context.
            ConfigurationError: the endpoint refuses the key or has no such model.
        """
        try:
            reply = await self._ask(prompt_ids, sampling)
        except EndpointRefusal as error:
            raise PolicyRefusal(str(error)) from error
        except EndpointFault as error:
            raise PolicyFault(str(error)) from error
        reply, turn = bounded(reply, sampling.max_tokens), None
        if isinstance(self.chat, ToolFormat):
            turn = _turn_of(reply)
            text, finish = action_text(turn), _FINISHES.get(reply.finish, FinishReason.EOS)
        else:
            text, finish = restored(reply, sampling.stop)
        ids = self.tokenizer.encode(text)
        if finish is FinishReason.EOS:
            ids.append(END)
        logprobs = (math.nan,) * len(ids)
        return Completion(tuple(ids), text, logprobs, finish, self.version, exact_tokens=False, turn=turn)

    async def _ask(self, prompt_ids: Sequence[int], sampling: Sampling) -> Reply:
        declared: dict[str, Any] = {}
        if isinstance(self.chat, ToolFormat):
            conversation = self.chat.conversation(prompt_ids)
            messages = self.chat.messages(conversation)
            declared = {"tools": conversation.tools, "template_options": self.chat.template_options}
        else:
            messages = self.chat.messages(prompt_ids)
        return await self.client.complete(
            messages,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            stop=sampling.stop,
            seed=sampling.seed % 2**31,
            **declared,
        )

    def release(self, episode: str) -> None:
        """Nothing is kept."""

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        """Refuses to score.

        Raises:
            ConfigurationError: always: an endpoint gives no log-probs of given tokens.
        """
        raise ConfigurationError(f"{self.client.model} gives no log-probs; score with hf:PATH.")

    def usage(self) -> dict[str, Any]:
        """Requests and tokens so far."""
        return self.client.usage_report()


def bounded(reply: Reply, max_tokens: int) -> Reply:
    """A reply cut where so many tokens end at the latest: a service that disregards the bound may send megabytes.

    What is cut holds no calls any more, as they stand at the end of a turn. Thinking has as much room again.
    """
    most = TOKEN_CHARS * max_tokens
    reply = replace(reply, reasoning=reply.reasoning[:most])
    said = action_text(replace(_turn_of(reply), thinking=None))
    if len(said) <= most and len(reply.text) <= 2 * most:
        return reply
    text = reply.text[:most]
    message = {"role": "assistant", "content": text} if text else None
    return Reply(text, "length", None, reply.reasoning, (), message)


def _turn_of(reply: Reply) -> AssistantTurn:
    """The turn of a reply, whose thinking stands in its text where a server of open models does not take it out of there."""
    thinking, text = reply.reasoning or None, reply.text
    if thinking is None:
        # Where the chat template has opened the thinking, the model writes the end of it alone.
        opened = _THOUGHT not in text.partition(_THOUGHT_OUT)[0] and _THOUGHT_OUT in text
        thinking, text, _ = without_thinking(text, opened, _THOUGHT, _THOUGHT_OUT)
    return AssistantTurn(thinking, text.strip(), reply.calls, as_sent=reply.message)


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

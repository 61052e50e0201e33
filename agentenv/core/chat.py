"""How messages become token ids. Both formats only append: ids that were already fed or sampled never change."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

from agentenv.core.images import ImageReader, expanded, images_of, refuse_images
from agentenv.core.model_families import family_of
from agentenv.core.template_dates import dated_template, template_of
from agentenv.core.token_texts import (
    control_tokens,
    defused,
    encode,
    encode_after,
    encode_first,
    normaliser,
)
from agentenv.core.types import Message
from agentenv.errors import ConfigurationError, first_line

_PROBE_TEXT = "Tuvq7."  # a text that no chat template contains
_OPENING: list[dict[str, Any]] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
TEXT_ALONE = (
    "the policy reads text alone: take a vision-language model (Qwen2-VL, Qwen2.5-VL, Qwen3-VL) whose folder has its "
    "preprocessor_config.json, or set the environment's option pixels=false"
)
"""The error's explanation if a message has an image and the chat format has no ``ImageReader``."""
_TEMPLATE_ADVICE = "save one that takes these messages in the folder of the tokenizer, or take another model"
_INLINE_ADVICE = (
    "the format 'inline' has no place for one: use the format 'template' or 'native', or pixels=false"
)


Defuse = Callable[[str], str]
"""A function that makes the control tokens in a text unreadable to the tokenizer."""


def _plain(messages: Sequence[Message], defuse: Defuse) -> list[dict[str, Any]]:
    return [{"role": message.role, "content": content_of(message, defuse)} for message in messages]


def content_of(message: Message, defuse: Defuse) -> str | list[dict[str, str]]:
    """Returns ``message`` as a chat template expects its content: text, or a list of parts if it has images.

    Args:
        message: The message to show.
        defuse: Applied to each text before the template gets it.
    """
    if isinstance(message.content, str) or not images_of([message]):
        return defuse(message.text)
    parts: list[dict[str, str]] = []
    for kind, run in groupby(message.content, key=lambda part: part.kind):
        if kind == "image":
            parts += [{"type": "image"} for _ in run]
        else:  # adjacent texts could together form a control token
            text = "".join(part.text for part in run)
            parts.append({"type": "text", "text": defuse(text)})
    return parts


def encode_with_images(
    tokenizer: Any, text: str, messages: Sequence[Any], reader: ImageReader | None
) -> list[int]:
    """Encodes what a chat template rendered from ``messages``, with one placeholder for each token of an image.

    Raises:
        ConfigurationError: the template rendered another number of images than there are.
        EnvFault: an image cannot be read.
    """
    ids = encode(tokenizer, text)
    images = images_of(messages)
    return ids if reader is None or not images else expanded(ids, images, reader)


class InlineFormat:
    """The format of Search-R1: the whole episode is one assistant turn, and observations are inserted into it.

    The chat template is applied to the opening messages whenever the tokenizer has one, base models included:
    without it a base model loses about 8 points of exact match.
    """

    def __init__(self, tokenizer: Any, *, unread: bool = False) -> None:
        """Keeps the tokenizer, and encodes nothing yet.

        Args:
            tokenizer: The tokenizer of the policy.
            unread: Whether the policy ignores its prompts, as a scripted policy does. Images are then left out of them.
        """
        self._tokenizer = tokenizer
        self._defuse = partial(defused, control=control_tokens(tokenizer), normalise=normaliser(tokenizer))
        self._unread = unread

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Encodes the opening messages with the chat template, followed by the header of the assistant turn.

        Without a template, the messages are plain text after the tokenizer's beginning-of-sequence token (``<s>`` of Llama).

        Raises:
            ConfigurationError: one of them has an image, or the template refuses or drops one.
        """
        self._refuse(messages)
        if self._tokenizer.chat_template is None:
            text = "\n\n".join(message.text for message in messages) + "\n"
            return encode_first(self._tokenizer, self._defuse(text))
        return encode(self._tokenizer, _rendered_whole(self._tokenizer, _plain(messages, self._defuse)))

    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Returns ``ids`` followed by the text of the observation, with nothing around it.

        Raises:
            ConfigurationError: the observation has an image.
        """
        self._refuse(messages)
        text = self._defuse("".join(message.text for message in messages))
        return [*ids, *encode_after(self._tokenizer, text)]

    def _refuse(self, messages: Sequence[Message]) -> None:
        if not self._unread:
            refuse_images(messages, _INLINE_ADVICE)

    def closing(self, ids: Sequence[int]) -> list[int]:
        """Returns an empty list: the assistant turn stays open."""
        return []


class TemplateFormat:
    """The tokenizer's chat template with one assistant turn for each action; observations are messages of their own.

    The text around an observation is found by rendering a short made-up conversation with and without it and taking the
    difference. So any template works that renders earlier turns in the same way whatever follows them.
    """

    def __init__(
        self, tokenizer: Any, ends: Collection[int] = (), *, image_reader: ImageReader | None = None
    ) -> None:
        """Checks the template.

        Args:
            tokenizer: A tokenizer with a chat template.
            ends: Further ids, besides the template's own, with which the policy may end a turn.
            image_reader: The image reader of the policy; None if the policy reads text only.

        Raises:
            ConfigurationError: the tokenizer has no chat template or no end-of-turn token.
        """
        end = end_of_turn(tokenizer)
        end = tokenizer.eos_token_id if end is None else end
        if tokenizer.chat_template is None or end is None:
            raise ConfigurationError(
                "this tokenizer has no chat template or no end-of-turn token; use the inline format"
            )
        self._tokenizer = tokenizer
        self._end = end
        self._mark = tokenizer.eos_token if end == tokenizer.eos_token_id else tokenizer.decode([end])
        self._ends = {end, *ends}
        control = control_tokens(tokenizer, image_reader)
        self._defuse = partial(defused, control=control, normalise=normaliser(tokenizer))
        self.image_reader = image_reader

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Encodes the opening messages, followed by the header of the first assistant turn.

        Raises:
            ConfigurationError: the policy or its template cannot show an image among them, or the template refuses or drops
                a message.
            EnvFault: an image cannot be read.
        """
        self._refuse(messages)
        text = _rendered_whole(self._tokenizer, _plain(messages, self._defuse))
        return encode_with_images(self._tokenizer, text, messages, self.image_reader)

    def _refuse(self, messages: Sequence[Message]) -> None:
        if self.image_reader is None:
            refuse_images(messages, TEXT_ALONE)

    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """Returns ``ids``, which end with the end-of-turn token, then the observation and the header of the next turn.

        Raises:
            ConfigurationError: the template changes earlier turns when a message follows, ends them with something other
                than its end-of-turn token, refuses or drops a message, or cannot show its image.
            EnvFault: an image cannot be read.
        """
        self._refuse(messages)
        before = _render(self._tokenizer, _OPENING, open_assistant=False)
        form = self._in_known_roles(_plain(messages, self._defuse))
        after = _rendered_whole(self._tokenizer, [*_OPENING, *form])
        end = self._mark
        head = before[: before.rfind(end) + len(end)]
        if end not in before or not after.startswith(head):
            raise ConfigurationError(
                "the chat template rewrites an earlier turn when a message follows it, or does not end it "
                f"with {end!r}; use the format 'native' or 'inline'"
            )
        # The end-of-turn text is encoded together with what follows: some tokens absorb the white space after them, and some
        # tokenizers put a space before a text that is encoded alone.
        rest = self._mark + after[len(head) :]
        return [*ids, *encode_with_images(self._tokenizer, rest, messages, self.image_reader)[1:]]

    def _in_known_roles(self, form: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Turns tool results into user messages if the template cannot show a result without a native call."""
        if all(message["role"] != "tool" for message in form) or self._shows_tools():
            return form
        return [message | {"role": "user"} if message["role"] == "tool" else message for message in form]

    def _shows_tools(self) -> bool:
        try:
            _rendered_whole(self._tokenizer, [*_OPENING, {"role": "tool", "content": _PROBE_TEXT}])
        except ConfigurationError:
            return False
        return True

    def closing(self, ids: Sequence[int]) -> list[int]:
        """Returns the template's end-of-turn token if the policy did not sample a token that ends the turn."""
        return [] if ids and ids[-1] in self._ends else [self._end]


def end_of_turn(tokenizer: Any) -> int | None:
    """Returns the token with which the chat template ends an assistant's turn; None without a template or such a token.

    It may differ from the tokenizer's ``eos_token``, for example in base models that ship the template of their chat models.
    """
    if tokenizer.chat_template is None:
        return None
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": _PROBE_TEXT}]
    try:
        tail = _render(tokenizer, said, open_assistant=False).rpartition(_PROBE_TEXT)[2]
    except ConfigurationError:  # reported later, when the template is used
        return None
    special = {tokenizer.eos_token_id, *getattr(tokenizer, "all_special_ids", ())}
    special |= set(getattr(tokenizer, "added_tokens_decoder", ()))
    return next((i for i in encode(tokenizer, tail) if i in special), None)


def ends_of_turn(tokenizer: Any, generation_config: Any = None) -> tuple[int, ...]:
    """Returns every id that ends a turn: those of the tokenizer, the template, ``generation_config`` and the model family.

    Args:
        tokenizer: A transformers tokenizer.
        generation_config: The model's generation config, whose ``eos_token_id`` is an id or a list of ids; None if it has
            none.
    """
    named = getattr(generation_config, "eos_token_id", None)
    known = named if isinstance(named, list | tuple) else [named]
    found = dict.fromkeys((tokenizer.eos_token_id, end_of_turn(tokenizer), *known, *_family_ends(tokenizer)))
    return tuple(end for end in found if end is not None)


def _family_ends(tokenizer: Any) -> list[int]:
    """Returns further ids with which models of this family end a turn, such as the token after a tool call."""
    template, ids = tokenizer.chat_template, getattr(tokenizer, "added_tokens_encoder", {})
    if isinstance(template, Mapping):
        template = template.get("default")
    names = family_of(template).ends if template else ()
    return [ids[name] for name in names if name in ids]


def _rendered_whole(tokenizer: Any, messages: list[dict[str, Any]]) -> str:
    """Renders the conversation up to the place where the assistant writes.

    Raises:
        ConfigurationError: the template refuses the conversation or drops a message.
    """
    text = _render(tokenizer, messages, open_assistant=True)
    for place, message in enumerate(messages):
        said = message["content"]
        if not isinstance(said, str) or said.strip() in text:
            continue  # a probe text tells a message that the template rewrites from one that it drops
        probe = [*messages[:place], message | {"content": _PROBE_TEXT}, *messages[place + 1 :]]
        if _PROBE_TEXT not in _render(tokenizer, probe, open_assistant=True):
            raise ConfigurationError(
                f"the chat template leaves out a message of the role {message['role']!r}: {_TEMPLATE_ADVICE}"
            )
    return text


def _render(tokenizer: Any, messages: list[dict[str, Any]], *, open_assistant: bool) -> str:
    try:
        text: str = tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=open_assistant,
            **dated_template(template_of(tokenizer)),
        )
    except Exception as error:  # a template may raise any error
        roles = ", ".join(message["role"] for message in messages)
        raise ConfigurationError(
            f"the chat template refuses a conversation of the roles {roles} ({first_line(error)}): {_TEMPLATE_ADVICE}"
        ) from error
    return text


def cut_at_stop(
    ids: Sequence[int], decode: Callable[[Sequence[int]], str], stops: Sequence[str]
) -> tuple[int, str] | None:
    """Finds the first stop string in sampled tokens.

    Args:
        ids: The sampled tokens.
        decode: Decodes a sequence of tokens to text.
        stops: Stop strings; the one that ends first wins.

    Returns:
        The number of tokens up to and including the one that completes the stop string (truncate the log-probs to the same
        number), and the text up to the end of the stop string; None if no stop string occurs.
    """
    text = decode(ids)
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        return None
    end = min(ends)

    def complete(count: int) -> bool:
        return decode(ids[:count]).startswith(text[:end])

    # Usually the last token completes it. Otherwise a bisection is used, because removing one token at a time would take
    # quadratic time.
    last = len(ids) - 1
    count = bisect_left(range(last), True, lo=1, key=complete) if last and complete(last) else len(ids)
    return count, text[:end]

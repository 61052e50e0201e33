"""How messages become token ids. Both formats only append: ids that were fed or sampled stay as they are."""

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

_SAID = "Tuvq7."  # stands in no template
_OPENING: list[dict[str, Any]] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
TEXT_ALONE = (
    "the policy reads text alone: take a vision-language model (Qwen2-VL, Qwen2.5-VL, Qwen3-VL) whose folder has its "
    "preprocessor_config.json, or set the environment's option pixels=false"
)
"""Why an image is refused where a chat format has no ``ImageReader``."""
_OTHER_TEMPLATE = "save one that takes these messages in the folder of the tokenizer, or take another model"
_INLINE = "the format 'inline' has no place for one: use the format 'template' or 'native', or pixels=false"


Defuse = Callable[[str], str]
"""Takes the control tokens of a tokenizer out of a text."""


def _plain(messages: Sequence[Message], defuse: Defuse) -> list[dict[str, Any]]:
    return [{"role": message.role, "content": content_of(message, defuse)} for message in messages]


def content_of(message: Message, defuse: Defuse) -> str | list[dict[str, str]]:
    """What a chat template takes as the content of ``message``: its text, or a list of its parts where there is an image.

    Args:
        message: What is to be shown.
        defuse: Called with each text; what it returns is given to the template.
    """
    if isinstance(message.content, str) or not images_of([message]):
        return defuse(message.text)
    parts: list[dict[str, str]] = []
    for kind, run in groupby(message.content, key=lambda part: part.kind):
        if kind == "image":
            parts += [{"type": "image"} for _ in run]
        else:  # texts next to each other could make up a control token between them
            text = "".join(part.text for part in run)
            parts.append({"type": "text", "text": defuse(text)})
    return parts


def encode_with_images(
    tokenizer: Any, text: str, messages: Sequence[Any], reader: ImageReader | None
) -> list[int]:
    """The ids of what a chat template made of ``messages``, with as many placeholders as their images have tokens.

    Raises:
        ConfigurationError: the template shows fewer or more images than there are.
        EnvFault: an image cannot be read.
    """
    ids = encode(tokenizer, text)
    images = images_of(messages)
    return ids if reader is None or not images else expanded(ids, images, reader)


class InlineFormat:
    """Search-R1 style: the whole episode is one assistant turn and observations stand inline within it.

    The chat template is applied to the opening messages whenever the tokenizer has one, base models included:
    without it a base model loses about 8 points of exact match.
    """

    def __init__(self, tokenizer: Any, *, unread: bool = False) -> None:
        """Keeps the tokenizer, and encodes nothing yet.

        Args:
            tokenizer: Of the policy.
            unread: Whether nobody reads the prompts, as with a script that acts: images are then left out of them.
        """
        self._tokenizer = tokenizer
        self._defuse = partial(defused, control=control_tokens(tokenizer), normalise=normaliser(tokenizer))
        self._unread = unread

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The opening messages under the chat template, then the head of the assistant turn.

        Without a template they are plain text, behind the token with which the tokenizer begins a text (``<s>`` of Llama).

        Raises:
            ConfigurationError: there is an image among them, or the template refuses them or leaves one out.
        """
        self._refuse(messages)
        if self._tokenizer.chat_template is None:
            text = "\n\n".join(message.text for message in messages) + "\n"
            return encode_first(self._tokenizer, self._defuse(text))
        return encode(self._tokenizer, _rendered_whole(self._tokenizer, _plain(messages, self._defuse)))

    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """``ids``, then the text of the observation and nothing around it.

        Raises:
            ConfigurationError: there is an image in it.
        """
        self._refuse(messages)
        text = self._defuse("".join(message.text for message in messages))
        return [*ids, *encode_after(self._tokenizer, text)]

    def _refuse(self, messages: Sequence[Message]) -> None:
        if not self._unread:
            refuse_images(messages, _INLINE)

    def closing(self, ids: Sequence[int]) -> list[int]:
        """Nothing: the assistant turn stays open."""
        return []


class TemplateFormat:
    """One assistant turn per action, observations in messages of their own, by the tokenizer's template.

    The text around an observation is the difference between two renderings of a made-up conversation, so any
    template that renders earlier turns the same way whatever follows them can be used.
    """

    def __init__(
        self, tokenizer: Any, ends: Collection[int] = (), *, image_reader: ImageReader | None = None
    ) -> None:
        """Checks the template.

        Args:
            tokenizer: With a chat template.
            ends: Ids beside the template's own with which the policy may end a turn.
            image_reader: Of the policy; None where it reads text alone.

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
        """The opening messages, then the head of the first assistant turn.

        Raises:
            ConfigurationError: there is an image among them that the policy or its template cannot show, or the
                template refuses a message or leaves it out.
            EnvFault: an image cannot be read.
        """
        self._refuse(messages)
        text = _rendered_whole(self._tokenizer, _plain(messages, self._defuse))
        return encode_with_images(self._tokenizer, text, messages, self.image_reader)

    def _refuse(self, messages: Sequence[Message]) -> None:
        if self.image_reader is None:
            refuse_images(messages, TEXT_ALONE)

    def extend(self, ids: Sequence[int], messages: Sequence[Message]) -> list[int]:
        """``ids`` (which end with the end-of-turn token), then the observation and the head of the next turn.

        Raises:
            ConfigurationError: the template rewrites earlier turns when a message follows, or ends them with
                another mark than its end-of-turn token, or refuses a message, leaves it out or cannot show its image.
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
        # With the end of the turn before it: a token may take the white space behind it, and a text alone may get a space.
        rest = self._mark + after[len(head) :]
        return [*ids, *encode_with_images(self._tokenizer, rest, messages, self.image_reader)[1:]]

    def _in_known_roles(self, form: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Results of tools in the name of the user, where the template has no place for what answers no native call."""
        if all(message["role"] != "tool" for message in form) or self._shows_tools():
            return form
        return [message | {"role": "user"} if message["role"] == "tool" else message for message in form]

    def _shows_tools(self) -> bool:
        try:
            _rendered_whole(self._tokenizer, [*_OPENING, {"role": "tool", "content": _SAID}])
        except ConfigurationError:
            return False
        return True

    def closing(self, ids: Sequence[int]) -> list[int]:
        """The template's end-of-turn token where the policy sampled no end."""
        return [] if ids and ids[-1] in self._ends else [self._end]


def end_of_turn(tokenizer: Any) -> int | None:
    """The token with which the chat template ends an assistant's turn; None where there is no template or no such token.

    It may be another than the tokenizer's ``eos_token``, as with base models that have the template of their chat models.
    """
    if tokenizer.chat_template is None:
        return None
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": _SAID}]
    try:
        tail = _render(tokenizer, said, open_assistant=False).rpartition(_SAID)[2]
    except ConfigurationError:  # it is told of where the template is used
        return None
    special = {tokenizer.eos_token_id, *getattr(tokenizer, "all_special_ids", ())}
    special |= set(getattr(tokenizer, "added_tokens_decoder", ()))
    return next((i for i in encode(tokenizer, tail) if i in special), None)


def ends_of_turn(tokenizer: Any, generation_config: Any = None) -> tuple[int, ...]:
    """Every id that ends a turn: the tokenizer's, the template's, those of ``generation_config`` and the family.

    Args:
        tokenizer: A transformers tokenizer.
        generation_config: That of the model, whose ``eos_token_id`` is an id or a list of them; None where there is none.
    """
    named = getattr(generation_config, "eos_token_id", None)
    known = named if isinstance(named, list | tuple) else [named]
    found = dict.fromkeys((tokenizer.eos_token_id, end_of_turn(tokenizer), *known, *_family_ends(tokenizer)))
    return tuple(end for end in found if end is not None)


def _family_ends(tokenizer: Any) -> list[int]:
    """Ids with which models of the template's family end a turn, such as that behind a tool call."""
    template, ids = tokenizer.chat_template, getattr(tokenizer, "added_tokens_encoder", {})
    if isinstance(template, Mapping):
        template = template.get("default")
    names = family_of(template).ends if template else ()
    return [ids[name] for name in names if name in ids]


def _rendered_whole(tokenizer: Any, messages: list[dict[str, Any]]) -> str:
    """The conversation up to where the assistant speaks.

    Raises:
        ConfigurationError: the template refuses it, or leaves a message out.
    """
    text = _render(tokenizer, messages, open_assistant=True)
    for place, message in enumerate(messages):
        said = message["content"]
        if not isinstance(said, str) or said.strip() in text:
            continue  # one that a template writes in another way is told from one that it drops by a text of our own
        probe = [*messages[:place], message | {"content": _SAID}, *messages[place + 1 :]]
        if _SAID not in _render(tokenizer, probe, open_assistant=True):
            raise ConfigurationError(
                f"the chat template leaves out a message of the role {message['role']!r}: {_OTHER_TEMPLATE}"
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
    except Exception as error:  # a template raises whatever its author wrote
        roles = ", ".join(message["role"] for message in messages)
        raise ConfigurationError(
            f"the chat template refuses a conversation of the roles {roles} ({first_line(error)}): {_OTHER_TEMPLATE}"
        ) from error
    return text


def cut_at_stop(
    ids: Sequence[int], decode: Callable[[Sequence[int]], str], stops: Sequence[str]
) -> tuple[int, str] | None:
    """Where a chunk ends if a stop string occurs in it.

    Args:
        ids: The sampled tokens.
        decode: Text of a run of tokens.
        stops: Stop strings; the one that ends first wins.

    Returns:
        Number of tokens up to and including the one that completes the stop string (cut the log-probs to the
        same number), and the text cut right after the stop string; None where no stop string occurs.
    """
    text = decode(ids)
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        return None
    end = min(ends)

    def complete(count: int) -> bool:
        return decode(ids[:count]).startswith(text[:end])

    # Mostly the last token completes it. Where much follows, one token less at a time would take the square of its length.
    last = len(ids) - 1
    count = bisect_left(range(last), True, lo=1, key=complete) if last and complete(last) else len(ids)
    return count, text[:end]

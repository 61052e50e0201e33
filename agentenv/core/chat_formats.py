"""Constructs the chat formats by name."""

from collections.abc import Collection, Mapping
from typing import Any, Literal

from agentenv.core.chat import InlineFormat, TemplateFormat
from agentenv.core.images import ImageReader
from agentenv.core.native_format import NativeFormat
from agentenv.core.protocols import ChatFormat
from agentenv.errors import ConfigurationError

FormatName = Literal["inline", "template", "native"]


def make_chat_format(
    name: str,
    tokenizer: Any,
    ends: Collection[int] = (),
    *,
    family: str = "",
    template_options: Mapping[str, Any] | None = None,
    image_reader: ImageReader | None = None,
) -> ChatFormat:
    """Makes the chat format ``name``, which turns messages into token ids.

    Args:
        name: ``inline``, ``template`` or ``native``.
        tokenizer: The tokenizer of the policy.
        ends: Token ids with which the policy may end a turn.
        family: The model family, for ``native``; empty detects it from the chat template.
        template_options: Arguments of the chat template, for ``native``.
        image_reader: The image reader of the policy; None if the policy reads text only.

    Raises:
        ConfigurationError: the tokenizer's template cannot be used, or another format was given options of ``native``.
    """
    if name == "native":
        return NativeFormat(
            tokenizer, family=family, options=template_options, ends=ends, image_reader=image_reader
        )
    check_chat_options(name, family, template_options or {})
    if name == "inline":
        return InlineFormat(tokenizer)
    return TemplateFormat(tokenizer, ends, image_reader=image_reader)


def check_chat_options(name: str, family: str, template_options: Mapping[str, Any]) -> None:
    """Refuses options of the format ``native`` if another format is named, because it would ignore them.

    Raises:
        ConfigurationError: such options were given.
    """
    if name != "native" and (family or template_options):
        given = f"family {family!r}" if family else f"template option {min(template_options)!r}"
        raise ConfigurationError(
            f"the {given} applies to the format 'native' alone, and the format is {name!r}: leave it out"
        )

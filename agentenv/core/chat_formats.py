"""The chat formats by name."""

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
    """How messages become ids.

    Args:
        name: ``inline``, ``template`` or ``native``.
        tokenizer: Of the policy.
        ends: Ids with which the policy may end a turn.
        family: Of the model, for ``native``; empty reads it from the chat template.
        template_options: Arguments of the chat template, for ``native``.
        image_reader: Of the policy; None where it reads text alone.

    Raises:
        ConfigurationError: the tokenizer's template does not serve, or options of ``native`` are given to another format.
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
    """Refuses options of the format ``native`` where another one would not heed them.

    Raises:
        ConfigurationError: there are such options.
    """
    if name != "native" and (family or template_options):
        given = f"family {family!r}" if family else f"template option {min(template_options)!r}"
        raise ConfigurationError(
            f"the {given} applies to the format 'native' alone, and the format is {name!r}: leave it out"
        )

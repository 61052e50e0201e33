"""Converts the result of an MCP call for the policy: its texts, images if they are shown, and a description of the rest."""

import base64
import io
import json
from typing import Any

from agentenv.core.grammar import encodable
from agentenv.core.images import image_digest, opened_picture
from agentenv.core.tool_results import ImageResult
from agentenv.core.types import MessagePart, ToolResult, ToolStatus
from agentenv.envs.gui.screen import resized
from agentenv.errors import ConfigurationError, EnvFault, needs_extra

MOST_IMAGES = 16
"""Largest number of images in one result."""
_FORMATS = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/jpg": "JPEG",
    "image/webp": "WEBP",
    "image/gif": "GIF",
}
"""The image formats that are decoded, by the media type that the server names."""


def require_pillow() -> None:
    """Checks that images can be decoded, before the first one arrives.

    Raises:
        MissingExtra: pillow is not installed.
    """
    with needs_extra("gui", "pillow"):
        import PIL  # noqa: F401


def read_result(name: str, answer: Any, *, pixels: bool) -> ToolResult:
    """Makes the result of the tool ``name`` from the response of the server.

    A result with an image that cannot be shown becomes an error of the tool, which the policy sees. The policy may have
    caused it, so the episode must not be masked.

    Args:
        name: The name of the tool.
        answer: The result from the SDK.
        pixels: Whether images are shown; otherwise a text replaces each.
    """
    status, error_class = (ToolStatus.ERROR, "ToolError") if answer.is_error else (ToolStatus.OK, "")
    count = sum(_image(block) is not None for block in answer.content) if pixels else 0
    if not count:
        return ToolResult(name, status, shown(answer), error_class)
    try:
        if count > MOST_IMAGES:
            raise ConfigurationError(f"there are {count}, and {MOST_IMAGES} is the most")
        parts = tuple(map(_part, answer.content))
    except (ConfigurationError, EnvFault, ValueError) as error:
        text = f"the images of the result cannot be shown: {error}"
        return ToolResult(name, ToolStatus.ERROR, encodable(text), "ImageError")
    # This text is for comparing results; `rendered` shows the parts to a policy.
    text = "\n".join(part.text or f"[image {image_digest(part.image)}]" for part in parts)
    return ImageResult(name, status, text, error_class, parts=parts)


def shown(answer: Any) -> str:
    """Returns the result as text. If it has no content, its structured form is used."""
    parts = [_text(block) for block in answer.content]
    if not parts and answer.structured_content is not None:
        parts = [json.dumps(answer.structured_content, ensure_ascii=False)]
    return encodable("\n".join(parts))


def _text(block: Any) -> str:
    if block.type == "text":
        return str(block.text)
    if block.type == "resource" and hasattr(block.resource, "text"):
        return str(block.resource.text)
    if block.type == "resource_link":
        return f"[{block.name}: {block.uri}]"
    kind = getattr(block, "mime_type", None) or getattr(getattr(block, "resource", None), "mime_type", None)
    return f"[{block.type} of type {kind}, which is not shown]"


def _image(block: Any) -> tuple[str, str] | None:
    """Returns type and base64 of an image; None for other content. A resource counts if its type can be decoded."""
    if block.type == "image":
        return block.mime_type, block.data
    if block.type == "resource" and hasattr(block.resource, "blob") and block.resource.mime_type in _FORMATS:
        return block.resource.mime_type, block.resource.blob
    return None


def _part(block: Any) -> MessagePart:
    """Returns text, or an image as a PNG of the size at which a model sees it.

    Raises:
        ConfigurationError: the sides of an image differ too much, or its type is not supported.
        EnvFault: the image cannot be decoded.
        ValueError: it is not valid base64.
    """
    if (image := _image(block)) is None:
        return MessagePart("text", encodable(_text(block)))
    kind, data = image[0], base64.b64decode(image[1], validate=True)
    if kind not in _FORMATS:
        raise ConfigurationError(f"one is of type {kind!r:.40}, and these are read: {', '.join(_FORMATS)}")
    picture = opened_picture(data, _FORMATS[kind])
    held = io.BytesIO()
    # The file is always rewritten, because metadata beside the pixels may be large or contain the time of the call.
    picture.resize(resized(*picture.size)).save(held, "PNG", icc_profile=None)
    return MessagePart("image", image=held.getvalue())

"""Images among token ids: which tokens represent an image, where they are, and which position each of them has.

A chat template writes one placeholder for an image. A vision-language model reads one token for each feature of its vision
tower instead: a grid of rows and columns. The ids of an episode contain all of these tokens, and each segment records which
of its ids represent which image, so that the sampler in later turns and the learner read the same input.

Shapes: T tokens of a row, rows x columns tokens of an image.
"""

import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agentenv.core.io.files import write_bytes
from agentenv.core.types import Message
from agentenv.errors import ConfigurationError, EnvFault, first_line, needs_extra

MOST_PIXELS = 2**26
"""The largest number of pixels of an image that is decoded; three bytes each take 192 MiB."""


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image, and the position of the tokens that represent it in a sequence."""

    image: bytes = field(repr=False)
    """The image as PNG."""
    start: int
    """Index of its first token."""
    rows: int
    columns: int
    """Columns of the grid of its tokens, which are in row-major order."""

    @property
    def end(self) -> int:
        """Index after its last token."""
        return self.start + self.rows * self.columns

    @property
    def digest(self) -> str:
        """The digest by which records name the image."""
        return image_digest(self.image)

    def moved(self, by: int) -> "PlacedImage":
        """Returns the same image with its tokens ``by`` places later."""
        return replace(self, start=self.start + by) if by else self


class ImageReader(Protocol):
    """What a chat format needs to know about the images of a model."""

    @property
    def placeholder(self) -> int:
        """The token id that the chat template writes once for an image, and that each of the image's tokens has."""

    def grid(self, image: bytes) -> tuple[int, int]:
        """Returns the number of rows and columns of an image's tokens.

        Raises:
            EnvFault: the image cannot be read.
        """


def image_digest(image: bytes) -> str:
    """Returns the first 20 hexadecimal digits of the digest of an image's bytes."""
    return hashlib.sha256(image).hexdigest()[:20]


def keep_image(image: PlacedImage, folder: Path) -> None:
    """Writes an image to ``folder`` under its digest, unless it exists there."""
    path = folder / f"{image.digest}.png"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(path, image.image)


def read_image(folder: Path | None, digest: str) -> bytes:
    """Reads an image that ``keep_image`` wrote.

    Raises:
        ConfigurationError: there is no such file, or it contains another image.
    """
    path = None if folder is None else folder / f"{digest}.png"
    if path is None or not re.fullmatch("[0-9a-f]{20}", digest) or not path.is_file():
        raise ConfigurationError(f"a record names the image {digest!r:.40}, and its PNG file is missing")
    image = path.read_bytes()
    if image_digest(image) != digest:
        raise ConfigurationError(
            f"{path} was changed: it does not hold the image that a record names by this digest"
        )
    return image


def opened_picture(image: bytes, file_format: str = "") -> Any:
    """Decodes an image; returns a pillow image in RGB.

    Args:
        image: The bytes of an image file.
        file_format: The required format, by pillow's name; empty allows any.

    Raises:
        EnvFault: the image cannot be decoded, or has more than ``MOST_PIXELS``.
        MissingExtra: pillow is not installed.
    """
    with needs_extra("gui", "pillow"):
        from PIL import Image, UnidentifiedImageError
    what = f"an image of {len(image)} bytes cannot be read"
    try:
        with Image.open(io.BytesIO(image), formats=[file_format] if file_format else None) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise EnvFault(f"{what}: {picture.width}x{picture.height} pixels are too many")
            if picture.mode.startswith("I;16"):  # ``convert`` would clip 16-bit values at 255
                return Image.fromarray((np.asarray(picture) // 257).astype(np.uint8)).convert("RGB")
            return picture.convert("RGB")
    except EnvFault:
        raise
    except UnidentifiedImageError as error:  # its message contains a memory address
        wanted = f", or it is no {file_format}" if file_format else ""
        raise EnvFault(f"{what}: its header is damaged{wanted}") from error
    except Exception as error:  # decoders raise various errors
        raise EnvFault(f"{what}: {first_line(error)}") from error


def images_of(messages: Sequence[Any]) -> list[bytes]:
    """Returns the images of messages in order. Turns of the policy have none."""
    contents = [m.content for m in messages if isinstance(m, Message) and not isinstance(m.content, str)]
    return [part.image for content in contents for part in content if part.kind == "image"]


def image_kwargs(images: Sequence[PlacedImage]) -> dict[str, Any]:
    """Returns the argument ``images`` of a call of a policy; empty without images: text policies do not accept it."""
    return {"images": images} if images else {}


def refuse_images(messages: Sequence[Any], why: str) -> None:
    """Raises an error if one of the messages has an image.

    Args:
        messages: The messages to show.
        why: Why images cannot be shown, and what to do about it.

    Raises:
        ConfigurationError: a message has an image.
    """
    if images_of(messages):
        raise ConfigurationError(f"an observation holds an image, and {why}")


def text_alone(messages: Sequence[Message], who: str, *, opens: bool = False) -> str:
    """Returns the text of ``messages``, for a reader that does not accept images.

    Args:
        messages: The messages to show.
        who: Who reads the text, for the error.
        opens: Whether they open an episode. System prompt, examples and question are then separated.

    Raises:
        ConfigurationError: a message has an image.
    """
    refuse_images(messages, f"{who} takes text alone: set the environment's option pixels=false")
    return joined_text(messages, opens=opens)


def joined_text(messages: Sequence[Message], *, opens: bool) -> str:
    """Joins the texts of ``messages``; opening messages are separated, as in the format ``inline``."""
    return ("\n\n" if opens else "").join(message.text for message in messages)


def expanded(ids: Sequence[int], images: Sequence[bytes], reader: ImageReader) -> list[int]:
    """Repeats each placeholder in ``ids`` as often as its image has tokens.

    Raises:
        ConfigurationError: the chat template rendered another number of images than there are.
        EnvFault: an image cannot be read.
    """
    found = sum(i == reader.placeholder for i in ids)
    if found != len(images):
        raise ConfigurationError(
            f"the chat template writes {found} placeholders for {len(images)} images of an observation: take the chat "
            "template that came with the model, or set the environment's option pixels=false"
        )
    sizes = iter([rows * columns for rows, columns in map(reader.grid, images)])
    return [i for i in ids for _ in range(next(sizes) if i == reader.placeholder else 1)]


def placed(ids: Sequence[int], images: Sequence[bytes], reader: ImageReader) -> tuple[PlacedImage, ...]:
    """Locates ``images`` in ids that ``expanded`` returned."""
    found, at = [], 0
    for image in images:
        rows, columns = reader.grid(image)
        at = ids.index(reader.placeholder, at)
        found.append(PlacedImage(image, at, rows, columns))
        at += rows * columns
    return tuple(found)


def substitute(placeholder: int) -> int:
    """Returns the id that is fed instead of a placeholder that represents no image, because the policy sampled it."""
    return int(placeholder == 0)


def without_strays(ids: Sequence[int], images: Sequence[PlacedImage], placeholder: int) -> list[int]:
    """Returns ``ids`` as they are fed: placeholders outside of ``images`` are replaced by another id."""
    held = {place for image in images for place in range(image.start, image.end)}
    other = substitute(placeholder)
    return [other if i == placeholder and place not in held else i for place, i in enumerate(ids)]


def collapsed(ids: Sequence[int], images: Sequence[PlacedImage]) -> list[int]:
    """Returns ``ids`` with a single placeholder for each image, for an engine that expands them itself."""
    found: list[int] = []
    place = 0
    for image in images:
        found += ids[place : image.start + 1]
        place = image.end
    return [*found, *ids[place:]]


def rope_positions(length: int, images: Sequence[PlacedImage]) -> NDArray[np.int64]:
    """Returns the positions in time, height and width of a row's tokens, int64[3, T].

    Source: multimodal rotary position embedding (Qwen2-VL, Wang et al. 2024, section 2.1). For a text token, all three
        positions increase by one. The tokens of an image that begins at position p have (p, p + row, p + column). The token
        after the image has the largest of these positions plus one.

    Args:
        length: The number of tokens T.
        images: The images in the order of their places.
    """
    positions = np.empty((3, length), np.int64)
    place = position = 0
    for image in images:
        text = image.start - place
        positions[:, place : image.start] = np.arange(position, position + text)
        position += text
        height, width = np.divmod(np.arange(image.rows * image.columns), image.columns)
        positions[:, image.start : image.end] = position + np.stack([np.zeros_like(height), height, width])
        # The next token comes after the largest of all three positions. Otherwise two tokens could have the same position.
        position += max(image.rows, image.columns)
        place = image.end
    positions[:, place:] = np.arange(position, position + length - place)
    return positions

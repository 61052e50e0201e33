"""Images among token ids: which tokens stand for an image, where they are, and where each token is in position.

A chat template writes one placeholder for an image. A vision-language model reads as many tokens in its place as its vision
tower gives features: a grid of rows and columns. The ids of an episode hold all of them, and a segment says which of its ids
stand for which image, so that all that compute with the ids later (the sampler in a later turn, the learner) read the same.

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
"""Of an image that is read, which then takes 192 MiB."""


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image, and the tokens of a sequence that stand for it."""

    image: bytes = field(repr=False)
    """As PNG."""
    start: int
    """Place of its first token."""
    rows: int
    columns: int
    """Columns of the grid that its tokens make up, row after row."""

    @property
    def end(self) -> int:
        """Place after its last token."""
        return self.start + self.rows * self.columns

    @property
    def digest(self) -> str:
        """The digest of the image, by which records name it."""
        return image_digest(self.image)

    def moved(self, by: int) -> "PlacedImage":
        """The same image where its tokens stand ``by`` places later."""
        return replace(self, start=self.start + by) if by else self


class ImageReader(Protocol):
    """What a chat format must know of the images of a model."""

    @property
    def placeholder(self) -> int:
        """The id that the chat template writes once for an image, and that all its tokens have."""

    def grid(self, image: bytes) -> tuple[int, int]:
        """Rows and columns of the tokens of an image.

        Raises:
            EnvFault: the image cannot be read.
        """


def image_digest(image: bytes) -> str:
    """Twenty hexadecimal digits of the bytes of an image."""
    return hashlib.sha256(image).hexdigest()[:20]


def keep_image(image: PlacedImage, folder: Path) -> None:
    """Writes an image to ``folder`` under its digest, unless it is there."""
    path = folder / f"{image.digest}.png"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(path, image.image)


def read_image(folder: Path | None, digest: str) -> bytes:
    """The image that ``keep_image`` wrote.

    Raises:
        ConfigurationError: there is no such file, or it holds another image.
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
    """A picture of pillow, of three colours.

    Args:
        image: A file, as bytes.
        file_format: The one that it must have, as pillow calls it; empty is any.

    Raises:
        EnvFault: the image cannot be read, or has more than ``MOST_PIXELS``.
        MissingExtra: pillow is not installed.
    """
    with needs_extra("gui", "pillow"):
        from PIL import Image, UnidentifiedImageError
    what = f"an image of {len(image)} bytes cannot be read"
    try:
        with Image.open(io.BytesIO(image), formats=[file_format] if file_format else None) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise EnvFault(f"{what}: {picture.width}x{picture.height} pixels are too many")
            if picture.mode.startswith("I;16"):  # which ``convert`` would cut off at 255
                return Image.fromarray((np.asarray(picture) // 257).astype(np.uint8)).convert("RGB")
            return picture.convert("RGB")
    except EnvFault:
        raise
    except UnidentifiedImageError as error:  # whose own words name an address in memory
        wanted = f", or it is no {file_format}" if file_format else ""
        raise EnvFault(f"{what}: its header is damaged{wanted}") from error
    except Exception as error:  # each decoder fails in a way of its own
        raise EnvFault(f"{what}: {first_line(error)}") from error


def images_of(messages: Sequence[Any]) -> list[bytes]:
    """The images of messages in their order; a turn of the policy has none."""
    contents = [m.content for m in messages if isinstance(m, Message) and not isinstance(m.content, str)]
    return [part.image for content in contents for part in content if part.kind == "image"]


def image_kwargs(images: Sequence[PlacedImage]) -> dict[str, Any]:
    """The argument ``images`` of a call of a policy; nothing without images, because policies of text do not take it."""
    return {"images": images} if images else {}


def refuse_images(messages: Sequence[Any], why: str) -> None:
    """Refuses messages with an image where none can be shown.

    Args:
        messages: What is to be shown.
        why: Why it cannot, and what to do.

    Raises:
        ConfigurationError: there is an image among them.
    """
    if images_of(messages):
        raise ConfigurationError(f"an observation holds an image, and {why}")


def text_alone(messages: Sequence[Message], who: str, *, opens: bool = False) -> str:
    """The text of ``messages``, for somebody who takes no images.

    Args:
        messages: What is to be shown.
        who: Who reads the text; the error names it.
        opens: Whether they open an episode: what a system prompt, examples and the question say then stands apart.

    Raises:
        ConfigurationError: there is an image among them.
    """
    refuse_images(messages, f"{who} takes text alone: set the environment's option pixels=false")
    return joined_text(messages, opens=opens)


def joined_text(messages: Sequence[Message], *, opens: bool) -> str:
    """The texts of ``messages`` as one; those that open an episode stand apart, as in the format ``inline``."""
    return ("\n\n" if opens else "").join(message.text for message in messages)


def expanded(ids: Sequence[int], images: Sequence[bytes], reader: ImageReader) -> list[int]:
    """``ids`` with each placeholder as often as its image has tokens.

    Raises:
        ConfigurationError: the chat template shows fewer or more images than there are.
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
    """Where ``images`` stand in ids that were made by ``expanded``."""
    found, at = [], 0
    for image in images:
        rows, columns = reader.grid(image)
        at = ids.index(reader.placeholder, at)
        found.append(PlacedImage(image, at, rows, columns))
        at += rows * columns
    return tuple(found)


def substitute(placeholder: int) -> int:
    """The id that is fed for a placeholder that stands for no image, because the policy sampled it."""
    return int(placeholder == 0)


def without_strays(ids: Sequence[int], images: Sequence[PlacedImage], placeholder: int) -> list[int]:
    """``ids`` as they are fed: a placeholder outside of ``images`` becomes another id."""
    held = {place for image in images for place in range(image.start, image.end)}
    other = substitute(placeholder)
    return [other if i == placeholder and place not in held else i for place, i in enumerate(ids)]


def collapsed(ids: Sequence[int], images: Sequence[PlacedImage]) -> list[int]:
    """``ids`` with a single placeholder for each image, as an engine takes them that reads the images itself."""
    found: list[int] = []
    place = 0
    for image in images:
        found += ids[place : image.start + 1]
        place = image.end
    return [*found, *ids[place:]]


def rope_positions(length: int, images: Sequence[PlacedImage]) -> NDArray[np.int64]:
    """Positions in time, height and width of a row's tokens, int64[3, T].

    Source: multimodal rotary position embedding (Qwen2-VL, Wang et al. 2024, section 2.1). A token of text counts on in all
    three. Those of an image that begins at position p are at (p, p + row, p + column), and what follows begins one after the
    largest of these.

    Args:
        length: T.
        images: In the order of their places.
    """
    positions = np.empty((3, length), np.int64)
    place = position = 0
    for image in images:
        text = image.start - place
        positions[:, place : image.start] = np.arange(position, position + text)
        position += text
        height, width = np.divmod(np.arange(image.rows * image.columns), image.columns)
        positions[:, image.start : image.end] = position + np.stack([np.zeros_like(height), height, width])
        # The next token comes after the largest position in any of the three, or two tokens could share one.
        position += max(image.rows, image.columns)
        place = image.end
    positions[:, place:] = np.arange(position, position + length - place)
    return positions

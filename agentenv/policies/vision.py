"""Images for a vision-language model: pixel values for its vision tower, and positions in time, height and width.

Served are the models of the Qwen-VL kind (Qwen2-VL, Qwen2.5-VL, Qwen3-VL), whose image processors cut a picture of any size
into patches. A picture is read with pillow and nothing else, so that the same file gives the same values on every machine.

Shapes: B rows, Q tokens that are fed, P patches of all images, D values of a patch, V vocabulary.
"""

import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentenv.core.images import PlacedImage, opened_picture, rope_positions, substitute
from agentenv.core.io.model_files import LOCAL
from agentenv.errors import CheckpointMismatch, EnvFault, first_line, needs_extra
from agentenv.policies.forward import CacheShape, RowCache, probe, refusal, require_small, span, step

_KEPT_BYTES = 2**28  # of pixel values
_SETTINGS = ("preprocessor_config.json", "processor_config.json")


class PixelReader:
    """Makes of a picture what the model reads; the newest pictures are kept."""

    def __init__(self, processor: Any, config: Any) -> None:
        """Wraps an image processor.

        Args:
            processor: Of transformers; its results hold ``pixel_values`` and ``image_grid_thw``.
            config: Of the model.
        """
        self.processor = processor
        self.placeholder = int(config.image_token_id)
        self.merge = int(config.vision_config.spatial_merge_size)
        """Patches along each side of what becomes one token."""
        self._known: OrderedDict[bytes, tuple[Tensor, Tensor]] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    @classmethod
    def load(cls, folder: Path, config: Any) -> "PixelReader | None":
        """The reader for the model in ``folder``; None where it reads text alone, or images in a way not known here.

        Raises:
            CheckpointMismatch: the settings of its image processor are damaged.
        """
        if not reads_images(config) or not any((folder / name).is_file() for name in _SETTINGS):
            return None
        from transformers import AutoImageProcessor

        try:
            return cls(AutoImageProcessor.from_pretrained(str(folder), backend="pil", **LOCAL), config)
        except Exception as error:  # a damaged file makes the library raise something of its own
            raise CheckpointMismatch(
                f"{folder} holds no image processor that can be loaded: {first_line(error)}"
            ) from error

    def save(self, folder: Path) -> None:
        """Writes the settings of the processor beside the model."""
        self.processor.save_pretrained(folder)

    def grid(self, image: bytes) -> tuple[int, int]:
        """Rows and columns of the tokens of an image.

        Raises:
            EnvFault: the image cannot be read.
        """
        _, height, width = self.pixels(image)[1].tolist()
        return height // self.merge, width // self.merge

    def pixels(self, image: bytes) -> tuple[Tensor, Tensor]:
        """The patches of an image [P, D], and how many there are in time, height and width, int64[3].

        Raises:
            EnvFault: the image cannot be read.
            MissingExtra: pillow is not installed.
        """
        with self._lock:
            if image not in self._known:
                found = self._read(image)
                self._known[image] = found
                self._held += found[0].nbytes
                # The oldest leave, but never the one that was just read, however large it is.
                while self._held > _KEPT_BYTES and len(self._known) > 1:
                    self._held -= self._known.popitem(last=False)[1][0].nbytes
            self._known.move_to_end(image)
            return self._known[image]

    def _read(self, image: bytes) -> tuple[Tensor, Tensor]:
        picture = opened_picture(image)
        try:
            read = self.processor(images=[picture], return_tensors="pt")
        except ValueError as error:  # sides too far apart
            raise EnvFault(f"an image of {picture.size} pixels cannot be read: {error}") from error
        return read["pixel_values"], read["image_grid_thw"][0]

    def inputs(self, rows: Sequence[Sequence[PlacedImage]], device: Any) -> dict[str, Tensor]:
        """What ``forward`` takes for the images of ``rows``, in the order of their places; nothing where there are none."""
        read = [self.pixels(image.image) for images in rows for image in images]
        if not read:
            return {}
        return {
            "pixel_values": torch.cat([values for values, _ in read]).to(device),
            "image_grid_thw": torch.stack([grid for _, grid in read]).to(device),
        }

    def fed(self, ids: Tensor, rows: Sequence[Sequence[PlacedImage]] = ()) -> Tensor:
        """``ids`` [B, Q] as they are fed: a placeholder that the policy sampled becomes another id.

        It stands for no image, and the model would look for one. Sampler and learner do the same, so that log-probs agree;
        the record, and what is trained, stay as they were sampled.

        Args:
            ids: What is fed.
            rows: The images of each row, with their places in it.
        """
        stray = ids == self.placeholder
        for place, images in enumerate(rows):
            for image in images:
                stray[place, image.start : image.end] = False
        return torch.where(stray, substitute(self.placeholder), ids)

    def batch(
        self, ids: Tensor, rows: Sequence[tuple[int, Sequence[PlacedImage]]], starts: Sequence[int]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What is fed of rows that go on from a cache: the ids [B, Q], and what ``forward`` takes for the images in them.

        Args:
            ids: What is fed, padded behind.
            rows: Of each row its length, and its images with their places in it.
            starts: Of each row the place of the first token that is fed; no image lies on both sides of it.
        """
        new = [
            [image.moved(-start) for image in images if image.start >= start]
            for (_, images), start in zip(rows, starts, strict=True)
        ]
        fed = self.fed(ids, new)
        if not any(images for _, images in rows):
            return fed, {}
        width = ids.shape[1]
        positions = [
            rope_positions(max(length, start + width), images)[:, start : start + width]
            for (length, images), start in zip(rows, starts, strict=True)
        ]
        there = torch.from_numpy(np.stack(positions, axis=1)).to(ids.device)
        return fed, {"position_ids": there} | self.inputs(new, ids.device)


def reads_images(config: Any) -> bool:
    """Whether models of this configuration read images in the way that is known here."""
    text = config.get_text_config(decoder=True)
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    known = all(getattr(config, name, None) is not None for name in ("image_token_id", "vision_config"))
    return known and "mrope_section" in rope


def shift_of(images: Sequence[PlacedImage]) -> int:
    """How far the positions of text behind ``images`` stay behind its places; 0 or less."""
    return sum(max(image.rows, image.columns) - image.rows * image.columns for image in images)


@torch.no_grad()
def require_images(model: Any, reader: PixelReader, shape: CacheShape) -> None:
    """Makes sure that ``model`` computes here what its ``forward`` does on texts with images.

    Args:
        model: A vision-language model of transformers.
        reader: Of its images.
        shape: What it keeps of a token.

    Raises:
        ConfigurationError: it does not.
    """
    try:
        gap = _largest_gap(model, reader, shape)
    except Exception as error:  # each architecture fails in a way of its own
        reason = f"{type(error).__name__} {error}".partition("\n")[0][:160]
        raise refusal(model, f"a forward pass with images failed ({reason})") from error
    require_small(model, gap)


def _largest_gap(model: Any, reader: PixelReader, shape: CacheShape) -> float:
    """Largest distance in log-prob from plain passes: of rows of two lengths, one of which goes on with a second image."""
    first, second = _probe_image(84, 56), _probe_image(56, 84)
    rows = [_probe_row(model, reader, [first, second]), _probe_row(model, reader, [second])]
    cut = rows[0][1][1].start - 1
    width = max(cut, len(rows[1][0]) - 1)
    kv = torch.zeros(
        (shape.layers, 2, 2, shape.heads, len(rows[0][0]) + width, shape.width),
        dtype=model.dtype,
        device=model.device,
    )
    wanted = [_plain(model, reader, *row) for row in rows]
    gaps, starts, ends = [], [0, 0], [cut, len(rows[1][0]) - 1]
    for _ in range(2):
        fed = [ids[start:end] for (ids, _), start, end in zip(rows, starts, ends, strict=True)]
        width = max(map(len, fed))
        ids = torch.tensor([[*part, *[0] * (width - len(part))] for part in fed], device=model.device)
        fed_images = [
            (end, [image for image in images if image.end <= end])
            for (_, images), end in zip(rows, ends, strict=True)
        ]
        ids, inputs = reader.batch(ids, fed_images, starts)
        places = torch.tensor([list(range(start, start + width)) for start in starts], device=model.device)
        last = torch.tensor([len(part) - 1 for part in fed], device=model.device)
        logits = step(model, RowCache(kv), ids, places, last, seen=kv.shape[-2], vision=inputs)
        found = torch.log_softmax(logits.float(), -1)
        gaps += [row[at - 1] - one for row, at, one in zip(wanted, ends, found, strict=True)]
        starts, ends = ends, [len(ids) for ids, _ in rows]
    return max(span(gap) for gap in gaps)


def _plain(model: Any, reader: PixelReader, ids: Sequence[int], images: Sequence[PlacedImage]) -> Tensor:
    """Log-probs [Q, V] of the model's own pass over a row."""
    tokens = torch.tensor([list(ids)], device=model.device)
    kinds = (tokens == reader.placeholder).int()
    inputs = reader.inputs([images], model.device)
    logits = model.forward(input_ids=tokens, mm_token_type_ids=kinds, use_cache=False, **inputs).logits[0]
    model.base_model.rope_deltas = None  # of this pass, which another one would take for its own
    return torch.log_softmax(logits.float(), -1)


def _probe_row(
    model: Any, reader: PixelReader, pictures: Sequence[bytes]
) -> tuple[list[int], list[PlacedImage]]:
    """Ids of a text around pictures, and where these are."""
    words, mark = probe(model).tolist(), getattr(model.config, "vision_start_token_id", None)
    words = [word + 1 if word in (reader.placeholder, mark) else word for word in words]
    ids, images = words[:2], []
    for picture in pictures:
        ids += [] if mark is None else [mark]
        images.append(PlacedImage(picture, len(ids), *reader.grid(picture)))
        ids += [reader.placeholder] * (images[-1].end - images[-1].start)
        ids += words[2:4]
    return [*ids, *words[4:]], images


def _probe_image(width: int, height: int) -> bytes:
    """A picture of many shades, as PNG."""
    with needs_extra("gui"):
        from PIL import Image
    held = io.BytesIO()
    Image.radial_gradient("L").resize((width, height)).convert("RGB").save(held, "PNG")
    return held.getvalue()

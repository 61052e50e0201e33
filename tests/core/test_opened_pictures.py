"""Bytes that say they are an image: what is read of them, and that none of them does harm."""

import io
import zlib

import numpy as np
import pytest

pytest.importorskip("PIL", reason="needs the gui extra")

from PIL import Image, ImageDraw

from agentenv.core.images import opened_picture
from agentenv.errors import EnvFault


def png() -> bytes:
    drawn = Image.new("RGB", (112, 84), "white")
    ImageDraw.Draw(drawn).rectangle((0, 0, 40, 80), fill="black")
    return saved(drawn)


def saved(picture: Image.Image, file_format: str = "PNG") -> bytes:
    held = io.BytesIO()
    picture.save(held, file_format)
    return held.getvalue()


PICTURE = png()


def damaged(**parts: bytes) -> bytes:
    """A PNG with another header, whose checksum is right, or other bytes behind its header."""
    header = b"IHDR" + parts.get("size", PICTURE[16:24]) + PICTURE[24:29]
    return PICTURE[:12] + header + zlib.crc32(header).to_bytes(4, "big") + parts.get("rest", PICTURE[33:])


def test_16_bits_of_grey_are_read_as_8() -> None:
    grey = Image.fromarray(np.array([[0, 257 * 7], [257 * 90, 65535]], np.uint16))
    assert np.asarray(opened_picture(saved(grey)))[..., 0].tolist() == [[0, 7], [90, 255]]


@pytest.mark.parametrize(
    "image",
    [
        b"\x89PNG, and no more",
        PICTURE[:60],
        damaged(size=(60_000).to_bytes(4, "big") * 2),
        damaged(size=(9000).to_bytes(4, "big") * 2),
        damaged(rest=PICTURE[33:37] + b"\x01\x02\x03\x04" + PICTURE[41:]),
    ],
    ids=["no header", "cut", "bomb", "small bomb", "no chunk"],
)
def test_a_damaged_image_is_named_alike_in_every_process(image: bytes) -> None:
    with pytest.raises(EnvFault, match=f"{len(image)} bytes") as caught:
        opened_picture(image)
    assert " 0x" not in str(caught.value)


def test_an_image_of_another_format_than_the_wanted_one_is_refused() -> None:
    assert opened_picture(PICTURE, "PNG").size == (112, 84)
    with pytest.raises(EnvFault, match="no JPEG"):
        opened_picture(PICTURE, "JPEG")

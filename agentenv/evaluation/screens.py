"""Screens of episodes: pictures in files beside the episodes, named by their digests, and the actions on them.

A turn's record names the picture of the screen on which its action was chosen: the last image that the policy was shown, or
otherwise a drawing of the UI tree. Equal pictures share one file. A report includes pictures up to a size that a browser can
open, the last screen of every episode first.
"""

import base64
import hashlib
import json
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agentenv.core.env_calls import THREADS
from agentenv.core.io.claims import require_claimed_folder
from agentenv.core.io.files import write_bytes
from agentenv.core.scene import Mark, TurnScene
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Message
from agentenv.evaluation.records import MarkRecord, SceneRecord

Json = dict[str, Any]

FOLDER = "screens"
PAGE_BYTES = 48_000_000
"""The total size of the pictures in a report."""
_NAME = re.compile(r"[0-9a-f]{20}\.(png|svg)")
_DRAWING_S = 10.0
_SLOW_SCENES: set[type] = set()
"""Classes of scenes whose drawing took longer than that."""
_log = logging.getLogger(__name__)
_PNG = b"\x89PNG\r\n\x1a\n"


def keep_scenes(trajectory: Trajectory, directory: Path) -> list[SceneRecord | None]:
    """Returns the screen of each turn, None for a turn without one; writes the pictures below ``directory``.

    Args:
        trajectory: The episode.
        directory: The folder of the evaluation.
    """
    return [_scene(trajectory, index, directory) for index in range(len(trajectory.turns))]


def _scene(trajectory: Trajectory, index: int, directory: Path) -> SceneRecord | None:
    turn = trajectory.turns[index]
    image = _last_image(trajectory.turns[index - 1].observation if index else trajectory.prompt)
    drawing, scene = (b"", None) if turn.scene is None else _drawn(turn.scene, turn.action, plain=not image)
    if image:
        scene = scene or {"picture": "", "marks": []}
        scene["picture"] = _save_picture(image, "png", directory)
    elif scene is not None:
        scene["picture"] = _save_picture(drawing, "svg", directory)
    return scene


def _drawn(scene: TurnScene, action: str, *, plain: bool) -> tuple[bytes, SceneRecord | None]:
    """Returns the drawing of ``scene`` (if ``plain``) and the rest of its record.

    Both are empty if the code of the environment fails or takes too long: an evaluation does not need pictures. Scenes of a
    class that took too long are not drawn again.
    """
    kind = type(scene)
    if kind in _SLOW_SCENES:
        return b"", None

    def draw() -> tuple[bytes, SceneRecord]:
        drawing = scene.svg().encode("utf-8", "replace") if plain else b""
        found: SceneRecord = {"picture": "", "marks": [_mark(mark) for mark in scene.marks(action)]}
        found["size"] = list(scene.size)
        json.dumps(found, ensure_ascii=False, allow_nan=False).encode()
        return drawing, found

    drawn = THREADS.submit(draw)
    try:
        return drawn.result(_DRAWING_S)
    except TimeoutError:
        _SLOW_SCENES.add(kind)
        drawn.cancel()
    except Exception as error:
        _log.warning("a screen of %s cannot be drawn: %s: %s", kind.__name__, type(error).__name__, error)
    except BaseException as error:
        if not drawn.done():
            raise
        _log.warning("drawing a screen of %s raised %s", kind.__name__, type(error).__name__)
    return b"", None


def _mark(mark: Mark) -> MarkRecord:
    return {
        "kind": mark.kind,
        "label": mark.label,
        "at": mark.at,
        "to": mark.to,
        "box": mark.box,
        "expert": mark.expert,
    }


def _last_image(messages: Sequence[Message]) -> bytes:
    """Returns the last PNG in ``messages``; empty if there is none."""
    parts = [part for message in messages if not isinstance(message.content, str) for part in message.content]
    return next((part.image for part in reversed(parts) if part.image.startswith(_PNG)), b"")


def _save_picture(picture: bytes, kind: str, directory: Path) -> str:
    """Writes ``picture`` unless the file exists, and returns the file's name."""
    folder = directory / FOLDER
    path = folder / f"{hashlib.sha256(picture).hexdigest()[:20]}.{kind}"
    if not path.is_file():
        require_claimed_folder(path)
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(path, picture)
    return path.name


def pictures_of(
    episodes: Sequence[Json], directories: Sequence[Path], limit: int = PAGE_BYTES
) -> tuple[dict[str, str], int]:
    """Returns a page's pictures by name (SVG as text, PNG in base64), and how many were too large or missing.

    Args:
        episodes: The entries of the page, each with its ``runs``.
        directories: The folders of the evaluations that they come from.
        limit: The largest total size of all pictures in bytes.
    """
    held: dict[str, str] = {}
    missing: set[str] = set()
    for name in _wanted(episodes):
        if name in held or name in missing:
            continue
        files = (directory / FOLDER / name for directory in directories)
        path = next((file for file in files if file.is_file()), None)
        if path is None or path.stat().st_size > limit:
            missing.add(name)
            continue
        content = path.read_bytes()
        limit -= len(content)
        drawn = path.suffix == ".svg"
        held[name] = content.decode("utf-8", "replace") if drawn else base64.b64encode(content).decode()
    return held, len(missing)


def _wanted(episodes: Sequence[Json]) -> Iterator[str]:
    """Yields the names of pictures: the last one of every episode first, then all."""
    played = [[list(_names(run)) for run in episode["runs"] if run] for episode in episodes]
    for runs in played:
        yield from runs[-1][-1:] if runs else ()
    for runs in played:
        yield from (name for names in runs for name in names)


def _names(run: Json) -> Iterator[str]:
    """Yields the names of an episode's pictures, checked: a record may come from anyone, and must not name other files."""
    for turn in run["turns"]:
        name = (turn.get("scene") or {}).get("picture", "")
        if _NAME.fullmatch(name):
            yield name

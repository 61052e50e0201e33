"""Screens of episodes: pictures as files beside the episodes, named after their content, and the actions on them.

A turn of a record names the picture of the screen on which its action was chosen: the last image that the policy was shown,
or a drawing of the UI tree where it was shown none. Equal pictures are one file. A page takes them in up to a size that a
browser opens, the last screen of every episode first.
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
from agentenv.core.io.claims import require_place
from agentenv.core.io.files import write_bytes
from agentenv.core.scene import Mark, TurnScene
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Message
from agentenv.evaluation.records import MarkRecord, SceneRecord

Json = dict[str, Any]

FOLDER = "screens"
PAGE_BYTES = 48_000_000
"""Of pictures that a page holds."""
_NAME = re.compile(r"[0-9a-f]{20}\.(png|svg)")
_DRAWING_S = 10.0
_SLOW: set[type] = set()
"""Classes of scenes that took longer than that."""
_log = logging.getLogger(__name__)
_PNG = b"\x89PNG\r\n\x1a\n"


def keep_scenes(trajectory: Trajectory, directory: Path) -> list[SceneRecord | None]:
    """What each turn was played on, None where nothing was to be seen; the pictures are written below ``directory``.

    Args:
        trajectory: the episode.
        directory: of the evaluation.
    """
    return [_scene(trajectory, index, directory) for index in range(len(trajectory.turns))]


def _scene(trajectory: Trajectory, index: int, directory: Path) -> SceneRecord | None:
    turn = trajectory.turns[index]
    image = _last_image(trajectory.turns[index - 1].observation if index else trajectory.prompt)
    drawing, scene = (b"", None) if turn.scene is None else _drawn(turn.scene, turn.action, plain=not image)
    if image:
        scene = scene or {"picture": "", "marks": []}
        scene["picture"] = _keep(image, "png", directory)
    elif scene is not None:
        scene["picture"] = _keep(drawing, "svg", directory)
    return scene


def _drawn(scene: TurnScene, action: str, *, plain: bool) -> tuple[bytes, SceneRecord | None]:
    """The drawing of ``scene``, where it is ``plain``, and what stands beside a picture of it.

    None of it where the code of the environment fails or takes too long: an evaluation is written without a picture too. The
    scenes of a class that took too long are not asked again.
    """
    kind = type(scene)
    if kind in _SLOW:
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
        _SLOW.add(kind)
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
    """The last PNG in ``messages``; empty where there is none."""
    parts = [part for message in messages if not isinstance(message.content, str) for part in message.content]
    return next((part.image for part in reversed(parts) if part.image.startswith(_PNG)), b"")


def _keep(picture: bytes, kind: str, directory: Path) -> str:
    """Writes ``picture`` unless it is there, and returns the name of its file."""
    folder = directory / FOLDER
    path = folder / f"{hashlib.sha256(picture).hexdigest()[:20]}.{kind}"
    if not path.is_file():
        require_place(path)
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(path, picture)
    return path.name


def pictures_of(
    episodes: Sequence[Json], directories: Sequence[Path], limit: int = PAGE_BYTES
) -> tuple[dict[str, str], int]:
    """The pictures that a page shows, by name: SVG as it is, PNG in base64; and how many found no room or no file.

    Args:
        episodes: as the page has them, each with its ``runs``.
        directories: of the evaluations that they come from.
        limit: bytes of all pictures together.
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
    """Names of pictures: the last of every episode as it was played last, then all."""
    played = [[list(_names(run)) for run in episode["runs"] if run] for episode in episodes]
    for runs in played:
        yield from runs[-1][-1:] if runs else ()
    for runs in played:
        yield from (name for names in runs for name in names)


def _names(run: Json) -> Iterator[str]:
    """Names of the pictures of an episode; a record may come from anywhere, so that no other file is ever read."""
    for turn in run["turns"]:
        name = (turn.get("scene") or {}).get("picture", "")
        if _NAME.fullmatch(name):
            yield name

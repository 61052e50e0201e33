"""Digests stored beside model weights, so that a bit flipped by a disk or a copy is detected when a folder is opened."""

import json
import sys
from functools import lru_cache
from pathlib import Path

from agentenv.core.io.digests import PathState, file_digest, path_state
from agentenv.core.io.strict_json import read_json_text
from agentenv.errors import CheckpointMismatch

DIGESTS = "sha256.json"
"""A file with the SHA-256 of other files by name: in a checkpoint of all files, in any other folder of the weights."""
_WEIGHTS = (".safetensors", ".safetensors.index.json")


def write_weight_digests(folder: Path) -> None:
    """Writes the digests of the weights into ``folder``, which is renamed into place afterwards."""
    held = {path.name: file_digest(path, whole=sys.maxsize) for path in _weights(folder)}
    (folder / DIGESTS).write_text(json.dumps(held), encoding="utf-8")


def check_weight_digests(folder: Path) -> None:
    """Compares the weights in ``folder`` with their digests. A folder without digests, as other programs write, is accepted.

    A file is read again only if it has changed since this process read it last.

    Raises:
        CheckpointMismatch: a file is missing or its content differs from its digest.
    """
    if not (folder / DIGESTS).is_file():
        return
    try:
        wanted = read_json_text((folder / DIGESTS).read_text(encoding="utf-8"))
        listed = sorted((name, digest) for name, digest in wanted.items() if name.endswith(_WEIGHTS))
    except (OSError, ValueError, AttributeError) as error:
        raise CheckpointMismatch(
            f"{folder / DIGESTS} is damaged, so the weights beside it may be too: copy the folder again"
        ) from error
    found = {path.name: path for path in _weights(folder)}
    for name, digest in listed:
        path = found.get(name)
        if path is None or _digest(path, path_state(path)) != digest:
            raise CheckpointMismatch(
                f"{folder / name} {'is gone' if path is None else 'is not what was written there'}, according to "
                f"{DIGESTS} beside it: copy the folder again, or remove {DIGESTS} if you have changed the weights "
                "yourself"
            )


def _weights(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(_WEIGHTS) and path.is_file())


@lru_cache(maxsize=256)
def _digest(path: Path, state: PathState) -> str:
    return file_digest(path, whole=sys.maxsize)

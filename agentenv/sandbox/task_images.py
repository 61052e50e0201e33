"""Images of task containers: those that the engine has by their name, and those that it makes of a Dockerfile."""

import re
import threading
from pathlib import Path

from agentenv.core.io.digests import value_digest
from agentenv.errors import ConfigurationError
from agentenv.sandbox.docker import faults
from agentenv.sandbox.task_container import shared_engine

IMAGES = "agentenv-task"
"""Repository of the images that are made of Dockerfiles."""
_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE | re.MULTILINE)
_building = threading.Lock()


def built_image(context: Path, timeout_s: float, *, network: bool) -> str:
    """The image of the Dockerfile in ``context``, made where the engine does not have it yet.

    Args:
        context: Folder of the Dockerfile and what it copies; its content decides the name of the image.
        timeout_s: Seconds that a step of the Dockerfile may be silent.
        network: Whether images may be fetched, and whether the steps have the network.

    Raises:
        ConfigurationError: the engine does not have an image that may not be fetched, or a step fails.
        SandboxFault: the engine failed.
    """
    image = f"{IMAGES}:{value_digest(context)[:24]}"
    with _building:
        if not _has(image):
            stages = _FROM.findall((context / "Dockerfile").read_text(encoding="utf-8"))
            own = {name for _, name in stages} | {"scratch"}
            for base in (base for base, _ in stages if base not in own):
                require_image(base, network=network)
            _build(context, image, timeout_s, network=network)
    return image


def _has(image: str) -> bool:
    with faults("the Docker engine fails"):
        return bool(shared_engine().images(name=image))


def require_image(image: str, *, network: bool) -> None:
    """Fetches an image that the engine does not have, where that is allowed.

    Raises:
        ConfigurationError: it is not allowed.
        SandboxFault: the engine failed, or the image cannot be fetched.
    """
    if _has(image):
        return
    if not network:
        raise ConfigurationError(
            f"the Docker engine has no image {image!r}: run `docker pull {image}`, or allow the network by network=true"
        )
    name, _, tag = (
        image.partition("@")[0].rpartition(":") if ":" in image.rpartition("/")[2] else (image, "", "latest")
    )
    with faults(f"the image {image!r} cannot be fetched"):
        shared_engine().pull(name, tag=tag)


def _build(context: Path, image: str, timeout_s: float, *, network: bool) -> None:
    """Makes ``image`` of the Dockerfile in ``context``."""
    with faults(f"the image of {str(context)!r} cannot be built"):
        steps = shared_engine().build(
            path=str(context),
            tag=image,
            rm=True,
            forcerm=True,
            decode=True,
            timeout=timeout_s,
            network_mode=None if network else "none",
        )
        complaints = [step["error"] for step in steps if "error" in step]
    if complaints:
        raise ConfigurationError(f"{str(context / 'Dockerfile')!r} cannot be built: {complaints[0].strip()}")

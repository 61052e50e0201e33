"""Images of task containers: those that the engine has by their name, and those that it makes of a Dockerfile."""

import re
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

from agentenv.core.io.digests import file_digest, value_digest
from agentenv.errors import ConfigurationError
from agentenv.sandbox.docker import faults
from agentenv.sandbox.task_container import REFUSED, shared_engine

IMAGES = "agentenv-task"
"""Repository of the images that are made of Dockerfiles."""
_FROM = re.compile(r"\s*FROM\s+(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", re.IGNORECASE)
_COPY = re.compile(r"\s*COPY\s+(?:--\S+\s+)*?--from=(\S+)", re.IGNORECASE)
_ARG = re.compile(r"\s*ARG\s+(\w+)=(?:\"([^\"]*)\"|'([^']*)'|(\S*))", re.IGNORECASE)
_USED = re.compile(r"\$(?:\{(\w+)(?::-([^}]*))?\}|(\w+))")
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
    image = f"{IMAGES}:{_digest(context)[:24]}"
    with _building:
        if not _has(image):
            for base in needed_images((context / "Dockerfile").read_text(encoding="utf-8")):
                require_image(base, network=network)
            _build(context, image, timeout_s, network=network)
    return image


def _digest(context: Path) -> str:
    """A digest of all that a Dockerfile can copy: names, modes, links and contents, those of hidden files among them."""
    found: list[tuple[str, int, str]] = []
    for path in sorted(context.rglob("*")):
        about = path.lstat()
        content = ""
        if stat.S_ISLNK(about.st_mode):
            content = str(path.readlink())
        elif stat.S_ISREG(about.st_mode):
            content = file_digest(path)
        found.append((path.relative_to(context).as_posix(), about.st_mode, content))
    return value_digest(found)


def needed_images(dockerfile: str) -> Sequence[str]:
    """The names of the images that a Dockerfile begins with or copies from, but for its own stages.

    Args:
        dockerfile: Its text. Arguments before the first stage are put into the names.
    """
    lines = "\n".join(line for line in dockerfile.splitlines() if not line.lstrip().startswith("#"))
    arguments: dict[str, str] = {}
    stages = {"scratch"}
    needed: list[str] = []

    def value(found: re.Match[str]) -> str:
        return arguments.get(found[1] or found[3]) or found[2] or ""

    for line in re.sub(r"\\[ \t]*\n", " ", lines).splitlines():
        if (given := _ARG.match(line)) and len(stages) == 1 and not needed:
            arguments[given[1]] = _USED.sub(value, given[2] or given[3] or given[4] or "")
        elif begun := _FROM.match(line):
            base, name = _USED.sub(value, begun[1]), begun[2]
            if base.lower() not in stages:
                needed.append(base)
            if name:
                stages.add(name.lower())
        elif (copied := _COPY.match(line)) and not copied[1].isdigit() and copied[1].lower() not in stages:
            needed.append(copied[1])
    return list(dict.fromkeys(needed))


def _has(image: str) -> bool:
    from docker import errors

    with faults("the Docker engine fails"):
        try:
            shared_engine().inspect_image(image)
        except errors.NotFound:
            return False
        except errors.APIError as error:
            if error.status_code != REFUSED:
                raise
            raise ConfigurationError(f"{image!r} is no name of an image: {error.explanation}") from error
    return True


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
    with faults(f"the image {image!r} cannot be fetched"):
        shared_engine().pull(image)  # one image: that of the tag or digest in its name, or of the tag latest


def _build(context: Path, image: str, timeout_s: float, *, network: bool) -> None:
    """Makes ``image`` of the Dockerfile in ``context``."""
    from docker import errors

    with faults(f"the image of {str(context)!r} cannot be built"):
        try:
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
        except errors.APIError as error:
            if error.status_code != REFUSED:
                raise
            complaints = [str(error.explanation)]
    if complaints:
        raise ConfigurationError(f"{str(context / 'Dockerfile')!r} cannot be built: {complaints[0].strip()}")

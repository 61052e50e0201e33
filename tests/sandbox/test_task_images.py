"""Images of task containers: which ones a Dockerfile needs, and what makes two of them the same."""

from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.errors import ConfigurationError
from agentenv.sandbox import docker
from agentenv.sandbox.backends import unavailable
from agentenv.sandbox.task_images import _digest, built_image, needed_images

reason = unavailable("docker")
engine = pytest.mark.skipif(bool(reason), reason=f"docker: {reason}")


@pytest.mark.parametrize(
    ("dockerfile", "needed"),
    [
        ("FROM ubuntu:24.04\n", ["ubuntu:24.04"]),
        ("from --platform=linux/amd64 a AS Base\nFROM base\nFROM scratch", ["a"]),
        (
            "ARG TAG=1\nARG IMAGE=r:5000/a:${TAG}\nFROM $IMAGE\nARG IMAGE=b\nFROM ${NONE:-c}",
            ["r:5000/a:1", "c"],
        ),
        ("# syntax=docker/dockerfile:1\nARG A='x'\n# FROM y\nFROM \\\n  ${A}", ["x"]),
        ("FROM a\nRUN python -c 'import b' && \\\n from c\nRUN x \\\n# note\n FROM d", ["a"]),
        (
            "FROM a AS one\nFROM b\nCOPY --from=one /x /y\nCOPY --chown=1 --from=c:2 /x /y\nCOPY --from=0 /x /y",
            ["a", "b", "c:2"],
        ),
        ("FROM later\nFROM a AS later", ["later", "a"]),
    ],
    ids=["one", "stages", "arguments", "comments", "continued lines", "copies", "a stage that comes later"],
)
def test_the_images_that_a_dockerfile_needs(dockerfile: str, needed: list[str]) -> None:
    assert needed_images(dockerfile) == needed
    assert needed_images(dockerfile.replace("\n", "\r\n")) == needed


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / ".hidden").write_text("other", encoding="utf-8"),
        lambda folder: (folder / "run").chmod(0o755),
        lambda folder: (folder / "empty").mkdir(),
        lambda folder: (folder / "link").symlink_to("nowhere"),
    ],
    ids=["a hidden file", "a mode", "an empty folder", "a link"],
)
def test_whatever_can_be_copied_makes_another_image(tmp_path: Path, change: Callable[[Path], object]) -> None:
    for name in ("Dockerfile", ".hidden", "run"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    before = _digest(tmp_path)
    assert _digest(tmp_path) == before
    change(tmp_path)
    assert _digest(tmp_path) != before


@engine
@pytest.mark.parametrize(
    ("dockerfile", "said"),
    [
        ("", "cannot be built"),
        (f"FROM {docker.IMAGE}\nNOPE x\n", "unknown instruction: NOPE"),
        ("FROM NO/Name\n", "is no name of an image"),
        (f"FROM {docker.IMAGE}\nCOPY --from=no/such:1 /a /b\n", "has no image 'no/such:1'"),
    ],
    ids=["empty", "malformed", "a wrong name", "a copy from an image"],
)
def test_a_dockerfile_that_cannot_be_built_is_a_mistake_of_the_task(
    tmp_path: Path, dockerfile: str, said: str
) -> None:
    (tmp_path / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=said):
        built_image(tmp_path, 60, network=False)

"""What tests of supervised starts share."""

from pathlib import Path

import pytest

_SMALL = """\
base = "laptop-search"
name = "small"
threads = 1
[train]
limit = 6
[train.world]
documents = 200
questions = 6
families = ["lookup"]
[search]
encoder = "hash"
[rollout]
questions = 4
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """The file of a run on six questions of one hop in a small world."""
    path = tmp_path / "small.toml"
    path.write_text(_SMALL, encoding="utf-8")
    return path

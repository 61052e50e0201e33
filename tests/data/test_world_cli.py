"""Behaviours covered: ``agentenv world`` writes what the library writes; bad hops get one sentence."""

from pathlib import Path

import pytest
from rich.console import Console

from agentenv.cli.world import World, parse_hops
from agentenv.data.world import FictionalWorld, WorldConfig, read_world
from agentenv.errors import ConfigurationError


def test_the_command_writes_the_world_and_says_so(tmp_path: Path) -> None:
    command = World(out=tmp_path / "w", seed=4, documents=300, hops="1-3", questions=21)
    console = Console(record=True, width=200)
    result = command.run()
    command.show(result, console)
    assert read_world(tmp_path / "w") == FictionalWorld.generate(
        WorldConfig(seed=4, documents=300, hops=(1, 3), questions=21)
    )
    assert "300 documents and 21 questions" in console.export_text()
    assert result["families"]["bridge"] == 3


@pytest.mark.parametrize(("text", "hops"), [("1-2", (1, 2)), ("3", (3, 3))])
def test_hops_are_read(text: str, hops: tuple[int, int]) -> None:
    assert parse_hops(text) == hops


@pytest.mark.parametrize("text", ["", "x", "1-", "1-2-3", "1,2", "12"])
def test_bad_hops_are_shown(text: str) -> None:
    with pytest.raises(ConfigurationError, match="within 1-4"):
        parse_hops(text)


def test_a_backward_range_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="3-2"):
        World(out=tmp_path / "w", hops="3-2").run()
    assert not list(tmp_path.iterdir())

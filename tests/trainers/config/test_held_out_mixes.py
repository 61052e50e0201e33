"""Every preset is tested on the mix of invented questions that it trains on; the others are named here with a reason."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from agentenv.trainers.config.config_files import load_config, presets

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
OTHERS = {
    "lab-chains": "chains of two hops are a step on the way to the longer ones that it is about",
    "lab-lookups": "its policy is taught here; the experiment ikea names the questions that it is tested on",
    "lab-memory": "as lab-lookups, whose questions it answers at once",
}
PATHS = [*presets().values(), *sorted(EXAMPLES.glob("*.toml"))]


def mix(source: Any) -> dict[str, Any]:
    """What decides the kind of the questions of an invented world, and not which or how many there are."""
    dials = asdict(source.world)
    return {name: dials[name] for name in dials if name not in ("seed", "documents", "questions", "split")}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_preset_is_tested_on_the_mix_that_it_trains_on(path: Path) -> None:
    config = load_config(str(path))
    held_out = [source for source in (config.dev, config.test) if source.dataset == "world"]
    compared = held_out if config.train.dataset == "world" else []
    assert any(mix(source) != mix(config.train) for source in compared) == (path.stem in OTHERS)

"""The table of probes is made of its result file and has a row for whatever is probed; a small one is counted by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def reward_probes(script: Callable[[str], Any]) -> Any:
    return script("reward_probes")


@pytest.fixture
def published() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks/results/reward_probes.json").read_text("utf-8"))
    return found


def test_the_page_has_the_table_of_the_result_file(reward_probes: Any, published: dict[str, Any]) -> None:
    table = "\n".join(reward_probes._table(published["environments"]))
    assert f"\n\n{table}\n\n" in (ROOT / "docs/reward_probes.md").read_text("utf-8")


def test_every_environment_and_variant_has_a_row(reward_probes: Any, published: dict[str, Any]) -> None:
    names = {reward_probes._named(name, options) for name, options in reward_probes.probed_cases()}
    assert names == set(published["environments"])


def test_a_calculator_is_probed(tmp_path: Path, here: Callable[..., str]) -> None:
    """Its expert earns 1, and whoever does not compute nothing."""
    out = tmp_path / "out.json"
    words = ("--only", "agentenv/Calculator-v0", "--json", "--out", str(out))
    printed = json.loads(here("reward_probes", *words))
    assert printed == json.loads(out.read_text("utf-8"))
    (rows,) = printed["environments"].values()
    assert {(row["reward"], row["expert"], row["farm"]) for row in rows} == {(0.0, 1.0, False)}
    assert all(row["episodes"] > 0 for row in rows)

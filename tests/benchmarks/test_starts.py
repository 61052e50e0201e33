"""What the starts of the laboratory are measured by: the arms of their experiments, the start in place, and kept rows."""

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentenv.trainers.lab.starts import STARTS, make_start

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("starts")


def test_every_start_is_measured_by_an_arm_that_it_plays(script: Any) -> None:
    assert set(script.MEASUREMENTS) == set(STARTS)
    folder = Path("elsewhere")
    for name, those in script.MEASUREMENTS.items():
        assert len({one.what for one in those}) == len(those)
        for one in those:
            config = script.config_under(one, folder)
            assert (config.policy == "tiny") == (name == "simulator")
            assert one.simulated == (config.search.retriever.endswith("@hf:elsewhere"))
            assert config.test.world is not None or name == "tiny-steps"


def test_known_tasks_are_those_of_the_training_and_as_many_as_of_the_test(script: Any) -> None:
    known, unseen = (script.config_under(one, Path("x")) for one in script.MEASUREMENTS["tiny-self"])
    assert known.test.world.split == "train"
    assert known.test.world == known.train.world
    assert unseen.test.world.split == "test"
    assert known.test.limit == unseen.test.limit


def test_a_start_is_measured_once_unless_it_is_named(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(words: Sequence[str]) -> int:
        Path(words[-1]).mkdir()
        return 0

    make_start("tiny-chains", tmp_path / "tiny-chains", write)
    measured: list[str] = []

    def measure(one: Any, folder: Path) -> Any:
        return one

    def score(one: Any, *, listed: bool) -> dict[str, Any]:
        assert not listed
        measured.append(one.what)
        return {"mean": 0.25, "ci95": [0.2, 0.3], "n": 200}

    monkeypatch.setattr(script, "config_under", measure)
    monkeypatch.setattr(script, "score_under", score)
    out = tmp_path / "starts.json"

    def run(*words: str) -> Any:
        monkeypatch.setattr("sys.argv", ["starts.py", *words, "--starts", str(tmp_path), "--out", str(out)])
        script.main()
        return json.loads(out.read_text())

    found = run()
    assert found["starts"]["tiny-chains"]["scores"]["three and four hops"]["mean"] == 0.25
    assert found["starts"]["tiny-chains"]["commands"] == list(STARTS["tiny-chains"])
    assert found["not_made"] == sorted(STARTS.keys() - {"tiny-chains"})
    assert run()["starts"] == found["starts"]
    assert measured == [one.what for one in script.MEASUREMENTS["tiny-chains"]]
    run("tiny-chains")
    assert len(measured) == 2 * len(script.MEASUREMENTS["tiny-chains"])
    (tmp_path / "tiny-chains").rename(tmp_path / "elsewhere")
    assert run()["starts"] == found["starts"]
    monkeypatch.setitem(STARTS, "tiny-chains", ("warmstart --imitate lab-chains --steps 3",))
    assert run()["starts"] == {}


def test_values_count_where_they_stand_behind_their_name(script: Any) -> None:
    """Three of eleven: values of other names, names without a value and lists that were not given count for nothing."""
    records = [
        {
            "answers": ["Ann: smith, Bea: poet, Cid: judge"],
            "prediction": "Ann: smith, Bea: judge, Cid: judge",
        },
        {"answers": ["A: x, B: y, C: z, D: x"], "prediction": "D: x, A: y, B, C: zz"},
        {"answers": ["A: x, B: y, C: z, D: x"], "prediction": None},
    ]
    found = script.of_lists(records)
    assert found["values_in_their_place"] == {"mean": 3 / 11, "n": 11}
    assert found["guessing"] == {"all": pytest.approx((1 / 6 + 2 / 24) / 3), "each": 3 / 11}

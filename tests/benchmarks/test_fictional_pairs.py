"""Pairs of real and invented questions in ``benchmarks/fictional_pairs.py``: by their ids, and compared by hand."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def pairs(script: Callable[[str], Any]) -> Any:
    return script("fictional_pairs")


def record(name: str, prediction: str) -> dict[str, Any]:
    return {"id": name, "prediction": prediction, "answers": ["Ada Stone"]}


def test_pairs_are_those_of_one_question(pairs: Any) -> None:
    """Of three real questions two were replaced. Right and wrong became half right (F1 2/3) and wrong."""
    real = {name: record(name, said) for name, said in (("a", "Ada Stone"), ("b", "Bo"), ("c", "Bo"))}
    invented = {f"fictional-{name}": record(name, said) for name, said in (("b", "Bo"), ("a", "Ada"))}
    found = pairs.compared(pairs.paired(real, invented), "f1_squad")
    assert (found["n"], found["real"]) == (2, 0.5)
    assert found["fictional"] == pytest.approx(1 / 3)
    assert found["difference"] == pytest.approx(-1 / 6)
    with pytest.raises(SystemExit, match="'fictional-d'"):
        pairs.paired(real, {"fictional-d": record("d", "Bo")})

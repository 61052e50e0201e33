"""Evaluations outside of a run: the strategy of the evaluation plays only where that is asked for."""

from typing import Any

import pytest

from agentenv.trainers.config.config_files import config_of
from agentenv.trainers.loop import evaluate
from agentenv.trainers.strategies.strategies import get_strategy

WORLD = {"documents": 200, "questions": 2, "families": ["lookup"]}


@pytest.mark.parametrize(
    ("strategy", "asked", "played"),
    [("rollback", True, ["rollback", "rollback"]), ("rollback", False, []), ("plain", True, [])],
)
def test_the_strategy_of_the_evaluation_plays_where_it_is_asked_for(
    strategy: str, asked: bool, played: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(
        {
            "base": "lab-search",
            "test": {"limit": 2, "world": WORLD},
            "evaluation": {"strategy": strategy, "every": 1},
        },
        "a run",
    )
    found: list[str] = []

    def get(name: str, options: dict[str, Any]) -> Any:
        made = get_strategy(name, options)

        class Recorded:
            async def play(self, specs: Any, context: Any) -> Any:
                found.append(name)
                return await made.play(specs, context)

        return Recorded()

    monkeypatch.setattr(evaluate, "get_strategy", get)
    trajectories = evaluate.play_under(config, with_strategy=asked)
    assert [one.task.split for one in trajectories] == ["test", "test"]
    assert found == played

"""Evaluations outside of a run: the strategy of the evaluation plays only where that is asked for."""

from typing import Any

import pytest

from agentenv.trainers.config.config_files import config_of
from agentenv.trainers.loop import evaluate
from agentenv.trainers.strategies import evaluation_roll
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
            "seed": 3,
        },
        "a run",
    )
    found: list[str] = []
    seeds: list[int] = []

    def get(name: str, options: dict[str, Any]) -> Any:
        made = get_strategy(name, options)

        class Recorded:
            async def play(self, specs: Any, context: Any) -> Any:
                found.append(name)
                seeds.extend(spec.seed for spec in specs)
                return await made.play(specs, context)

        return Recorded()

    monkeypatch.setattr(evaluation_roll, "get_strategy", get)
    trajectories = evaluate.play_under(config, with_strategy=asked)
    assert [one.task.split for one in trajectories] == ["test", "test"]
    assert found == played
    # Of run 3, the third stride of 1,009 samples of 1,000,003 questions, brought below 2^31.
    assert seeds == [3 * 1009 * 1_000_003 - (2**31 - 1_000_003) + place for place in range(len(played))]


def test_a_run_whose_searches_are_guided_by_entropy_is_evaluated() -> None:
    """Where the tiny policy searches twice, only entropies can decide whether its second search is real."""
    bridge = {"documents": 200, "questions": 24, "families": ["bridge"], "hops": [2, 2], "split": "test"}
    config = config_of(
        {
            "base": "laptop-search",
            "env": {
                "id": "agentenv/SelfSearch-v0",
                "options": {"real": "entropy", "prompt": "{question}", "k": 2, "observation_tokens": 256},
            },
            "search": {"encoder": "hash"},
            "test": {"limit": 24, "world": bridge},
            "rollout": {"strategy": "self_search"},
        },
        "a run",
    )
    played = evaluate.play_under(config, temperature=1.0)  # greedy it would search once
    assert [one.valid for one in played] == [True] * 24
    assert max(len(one.turns) for one in played) > 2

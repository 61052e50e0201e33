"""Cards of policies: what is written, and that it is read again."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.errors import CheckpointMismatch
from agentenv.policies.card import EpisodeCard, portable, read_card, write_card
from agentenv.policies.policy_spec import policy_folder


@pytest.mark.parametrize(
    "card",
    [
        EpisodeCard(k=2),
        EpisodeCard(strategy="judge", strategy_options={"drop": "mark"}),
        EpisodeCard(
            options={"tools": ["web_search"], "agents": {"local": {"k": 5}}, "pixels": True, "rounds": 2}
        ),
    ],
)
def test_a_card_is_read_as_it_was_written(tmp_path: Path, card: EpisodeCard) -> None:
    write_card(tmp_path, card)
    assert read_card(tmp_path) == card
    assert ("strategy" in json.loads((tmp_path / "episode.json").read_text())) is bool(card.strategy)


def nested(depth: int) -> list[Any]:
    """A list in a list, so many times."""
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    "option",
    [
        {"summarizer": "openai:m@http://h/v1"},
        {"generator": "hf:policy"},
        {"validator": "module:name"},
        {"site": "../elsewhere"},
        {"agents": {"local": {"policy": "hf:other"}}},
        {"tools": ["a", "b:c"]},
        {"executor": "bwrap"},
        {"tools": nested(5)},
        {"tools": nested(900)},
        {"limits": {"memory_mb": 1e6}},
        {"place": "unsafe-local"},
    ],
    ids=lambda option: str(option)[:40],
)
def test_a_card_sets_options_to_numbers_and_words_alone(tmp_path: Path, option: dict[str, Any]) -> None:
    assert portable(option | {"rounds": 2}) == {"rounds": 2}
    (tmp_path / "episode.json").write_text(json.dumps({"options": option}))
    with pytest.raises(CheckpointMismatch, match=next(iter(option))):
        read_card(tmp_path)


@pytest.mark.parametrize(
    "settings",
    [
        {"strategy": "model.payload:Run"},
        {"strategy": "../payload"},
        {"strategy": "judge\n"},
        {"strategy": "paraphrase", "strategy_options": {"scorer": "model.payload:SCORER"}},
        {"strategy": "vm_mcts", "strategy_options": {"value": "openai:m@http://h/v1"}},
        {"strategy": "vm_mcts", "strategy_options": {"value": __file__}},
        {"strategy": "judge", "strategy_options": {"verdict": ["no", {"a": "python:payload:run"}]}},
    ],
)
def test_a_card_names_no_strategy_that_imports_opens_or_asks_anything(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    (tmp_path / "episode.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointMismatch, match="strategy"):
        read_card(tmp_path)


def test_a_module_beside_a_policy_is_not_run_by_its_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(policy_folder("tiny"), "model", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    card = json.loads(Path("model/episode.json").read_text())
    Path("model/episode.json").write_text(json.dumps(card | {"strategy": "model.payload:Run"}))
    Path("model/payload.py").write_text("open('ran', 'w').close()\nclass Run: pass\n")
    Path("questions.csv").write_text("question,answer\nWho?,Ada\n")
    assert main(
        ["eval", "--policy", "hf:model", "--dataset", "questions.csv", "--max-turns", "0", "--out", "out"]
    )
    assert not Path("ran").exists()

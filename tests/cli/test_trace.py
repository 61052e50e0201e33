"""``agentenv trace --model``: what can be refused is refused before a reply is paid for, and replies can be kept."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.evaluation.records import EpisodeRecord, write_evaluation
from agentenv.evaluation.results import summarize
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.trace import environment_for, search_capabilities

TARGET = load_config("laptop-search")

SMALL = """
base = "laptop-search"
search = { encoder = "hash" }
train = { world = { documents = 200, questions = 8 } }
dev = { world = { documents = 200, questions = 4 } }
test = { world = { documents = 200, questions = 4 } }
"""
CALCULATOR = (
    'base = "laptop-search"\nenv = { id = "agentenv/Calculator-v0", options = {} }\ntrain.dataset = "env"\n'
)


def evaluation(directory: Path, predictions: Sequence[str]) -> Path:
    """The folder of an evaluation whose accepted answer is Paris."""
    records: list[EpisodeRecord] = [
        {
            "id": str(number),
            "question": f"Where is it, {number}?",
            "answers": ("Paris",),
            "prediction": said,
            "valid": True,
            "end_reason": "answered",
            "reward": float(said == "Paris"),
            "searches": 1,
        }
        for number, said in enumerate(predictions)
    ]
    about: dict[str, Any] = {"dataset": "fictional", "split": "test", "policy": "tiny", "retriever": "bm25:x"}
    write_evaluation(directory, summarize(records, ("em_squad",), k=2, **about), records)
    return directory


def traced(
    tmp_path: Path, options: Sequence[str], predictions: Sequence[str] = ("Rome", "Paris")
) -> tuple[int, int]:
    """The exit status of the command with a model that proposes and finds nothing, and how often this was asked."""
    asked: list[Any] = []

    def nothing(body: Any) -> Answer:
        asked.append(body)
        return Answer("[]")

    before = tmp_path / "before"
    if not before.exists():
        evaluation(before, predictions)
    with FakeEndpoint(nothing) as server:
        words = ["trace", str(before), "--model", f"openai:m@{server.url}", "--passes", "2", "--trust-config"]
        return main([*words, *options]), len(asked)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--config", "{tmp}/calculator.toml"), "agentenv/Calculator-v0"),
        (("--config", "{tmp}/encoder.toml"), "nowhere"),
        (("--policy", "openai:m@https://host.invalid/v1"), "no token ids"),
        (("--policy", "scripted"), "no weights"),
        (("--policy", "hf:{tmp}/nowhere"), "nowhere"),
        (("--band", "0.6", "0.2"), "0.6 0.2"),
        (("--band", "20", "60"), "20 60"),
        (("--band", "nan", "nan"), "nan"),
        (("--out", "{tmp}/file/out"), "file"),
        (("--out", "{tmp}/before"), "before"),
        (("--rank", "-1"), "rank=-1"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else value,
)
def test_nothing_is_paid_for_what_is_refused(
    options: tuple[str, ...], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "calculator.toml").write_text(CALCULATOR)
    (tmp_path / "encoder.toml").write_text(SMALL.replace('"hash"', '"st:nowhere"'))
    given = [option.format(tmp=tmp_path) for option in options]
    out = [] if "--out" in options else ["--out", str(tmp_path / "out")]
    status, asked = traced(tmp_path, [*given, *out])
    assert (status, asked) == (1, 0)
    assert named in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_nothing_is_paid_where_nothing_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.toml").write_text(SMALL)
    options = ["--config", str(tmp_path / "small.toml"), "--out", str(tmp_path / "out")]
    status, asked = traced(tmp_path, options, ("Paris", "Paris"))
    assert (status, asked) == (1, 0)
    assert "none of the 2 valid episodes" in " ".join(capsys.readouterr().err.split())


def test_replies_that_are_kept_are_paid_for_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One proposal, and two passes over each of two episodes."""
    asked: list[Any] = []

    def nothing(body: Any) -> Answer:
        asked.append(body)
        return Answer("[]")

    (tmp_path / "small.toml").write_text(SMALL)
    before = evaluation(tmp_path / "before", ("Rome", "Paris"))
    words = ["trace", str(before), "--replies", str(tmp_path / "kept")]
    with FakeEndpoint(nothing) as server:
        for name in "ab":
            model = ["--model", f"openai:m@{server.url}", "--passes", "2"]
            model += ["--config", str(tmp_path / "small.toml"), "--trust-config"]
            assert main([*words, *model, "--out", str(tmp_path / name)]) == 0
            assert len(asked) == 5
    first, second = (json.loads((tmp_path / name / "capabilities.json").read_text()) for name in "ab")
    assert first == second
    capsys.readouterr()
    assert main([*words, "--out", str(tmp_path / "c")]) == 1
    assert "--replies" in capsys.readouterr().err


@pytest.mark.parametrize("band", [(0.6, 0.2), (-0.1, 0.5), (0.5, 1.1)], ids=str)
def test_a_band_that_is_none_is_refused_before_an_episode_is_played(band: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=f"{band[0]:g} {band[1]:g}"):
        environment_for(
            TARGET, "chain", search_capabilities(TARGET)["chain"], band=band, rate=lambda *_: 1 / 0
        )

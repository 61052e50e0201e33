"""Several samples of each question from the command line: pass@k, folders that go on, and what is refused."""

import json
from pathlib import Path

import pytest

from agentenv.cli.main import main
from agentenv.data.world import WorldConfig, write_world
from agentenv.evaluation.statistics.significance import pass_at_k
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint


@pytest.fixture
def world(tmp_path: Path) -> Path:
    """Six easy questions."""
    config = WorldConfig(documents=200, questions=6, families=("lookup",), split="dev")
    write_world(config, tmp_path / "world")
    return tmp_path / "world"


def test_samples_differ_and_give_pass_at_k(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "eval",
        "--dataset",
        "fictional",
        "--data",
        str(world),
        "--retriever",
        "bm25",
        "--temperature",
        "1.2",
    ]
    words += ["--samples", "3", "--limit", "4", "--seed", "5", "--out", str(tmp_path / "out"), "--json"]
    assert main(words) == 0
    result = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "out" / "samples.json").read_text())["samples"] == result["samples"]
    folders = [tmp_path / "out" / f"sample-{number}" for number in range(3)]
    episodes = [
        {row["id"]: row for row in map(json.loads, (folder / "episodes.jsonl").read_text().splitlines())}
        for folder in folders
    ]
    assert episodes[0].keys() == episodes[1].keys() == episodes[2].keys()
    assert len(episodes[0]) == 4
    assert any(episodes[0][name]["turns"] != episodes[1][name]["turns"] for name in episodes[0])
    settings = json.loads((folders[1] / "results.json").read_text())["settings"]
    assert settings["decoding"] == "temperature 1.2"
    right = [sum(row[name]["reward"] for row in episodes) for name in episodes[0]]
    table = result["samples"]["em_squad"]
    for k in (1, 2, 3):
        expected = sum(pass_at_k(3, int(count), k) for count in right) / 4
        assert table[f"pass@{k}"]["mean"] == pytest.approx(expected)
    before = [(folder / "episodes.jsonl").read_bytes() for folder in folders]
    with FakeEndpoint(lambda _: Answer("VERDICT: FALSE")) as judge:
        assert main([*words, "--judge", f"openai:any@{judge.url}"]) == 0  # nothing is played again
    judged = [json.loads((folder / "results.json").read_text())["judged"] for folder in folders]
    assert [table["judge_equivalence"]["mean"] for table in judged] == [0.0] * 3
    assert [(folder / "episodes.jsonl").read_bytes() for folder in folders] == before


@pytest.mark.parametrize(
    "flags",
    [
        "--samples 2",
        "--samples 0 --temperature 1",
        "--temperature -1",
        "--samples 2 --temperature 1 --suite x.toml",
    ],
)
def test_what_makes_no_samples_is_refused(
    flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [] if "--suite" in flags else ["--dataset", "fictional"]
    assert main(["eval", *words, *flags.split(), "--out", str(tmp_path / "out")]) == 1
    assert "--samples" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

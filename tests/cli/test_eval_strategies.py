"""Evaluating with a rollout strategy by the command line: what the policy is shown, what is recorded, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.data.world import WorldConfig, write_world
from agentenv.policies.fake_endpoint import Answer, Body, FakeEndpoint
from agentenv.trainers.strategies.judge_action import NOTE

ENTROPY = ["--env", "agentenv/SelfSearch-v0", "--option", "real=entropy", "--option", "k=2"]
JUDGED = ["--env", "agentenv/JudgedSearch-v0", "--policy", "scripted"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six questions of two hops."""
    folder = tmp_path_factory.mktemp("worlds") / "world"
    write_world(WorldConfig(documents=200, questions=6, families=("bridge",), hops=(2, 2)), folder)
    return folder


def words(world: Path, out: Path, *more: str) -> list[str]:
    asked = ["--dataset", "fictional", "--data", str(world), "--retriever", "bm25", "--no-bounds"]
    return ["eval", *asked, "--limit", "4", "--out", str(out), *more]


def evaluate(capsys: pytest.CaptureFixture[str], argv: list[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main([*argv, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def records(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]


def test_search_guided_by_entropy_is_evaluated_with_the_strategy_that_tells_it(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the tiny policy searches twice, the first search is real, and entropies have to decide on the second."""
    argv = [*ENTROPY, "--option", "prompt={question}", "--policy", "tiny", "--max-turns", "3"]
    plain = evaluate(capsys, words(world, tmp_path / "plain", *argv))
    assert plain["faults"] > 0
    assert all("'self_search'" in reason for reason in plain["fault_reasons"])
    found = evaluate(capsys, words(world, tmp_path / "out", *argv, "--strategy", "self_search"))
    assert (found["n"], found["faults"], found["settings"]["strategy"]) == (4, 0, "self_search")
    turns = [turn for record in records(tmp_path / "out") for turn in record["turns"]]
    assert {result["name"] for turn in turns for result in turn["tool_results"]} >= {"search"}
    assert max(len(record["turns"]) for record in records(tmp_path / "out")) > 2
    before = (tmp_path / "out" / "episodes.jsonl").read_bytes()
    assert main(words(world, tmp_path / "out", *argv)) == 1  # it is another evaluation
    assert "strategy" in capsys.readouterr().err
    assert (tmp_path / "out" / "episodes.jsonl").read_bytes() == before


def test_a_page_that_is_judged_useless_leaves_the_record(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The expert judges the page of the first hop useless, which does not show the answer."""
    evaluate(capsys, words(world, tmp_path / "plain", *JUDGED))
    found = evaluate(capsys, words(world, tmp_path / "out", *JUDGED, "--strategy", "judge"))
    assert found["settings"]["strategy"] == "judge"
    mark = ["--strategy", "judge", "--strategy-option", "drop=mark"]
    marked = evaluate(capsys, words(world, tmp_path / "marked", *JUDGED, *mark))
    assert marked["settings"]["strategy_options"] == {"drop": "mark"}
    first = {
        name: [record["turns"][0]["observation"] for record in records(tmp_path / name)]
        for name in ("plain", "out", "marked")
    }
    judged = ["<judge>no" in record["turns"][1]["action"] for record in records(tmp_path / "plain")]
    assert any(judged)
    for place, dropped in enumerate(judged):
        assert (first["out"][place] == NOTE) is dropped
        assert (first["marked"][place] != first["plain"][place]) is dropped
        assert first["marked"][place].startswith(first["plain"][place])


def test_a_model_behind_an_endpoint_is_not_shown_the_page_that_it_judged_useless(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["<search>one</search>", "<judge>no</judge><search>two</search>", "<answer>three</answer>"]
    shown: list[str] = []

    def answer(body: Body) -> Answer:
        texts = [message["content"] for message in body["messages"]]
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if turn == 2:
            shown.append(texts[2])
        return Answer(said[turn])

    with FakeEndpoint(answer) as server:
        policy = ["--policy", f"openai:any@{server.url}", "--env", "agentenv/JudgedSearch-v0"]
        found = evaluate(capsys, words(world, tmp_path / "out", *policy, "--strategy", "judge"))
    assert found["faults"] == 0
    assert [text.strip() for text in shown] == [NOTE.strip()] * 4


def test_an_endpoint_that_tells_no_log_probs_cannot_guide_a_search_by_entropy(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeEndpoint(lambda body: Answer("<search>again</search>")) as server:
        argv = [*ENTROPY, "--policy", f"openai:any@{server.url}", "--strategy", "self_search"]
        assert main(words(world, tmp_path / "out", *argv)) == 1
    assert "log-probs" in capsys.readouterr().err.splitlines()[-1]


def test_each_benchmark_of_a_suite_has_its_strategy(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "suite.toml"
    shared = f'dataset = "fictional"\ndata = "{world}"\nretriever = "bm25"\nlimit = 2\nbounds = false\n'
    of = 'env = "agentenv/JudgedSearch-v0"\n'
    judged = 'strategy = "judge"\nstrategy_options = { drop = "mark" }\n'
    suite.write_text(f"[bare]\n{shared}{of}[judged]\n{shared}{of}{judged}")
    argv = ["eval", "--suite", str(suite), "--policy", "scripted", "--out", str(tmp_path / "out")]
    parts = evaluate(capsys, argv)["suite"]
    assert "strategy" not in parts["bare"]["settings"]
    assert (parts["judged"]["settings"]["strategy"], parts["judged"]["settings"]["strategy_options"]) == (
        "judge",
        {"drop": "mark"},
    )


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--strategy juge", "Did you mean 'judge'?"),
        ("--strategy tree", "'tree'"),
        ("--strategy judge --strategy-option drops=mark", "Did you mean 'drop'?"),
        ("--strategy judge --strategy-option drop", "--strategy-option 'drop'"),
        ("--strategy-option drop=mark", "strategy_options"),
    ],
)
def test_a_strategy_that_cannot_play_is_refused_and_leaves_nothing(
    flags: str, named: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["--env", "agentenv/JudgedSearch-v0", "--policy", "scripted", *flags.split()]
    assert main(words(world, tmp_path / "out", *argv)) == 1
    assert named in capsys.readouterr().err.splitlines()[-1]
    assert not (tmp_path / "out").exists()

"""``agentenv eval``: the scripted expert, a random model with its bounds, a suite, real sets, mistakes.

The real sets need the environment variable AGENTENV_DATA.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.eval import bound_lines
from agentenv.cli.main import main
from agentenv.data.world import WorldConfig, write_world
from agentenv.policies.card import EpisodeCard, write_card
from agentenv.policies.fakes import random_policy
from agentenv.retrievers.encoder import HashEncoder
from agentenv.retrievers.faiss import FaissRetriever
from agentenv.retrievers.storage.corpus import load_corpus

DATA = os.environ.get("AGENTENV_DATA", "")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world of 200 documents with an index of hashed words in its folder ``index``."""
    folder = tmp_path_factory.mktemp("worlds") / "world"
    write_world(WorldConfig(seed=6, documents=200, questions=12), folder)
    FaissRetriever.build(load_corpus(folder / "corpus.jsonl"), HashEncoder(), "Flat").save(folder / "index")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy of width 16, of short turns."""
    folder = tmp_path_factory.mktemp("policy")
    random_policy(folder, ["Where was Zoë born?"])
    write_card(folder, EpisodeCard(turn_tokens=8))
    return folder


def evaluate(out: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["eval", "--out", str(out), *words, "--json"]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    written = json.loads((out / "results.json").read_text())
    assert {name: printed[name] for name in written} == written
    return printed


def test_the_scripted_expert_scores_full(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluate(
        tmp_path / "out",
        capsys,
        "--dataset",
        "fictional",
        "--data",
        str(world),
        "--policy",
        "scripted",
        "--retriever",
        f"faiss:{world / 'index'}",
    )
    assert found["scores"]["em_squad"]["mean"] == 1
    assert (found["n"], found["faults"], found["end_reasons"]) == (12, 0, {"answered": 12})
    assert set(found["index_recall"]) == {"recall@2", "recall@3", "recall@5", "recall@10", "all@5"}
    assert found["searches_per_question"] >= 1
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "results.json",
        "episodes.jsonl",
        "report.html",
        "run.log",
        "config.toml",
        "timings.jsonl",
        "episodes.sha256",
    }
    assert len((tmp_path / "out" / "episodes.jsonl").read_text().splitlines()) == 12


def test_a_random_model_scores_zero_beside_its_bounds(
    world: Path, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model reads fewer tokens than the default budget: its episodes end at its own limit, without a fault."""
    words = [
        "--dataset",
        "fictional",
        "--data",
        str(world),
        "--policy",
        f"hf:{model}",
        "--limit",
        "3",
        "--max-turns",
        "1",
    ]
    words += ["--retriever", f"faiss:{world / 'index'}", "--scorer", "em_squad"]
    found = evaluate(tmp_path / "one", capsys, *words)
    assert (found["n"], found["faults"]) == (3, 0)
    assert found["scores"]["em_squad"]["mean"] == 0
    # Of three questions one is found by words.
    assert found["bounds"]["expert"]["mean"] == pytest.approx(1 / 3)
    assert found["bounds"]["closed_book"]["mean"] == found["bounds"]["oracle"]["mean"] == 0
    evaluate(tmp_path / "two", capsys, *words)
    assert (tmp_path / "one" / "results.json").read_bytes() == (
        tmp_path / "two" / "results.json"
    ).read_bytes()


def test_an_environment_that_searches_nothing_is_judged_by_its_reward(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of = ("--dataset", "env", "--env", "agentenv/Calculator-v0", "--limit", "5")
    expert = evaluate(tmp_path / "expert", capsys, *of, "--policy", "scripted")
    assert (expert["split"], expert["retriever"], expert["scores"]["reward"]["mean"]) == ("test", None, 1.0)
    found = evaluate(tmp_path / "model", capsys, *of, "--policy", f"hf:{model}")
    assert (found["scores"]["reward"]["mean"], found["bounds"]["expert"]["mean"]) == (0.0, 1.0)
    assert found["settings"]["questions_fingerprint"] == expert["settings"]["questions_fingerprint"]
    page = (tmp_path / "model" / "report.html").read_text()
    assert "recall" not in page


def test_a_code_set_is_handed_to_the_code_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = {
        "task_id": "HumanEval/7",
        "prompt": "def double(x):\n",
        "canonical_solution": "    return 2 * x\n",
        "test": "def check(candidate):\n    assert candidate(2) == 4\n",
        "entry_point": "double",
    }
    with gzip.open(tmp_path / "HumanEval.jsonl.gz", "wt") as stream:
        stream.write(json.dumps(record) + "\n")
    of = ("--dataset", "humaneval", "--data", str(tmp_path), "--option", "executor=unsafe-local")
    found = evaluate(tmp_path / "out", capsys, *of, "--policy", "scripted", "--option", "stateful=false")
    assert (found["dataset"], found["split"], found["n"]) == ("humaneval", "test", 1)
    assert (found["scores"]["reward"]["mean"], found["settings"]["env"]) == (1.0, "agentenv/Code-v0")


def test_people_see_a_table(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--dataset", "fictional", "--data", str(world), "--policy", "scripted", "--limit", "2"]
    retriever = ["--retriever", f"faiss:{world / 'index'}"]
    assert main(["eval", "--out", str(tmp_path / "out"), *words, *retriever]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"em_squad +1\.000", shown)
    assert "2 questions, 0 faults" in shown


def test_a_suite_runs_every_table(world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = tmp_path / "suite.toml"
    shared = f'dataset = "fictional"\ndata = "{world}"\nretriever = "faiss:{world}/index"\nlimit = 2\n'
    suite.write_text(
        f'[few]\n{shared}[fewer]\n{shared.replace("limit = 2", "limit = 1")}scorer = ["f1_squad"]\n'
    )
    argv = ["eval", "--suite", str(suite), "--policy", "scripted", "--out", str(tmp_path / "out"), "--json"]
    assert main(argv) == 0
    parts = json.loads(capsys.readouterr().out)["suite"]
    assert {name: part["n"] for name, part in parts.items()} == {"few": 2, "fewer": 1}
    assert list(parts["fewer"]["scores"]) == ["f1_squad"]
    assert (tmp_path / "out" / "suite.json").is_file()
    assert (tmp_path / "out" / "report.html").is_file()
    assert (tmp_path / "out" / "few" / "results.json").is_file()


@pytest.mark.skipif(not DATA, reason="AGENTENV_DATA is not set")
@pytest.mark.parametrize("dataset", ["hotpotqa", "2wiki", "musique"])
def test_real_sets(dataset: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole real corpus is indexed, by hashed words so that it takes seconds; three questions are asked."""
    from agentenv.data.datasets import load_dataset

    corpus = load_dataset(dataset, None).corpus
    assert corpus is not None
    FaissRetriever.build(load_corpus(corpus), HashEncoder(), "Flat").save(tmp_path / "index")
    found = evaluate(
        tmp_path / "out",
        capsys,
        "--dataset",
        dataset,
        "--policy",
        f"hf:{model}",
        "--limit",
        "3",
        "--retriever",
        f"faiss:{tmp_path / 'index'}",
        "--max-turns",
        "1",
    )
    assert (found["n"], found["faults"]) == (3, 0)
    assert found["settings"]["documents"] > 1000
    assert 0 <= found["index_recall"]["recall@5"] <= 1
    # The set names supporting documents and no path of searches to them: the expert would search nothing.
    assert "mean" not in found["bounds"]["expert"]
    assert "data['path']" in found["bounds"]["expert"]["note"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give --dataset NAME"),
        (["--dataset", "fictional", "--data", "WORLD", "--concurrency", "0"], "concurrency is 0"),
        (["--dataset", "fictional", "--data", "WORLD", "--corpus", "/nowhere"], "/nowhere"),
        (["--dataset", "hotpot"], "Did you mean 'hotpotqa'?"),
        (["--dataset", "env", "--env", "agentenv/Calculate-v0"], "Did you mean 'agentenv/Calculator-v0'?"),
        (["--dataset", "env", "--env", "agentenv/Calculator-v0", "--option", "k"], "'k' must be KEY=VALUE"),
        (
            ["--dataset", "env", "--env", "agentenv/Calculator-v0", "--option", "k=3"],
            "'k'",
        ),
        (["--dataset", "humanevl"], "Did you mean 'humaneval'?"),
        (["--dataset", "env"], "makes no tasks"),
        (["--dataset", "fictional", "--data", "/nowhere"], "/nowhere"),
        (["--dataset", "fictional", "--data", "WORLD", "--policy", "script"], "Did you mean 'scripted'?"),
        (["--dataset", "fictional", "--data", "WORLD", "--policy", "hf:/nowhere"], "/nowhere holds no model"),
        (["--dataset", "fictional", "--data", "WORLD", "--scorer", "em_squat"], "Did you mean 'em_squad'?"),
        (["--dataset", "fictional", "--data", "WORLD", "--retriever", "fais:x"], "Did you mean 'faiss'?"),
        (["--dataset", "fictional", "--data", "WORLD", "--retriever", "faiss:/nowhere"], "/nowhere"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    words: list[str], message: str, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(world) if word == "WORLD" else word for word in words]
    if "--policy" not in words:
        words += ["--policy", "scripted"]
    assert main(["eval", "--out", str(tmp_path / "out"), *words]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err.splitlines()[-1]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("answers", [None, [], [[]], "", [None]])
def test_a_question_without_answers(
    answers: Any, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "world"
    folder.mkdir()
    (folder / "corpus.jsonl").write_bytes((world / "corpus.jsonl").read_bytes())
    (folder / "questions.jsonl").write_text(
        json.dumps({"id": "q7", "question": "Who?", "answers": answers}) + "\n"
    )
    argv = ["eval", "--dataset", "fictional", "--data", str(folder), "--policy", "scripted"]
    assert main([*argv, "--out", str(tmp_path / "out")]) == 1
    assert "line 1" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def command(world: Path, out: Path, *more: str) -> list[str]:
    """The extractive baseline, four questions at a time, so that there is something to interrupt."""
    words = ["eval", "--dataset", "fictional", "--data", str(world), "--policy", "scripted:extractive"]
    words += ["--retriever", f"faiss:{world / 'index'}", "--concurrency", "2", "--out", str(out)]
    return [*words, *more]


def test_an_evaluation_killed_at_any_moment_goes_on_to_the_same_results(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three processes are killed with -9 as soon as the folder has grown a little; a fourth one finishes."""
    assert main(command(world, tmp_path / "whole")) == 0
    killed = tmp_path / "killed"
    for _ in range(3):
        before = written(killed)
        child = subprocess.Popen(
            [sys.executable, "-c", f"from agentenv.cli.main import main; main({command(world, killed)!r})"],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            deadline = time.monotonic() + 120
            while child.poll() is None and written(killed) <= before and time.monotonic() < deadline:
                time.sleep(0.002)
        finally:
            child.kill()
            child.wait()
    assert written(killed) > 0
    assert main(command(world, killed)) == 0
    for name in ("results.json", "episodes.jsonl", "bounds/oracle_paged.jsonl"):
        assert (killed / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def written(folder: Path) -> int:
    """Bytes of finished episodes."""
    return sum(path.stat().st_size for path in folder.rglob("*.jsonl"))


def test_a_finished_evaluation_is_not_run_again_and_another_one_is_refused(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(command(world, out, "--limit", "4")) == 0
    files = {
        path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != "run.log" and path.is_file()
    }
    assert main(command(world, out, "--limit", "4")) == 0
    capsys.readouterr()
    assert main(command(world, out)) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert str(out) in said
    assert re.search(r"\blimit 4\b.*\bNone\b", said)
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_questions_that_changed_are_not_mixed_with_the_old(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "world"
    shutil.copytree(world, folder)
    assert main(command(folder, tmp_path / "out")) == 0
    (tmp_path / "out" / "results.json").unlink()  # as if it were not finished
    questions = folder / "questions.jsonl"
    questions.write_text("".join(questions.read_text().splitlines(keepends=True)[1:]))
    assert main(command(folder, tmp_path / "out")) == 1
    assert "questions" in capsys.readouterr().err


def test_errors_bounds_and_costs_stand_beside_the_score(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluate(tmp_path / "out", capsys, *command(world, tmp_path / "out")[1:-2])
    assert set(found["bounds"]) == {"closed_book", "oracle", "oracle_paged", "expert"}
    causes = ("correct", "retrieval_miss", "read_miss", "format", "gave_up", "fault")
    assert sum(found["errors"][cause] for cause in causes) == 12
    assert found["errors"]["correct"] == round(12 * found["scores"]["em_squad"]["mean"])
    assert found["answer_in_corpus"]["n"] <= 12
    assert found["tokens"]["unit"] == "bytes"
    assert found["seconds"]["seconds_per_question"] > 0
    assert "seconds" not in json.loads((tmp_path / "out" / "results.json").read_text())


def test_a_suite_goes_on_and_refuses_another(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "suite.toml"
    head = f'data = "{world}"\nretriever = "faiss:{world}/index"\nlimit = 2\nbounds = false\n[one]\ndataset = "fictional"\n'
    suite.write_text(head + '[two]\ndataset = "fictional"\nseed = 1\n')
    argv = ["eval", "--suite", str(suite), "--policy", "scripted:extractive", "--out", str(tmp_path / "out")]
    assert main(argv) == 0
    whole = (tmp_path / "out" / "suite.json").read_bytes()
    (tmp_path / "out" / "suite.json").unlink()
    shutil.rmtree(tmp_path / "out" / "two")  # killed between the sets
    capsys.readouterr()
    assert main(argv) == 0
    assert "em_squad macro" in capsys.readouterr().out
    assert (tmp_path / "out" / "suite.json").read_bytes() == whole
    suite.write_text(head)
    assert main(argv) == 1
    assert "['one', 'two']" in capsys.readouterr().err


def test_a_bound_without_a_mean_is_said_not_to_be_measured() -> None:
    bounds: dict[str, dict[str, Any]] = {
        "expert": {"note": "no path"},
        "oracle": {"mean": 0.5, "note": "below"},
        "closed_book": {"mean": 0.0},
    }
    said = bound_lines(bounds)
    assert [line.split(maxsplit=2)[2] for line in said] == ["not measured: no path", "0.500  below", "0.000"]

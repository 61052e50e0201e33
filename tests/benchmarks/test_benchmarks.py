"""Every benchmark in seconds: it runs, its counts add up, its file names no place, a missing peer is one sentence."""

import importlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.policies.fakes import random_policy
from agentenv.sandbox.backends import unavailable
from agentenv.trainers.config.config_files import override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.run_folder.folder import RunFolder

Run = Callable[..., str]
ROOT = Path(__file__).resolve().parents[2]
HAS_TRL = all(importlib.util.find_spec(name) for name in ("trl", "datasets"))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random policy of width 16 that knows the words of a world."""
    world = FictionalWorld.generate(WorldConfig(documents=200, questions=20))
    folder = tmp_path_factory.mktemp("policy")
    random_policy(folder, [document.text for document in world.documents])
    return folder


SMALL = ("--steps", "1", "--warmup", "1", "--threads", "1", "--json")


def command(name: str, policy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a benchmark as a user does."""
    script = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--policy", f"hf:{policy}", *words]
    return subprocess.run([*script, *SMALL], capture_output=True, text=True, timeout=300, cwd=ROOT)


def result(done: subprocess.CompletedProcess[str], path: Path) -> dict[str, Any]:
    """What was printed, which is what was written."""
    assert done.returncode == 0, done.stderr
    return written(done.stdout, path)


def written(printed: str, path: Path) -> dict[str, Any]:
    """The figures of a benchmark, which printed what it wrote and names no place."""
    figures: dict[str, Any] = json.loads(printed)
    assert figures == json.loads(path.read_text(encoding="utf-8"))
    assert figures["machine"]["torch"]
    assert str(path.parent) not in printed
    return figures


def test_throughput(policy: Path, tmp_path: Path, here: Run) -> None:
    path = tmp_path / "out.json"
    preset = tmp_path / "small.toml"
    preset.write_text(
        '[search]\nencoder = "hash"\n[rollout]\nquestions = 2\ngroup_size = 2\nturn_tokens = 6\ncontext_tokens = 256\n'
        '[env.options]\nprompt = "{question}"\nmax_turns = 1\nk = 1\n'
        "[train.world]\ndocuments = 200\nquestions = 20\n"
    )
    words = ("--policy", f"hf:{policy}", "--preset", str(preset), "--out", str(path), *SMALL)
    figures = written(here("throughput", *words), path)
    assert figures["steps"] == 1
    assert figures["episodes_per_step"] == 4
    assert sum(figures["share_of_wall_time"].values()) == pytest.approx(1)
    other = sum(figures["other_share_within"].values())
    assert other == pytest.approx(figures["share_of_wall_time"]["other"], abs=0.01)
    # four episodes of one or two turns of at most 6 tokens; fewer only where the policy ends a turn by itself
    tokens = figures["generated_tokens_per_second"] * figures["seconds_per_step"]
    assert 4 <= round(tokens) <= 4 * 2 * 6


def test_main_training(policy: Path, tmp_path: Path, here: Run) -> None:
    """Each seed is a run of its own, and its policy answers each of the fresh worlds."""
    path, preset = tmp_path / "out.json", tmp_path / "small.toml"
    world = "documents = 200\nquestions = 6\n"
    preset.write_text(
        f'policy = "hf:{policy}"\nthreads = 1\n[search]\nencoder = "hash"\n[rollout]\nquestions = 2\ngroup_size = 2\n'
        'turn_tokens = 6\ncontext_tokens = 256\n[env.options]\nprompt = "{question}"\nmax_turns = 1\nk = 1\n'
        f"[optimizer]\nsteps = 1\n[evaluation]\nevery = 0\nbounds = false\n"
        f'[train.world]\nsplit = "train"\nseed = 1\n{world}[test.world]\nseed = 3\n{world}'
    )
    words = ["--preset", str(preset), "--json", "--seeds", "2", "--fresh", "2", "--threads", "1"]
    words += ["--runs", str(tmp_path / "runs"), "--out", str(path)]
    figures = written(here("main_training", *words), path)
    assert list(figures["seeds"]) == ["0", "1"]
    for run in figures["seeds"].values():
        assert (run["steps"], run["faults"], run["after"]["n"], run["dense_alone"]["n"]) == (1, 0, 6, 6)
        assert {seed: score["n"] for seed, score in run["fresh_worlds"].items()} == {"101": 6, "102": 6}
    assert sorted(folder.name for folder in (tmp_path / "runs").iterdir()) == ["seed-0", "seed-1"]
    again = written(here("main_training", *words), path)
    # finished runs are not repeated, their seconds are those of then
    assert again["seeds"] == figures["seeds"]


@pytest.mark.skipif(not HAS_TRL, reason="trl or datasets is not installed")
def test_trl_comparison(policy: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    words = ("--questions", "2", "--group", "2", "--tokens", "3", "--steps", "1", "--out", str(path))
    figures = result(command("trl_comparison", policy, *words, "--trl-batch", "4", "2"), path)
    # 2 groups x 2 episodes x 3 tokens, once and in three turns
    sampled = {
        (cell["turns"], cell["prompts"]): cell["trl"]["tokens"]["sampled"] for cell in figures["cells"]
    }
    assert sampled == {(1, "shared"): 12, (1, "own"): 12, (3, "shared"): 36, (3, "own"): 36}
    for cell in figures["cells"]:
        assert cell["agentenv"]["tokens"] == cell["trl"]["tokens"]
        assert cell["ratio"] == cell["trl"]["median_seconds"] / cell["agentenv"]["median_seconds"]
        assert set(cell["trl"]["trials_seconds"]) == {"4", "2"}


@pytest.mark.skipif(HAS_TRL, reason="trl is installed")
def test_a_missing_peer_is_one_sentence(policy: Path, tmp_path: Path) -> None:
    done = command("trl_comparison", policy, "--out", str(tmp_path / "out.json"))
    assert done.returncode != 0
    assert done.stderr.count("\n") == 1
    assert "pip install" in done.stderr
    assert not (tmp_path / "out.json").exists()


def test_time_travel(tmp_path: Path, here: Run) -> None:
    """Four cells and a hand-in. With snapshots nothing before turn t is executed again; seconds are not judged."""
    if reason := unavailable("unsafe-local"):
        pytest.skip(reason)
    path = tmp_path / "out.json"
    size = ("--turns", "4", "--branches", "3", "--tool-ms", "1", "--repeats", "1", "--threads", "1")
    where = ("--backend", "unsafe-local", "--json", "--out", str(path))
    figures = written(here("time_travel", *size, *where), path)
    rows = {(row["job"], row["turn"]): row for row in figures["rows"]}
    assert set(rows) == {(job, turn) for job in ("rollback", "retry", "tree") for turn in (1, 2)}
    for (job, turn), row in rows.items():
        by_snapshot, repeated, whole = (
            row[way] for way in ("snapshots", "prefix repeated", "whole episodes")
        )
        expected = {"rollback": 6, "retry": 5 + (5 - turn), "tree": 5 + 2 * (5 - turn)}[job]
        assert by_snapshot["steps"] == expected
        assert repeated["steps"] == expected + turn * (2 if job == "tree" else 1)
        assert repeated["sampled_tokens"] == by_snapshot["sampled_tokens"] < whole["sampled_tokens"]
        assert whole["steps"] == (15 if job == "tree" else 10)


HAS_SERVE = all(
    importlib.util.find_spec(name) for name in ("fastapi", "uvicorn", "orjson", "prometheus_client")
)
needs_serve = pytest.mark.skipif(not HAS_SERVE, reason="the extra serve is not installed")


def plain(name: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a benchmark of retrieval over a small invented world."""
    script = [
        sys.executable,
        str(ROOT / "benchmarks" / f"{name}.py"),
        "--encoder",
        "hash",
        "--documents",
        "200",
    ]
    small = ["--threads", "1", "--json"]
    return subprocess.run([*script, *small, *words], capture_output=True, text=True, timeout=300, cwd=ROOT)


@needs_serve
def test_retrieval_service(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    words = ("--seconds", "0.3", "--warmup", "0.1", "--clients", "4", "--out", str(path))
    done = plain(
        "retrieval_service", *words, "--cases", "passages", "repeats", "--work", str(tmp_path / "work")
    )
    cases = result(done, path)["cases"]
    assert set(cases) == {"passages", "repeats"}
    mine, theirs = cases["passages"]["agentenv"], cases["passages"]["reference"]
    settings = cases["passages"]["reference_settings"]
    assert len(settings) == 2  # two handlers, and one thread here
    assert theirs["queries_per_second"] == max(row["queries_per_second"] for row in settings.values())
    ratio = mine["queries_per_second"] / theirs["queries_per_second"]
    assert cases["passages"]["times_the_queries_per_second"] == ratio
    assert cases["passages"]["answers_compared"] >= 1
    assert 0 < mine["p50_s"] <= mine["p99_s"]
    assert cases["repeats"]["share"] == 0.3
    assert cases["passages"]["share_of_encoder"] > 0


@needs_serve
def test_soak(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    figures = result(
        plain("soak", "--minutes", "0.03", "--clients", "12", "--questions", "40", "--out", str(path)), path
    )
    assert figures["failures"] == 0
    assert set(figures["statuses"]) <= {"200", "429"}
    assert figures["queries_checked"] >= figures["statuses"]["200"] >= 12
    assert sum(figures["statuses"].values()) == figures["requests"]


@needs_serve
@pytest.mark.parametrize(
    "wrong", [[("a", 1.0)], [("b", 1.0), ("a", 1.0)], [("a", 1.0), ("b", 0.4)], [("a", 1.0), ("c", 0.5)]]
)
def test_the_soak_sees_wrong_answers(wrong: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import soak

    from agentenv.core.types import Passage

    best = [Passage("a", "", "", 1.0), Passage("b", "", "", 0.5)]
    assert soak.right([("a", 1.00001), ("b", 0.5)], best)
    assert not soak.right(wrong, best)


@needs_serve
def test_the_million_is_random_unit_vectors_and_real_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss", reason="faiss-cpu is not installed")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import grounds
    import numpy as np

    from agentenv.retrievers.encoder import HashEncoder
    from agentenv.retrievers.retriever_spec import open_retriever

    task_env = grounds.million(tmp_path, "hash", 50, ["who?"])
    assert (open_retriever(task_env.folder).info().documents, task_env.questions) == (50, ["who?"])
    encoder = grounds.RandomPassages(HashEncoder())
    vectors = encoder.encode_passages(["same"] * 3)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert np.abs(vectors @ vectors.T - np.eye(3)).max() < 0.3
    assert np.array_equal(encoder.encode_queries(["who?"]), HashEncoder().encode_queries(["who?"]))


def test_asynchronous_training(policy: Path, tmp_path: Path, here: Run) -> None:
    path = tmp_path / "out.json"
    words = ["--policy", f"hf:{policy}", "--out", str(path), *SMALL, "--questions", "2", "--group-size", "2"]
    words += ["--fastest", "0.001", "--slowest", "0.1", "--staleness", "2"]
    figures = written(here("async_training", *words), path)
    assert set(figures["runs"]) == {"synchronous, deterministic", "synchronous", "staleness 2"}
    for run in figures["runs"].values():
        assert run["episodes"] == 4
        assert run["faults"] == 0
        assert run["seconds"] > 0
    assert figures["runs"]["synchronous"]["speedup"] == 1
    assert figures["runs"]["staleness 2"]["staleness_max"] <= 2


def test_decoupling_in_simulated_time(tmp_path: Path, here: Run) -> None:
    """Two small steps: equal work, and the same figures again, as no clock of the machine enters them."""
    sizes = {"steps": 2, "questions": 2, "group-size": 2, "turns": 2, "staleness": 1}
    words = ["--json", *(word for name, size in sizes.items() for word in (f"--{name}", str(size)))]
    printed = []
    for name in ("first.json", "again.json"):
        path = tmp_path / name
        printed.append(written(here("decoupling", *words, "--out", str(path)), path)["runs"])
    assert set(printed[0]) == {"coupled", "groups, staleness 1", "single episodes, staleness 1"}
    for run in printed[0].values():
        assert run["episodes"] == 8
        assert 0 < run["environment_utilisation"] < run["workers_held"] < 1
    assert printed[0]["coupled"]["speedup"] == 1
    assert printed[0]["single episodes, staleness 1"]["seconds"] < printed[0]["coupled"]["seconds"]
    assert printed[1] == printed[0]


def test_kills(policy: Path, tmp_path: Path) -> None:
    """Killed before the first step, during it or after, and resumed; equal bytes, or exit 1."""
    path = tmp_path / "out.json"
    figures = result(command("kills", policy, "--kills", "1", "--seed", "6", "--out", str(path)), path)
    assert figures["equal"] == figures["kills"] == len(figures["lines_at_the_kill"])


def test_asynchronous_soak(policy: Path, tmp_path: Path) -> None:
    """Seconds of it: the first worker lives for 3.4 s after its first step, the last one ends in order."""
    path = tmp_path / "out.json"
    backend = "unsafe-local" if unavailable("bwrap") else "bwrap"
    words = [
        "--minutes",
        "0.1",
        "--worker-every",
        "2",
        "--every",
        "0.5",
        "--rate",
        "0.02",
        "--backend",
        backend,
    ]
    figures = result(command("async_soak", policy, *words, "--out", str(path)), path)
    assert figures["failures"] == 0
    assert figures["counts"]["worker killed"] >= 1
    assert figures["counts"]["lives"] >= 2
    assert figures["counts"]["episodes valid"] > 0
    # A worker that is killed between the log of a step and the census of it leaves a step that was not counted.
    assert figures["steps_made"] + figures["counts"]["worker killed"] >= figures["steps"] >= 1


def test_the_soak_knows_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    soak = importlib.import_module("async_soak")
    ended = {"id": "e", "valid": True, "end_reason": "answered", "error": None, "reward": 0.5}
    fault = ended | {"valid": False, "end_reason": "env_fault", "error": "E", "reward": 0.0}
    records, figures = [ended] * 11 + [fault], {"faults": 1, "reward_mean": 0.5, "staleness_max": 1}
    assert list(soak.wrongs(1, records, figures, set())) == []
    counted = [*soak.wrongs(1, records, figures, {"e"})]
    assert len(counted) == 11
    assert "was struck and counts" in counted[0]
    (masked,) = soak.wrongs(1, records, figures | {"reward_mean": 5.5 / 12}, set())
    assert "the mean reward is" in masked
    silent = [*records[:-1], fault | {"valid": True}]
    assert "valid is True" in next(soak.wrongs(1, silent, figures, set()))
    life = [
        {"life": 0, "descriptors": 9 + step, "threads": 1, "processes": 1, "mib": 1.0} for step in range(30)
    ]
    assert [*soak.growth(life)] == ["descriptors grew from 18 to 38 in life 0"]


def test_padding_of_a_run(policy: Path, tmp_path: Path, here: Run) -> None:
    """A step of two groups, with rows of 5 to 40 tokens."""
    run, path = tmp_path / "run", tmp_path / "out.json"
    folder = RunFolder.create(run, override(TrainConfig(), ["--policy", f"hf:{policy}"]))
    prompt = Segment(SegmentKind.PROMPT, (1, 2), 0)
    sampled = [Segment(SegmentKind.POLICY, (3,) * n, 0, logprobs=(-1.0,) * n) for n in range(3, 43, 5)]
    played = [
        Trajectory(
            Task("t", "q"), (prompt, mine), (), place % 2, EndReason.ANSWERED, group_id=f"group-{place // 4}"
        )
        for place, mine in enumerate(sampled)
    ]
    folder.dump(1, played)
    words = ("--run", str(run), "--out", str(path), "--repeats", "1", "--json")
    figures = written(here("padding", *words), path)
    assert figures["rows"] == [8]
    bounds = figures["bounds"]
    assert bounds["1.0"]["gradient_apart_max"] == 0
    assert bounds["0.05"]["gradient_apart_max"] < 1e-4
    assert bounds["0.05"]["padding_max"] <= 0.05 < bounds["1.0"]["padding_mean"]
    assert bounds["0.05"]["micro_batches"] > bounds["1.0"]["micro_batches"]


def test_episode_cache(tmp_path: Path, here: Run) -> None:
    """Of 4 episodes a token is 16 KiB: slots of 64 tokens grow to 96 in the first turn, and to 144 in the third."""
    path = tmp_path / "out.json"
    sizes = {"layers": 1, "context": 256, "prompt": 60, "observed": 10, "sampled": 4, "turns": 3}
    words = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    printed = here("episode_cache", "--out", str(path), "--json", *words, "--threads", "1")
    turns = written(printed, path)["a_turn"]
    mib = {part: round(16 * tokens / 3 / 1024, 1) for part, tokens in (("once", 63), ("twice", 63 + 91))}
    assert turns["rewound"]["copied_mib"] == mib["once"]
    assert turns["all go on"]["copied_mib"] == mib["twice"]
    assert turns["rewound"]["cleared_mib"] == round(16 * 96 / 3 / 1024, 1)
    assert turns["one ends"]["copied_mib"] > 0
    assert all(one["processor_seconds"] > one["outside_the_model"] > 0 for one in turns.values())


def test_loss_memory(tmp_path: Path) -> None:
    """Of 2,048 tokens and 60,000 words, in 2 * 60,000 * 8 bytes of weights: all logits at once are 234 MiB in bfloat16."""
    path = tmp_path / "out.json"
    script = [sys.executable, str(ROOT / "benchmarks" / "loss_memory.py"), "--out", str(path), "--json"]
    sizes = [
        "--tokens",
        "2048",
        "--words",
        "60000",
        "--width",
        "8",
        "--whole-tokens",
        "256",
        "--threads",
        "1",
    ]
    done = subprocess.run([*script, *sizes], capture_output=True, text=True, timeout=300)
    figures = result(done, path)
    counted, measured = figures["counted"], figures["measured"]
    assert counted["whole"]["mib"] > 3 * 2 * 234
    assert counted["chunked"]["mib"] < 600
    assert measured["chunked"]["mib"] < 1.3 * counted["chunked"]["mib"]
    assert measured["whole"]["tokens"] == 256


def test_staleness_curves(policy: Path, tmp_path: Path, here: Run) -> None:
    path, preset = tmp_path / "out.json", tmp_path / "small.toml"
    preset.write_text(
        '[search]\nencoder = "hash"\n[rollout]\nquestions = 2\ngroup_size = 2\nturn_tokens = 6\ncontext_tokens = 256\n'
        '[env.options]\nprompt = "{question}"\nmax_turns = 1\nk = 1\n[test]\nlimit = 1\n'
        + "".join(f"[{name}.world]\ndocuments = 200\nquestions = 20\n" for name in ("train", "dev", "test"))
    )
    words = ["--policy", f"hf:{policy}", "--preset", str(preset), "--out", str(path), *SMALL]
    words += ["--seeds", "2", "--staleness", "0", "1", "--every", "1"]
    figures = written(here("staleness", *words), path)
    assert set(figures["summary"]) == {"0", "1"}
    assert figures["summary"]["0"]["reward"]["difference"] == {"mean": 0}  # equal seeds have no interval
    assert [len(run["rewards"]) for runs in figures["curves"].values() for run in runs] == [2] * 4


def test_several_environments(policy: Path, tmp_path: Path, here: Run) -> None:
    path = tmp_path / "out.json"
    words = ["--policy", f"hf:{policy}", "--out", str(path), "--threads", "1", "--json"]
    words += ["--steps", "1", "--seeds", "1", "--questions", "2", "--limit", "2"]
    figures = written(here("several_environments", *words), path)
    assert set(figures["summary"]) == {"search", "one_hop"}
    assert [len(runs) for runs in figures["runs"].values()] == [1, 1, 1]
    assert "after-one_hop" in figures["runs"]["both"][0]

"""``agentenv train``: what a run writes, determinism, kill -9 and resume, one sentence for each mistake.

The model is a random Qwen2 of width 16 that has learned for a second to answer yes or no, so that rewards differ.
"""

import errno
import gzip
import importlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import tyro
from rich.console import Console

from agentenv.cli.main import COMMANDS, main
from agentenv.cli.train import Train, next_commands
from agentenv.core.chat import InlineFormat
from agentenv.core.types import Message
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.policies.fakes import random_policy
from agentenv.trainers.config.config_files import changed, load_config, override
from tests.file_contents import contents_of

WORLD = {"documents": 200, "questions": 24, "families": ("yes_no",), "hops": (2, 2)}
STEPS = 4

CONFIG = """
name = "small"
policy = "hf:{model}"
threads = 1
checkpoint_every = 2
trajectories_every = 1
[env.options]
k = 1
max_turns = 1
observation_tokens = 40
prompt = "{{question}}"
[search]
encoder = "hash"
[train.world]
seed = 1
documents = 200
questions = 24
families = ["yes_no"]
hops = [2, 2]
split = "train"
[dev]
limit = 6
[dev.world]
seed = 2
documents = 200
questions = 12
families = ["yes_no"]
hops = [2, 2]
split = "dev"
[test]
limit = 8
[test.world]
seed = 3
documents = 200
questions = 12
families = ["yes_no"]
hops = [2, 2]
[rollout]
questions = 3
group_size = 4
turn_tokens = 8
context_tokens = 200
[optimizer]
steps = 4
learning_rate = 1e-3
[evaluation]
every = 2
"""


def _say_yes_or_no(model: Any, tokenizer: Any, questions: list[str]) -> None:
    """Sixty supervised steps on right forms of random content."""
    chat, rng = InlineFormat(tokenizer), random.Random(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    forms = ("<answer>yes</answer>", "<answer>no</answer>", "<search>Who?</search>")
    for _ in range(60):
        loss = torch.zeros(())
        for question in rng.sample(questions, 4):
            prompt = chat.prompt([Message("user", question)])
            ids = torch.tensor([[*prompt, *tokenizer.encode(rng.choice(forms), add_special_tokens=False)]])
            logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
            loss = loss + torch.nn.functional.cross_entropy(logits, ids[0, len(prompt) :])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the starting policy."""
    torch.set_num_threads(1)
    world = FictionalWorld.generate(WorldConfig(seed=1, split="train", **WORLD))  # type: ignore[arg-type]
    questions = [task.question for task in world.questions]
    texts = [*questions, *(d.text for d in world.documents), "<answer>yes no who?"]
    folder = tmp_path_factory.mktemp("policy")
    made, tokenizer = random_policy(folder, texts, layers=2, context=256, tied=True)
    _say_yes_or_no(made, tokenizer, questions)
    made.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def toml(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a run of seconds."""
    path = tmp_path_factory.mktemp("config") / "small.toml"
    path.write_text(CONFIG.format(model=model))
    return path


@pytest.fixture(scope="module")
def finished(toml: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert main(["train", str(toml), "--out", str(out), "--json"]) == 0
    return out


def contents(run: Path) -> dict[str, str]:
    """Every file whose bytes a run must repeat: seconds, logs, HTML and optimiser archives with their paths are not."""
    names = ["metrics.jsonl", "policy/model.safetensors", "trajectories/*", "checkpoints/*/model.safetensors"]
    names += [
        f"evaluation/{when}/{name}"
        for when in ("before", "after")
        for name in ("episodes.jsonl", "results.json")
    ]
    return contents_of(run, names)


def results(run: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((run / "results.json").read_text())
    return read


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_folder_holds_everything(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names == {
        "config.toml",
        "identity.json",
        "metrics.jsonl",
        "timings.jsonl",
        "trajectories",
        "checkpoints",
        "evaluation",
        "policy",
        "results.json",
        "report.html",
        "run.log",
    }
    assert [line["step"] for line in metrics(finished)] == [1, 2, 3, 4]
    assert [line["step"] for line in metrics(finished) if "dev_score" in line] == [2, 4]
    assert {p.name for p in (finished / "checkpoints").iterdir()} == {"step-000002", "step-000004"}
    assert len(list((finished / "trajectories").iterdir())) == STEPS
    read = results(finished)
    for when in ("before", "after"):
        assert read[when]["n"] == 8
        low, high = read[when]["ci95"]
        assert 0 <= low <= read[when]["mean"] <= high <= 1
    assert set(read["bounds"]) == {"closed_book", "oracle", "oracle_paged", "expert"}
    # Every question stands on two documents, and one search of one passage cannot show both.
    assert read["bounds"]["expert"]["mean"] == 0
    assert set(read["index_recall"]) == {"recall@2", "recall@3", "recall@5", "recall@10", "all@5"}
    assert read["seconds"]["training"] > 0
    assert set(read["seconds"]) >= {"preparation", "training", "evaluation_before", "evaluation_after"}


@pytest.mark.skipif(not os.environ.get("AGENTENV_DATA"), reason="AGENTENV_DATA is not set")
@pytest.mark.parametrize("dataset", ["hotpotqa", "2wiki", "musique"])
def test_two_steps_on_real_questions(
    dataset: str, toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole real corpus is searched, by hashed words so that it takes seconds."""
    words = ["--optimizer.steps", "2", "--checkpoint_every", "2", "--env.options.observation_tokens", "20"]
    for source, split, limit in (("train", "train", 6), ("dev", "dev", 2), ("test", "dev", 4)):
        words += [f"--{source}.dataset", dataset, f"--{source}.split", split, f"--{source}.limit", str(limit)]
    assert main(["train", str(toml), "--out", str(tmp_path / "run"), *words]) == 0
    read = results(tmp_path / "run")
    assert (read["steps"], read["after"]["n"], read["faults"]) == (2, 4, 0)
    assert (
        f"index, bare question: recall@5    {read['index_recall']['recall@5']:.3f}" in capsys.readouterr().out
    )


def test_a_run_learns_from_rewards_that_differ(finished: Path, model: Path) -> None:
    """Without this the comparisons of bytes below would compare copies of the start."""
    from safetensors.torch import load_file

    lines = metrics(finished)
    assert any(line["reward_std"] > 0 and line["grad_norm"] > 0 for line in lines)
    assert any("end_answered" in line for line in lines)
    start, end = (load_file(folder / "model.safetensors") for folder in (model, finished / "policy"))
    assert any(not torch.equal(start[name], end[name]) for name in start)
    # One optimiser step a batch: what was sampled is on policy, so ratios are 1 but for the sampler's rounding.
    assert all(abs(line["approx_kl"]) < 1e-5 and line["clip_fraction"] == 0 for line in lines)


def read_trajectories(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def test_trajectories_say_what_was_sampled(finished: Path) -> None:
    records = read_trajectories(finished / "trajectories" / "step-000001.jsonl.gz")
    assert len(records) == 12
    groups = [record["group_id"] for record in records]
    assert [groups.count(name) for name in dict.fromkeys(groups)] == [4, 4, 4]


def test_the_same_seed_gives_the_same_bytes(finished: Path, toml: Path, tmp_path: Path) -> None:
    assert main(["train", str(toml), "--out", str(tmp_path / "again"), "--json"]) == 0
    assert contents(tmp_path / "again") == contents(finished)


def test_another_seed_gives_another_run(finished: Path, toml: Path, tmp_path: Path) -> None:
    words = ["--seed", "1", "--optimizer.steps", "1", "--evaluation.bounds", "false", "--test.limit", "2"]
    assert main(["train", str(toml), "--out", str(tmp_path / "other"), *words, "--json"]) == 0
    assert metrics(tmp_path / "other")[0] != metrics(finished)[0]
    for run, seed in ((finished, 0), (tmp_path / "other", 1)):
        assert json.loads((run / "evaluation" / "after" / "results.json").read_text())["seed"] == seed


def test_a_run_with_every_choice_made_otherwise(toml: Path, tmp_path: Path) -> None:
    words = (
        "--optimizer.steps 2 --evaluation.bounds false --test.limit 2 --optimizer.updates 2 "
        "--loss.estimator anchor_state --loss.estimator_options.population step "
        "--loss.objective gspo --loss.proximal recompute --loss.correction.mode truncate "
        "--loss.correction.ess_base 1.0 --loss.ace_alpha 0.5 --loss.kl_coefficient 0.01 "
        "--loss.entropy_coefficient 0.001 --reward_shaping.answer_penalty 0.2 --reward_shaping.overlong_buffer 20"
    )
    assert main(["train", str(toml), "--out", str(tmp_path / "out"), *words.split(), "--json"]) == 0
    for line in metrics(tmp_path / "out"):
        assert {"behaviour_weight", "effective_sample", "policy_entropy"} <= set(line)
        assert line["effective_sample"] == pytest.approx(1, abs=1e-3)  # sampler and learner are one model
        assert line["grad_norm"] > 0


@pytest.mark.parametrize(
    "correction",
    [
        "--loss.proximal recompute --loss.correction.mode truncate --loss.correction.off_context rescore",
        "--asynchronous.staleness 1 --rollout.deterministic false",
    ],
)
def test_a_run_with_rollbacks_scores_spliced_tokens_again(
    toml: Path, tmp_path: Path, correction: str
) -> None:
    """The correction refuses tokens of another context, so the run shows that none is left; by default they are weighed."""
    words = (
        "--optimizer.steps 2 --evaluation.bounds false --test.limit 2 --env.options.max_turns 3 "
        "--rollout.strategy rollback "
        "--rollout.strategy_options.retries 2 --rollout.temperature 1.3 --evaluation.strategy rollback "
        "--rollout.strategy_options.without_call true "  # the policy writes no calls
    )
    words += correction
    assert main(["train", str(toml), "--out", str(tmp_path / "out"), *words.split(), "--json"]) == 0
    read = results(tmp_path / "out")
    assert {"before", "after", "before-rollback", "after-rollback"} <= set(read)
    assert read["after-rollback"]["n"] == 2
    report = (tmp_path / "out" / "report.html").read_text()
    assert "after-rollback" in report
    lines = metrics(tmp_path / "out")
    assert sum(line["rollback_shallow"] + line["rollback_deep"] for line in lines) > 0
    assert all(
        line["behaviour_weight"] == pytest.approx(1, abs=1e-3 if "off_context" in correction else 0.5)
        for line in lines
    )
    assert any(line["sampled_tokens"] > 12 * line["response_tokens"] for line in lines)


def test_a_run_of_trees_has_groups_of_leaves(toml: Path, tmp_path: Path) -> None:
    words = (
        "--optimizer.steps 2 --evaluation.bounds false --test.limit 2 --rollout.strategy tree --env.options.max_turns 3 "
        "--rollout.strategy_options.depth 1 --loss.estimator sibling"
    )
    runs = [tmp_path / name for name in ("one", "two")]
    for run in runs:
        assert main(["train", str(toml), "--out", str(run), *words.split(), "--json"]) == 0
    records = read_trajectories(runs[0] / "trajectories" / "step-000001.jsonl.gz")
    leaves = [record for record in records if record["origin"] == "branch"]
    ids = {record["id"] for record in records}
    assert leaves
    assert all(leaf["parent_id"] in ids and leaf["fork_turn"] > 0 for leaf in leaves)
    assert 6 <= len(records) <= 12
    assert any(line["grad_norm"] > 0 for line in metrics(runs[0]))
    assert contents(runs[0]) == contents(runs[1])


@pytest.mark.parametrize("reflector", ["rule", "self"])
def test_a_run_that_reflects_and_retries(toml: Path, tmp_path: Path, reflector: str) -> None:
    """The log of an episode does not fit the small policy: its own reflections are counted and none is there."""
    words = (
        "--optimizer.steps 2 --evaluation.bounds false --test.limit 2 --rollout.strategy reflect_retry "
        f"--rollout.strategy_options.reflector {reflector} --rollout.strategy_options.reflection_tokens 8 "
        "--loss.estimator pivotal --loss.objective opmd"
    )
    out = tmp_path / "out"
    assert main(["train", str(toml), "--out", str(out), *words.split(), "--json"]) == 0
    for line in metrics(out):
        assert line["reflections"] == 6  # half of three groups of four
        assert line["faults"] == 0
        if reflector == "self":
            assert (line["reflections_valid"], line["reflection_tokens"]) == (0, 0)
        else:
            assert (line["reflections_valid"], line["reflection_tokens"]) == (6, 0)
            assert line["retries"] > 0
            assert line["grad_norm"] > 0
    records = read_trajectories(out / "trajectories" / "step-000001.jsonl.gz")
    assert {record["origin"] for record in records} == {"base", "retry"} - (
        {"retry"} if reflector == "self" else set()
    )
    flagged = [
        s for r in records if r["id"].endswith("-retry") for s in r["segments"] if "context_mismatch" in s
    ]
    assert bool(flagged) == (reflector == "rule")


def test_a_run_that_learns_from_demonstrations_where_all_fail(toml: Path, tmp_path: Path) -> None:
    words = (
        "--optimizer.steps 1 --evaluation.bounds false --test.limit 2 --rollout.strategy demonstrate "
        "--rollout.group_size 2 --rollout.questions 6 --rollout.turn_tokens 30 --optimizer.supervised_rate 1e-3"
    )
    out = tmp_path / "out"
    assert main(["train", str(toml), "--out", str(out), *words.split(), "--json"]) == 0
    (line,) = metrics(out)
    assert 0 < line["demonstrations"] < 6
    assert line["supervised_loss"] > 0
    assert {
        record["origin"] for record in read_trajectories(out / "trajectories" / "step-000001.jsonl.gz")
    } == {"base", "demonstration"}


def test_a_guarded_run_stops_when_the_policy_is_lost_and_stays_stopped(toml: Path, tmp_path: Path) -> None:
    """A step size of 1 leaves nothing of the policy; the tenth step is the first that is judged."""
    out = tmp_path / "out"
    words = (
        "--optimizer.steps 30 --optimizer.learning_rate 1.0 --monitor.guard true --monitor.action stop "
        "--evaluation.bounds false --evaluation.every 0 --test.limit 2 --trajectories_every 0 --checkpoint_every 30"
    )
    assert main(["train", str(toml), "--out", str(out), *words.split(), "--json"]) == 0
    read, lines = results(out), metrics(out)
    assert 10 <= read["steps"] == len(lines) < 30
    assert read["stopped"] == lines[-1]["stopped"]
    assert lines[-1]["signs"]
    assert [path.name for path in (out / "checkpoints").iterdir()] == [f"step-{len(lines):06d}"]
    before = contents(out)
    (out / "results.json").unlink()
    assert main(["train", "--resume", str(out), "--json"]) == 0
    assert contents(out) == before


KILLED = """
import os, signal, sys
from agentenv.cli.main import main
from agentenv.trainers.learner.learner import Learner

calls, accumulate = [], Learner.accumulate

def dies_in_step_4(self, *args, **kwargs):
    figures = accumulate(self, *args, **kwargs)
    calls.append(1)
    if len(calls) == 4:
        with open(sys.argv[1] + "/metrics.jsonl", "a") as file:
            file.write('{"step": 4, "loss": 0.')
        os.kill(os.getpid(), signal.SIGKILL)
    return figures

Learner.accumulate = dies_in_step_4
main(["train", sys.argv[2], "--out", sys.argv[1]])
"""


def test_a_killed_run_resumes_to_the_bytes_of_an_uninterrupted_one(
    finished: Path, toml: Path, tmp_path: Path
) -> None:
    """SIGKILL in the backward pass of step 4, two steps after the checkpoint, in the middle of a line of metrics."""
    out = tmp_path / "killed"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(out), str(toml)], capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert {p.name for p in (out / "checkpoints").iterdir()} == {"step-000002"}
    assert (out / "metrics.jsonl").read_text().endswith('"loss": 0.')
    assert (out / "trajectories" / "step-000003.jsonl.gz").exists()
    assert not (out / "results.json").exists()
    assert main(["train", "--resume", str(out), "--json"]) == 0
    assert contents(out) == contents(finished)
    whole, resumed = results(finished), results(out)
    assert {k: v for k, v in resumed.items() if k != "seconds"} == {
        k: v for k, v in whole.items() if k != "seconds"
    }
    # The seconds of the steps before the kill are not lost.
    laps = [json.loads(line) for line in (out / "timings.jsonl").read_text().splitlines()]
    assert (
        resumed["seconds"]["training"] >= round(sum(lap["rollout"] + lap["update"] for lap in laps), 1) - 0.1
    )


def test_resuming_a_finished_run_changes_nothing(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(finished, out)
    assert main(["train", "--resume", str(out), "--json"]) == 0
    assert contents(out) == contents(finished)
    assert results(out) == results(finished)


def sentence(argv: list[str], capsys: pytest.CaptureFixture[str], code: int = 1) -> str:
    """What a failing command says: one line on stderr, nothing on stdout."""
    capsys.readouterr()
    assert main(argv) == code
    said = capsys.readouterr()
    assert said.out == ""
    last = said.err.rstrip("\n").rpartition("\n")[2]
    assert last.startswith("agentenv train: ")
    assert "Traceback" not in said.err
    return last


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rollout.group_siz", "4"], "Did you mean 'rollout.group_size'?"),
        (["--rollout.group_size", "1"], "greater than or equal to 2; got 1"),
        (["--policy", "tinny"], "No policy 'tinny'. Did you mean 'tiny'?"),
        (["--policy", "hf:/nowhere/at/all"], "/nowhere/at/all holds no model"),
        (["--loss.estimator", "group_relativ"], "Did you mean 'group_relative'?"),
        (["--tracker", "wandbee:x"], "Did you mean"),
        (["--evaluation.scorers", "em_squat"], "Did you mean 'em_squad'?"),
        (["--env.id", "agentenv/LocalSerch-v0"], "Did you mean 'agentenv/LocalSearch-v0'?"),
        (["--env.options.max_turn", "3"], "max_turn"),
        (["--test.dataset", "hotpot"], "hotpotqa"),
        (["--search.encoder", "minillm"], "Did you mean 'minilm'?"),
        (["--search.retriever", "faiss:/nowhere/at/all"], "/nowhere/at/all"),
        (["--rollout.context_tokens", "12"], "context_tokens is 12: raise it"),
        (["--rollout.context_tokens", "999"], "context_tokens=999 is more than the 256 tokens"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(
    words: list[str], message: str, toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert message in sentence(["train", str(toml), "--out", str(out), *words], capsys)
    assert not out.exists()


def test_an_unknown_preset_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert "'laptop-search'" in sentence(["train", "laptop-serch"], capsys)


def test_what_can_be_resumed(
    finished: Path, toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert str(tmp_path) in sentence(["train", "--resume", str(tmp_path)], capsys)
    before = contents(finished)
    assert str(finished) in sentence(["train", str(toml), "--out", str(finished)], capsys)
    assert contents(finished) == before
    said = sentence(["train", str(toml), "--resume", str(finished)], capsys)
    assert "--resume" in said


def test_a_checkpoint_of_another_architecture(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The starting policy of a run without an identity is exchanged for a wider one; its logs stay as they are."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    out, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(finished, out)
    start = finished / "policy"
    config = AutoConfig.from_pretrained(start)
    config.intermediate_size = 48
    AutoModelForCausalLM.from_config(config).save_pretrained(other)
    AutoTokenizer.from_pretrained(start).save_pretrained(other)
    path = out / "config.toml"
    lines = [
        f'policy = "hf:{other}"' if ln.startswith("policy") else ln for ln in path.read_text().splitlines()
    ]
    path.write_text("\n".join(lines))
    assert "weights of policy" in sentence(["train", "--resume", str(out)], capsys)
    (out / "identity.json").unlink()
    for checkpoint in (out / "checkpoints").iterdir():  # as an earlier version wrote them
        (checkpoint / "identity.json").unlink()
        digests = json.loads((checkpoint / "sha256.json").read_text())
        del digests["identity.json"]
        (checkpoint / "sha256.json").write_text(json.dumps(digests))
    assert str(out) in sentence(["train", "--resume", str(out)], capsys)
    assert (out / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()
    assert path.exists()


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_at_the_start_leaves_nothing(
    toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentenv.evaluation.journal.append_lines", full_disk)
    words = ["--evaluation.bounds", "false", "--test.limit", "1"]
    out = tmp_path / "out"
    assert "No space left on device" in sentence(["train", str(toml), "--out", str(out), *words], capsys)
    assert not out.exists()


def test_a_disk_that_fills_up_stops_the_run_and_it_resumes(
    finished: Path,
    toml: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second checkpoint does not fit; with room again the run ends as if nothing had been."""
    out = tmp_path / "out"
    save = torch.save

    def full_at_step_4(state: dict[str, Any], path: Path) -> None:
        full_disk() if state["step"] == 4 else save(state, path)

    monkeypatch.setattr(torch, "save", full_at_step_4)
    assert "No space left on device" in sentence(["train", str(toml), "--out", str(out)], capsys)
    assert not (out / "checkpoints" / "step-000004").exists()
    assert not (out / "results.json").exists()
    monkeypatch.undo()
    assert main(["train", "--resume", str(out), "--json"]) == 0
    assert contents(out) == contents(finished)
    assert not list(out.rglob("*part*"))


def test_a_plan_needs_no_folder(toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(toml), "--out", str(tmp_path / "out"), "--plan", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["episodes_per_step"] == 12
    assert plan["training_minutes"] >= 0
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "wanted", "not_wanted"),
    [
        ([], ["world --seed 1003 ", "--dataset fictional"], []),
        (
            ["--test.dataset", "hotpotqa", "--test.data", "my data/x", "--search.retriever", "bm25"],
            ["--dataset hotpotqa --data 'my data/x' --retriever bm25 "],
            ["world", "fictional", "--temperature", "--scorer"],
        ),
        (
            ["--evaluation.temperature", "0.4", "--evaluation.scorers", '["f1_plain", "em_plain"]'],
            ["--retriever hybrid --temperature 0.4 --scorer f1_plain --scorer em_plain "],
            [],
        ),
        (
            [
                "--env.id",
                "agentenv/Code-v0",
                "--test.dataset",
                "env",
                "--env.options",
                '{"reward": "share", "stateful": false, "k": 2}',
            ],
            ["--option 'reward=\"share\"' "],
            ["--option k", "--option stateful"],  # which the card has
        ),
        (
            ["--env.id", "agentenv/AgentSearch-v0", "--env.options", '{"web": "web:https://a.b", "k": 2}'],
            [
                "agentenv world --seed 1003 --documents 1000 --hops 1-2 --families lookup bridge --out ",
                "--dataset fictional --env agentenv/AgentSearch-v0 --retriever hybrid --option 'web=\"web:https://a.b\"' ",
            ],
            ["--option k"],
        ),
        (
            ["--env.id", "agentenv/SQL-v0", "--test.dataset", "env"],
            ["--dataset env --env agentenv/SQL-v0 "],
            ["world", "--task-option"],
        ),
        (
            [
                *("--env.id", "agentenv/DomSim-v0", "--test.dataset", "env"),
                *("--test.options", '{"joined": 2, "templates": ["notes-pin", "files-size"]}'),
            ],
            ['--task-option joined=2 --task-option \'templates=["notes-pin", "files-size"]\' '],
            [],
        ),
    ],
)
def test_what_to_do_next_fits_the_run(words: list[str], wanted: list[str], not_wanted: list[str]) -> None:
    commands = next_commands(override(load_config("laptop-search"), words), "runs/my run")
    text = "\n".join(commands)
    assert [part for part in wanted if part not in text] == []
    assert [part for part in not_wanted if part in text] == []
    for command in commands:
        program, name, *argv = shlex.split(command)
        assert program == "agentenv"
        assert any(word.startswith("runs/my run") or word.startswith("hf:runs/my run") for word in argv)
        module, _, cls = COMMANDS[name].target.partition(":")
        tyro.cli(getattr(importlib.import_module(module), cls), args=argv)  # its flags exist


def test_the_end_of_a_run_shows_the_score_of_each_of_several_sets(capsys: pytest.CaptureFixture[str]) -> None:
    score = {"scorer": "em_squad", "mean": 0.5, "ci95": [0.4, 0.6], "n": 4}
    after = score | {
        "by_set": {"nq": {"mean": 0.25, "ci95": [0.1, 0.75], "n": 3}, "hotpotqa": {"mean": None, "n": 0}}
    }
    result = {"scorer": "em_squad", "before": score, "after": after, "bounds": {}, "index_recall": {}}
    places = {"out": "runs/x", "report": "runs/x/report.html", "policy": "runs/x/policy"}
    Train(load_config("laptop-search"), Path("runs/x")).show(result | places, Console(width=200))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["nq", "0.250", "[0.100,", "0.750]", "n", "3"] in lines
    assert ["hotpotqa", "no", "score", "n", "0"] in lines


def test_the_end_of_a_run_shows_the_scores_in_every_environment(capsys: pytest.CaptureFixture[str]) -> None:
    own = {"scorer": "em_squad", "mean": 0.5, "ci95": [0.4, 0.6], "n": 4}
    sums = {"scorer": "reward", "mean": 0.25, "ci95": [0.1, 0.75], "n": 3}
    scores = {"before": own, "after": own, "before-sums": sums, "after-sums": sums | {"mean": 0.75}}
    places = {"out": "runs/x", "report": "runs/x/report.html", "policy": "runs/x/policy"}
    result = {"scorer": "em_squad", "bounds": {}, "index_recall": {}, **scores, **places}
    config = changed(load_config("laptop-search"), {"environments.sums": {"share": 0.5}})
    Train(config, Path("runs/x")).show(result, Console(width=200))
    shown = capsys.readouterr().out
    assert "reward on 3 held-out questions of sums" in shown
    assert "after  0.750  [0.100, 0.750]" in shown
    assert "agentenv compare runs/x/evaluation/before-sums runs/x/evaluation/after-sums" in shown


def test_the_end_of_a_run_shows_the_bounds_of_its_score(capsys: pytest.CaptureFixture[str]) -> None:
    score = {"scorer": "em_squad", "mean": 0.5, "ci95": [0.4, 0.6], "n": 4}
    bounds = {"expert": {"mean": 0.985, "n": 4}, "closed_book": {"note": "the policy failed"}}
    result = {"scorer": "em_squad", "before": score, "after": score, "bounds": bounds, "index_recall": {}}
    places = {"out": "runs/x", "report": "runs/x/report.html", "policy": "runs/x/policy"}
    Train(load_config("laptop-search"), Path("runs/x")).show(result | places, Console(width=200))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["bound", "expert", "0.985"] in lines
    assert ["bound", "closed_book", "not", "measured:", "the", "policy", "failed"] in lines

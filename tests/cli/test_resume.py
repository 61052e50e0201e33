"""``agentenv train --resume``: what may change within a run, what may not, and what a signal or a lost race leaves."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from agentenv.cli.main import main
from agentenv.data.world import FictionalWorld, WorldConfig, write_world
from agentenv.evaluation.built_retrievers import _load
from agentenv.policies.fakes import random_policy
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.learner.learner import Learner
from agentenv.trainers.workers.rollout_scheduler import RolloutScheduler

WORLD: dict[str, Any] = {"documents": 200, "questions": 12, "families": ("lookup",), "hops": (1, 1)}

CONFIG = """
policy = "hf:{folder}/policy"
threads = 1
checkpoint_every = 1
trajectories_every = 1
[env.options]
k = 1
max_turns = 1
observation_tokens = 40
prompt = "{{question}}"
[search]
encoder = "hash"
[train]
dataset = "fictional"
data = "{folder}/train"
[dev]
limit = 2
dataset = "fictional"
data = "{folder}/dev"
[test]
limit = 2
dataset = "fictional"
data = "{folder}/test"
[rollout]
questions = 2
group_size = 2
turn_tokens = 8
context_tokens = 200
[optimizer]
steps = 2
[evaluation]
every = 0
bounds = false
"""


@pytest.fixture(autouse=True)
def _hears_hangups() -> Iterator[None]:
    """SIGHUP is not ignored, as it would be where the tests run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three worlds, a policy, and the configuration of a run over them."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("start")
    for seed, split in enumerate(("train", "dev", "test")):
        write_world(WorldConfig(seed=seed, **{**WORLD, "split": split}), folder / split)
    world = FictionalWorld.generate(WorldConfig(seed=0, split="train", **WORLD))
    random_policy(folder / "policy", [task.question for task in world.questions])
    (folder / "run.toml").write_text(CONFIG.format(folder=folder))
    return folder


@pytest.fixture(scope="module")
def finished(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    assert main(["train", str(start / "run.toml"), "--out", str(out), "--json"]) == 0
    return out


@pytest.fixture
def stopped(finished: Path, tmp_path: Path) -> Path:
    """The same run as if it had been stopped after its last step."""
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / "results.json").unlink()
    return out


def said(argv: list[str], capsys: pytest.CaptureFixture[str], code: int = 1) -> str:
    """The last line on stderr of a command that ends with ``code``."""
    capsys.readouterr()
    assert main(argv) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err.rstrip("\n").rpartition("\n")[2]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("group_size = 2", "group_size = 4", "rollout.group_size"),
        ("seed = 0", "seed = 5", "seed"),
        ('estimator = "group_relative"', 'estimator = "leave_one_out"', "loss.estimator"),
        ("max_turns = 1", "max_turns = 2", "env.options.max_turns"),
    ],
)
@pytest.mark.parametrize("kept", ["identity.json", "checkpoint"])
def test_an_edited_configuration_is_refused_by_the_name_of_the_key(
    stopped: Path, old: str, new: str, key: str, kept: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where a checkpoint alone says what the run was."""
    before = (stopped / "metrics.jsonl").read_bytes()
    text = (stopped / "config.toml").read_text()
    (stopped / "config.toml").write_text(text.replace(old, new, 1))
    if kept == "checkpoint":
        (stopped / "identity.json").unlink()
    last = said(["train", "--resume", str(stopped)], capsys)
    assert key in last
    assert old.rpartition("= ")[2].strip('"') in last
    assert new.rpartition("= ")[2].strip('"') in last
    assert (stopped / "metrics.jsonl").read_bytes() == before
    assert not (stopped / "results.json").exists()


def test_another_test_set_is_refused(stopped: Path, start: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the key where it is a key, by its content where the key stays."""
    edit(stopped / "config.toml", f'data = "{start}/test"', f'data = "{start}/dev"')
    assert "in test" in said(["train", "--resume", str(stopped)], capsys)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test/questions.jsonl", "questions of test"),
        ("train/questions.jsonl", "questions of train"),
        ("dev/corpus.jsonl", "passages searched in dev"),
        ("policy/model.safetensors", "weights of policy"),
        ("policy/tokenizer_config.json", "weights of policy"),
    ],
)
def test_content_that_changed_is_refused(
    start: Path, finished: Path, tmp_path: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was moved with its data goes on, and refuses data that is not the same."""
    data, run = tmp_path / "start", tmp_path / "run"
    shutil.copytree(start, data)
    shutil.copytree(finished, run)
    edit(run / "config.toml", str(start), str(data))
    assert main(["train", "--resume", str(run)]) == 0
    path = data / name
    content = path.read_bytes()
    _load.cache_clear()  # of corpora that this process has read
    path.write_bytes(
        content[:-1] + bytes([content[-1] ^ 1])
        if name.endswith("safetensors")
        else content.replace(b'"question": "', b'"question": "So ').replace(b'"text": "', b'"text": "So ')
        if name.endswith("jsonl")
        else content + b"\n"
    )
    for unfinished in (False, True):
        if unfinished:
            (run / "results.json").unlink()
        assert message in said(["train", "--resume", str(run)], capsys)


OWN_ENV = """
from agentenv.envs.search.local_search import LocalSearch


class Own(LocalSearch):
    \"\"\"An environment of one's own.\"\"\"
"""


def test_an_environment_whose_source_changed_is_refused(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where the module has the same name and the class the same options."""
    module = tmp_path / "env_of_a_resumed_run.py"
    module.write_text(OWN_ENV)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = (start / "run.toml").read_text()
    named = '[env]\nid = "env_of_a_resumed_run:Own"\n[env.options]'
    (tmp_path / "own.toml").write_text(text.replace("[env.options]", named))
    run = tmp_path / "run"
    assert main(["train", str(tmp_path / "own.toml"), "--out", str(run), "--json", "--trust-config"]) == 0
    (run / "results.json").unlink()
    module.write_text(OWN_ENV + "    reward_floor = -1.0\n")
    assert "sources of the environment" in said(["train", "--resume", str(run), "--trust-config"], capsys)
    module.write_text(OWN_ENV)
    assert main(["train", "--resume", str(run), "--json", "--trust-config"]) == 0


def test_safe_keys_change_and_the_change_is_kept(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--optimizer.steps", "3", "--optimizer.learning_rate", "0.5"]
    assert main(["train", "--resume", str(stopped), *words, "--json"]) == 0
    lines = [json.loads(line) for line in (stopped / "metrics.jsonl").read_text().splitlines()]
    assert [line["learning_rate"] for line in lines] == [1e-4, 1e-4, 0.5]
    assert load_config(str(stopped / "config.toml")).optimizer.steps == 3
    changes = [json.loads(line) for line in (stopped / "changes.jsonl").read_text().splitlines()]
    assert changes == [
        {"after_step": 2, "key": "optimizer.learning_rate", "old": 1e-4, "new": 0.5},
        {"after_step": 2, "key": "optimizer.steps", "old": 2, "new": 3},
    ]
    page = (stopped / "report.html").read_text()
    assert "after step 2 with optimizer.learning_rate = 0.5 in place of 0.0001" in page
    assert main(["train", "--resume", str(stopped), "--json"]) == 0
    assert len((stopped / "changes.jsonl").read_text().splitlines()) == 2
    assert "optimizer.steps = 2" in said(
        ["train", "--resume", str(stopped), "--optimizer.steps", "2"], capsys
    )


def empty(path: Path) -> None:
    path.write_text("")


def halve(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[: len(lines) // 2]))


@pytest.mark.parametrize("damage", [empty, halve, lambda path: path.write_bytes(b"\xff\x00")])
def test_a_damaged_configuration_is_never_the_default_one(
    stopped: Path, damage: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """And removing it brings it back."""
    before = (stopped / "config.toml").read_bytes()
    damage(stopped / "config.toml")
    last = said(["train", "--resume", str(stopped)], capsys)
    assert "config.toml" in last
    assert "remove it" in last
    assert not (stopped / "results.json").exists()
    (stopped / "config.toml").unlink()
    assert main(["train", "--resume", str(stopped)]) == 0
    assert "config.toml" in capsys.readouterr().err
    assert (stopped / "config.toml").read_bytes() == before


@pytest.mark.parametrize(
    "name",
    [
        "evaluation/before/results.json",
        "evaluation/before/episodes.jsonl",
        "evaluation/after/results.json",
        "policy/model.safetensors",
        "results.json",
        "identity.json",
    ],
)
def test_what_can_be_made_again_is(finished: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    whole = (out / name).read_bytes()
    (out / name).unlink() if name.startswith("policy") else (out / name).write_bytes(whole[:40])
    assert main(["train", "--resume", str(out)]) == 0
    if name == "results.json":
        mine, theirs = json.loads((out / name).read_bytes()), json.loads(whole)
        assert {**mine, "seconds": 0} == {**theirs, "seconds": 0}
    else:
        assert (out / name).read_bytes() == whole


def timed(folder: Path) -> int:
    """How often episodes were written down in an evaluation."""
    return len((folder / "timings.jsonl").read_text().splitlines())


def test_an_evaluation_that_was_stopped_goes_on_from_its_journal(stopped: Path) -> None:
    """Episodes that are finished are not played again, and what was cut off is."""
    after = stopped / "evaluation" / "after"
    whole = {name: (after / name).read_bytes() for name in ("results.json", "episodes.jsonl")}
    (after / "results.json").unlink()
    assert main(["train", "--resume", str(stopped)]) == 0
    assert timed(after) == 1
    for name in ("results.json", "episodes.jsonl"):
        assert (after / name).read_bytes() == whole[name]
    for path in (stopped / "results.json", after / "results.json"):
        path.unlink()
    (after / "episodes.jsonl").write_bytes(whole["episodes.jsonl"][:-9])
    assert main(["train", "--resume", str(stopped)]) == 0
    assert timed(after) == 2
    for name in ("results.json", "episodes.jsonl"):
        assert (after / name).read_bytes() == whole[name]


def test_an_evaluation_of_other_weights_is_made_anew(stopped: Path) -> None:
    after = stopped / "evaluation" / "after"
    whole = (after / "results.json").read_bytes()
    edit(after / "results.json", '"n": 2', '"n": 7')
    edit(after / "config.toml", 'weights = "', 'weights = "0')
    assert main(["train", "--resume", str(stopped)]) == 0
    assert (after / "results.json").read_bytes() == whole


def test_a_full_disk_says_how_to_go_on(
    start: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr("agentenv.trainers.run_folder.folder.write_bytes", full)
    last = said(["train", str(start / "run.toml"), "--out", str(out)], capsys)
    assert "No space left on device" in last
    assert f"agentenv train --resume {out}" in last
    monkeypatch.undo()
    assert main(["train", "--resume", str(out), "--json"]) == 0


@pytest.mark.parametrize("kind", [MemoryError, torch.OutOfMemoryError, RuntimeError])
def test_memory_that_is_used_up_says_how_to_go_on_with_less(
    kind: type[Exception],
    start: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, step = tmp_path / "run", Learner.step

    def grows(learner: Learner, *args: Any, **kwargs: Any) -> Any:
        if (out / "checkpoints").exists():
            raise kind("can't allocate memory: you tried to allocate 99 bytes")
        return step(learner, *args, **kwargs)

    monkeypatch.setattr(Learner, "step", grows)
    last = said(["train", str(start / "run.toml"), "--memory.micro_tokens", "64", "--out", str(out)], capsys)
    assert "99 bytes" in last
    command = f"train --resume {out} --memory.micro_tokens 32"
    assert command in last
    monkeypatch.undo()
    assert main([*command.split(), "--json"]) == 0


def test_another_error_of_a_library_is_not_taken_for_a_lack_of_memory(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(Learner, "step", breaks)
    with pytest.raises(RuntimeError, match="shapes"):
        main(["train", str(start / "run.toml"), "--out", str(tmp_path / "run")])


def test_the_log_says_which_episodes_of_which_step_were_lost_and_why(
    start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = RolloutScheduler.batch

    def lossy(scheduler: RolloutScheduler, step: int, at_once: Any) -> Any:
        found = batch(scheduler, step, at_once)
        if step == 2:
            group = found.played[0]
            group[0] = replace(group[0], valid=False, error="RetrieverFault: the index is gone")
        return found

    monkeypatch.setattr(RolloutScheduler, "batch", lossy)
    assert main(["train", str(start / "run.toml"), "--out", str(tmp_path / "run"), "--json"]) == 0
    warnings = [line for line in (tmp_path / "run" / "run.log").read_text().splitlines() if "WARNING" in line]
    (lost,) = [line for line in warnings if "infrastructure" in line]
    assert "step 2: 1 of 4 episodes" in lost
    assert "the index is gone (1)" in lost


def test_of_two_that_begin_in_one_folder_one_trains_and_one_says_so(start: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    argv = ["train", str(start / "run.toml"), "--out", str(out)]
    program = f"import sys; from agentenv.cli.main import main; sys.exit(main({argv!r}))"
    both = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    errors = [process.communicate(timeout=120)[1].decode() for process in both]
    assert sorted(process.returncode for process in both) == [0, 1]
    loser = errors[[process.returncode for process in both].index(1)]
    assert "another process trains" in loser or "holds a run already" in loser
    assert load_config(str(out / "config.toml")).optimizer.steps == 2
    assert (out / "results.json").exists()


PLACES: dict[str, tuple[type, str]] = {"rollout": (RolloutScheduler, "_take"), "update": (Learner, "step")}


def signals_in_step_3(place: str, number: str, patch: Callable[[object, str, object], None]) -> None:
    """Lets this process send itself the signal when it comes to the third call of ``place``."""
    owner, name = PLACES[place]
    calls, inner = [], getattr(owner, name)

    def signals(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), getattr(signal, number))
        return inner(*args, **kwargs)

    patch(owner, name, signals)


PROGRAM = f"""
import importlib.util, sys
from agentenv.cli.main import main

spec = importlib.util.spec_from_file_location("signalled", {__file__!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.signals_in_step_3(sys.argv[1], sys.argv[2], setattr)
sys.exit(main(sys.argv[3:]))
"""


FOUR_STEPS = ["--optimizer.steps", "4", "--checkpoint_every", "4"]


@pytest.fixture(scope="module")
def undisturbed(start: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run that no signal ended."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert main(["train", str(start / "run.toml"), *FOUR_STEPS, "--out", str(out)]) == 0
    return out


def ended_in_order(out: Path, code: int, errors: str, undisturbed: Path, learned: int, number: str) -> None:
    """Checks the end of a run that a signal ended, and that the run goes on to the bytes of the one that none did."""
    assert code == 128 + getattr(signal, number), errors
    assert f"--resume {out}" in errors.splitlines()[-1]
    assert "Traceback" not in errors
    assert [path.name for path in (out / "checkpoints").iterdir()] == [f"step-{learned:06d}"]
    assert main(["train", "--resume", str(out)]) == 0
    for name in ("metrics.jsonl", "policy/model.safetensors", "evaluation/after/results.json"):
        assert (out / name).read_bytes() == (undisturbed / name).read_bytes(), name


@pytest.mark.parametrize(
    ("place", "learned", "number"),
    [("rollout", 2, "SIGINT"), ("rollout", 2, "SIGTERM"), ("update", 3, "SIGINT"), ("update", 3, "SIGHUP")],
)
def test_a_signal_ends_a_run_in_order(
    start: Path,
    undisturbed: Path,
    tmp_path: Path,
    place: str,
    learned: int,
    number: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Episodes under way are given up, an update is finished; nothing that was learned is lost, and the run goes on."""
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        signals_in_step_3(place, number, patch.setattr)
        code = main(["train", str(start / "run.toml"), *FOUR_STEPS, "--out", str(out)])
    ended_in_order(out, code, capfd.readouterr().err, undisturbed, learned, number)


def test_a_signal_ends_the_process_of_a_run(start: Path, undisturbed: Path, tmp_path: Path) -> None:
    """With the code of the signal, whatever threads are left in it."""
    out = tmp_path / "out"
    argv = ["update", "SIGTERM", "train", str(start / "run.toml"), *FOUR_STEPS, "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *argv], capture_output=True, check=False, text=True, timeout=300
    )
    ended_in_order(out, done.returncode, done.stderr, undisturbed, 3, "SIGTERM")


def test_a_run_goes_on_when_nobody_reads_what_it_says(start: Path, tmp_path: Path) -> None:
    """As when the `tee` behind it was killed."""
    read, write = os.pipe()
    os.close(read)
    words = ["train", str(start / "run.toml"), "--out", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "agentenv", *words],
        stdout=subprocess.DEVNULL,
        stderr=write,
        check=False,
        timeout=300,
    )
    os.close(write)
    assert done.returncode == 0
    assert (tmp_path / "out" / "results.json").is_file()


def test_a_second_signal_ends_at_once(start: Path, tmp_path: Path) -> None:
    """The update of the first step never ends."""
    program = """
import sys, time
from agentenv.cli.main import main
from agentenv.trainers.learner.learner import Learner
Learner.step = lambda *_, **__: print("begun", flush=True) or time.sleep(600)
sys.exit(main(sys.argv[1:]))
"""
    argv = ["train", str(start / "run.toml"), "--out", str(tmp_path / "out")]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 30
        while "SIGTERM" not in str(os.read(process.stderr.fileno(), 10_000)):  # type: ignore[union-attr]
            assert time.monotonic() < deadline
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == -signal.SIGTERM
    finally:
        process.kill()
        process.communicate()

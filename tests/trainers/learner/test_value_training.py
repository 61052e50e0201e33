"""Training of a value model: targets of states by hand, least squares by hand, recorded runs through the command."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv.cli.main import main
from agentenv.core.trajectory import Origin, Trajectory, Turn, to_record
from agentenv.core.types import EndReason, Message, Task
from agentenv.errors import ConfigurationError
from agentenv.policies.compute import AUTOMATIC
from agentenv.policies.fakes import random_policy
from agentenv.policies.value_model import load_value_model
from agentenv.progress import Display, SilentDisplay
from agentenv.trainers.config.config_files import load_config, override
from agentenv.trainers.learner.value_training import (
    LabelledEpisode,
    label_states,
    least_squares,
    read_groups,
    ridge_of,
)
from agentenv.trainers.run_folder.folder import RunFolder
from agentenv.trainers.strategies.value_search import VERIFIER, ValueSearchStrategy
from agentenv.trainers.value_states import search_states


def episode(name: str, actions: str, reward: float, **changes: Any) -> Trajectory:
    """An episode with one letter for each action; the last earns the reward."""
    turns = tuple(Turn(a, (Message("tool", "."),), (), 0.0, True) for a in actions[:-1])
    turns = (*turns, Turn(actions[-1], (), (), reward, True)) if actions else ()
    return replace(
        Trajectory(Task("t", "Q"), (), turns, reward, EndReason.ANSWERED, group_id="g"), id=name, **changes
    )


def test_a_state_is_worth_the_mean_of_the_ways_on_from_it() -> None:
    """Two leaves behind the fork of a, one of them forked again, and an episode of its own."""
    group = [
        episode("a", "xy", 1.0),
        episode("b", "xz", 0.0, parent_id="a", fork_turn=1),
        episode("c", "w", 0.4),
    ]
    first, second, third = label_states(group)
    assert first.pieces == (("", "Q"), ("x", "."), ("y", ""))
    # behind x: (1 + 0)/2 = .5; the question: (.5 + .4)/2 = .45
    assert first.targets == pytest.approx({0: 0.45, 1: 0.5, 2: 1.0})
    assert second.targets == pytest.approx({2: 0.0})  # x is labelled already
    assert third.targets == pytest.approx({1: 0.4})


def test_what_says_nothing_about_the_policy_labels_nothing() -> None:
    group = [
        episode("fault", "x", 0.0, valid=False),
        episode("shown", "x", 1.0, origin=Origin.DEMONSTRATION),
        episode("reflection", "x", 1.0, origin=Origin.REFLECTION),
        episode("aborted", "x", 0.0, end_reason=EndReason.ABORTED),
        episode("silent", "", 0.0),
    ]
    assert label_states(group) == []
    (only,) = label_states([*group, episode("a", "x", 1.0)])
    assert only.targets == {0: 1.0, 1: 1.0}


def test_least_squares_by_hand() -> None:
    """At 0 1 2 3, with V = 1 + 2 x: 2 and 1. With ridge 4 = N the standardised slope, 2 s, is halved: w = 1, b = 4 - 1.5."""
    x, v = np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([1.0, 3.0, 5.0, 7.0])
    (weight,), bias = least_squares(x, v, np.array([1e-12]))
    assert (weight, bias) == pytest.approx((2.0, 1.0))
    (weight,), bias = least_squares(x, v, np.array([4.0]))
    assert (weight, bias) == pytest.approx((1.0, 2.5))


def test_a_feature_that_never_changes_has_no_weight() -> None:
    (weight,), bias = least_squares(np.ones((3, 1)), np.array([0.0, 1.0, 2.0]), np.ones(1))
    assert (weight, bias) == (0.0, 1.0)


def test_the_hidden_state_as_a_whole_is_held_back_like_one_feature() -> None:
    assert ridge_of(5, 2.0).tolist() == [6.0, 6.0, 6.0, 2.0, 2.0]


def record(run: Path, step: int, groups: dict[str, list[Trajectory]]) -> None:
    lines = [json.dumps(to_record(replace(t, group_id=name))) for name, ts in groups.items() for t in ts]
    (run / "trajectories").mkdir(parents=True, exist_ok=True)
    path = run / "trajectories" / f"step-{step:06d}.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))


def test_groups_of_one_name_in_two_steps_are_two(tmp_path: Path) -> None:
    for step in (1, 2):
        record(tmp_path, step, {"g": [episode("a", "x", 1.0)], "h": [episode("b", "y", 0.0)]})
    assert [[t.id for t in group] for group in read_groups(tmp_path)] == [["a"], ["b"], ["a"], ["b"]]


@pytest.mark.parametrize(
    "content", [b"no archive", gzip.compress(b"{}", mtime=0), gzip.compress(b"x" * 1000, mtime=0)[:20]]
)
def test_a_damaged_record_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "trajectories").mkdir()
    (tmp_path / "trajectories" / "step-000001.jsonl.gz").write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"step-000001\.jsonl\.gz"):
        list(read_groups(tmp_path))


def test_the_command_learns_to_tell_a_good_action_from_a_bad_one(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "run" / "value.safetensors"
    for step in range(1, 9):
        task = Task(f"t{step}", f"Question {step}")
        group = [replace(episode(f"{a}{step}", "x" + a, float(a == "y")), task=task) for a in "yn"]
        record(run, step, {"g": group})
    random_policy(run / "policy", ["Question 12345678 x.yn"], spread=0.5)
    assert main(["value", str(run), "--out", str(out), "--ridge", "0.01", "--json"]) == 0
    model = load_value_model(str(out))
    good, bad = (model.values([("", "Question 9"), ("x", "."), (end, "")])[-1] for end in "yn")
    assert good > 0.8
    assert bad < 0.2


def test_the_command_learns_from_searches_of_training_questions(tmp_path: Path) -> None:
    """An untrained policy calculates wrongly: every state is worth 0, and all are in the file."""
    run, out = tmp_path / "run", tmp_path / "value.safetensors"
    words = ["--train.limit", "9", "--rollout.turn_tokens", "6", "--rollout.context_tokens", "1500"]
    RunFolder.create(run, override(load_config("own-env"), words))
    random_policy(run / "policy", ["6 * 7"], spread=0.5, context=2048)
    searches = ["--search", "3", "--iterations", "2", "--samples", "6"]
    # A model that cannot be opened ends the first start behind its searches, and the second goes on with them.
    assert main(["value", str(run), "--out", str(out), *searches, "--policy", f"hf:{tmp_path / 'none'}"]) != 0
    assert (tmp_path / "value.safetensors.searched.jsonl").exists()
    assert main(["value", str(run), "--out", str(out), *searches, "--json"]) == 0
    lines = [
        json.loads(line) for line in (tmp_path / "value.safetensors.states.jsonl").read_text().splitlines()
    ]
    assert len({line["task"] for line in lines}) == 3
    assert all(line["pieces"][0][0] == "" and line["targets"] for line in lines)
    assert sum(len(line["targets"]) for line in lines) >= 10
    assert {value for line in lines for value in line["targets"].values()} == {0.0}
    assert load_value_model(str(out)).values([("", "6 * 7")]) == pytest.approx([0.0])
    assert main(["value", str(run), "--out", str(tmp_path / "other"), "--search", "-1"]) != 0
    assert sorted(path.name for path in tmp_path.glob("value.*")) == [
        "value.safetensors",
        "value.safetensors.log",
        "value.safetensors.states.jsonl",
    ]
    out.unlink()  # states that were searched are not written over
    assert main(["value", str(run), "--out", str(out), *searches]) != 0
    assert not out.exists()


class Killed(SilentDisplay):
    """Ends the work when the first searches are over, as a signal does."""

    def advance(self, done: int, metrics: dict[str, Any]) -> None:
        raise KeyboardInterrupt


def test_searches_that_are_over_outlive_the_process(tmp_path: Path) -> None:
    """Nine questions are searched eight at a time: the first eight are on the disk, and the second start plays the ninth."""
    words = ["--train.limit", "9", "--rollout.turn_tokens", "6", "--rollout.context_tokens", "1500"]
    config = override(load_config("own-env"), words)
    random_policy(tmp_path / "policy", ["6 * 7"], spread=0.5, context=2048)
    strategy = ValueSearchStrategy(value=VERIFIER, iterations=1, samples=2)

    def search(
        name: str, display: Display, strategy: ValueSearchStrategy = strategy
    ) -> list[LabelledEpisode]:
        spec, kept_in = f"hf:{tmp_path / 'policy'}", tmp_path / name
        return search_states(config, spec, 9, strategy, AUTOMATIC, display, kept_in)

    whole = search("whole", SilentDisplay())
    with pytest.raises(KeyboardInterrupt):
        search("killed", Killed())
    head, first = (tmp_path / "killed").read_text().splitlines()
    assert (tmp_path / "whole").read_text().splitlines()[:2] == [head, first]
    cut_off = (tmp_path / "whole").read_text().splitlines()[2][:50]
    (tmp_path / "killed").write_text(f"{head}\n{first}\n{cut_off}")
    assert search("killed", SilentDisplay()) == whole
    assert (tmp_path / "killed").read_text() == (tmp_path / "whole").read_text()
    # What stands in the file is taken from it and not played again.
    known = json.loads(first)
    known["episodes"] = known["episodes"][:1]
    (tmp_path / "killed").write_text(f"{head}\n{json.dumps(known)}\n")
    last = [one for one in whole if one.task == whole[-1].task]
    assert search("killed", SilentDisplay()) == [whole[0], *last]
    with pytest.raises(ConfigurationError, match="killed"):
        search("killed", SilentDisplay(), replace(strategy, samples=3))


@pytest.mark.parametrize("ridge", ["0", "-1", "nan"])
def test_what_cannot_be_learned_from_is_refused(tmp_path: Path, ridge: str) -> None:
    random_policy(tmp_path / "policy", ["x"])
    out = tmp_path / "value.safetensors"
    assert main(["value", str(tmp_path), "--out", str(out), "--ridge", ridge]) != 0
    assert main(["value", str(tmp_path), "--out", str(out)]) != 0  # nothing is recorded
    record(tmp_path, 1, {"g": [episode("a", "x", 1.0)]})
    assert main(["value", str(tmp_path), "--out", str(out)]) != 0  # two states
    assert not out.exists()

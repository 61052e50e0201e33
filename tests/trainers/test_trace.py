"""TRACE from end to end with the shipped policy: what is lacking, which environment is kept, what is written and routed."""

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentenv.cli.main import main
from agentenv.cli.trace import Trace
from agentenv.errors import ConfigurationError
from agentenv.evaluation.capabilities import Skill, TrainableCapability
from agentenv.evaluation.records import Evaluation
from agentenv.policies.router import read_router
from agentenv.trainers.config.config_files import changed, load_config
from agentenv.trainers.config.sections import RewardShapingSettings
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.settings import LossSettings
from agentenv.trainers.trace import (
    environment_for,
    lacking,
    own_capabilities,
    search_capabilities,
    variant_of,
)

TARGET = load_config("laptop-search")
KNOWN = search_capabilities(TARGET)


def test_the_easiest_world_within_the_band_is_kept() -> None:
    tried: list[TrainConfig] = []

    def rate(config: TrainConfig, tasks: int, success: float) -> float:
        assert (tasks, success) == (7, 1.0)
        tried.append(config)
        return (0.9, 0.6, 0.3)[len(tried) - 1]

    made = environment_for(TARGET, "chain", KNOWN["chain"], tasks=7, rate=rate)
    assert made.rates == (0.9, 0.6)
    assert made.config is tried[1]
    assert [config.train.world.distractors for config in tried] == [0.0, 0.2]
    assert {config.train.world.hops for config in tried} == {(2, 2)}


def test_a_capability_without_a_world_within_the_band_is_dropped() -> None:
    made = environment_for(TARGET, "read", KNOWN["read"], rate=lambda config, tasks, success: 0.1)
    assert (made.config, made.rates) == (None, (0.1, 0.1, 0.1))


def test_what_showing_a_capability_pays_says_which_episodes_succeed() -> None:
    """With exercise = .3 a wrong answer that shows the capability earns .3, which is then enough."""
    for exercise in (0.3, 1.0):
        row = search_capabilities(TARGET, exercise=exercise)["chain"]
        assert row.success == exercise
        assert {variant["env"]["options"]["exercise"] for variant in row.variants} == {exercise}


def test_a_variant_keeps_the_tools_and_budgets_of_the_target() -> None:
    config = variant_of(TARGET, "chain", KNOWN["chain"].variants[2])
    assert config.env.id == "agentenv/CapabilitySearch-v0"
    assert config.env.options == {**TARGET.env.options, "capability": "chain", "exercise": 1.0}
    half = variant_of(TARGET, "chain", search_capabilities(TARGET, exercise=0.5)["chain"].variants[0])
    assert half.env.options["exercise"] == 0.5
    assert (config.rollout.questions, config.rollout.group_size) == (8, 8)
    assert config.rollout.turn_tokens == TARGET.rollout.turn_tokens
    assert [getattr(config, split).world.hops for split in ("train", "dev", "test")] == [(3, 3)] * 3
    assert [getattr(config, split).world.split for split in ("train", "dev", "test")] == [
        "train",
        "dev",
        "test",
    ]
    with pytest.raises(ConfigurationError, match="Calculator"):
        search_capabilities(changed(TARGET, {"env.id": "agentenv/Calculator-v0", "train.dataset": "env"}))


def test_a_variant_leaves_further_environments_of_the_target_out() -> None:
    target = changed(TARGET, {"environments.sums": {"share": 0.5, "env": {"id": "agentenv/Calculator-v0"}}})
    for keep_method in (False, True):
        assert variant_of(target, "chain", {}, keep_method=keep_method).environments == {}


def test_a_variant_learns_by_grpo_whatever_the_target_does() -> None:
    """The paper trains each adapter by GRPO; the budgets, the optimizer and the schedule are not of the method."""
    target = changed(
        TARGET,
        {
            "loss": {
                "estimator": "leave_one_out",
                "objective": "gspo",
                "clip_low": 3e-4,
                "kl_coefficient": 0.01,
            },
            "rollout.sampler": "dapo",
            "rollout.strategy": "tree",
            "reward_shaping": {"answer_penalty": 0.1},
            "optimizer.mini_batches": 2,
        },
    )
    config = variant_of(target, "chain", {})
    assert (config.loss, config.reward_shaping) == (LossSettings(), RewardShapingSettings())
    assert (config.loss.estimator, config.loss.objective) == ("group_relative", "ppo_clip")
    rollout = config.rollout
    assert (rollout.sampler, rollout.strategy) == ("uniform", "plain")
    assert (rollout.sampler_options, rollout.strategy_options) == ({}, {})
    assert config.optimizer == target.optimizer
    assert rollout.turn_tokens == target.rollout.turn_tokens
    kept = environment_for(
        target, "chain", KNOWN["chain"], keep_method=True, rate=lambda config, tasks, success: 0.5
    ).config
    assert kept is not None
    assert (kept.loss, kept.reward_shaping) == (target.loss, target.reward_shaping)
    assert (kept.rollout.sampler, kept.rollout.strategy) == ("dapo", "tree")
    assert (kept.rollout.questions, kept.rollout.group_size) == (8, 8)


def test_that_nothing_is_kept_is_said() -> None:
    said = Console(record=True, width=120)
    row = {"capability": "chain", "in_failures": 0.1, "in_successes": 0.1, "in_all": 0.1, "kept": False}
    Trace(Path("before"), out=Path("out")).show(
        {"capabilities": [row], "environments": [], "out": "out"}, said
    )
    assert "no capability is kept" in said.export_text()
    Trace(Path("before"), out=Path("out")).show(
        {"capabilities": [row | {"kept": True}], "environments": [], "out": "out"}, said
    )
    assert "no capability is kept" not in said.export_text()


SMALL = """
base = "laptop-search"
threads = 1
search = { encoder = "hash" }
train = { world = { documents = 200, questions = 8 } }
dev = { world = { documents = 200, questions = 4 } }
test = { world = { documents = 200, questions = 4 } }
optimizer = { steps = 1 }
evaluation = { every = 0, bounds = false }
"""


def test_from_an_evaluation_to_a_router(tmp_path: Path) -> None:
    """The command labels, measures and writes; the configuration trains; the router answers with what it trained."""
    small = tmp_path / "small.toml"
    small.write_text(SMALL)
    words = ["eval", "--env", "agentenv/LocalSearch-v0", "--dataset", "fictional", "--policy", "tiny"]
    world = tmp_path / "world"
    assert (
        main(["world", "--out", str(world), "--documents", "200", "--questions", "24", "--hops", "1-2"]) == 0
    )
    place = ["--data", str(world), "--retriever", "bm25", "--bounds", "false"]
    assert main([*words, *place, "--out", str(tmp_path / "before")]) == 0
    out = tmp_path / "trace"
    options = ["--config", str(small), "--trust-config", "--tasks", "8", "--rank", "0", "--band", "0", "1"]
    assert main(["trace", str(tmp_path / "before"), *options, "--out", str(out)]) == 0
    report = json.loads((out / "capabilities.json").read_text())
    kept = [row["capability"] for row in report["environments"] if row["kept"]]
    assert kept
    name = kept[0]
    assert tomllib.loads((out / f"{name}.toml").read_text())["env"]["options"]["capability"] == name
    assert [route.name for route in read_router(out).routes] == kept
    assert (
        main(
            [
                "train",
                str(out / f"{name}.toml"),
                "--trust-config",
                "--out",
                str(out / name),
                "--rollout.questions",
                "1",
                "--rollout.group_size",
                "2",
            ]
        )
        == 0
    )
    card = json.loads((out / "router.json").read_text())
    card["routes"] = [route for route in card["routes"] if route["name"] == name]
    (out / "router.json").write_text(json.dumps(card))
    routed = [word if word != "tiny" else f"router:{out}" for word in words]
    assert main([*routed, *place, "--limit", "2", "--out", str(tmp_path / "after")]) == 0
    assert json.loads((tmp_path / "after" / "results.json").read_text())["n"] == 2
    assert main(["trace", str(tmp_path / "before"), *options, "--out", str(out)]) != 0  # it exists


def test_a_programme_does_not_name_what_nearly_every_episode_shows_that_calls_for_it() -> None:
    """One of ten tasks of the one sign fails and half of those of the other; a model that labels is not held to that."""

    def sign(of: str) -> TrainableCapability:
        skill = Skill(
            of, lambda record: of in record["question"], lambda record: record["prediction"] == of, ""
        )
        return TrainableCapability(skill, "", ({},))

    wrong = [("+", 1), ("-", 5)]
    records: list[Any] = [
        {"id": f"{of}{i}", "question": of, "answers": [of], "prediction": "x" if i < few else of}
        | {"valid": True, "end_reason": "answered", "searches": None, "turns": []}
        for of, few in wrong
        for i in range(10)
    ]
    evaluation = Evaluation(Path("before"), {"scores": {"em_squad": {}}}, records)
    found, _ = lacking(evaluation, {"plus": sign("+"), "minus": sign("-")})
    assert {one.capability: one.contrast for one in found} == {"minus": 1.0, "plus": 1.0}
    assert [one.capability for one in found if one.kept] == ["minus"]


OWN = """
from agentenv import EndReason, Env, Message, Task
from agentenv.evaluation.capabilities import Skill, TrainableCapability


class Guess(Env):
    @classmethod
    def make_tasks(cls, n, *, seed=0, split="train", signs="+-"):
        return [Task(f"{split}-{sign}-{i}", f"{sign}{i}", (sign,), split) for i in range(n) for sign in signs][:n]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = (options or {}).get("task") or self.make_tasks(1)[0]
        return (Message("user", self.state.question),), {"task_id": self.state.id}

    def step(self, action):
        right = action in self.state.answers
        return self.result((), reward=float(right), end=EndReason.ANSWERED, answer=action)


def sign(of):
    skill = Skill(of, lambda record: of in record["question"], lambda record: record["reward"] > 0, "")
    return TrainableCapability(skill, f"It writes {of}.", ({"train.options": {"signs": of}},))


SIGNS = {"plus": sign("+"), "minus": sign("-")}
NOTHING, BARE, BAD_NAME = {}, {"plus": 1}, {"a/b": sign("+")}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "signs.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("signs", None)


@pytest.mark.usefixtures("own")
def test_what_is_no_mapping_of_capabilities_is_refused() -> None:
    assert [*own_capabilities("signs:SIGNS")] == ["plus", "minus"]
    for name, offending in (
        ("NOTHING", "NOTHING"),
        ("BARE", "plus"),
        ("BAD_NAME", "a/b"),
        ("SIGSN", "'signs:SIGNS'"),
    ):
        with pytest.raises(ConfigurationError, match=offending):
            own_capabilities(f"signs:{name}")


def test_capabilities_of_an_environment_of_ones_own(own: Path) -> None:
    """Failures are contrasted by the skills of the module, and its variants become the runs."""
    words = ["eval", "--env", "signs:Guess", "--policy", "tiny", "--limit", "4", "--bounds", "false"]
    assert main([*words, "--out", "before"]) == 0
    options = ["--policy", "tiny", "--band", "0", "1", "--tasks", "2", "--rank", "0"]
    options += ["--config", "small.toml", "--trust-config"]
    Path("small.toml").write_text('base = "own-env"\nthreads = 1\n[env]\nid = "signs:Guess"\n')
    named = ["--capabilities", "signs:SIGNS"]
    assert main(["trace", "before", *options, *named, "--exercise", "0.5", "--out", "t"]) != 0
    assert main(["trace", "before", *options, *named, "--out", "t"]) == 0
    report = json.loads(Path("t/capabilities.json").read_text())
    assert {row["capability"]: row["in_failures"] for row in report["capabilities"]} == {
        "plus": 1,
        "minus": 1,
    }
    for name, sign in (("plus", "+"), ("minus", "-")):
        written = tomllib.loads((own / "t" / f"{name}.toml").read_text())
        assert (written["env"]["id"], written["train"]["options"]) == ("signs:Guess", {"signs": sign})
    assert [route.description for route in read_router(own / "t").routes] == ["It writes -.", "It writes +."]

"""A bound or a figure that cannot be had is a note: what was played is kept, and so is the folder.

Covered: a search environment of a user's own without ``max_turns``, evaluated and trained for two steps; an expert, an
oracle and a constructor that fail; a retriever that fails when its recall is measured.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.env import Env, run_sync
from agentenv.core.registry import register
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task
from agentenv.data.world import WorldConfig, write_world
from agentenv.errors import ConfigurationError
from agentenv.evaluation import bounds
from agentenv.policies.card import EpisodeCard, write_card
from agentenv.policies.fakes import random_policy


@dataclass
class State:
    """The task, and the turns taken."""

    task: Task
    turns: int = 0


class Own(Env[State]):
    """What a user writes: it takes a retriever and no ``max_turns``, and poses the task in the options alone."""

    def __init__(self, *, retriever: Any = None, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.retriever = retriever

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        assert options is not None
        self.state = State(options["task"])
        return (Message("user", self.state.task.question),), {"task_id": self.state.task.id}

    def step(self, action: str) -> Step:
        self.check_running()
        self.state.turns += 1
        if self.state.turns == 2:
            return self.result((), reward=float(len(action) % 2), end=EndReason.ANSWERED, answer=action)
        (found,) = run_sync(self.retriever.search([action], 1))
        return self.result((Message("tool", found[0].title if found else "nothing"),))


class LateExpert(Own):
    def expert(self) -> Sequence[str]:
        raise RuntimeError("the expert is lost")


class OddExpert(Own):
    def expert(self) -> Sequence[str]:
        return [1, None]  # type: ignore[list-item]


class NoOracle(Own):
    def step(self, action: str) -> Step:
        if "Oracle" in type(self.retriever).__name__:
            raise RuntimeError("the oracle is lost")
        return super().step(action)


class Refuses(Own):
    final_tag = "answer"

    def __init__(self, *, retriever: Any = None, max_turns: int = 2, render_mode: str | None = None) -> None:
        if "Oracle" in type(retriever).__name__ or not max_turns:
            raise ValueError("not with these")
        super().__init__(retriever=retriever, render_mode=render_mode)


class OddTag(Refuses):
    final_tag = 7  # type: ignore[assignment]


KINDS = (Own, LateExpert, OddExpert, NoOracle, Refuses, OddTag)
for kind in KINDS:
    register(f"failing-bounds/{kind.__name__}-v0", f"{__name__}:{kind.__name__}")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world in ``world`` and a random policy in ``model``."""
    folder = tmp_path_factory.mktemp("home")
    write_world(WorldConfig(seed=6, documents=200, questions=12), folder / "world")
    random_policy(folder / "model", ["Where was Zoë born?"])
    write_card(folder / "model", EpisodeCard(turn_tokens=8))
    return folder


def evaluated(home: Path, out: Path, env: str) -> dict[str, Any]:
    words = ["--dataset", "fictional", "--data", str(home / "world"), "--policy", f"hf:{home / 'model'}"]
    words += ["--env", f"failing-bounds/{env}-v0", "--retriever", "bm25", "--limit", "2", "--out", str(out)]
    assert main(["eval", *words]) == 0
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


@pytest.mark.parametrize(
    ("env", "bound", "words"),
    [
        ("Own", "closed_book", "max_turns"),
        ("LateExpert", "expert", "the expert is lost"),
        ("OddExpert", "expert", "[1, None]"),
        ("NoOracle", "oracle", "the oracle is lost"),
        ("Refuses", "closed_book", "not with these"),
        ("Refuses", "oracle_paged", "not with these"),
        ("OddTag", "closed_book", "not with these"),
    ],
)
def test_a_bound_that_fails_is_a_note_of_an_evaluation(
    home: Path, tmp_path: Path, env: str, bound: str, words: str
) -> None:
    found = evaluated(home, tmp_path / "out", env)
    assert (found["n"], found["faults"]) == (2, 0)
    assert words in found["bounds"][bound]["note"]


def test_figures_of_a_retriever_that_has_gone_are_left_out(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> None:
        raise ConnectionError("the retriever is gone")

    monkeypatch.setattr(bounds, "index_recall", gone)
    monkeypatch.setattr(bounds, "corpus_of", gone)
    found = evaluated(home, tmp_path / "out", "Own")
    assert (found["n"], found["index_recall"]) == (2, {})
    assert "the retriever is gone" in found["bounds"]["oracle"]["note"]


RUN = """
threads = 1
search.retriever = "bm25"
train.world = {seed = 1, documents = 200, questions = 4, split = "train"}
dev.world = {seed = 2, documents = 200, questions = 4, split = "dev"}
test.world = {seed = 3, documents = 200, questions = 2, split = "test"}
rollout = {questions = 2, group_size = 2, turn_tokens = 8, context_tokens = 900}
optimizer.steps = 2
"""


@pytest.mark.parametrize("env", ["Own", "NoOracle"])
def test_an_environment_of_ones_own_is_trained_for_two_steps(home: Path, tmp_path: Path, env: str) -> None:
    out, file = tmp_path / "run", tmp_path / "run.toml"
    file.write_text(f"env.id = 'failing-bounds/{env}-v0'\npolicy = 'hf:{home / 'model'}'\n{RUN}")
    assert main(["train", str(file), "--trust-config", "--out", str(out)]) == 0
    results = json.loads((out / "results.json").read_text())
    assert (results["steps"], results["faults"]) == (2, 0)
    assert results["after"]["n"] == 2
    assert ("note" in results["bounds"]["oracle"]) == (env == "NoOracle")


def test_the_reason_of_a_failure_names_its_kind_unless_it_is_a_sentence_of_ours() -> None:
    assert bounds.reason_of_failure(KeyError("gold")) == "KeyError: 'gold'"
    assert bounds.reason_of_failure(ConfigurationError("No gold.")) == "No gold."

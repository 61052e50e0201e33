"""What a training run holds: all of it is closed, in its order, whatever fails; when nobody will be asked any more.

What can be refused is refused before anything slow begins.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import agentenv
from agentenv import Document
from agentenv.errors import AgentEnvError, ConfigurationError
from agentenv.evaluation import task_env
from agentenv.progress import SilentDisplay
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.tracking import TRACKERS
from agentenv.trainers.config.config_files import changed, load_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.loop import run as loop_run
from agentenv.trainers.loop.run import Run
from agentenv.trainers.run_folder.folder import RunFolder


class Held:
    """A part of a run that says when it is closed, and then fails where it is told to."""

    def __init__(self, name: str, closed: list[str], *, fails: bool = False) -> None:
        self._name, self._closed, self._fails = name, closed, fails

    def close(self, *, failed: bool = False) -> None:
        self._closed.append(f"{self._name} failed" if failed else self._name)
        if self._fails:
            raise OSError(f"{self._name} cannot be closed")


def run_of(closed: list[str], *, fails: str = "") -> Any:
    """A run of which nothing is there but what is closed."""
    make: Callable[..., Any] = Run
    tracker, scheduler, policy = (
        Held(name, closed, fails=name == fails) for name in ("tracker", "scheduler", "policy")
    )
    rest = dict.fromkeys(("config", "folder", "display", "chat", "learner", "sampler"))
    rest |= dict.fromkeys(("environments", "training", "demonstrations"))
    return make(**rest, policy=policy, scheduler=scheduler, trackers=[tracker])


@pytest.mark.parametrize("fails", ["", "tracker", "scheduler"])
def test_every_part_is_closed_though_another_one_fails(fails: str) -> None:
    closed: list[str] = []
    if fails:
        with pytest.raises(OSError, match=fails):
            run_of(closed, fails=fails).close()
    else:
        run_of(closed).close()
    assert closed == ["tracker", "scheduler", "policy"]


def test_a_tracker_is_told_that_the_run_has_failed() -> None:
    closed: list[str] = []
    run_of(closed).close(failed=True)
    assert closed == ["tracker failed", "scheduler", "policy"]


@pytest.mark.parametrize(
    ("last", "stopped", "finished"), [(3, False, True), (2, False, False), (2, True, True)]
)
def test_judges_are_looked_for_until_the_last_step_or_the_guard_has_ended_a_run_with_results(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, last: int, stopped: bool, finished: bool
) -> None:
    config = TrainConfig.model_validate(
        {"optimizer": {"steps": 3}, "evaluation": {"judge": "openai:judge@http://judge/v1"}}
    )
    asked: list[str] = []
    monkeypatch.setattr(loop_run, "check_reached", asked.append)
    folder = RunFolder.create(tmp_path / "run", config)
    for step in range(1, last + 1):
        folder.log({"step": step} | ({"stopped": "collapsed"} if stopped and step == last else {}), {})
    loop_run._check_judges(config, folder)
    assert asked == ["openai:judge@http://judge/v1"]
    (folder.path / "results.json").write_text("{}")
    loop_run._check_judges(config, folder)
    assert len(asked) == (1 if finished else 2)


@pytest.mark.parametrize("breaks", [False, True])
def test_a_run_that_an_error_ends_is_no_finished_run_of_its_tracker(
    breaks: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Recorded:
        def log(self, step: int, metrics: Mapping[str, float]) -> None:
            steps.append(step)

        def close(self, *, failed: bool = False) -> None:
            ends.append(failed)

    class Shown(SilentDisplay):
        def phase(self, name: str, total: int) -> None:
            if breaks and name == "training":
                raise RuntimeError("the display is gone")

    ends: list[bool] = []
    steps: list[int] = []
    monkeypatch.setitem(TRACKERS, "wandb", lambda rest, run: Recorded())
    small = {"rollout.questions": 1, "rollout.group_size": 2, "dev.limit": 1, "test.limit": 1}
    config = changed(load_config("own-env"), small | {"optimizer.steps": 1, "tracker": "wandb:trial"})
    outcome = pytest.raises(RuntimeError, match="gone") if breaks else nullcontext()
    with outcome:
        agentenv.train(config, out=tmp_path / "run", display=Shown())
    assert (steps, ends) == ([] if breaks else [1], [breaks])


QUESTION = {"question": "Who founded the museum?", "answers": ["Ada Stone"]}


def test_what_can_be_refused_of_a_run_is_refused_before_an_index_is_built(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lone, same = tmp_path / "lone" / "lone.jsonl", tmp_path / "same" / "same.jsonl"
    for file in (lone, same):
        file.parent.mkdir()
        file.write_text(json.dumps(QUESTION) + "\n")
    (same.parent / "corpus.jsonl").write_text(
        '{"id": "1", "title": "Museum", "text": "Founded by Ada Stone."}\n'
    )
    built: list[object] = []
    monkeypatch.setattr(task_env, "build_retriever", lambda *args: built.append(args))
    own = {"train.dataset": str(same), "search.retriever": ""}
    for change, said in (
        ({"test.dataset": str(tmp_path / "nowhere.jsonl")}, "nowhere.jsonl"),
        ({"dev.dataset": str(lone)}, "lone has no corpus"),
        ({"test.dataset": str(same)}, "on_training_tasks"),
    ):
        with pytest.raises(AgentEnvError, match=said):
            agentenv.train(
                "laptop-search", out=tmp_path / "run", overrides=own | change, display=SilentDisplay()
            )
    assert built == []
    assert not (tmp_path / "run").exists()


def test_questions_made_of_passages_are_compared_with_the_test_set_whatever_is_searched(
    tmp_path: Path,
) -> None:
    """An index of other passages has none of the documents that support them."""
    pages = {
        "s": ("Ada Stone", "Ada Stone (born 5 May 1901 in Ulm) was an American director."),
        "r": ("Bo Reed", "Bo Reed (born 2 June 1920 in Kiel) was a German director."),
    }
    rows = [{"id": one, "title": title, "text": text} for one, (title, text) in pages.items()]
    (tmp_path / "corpus.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    for name in ("train", "test"):
        asked = {"question": f"Who is in {name}?", "answers": ["Ada"], "supporting_ids": ["s"]}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(asked) + "\n")
    BM25Retriever.build([Document("1", "Museum", "Founded by Ada Stone.")]).save(tmp_path / "index")
    changes: dict[str, Any] = {
        f"{name}.dataset": str(tmp_path / f"{name}.jsonl") for name in ("train", "test")
    }
    changes |= {"train.passage_questions": 2, "search.retriever": f"bm25:{tmp_path / 'index'}"}
    with pytest.raises(
        ConfigurationError, match="passage_questions makes questions of passages that support"
    ):
        agentenv.train("laptop-search", out=tmp_path / "run", overrides=changes, display=SilentDisplay())

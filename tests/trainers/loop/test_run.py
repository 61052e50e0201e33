"""What a training run holds: all of it is closed, in its order, whatever fails; when nobody will be asked any more.

What can be refused is refused before anything slow begins.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentenv
from agentenv import Document
from agentenv.errors import AgentEnvError, ConfigurationError
from agentenv.evaluation import task_env
from agentenv.progress import SilentDisplay
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.loop import run as loop_run
from agentenv.trainers.loop.run import Run
from agentenv.trainers.run_folder.folder import RunFolder


class Held:
    """A part of a run that says when it is closed, and then fails where it is told to."""

    def __init__(self, name: str, closed: list[str], *, fails: bool = False) -> None:
        self._name, self._closed, self._fails = name, closed, fails

    def close(self) -> None:
        self._closed.append(self._name)
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

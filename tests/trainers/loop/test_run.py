"""What a training run holds: all of it is closed, in its order, whatever fails; and when nobody will be asked any more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

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
    rest |= dict.fromkeys(("train", "dev", "test", "demonstrations"))
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

"""Trackers: TensorBoard for real; the others where installed; names, places and absent extras."""

import errno
import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import ConfigurationError, MissingExtra, UnknownName
from agentenv.tracking import TRACKERS, ForgivingTracker, Tracker, check_tracker, make_tracker, mlflow_name


def absent(module: str) -> bool:
    return importlib.util.find_spec(module) is None


@pytest.mark.skipif(absent("tensorboard") or absent("torch"), reason="tensorboard is not installed")
def test_tensorboard_holds_every_value_under_its_step(tmp_path: Path) -> None:
    tracker = make_tracker("tensorboard", tmp_path)
    assert isinstance(tracker, Tracker)
    tracker.log(1, {"em": 0.25, "loss": 2.0})
    tracker.log(5, {"em": 0.5})
    tracker.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events: Any = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("em")] == [(1, 0.25), (5, 0.5)]
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 2.0)]


@pytest.mark.skipif(absent("mlflow"), reason="mlflow is not installed")
def test_mlflow_holds_every_value_under_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    import mlflow

    tracker = make_tracker("mlflow:trial", tmp_path)
    tracker.log(3, {"em": 0.5, "em/questions (1)": 0.25})
    tracker.close()
    client: Any = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
    assert run.info.status == "FINISHED"
    make_tracker("mlflow:trial", tmp_path).close(failed=True)
    runs = client.search_runs([client.get_experiment_by_name("trial").experiment_id])
    assert sorted(run.info.status for run in runs) == ["FAILED", "FINISHED"]
    assert [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "em")] == [
        (3, 0.5)
    ]
    assert run.data.metrics["em/questions _1_"] == 0.25


def test_a_set_of_any_name_has_a_name_that_mlflow_takes() -> None:
    """MLflow refused the whole step for one such name, and the run was shown no further."""
    assert mlflow_name("reward_mean/questions (1), new+old") == "reward_mean/questions _1__ new_old"
    assert mlflow_name("dev_score/früh_2.0-a:b") == "dev_score/früh_2.0-a:b"


@pytest.mark.skipif(absent("wandb"), reason="wandb is not installed")
def test_wandb_writes_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    tracker = make_tracker("wandb:trial", tmp_path)
    tracker.log(3, {"em": 0.5})
    tracker.close()
    assert list(tmp_path.rglob("*.wandb"))


@pytest.mark.parametrize("spec", ["wandb:trial", "mlflow:trial"])
def test_a_service_that_takes_no_run_is_one_sentence_that_says_what_to_set(
    spec: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(rest: str, run: Path) -> Tracker:
        raise RuntimeError(f"{rest} has no key.\nand much more")

    kind = spec.partition(":")[0]
    monkeypatch.setitem(TRACKERS, kind, refuse)
    with pytest.raises(ConfigurationError, match=rf"trial has no key\.\).*{kind.upper()}_"):
        make_tracker(spec, tmp_path)


def test_an_unknown_kind_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"'tensorbord'.*'tensorboard'"):
        check_tracker("tensorbord")


@pytest.mark.parametrize("spec", ["wandb", "wandb:"])
def test_a_tracker_must_say_where(spec: str) -> None:
    with pytest.raises(ConfigurationError, match="wandb:PROJECT"):
        check_tracker(spec)


def test_no_two_runs_share_a_folder_of_events() -> None:
    """A folder of one's own choice was shared by every run of a preset, whose curves then lay over one another."""
    with pytest.raises(ConfigurationError, match="runs/tb"):
        check_tracker("tensorboard:runs/tb")
    check_tracker("tensorboard")


@pytest.mark.parametrize("kind", sorted(TRACKERS))
def test_an_absent_package_names_its_extra(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = {"tensorboard": "tensorboard.summary.writer.record_writer"}.get(kind, kind)
    monkeypatch.setitem(sys.modules, module, None)  # so that importing it raises ImportError
    with pytest.raises(MissingExtra, match=rf"agentenv-suite\[.*{kind}"):
        make_tracker(kind if kind == "tensorboard" else f"{kind}:x", tmp_path)


class Full:
    """Fails from ``last`` on, as a full disk does."""

    def __init__(self, last: int) -> None:
        self.last, self.steps, self.closed = last, list[int](), 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step > self.last:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.steps.append(step)

    def close(self, *, failed: bool = False) -> None:
        self.closed += 1
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(("last", "closed"), [(1, 0), (9, 1)])
def test_a_tracker_that_fails_is_told_of_once_and_ends_nothing(last: int, closed: int) -> None:
    """While it logs, or when it is closed."""
    inner, warnings = Full(last), list[str]()
    tracker = ForgivingTracker(inner, warnings.append)
    for step in (1, 2, 3):
        tracker.log(step, {"loss": 1.0})
    tracker.close()
    tracker.close()
    assert (inner.steps, inner.closed) == ([1, 2, 3][:last], closed)
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0]


def test_a_full_disk_is_one_warning_of_tensorboard_and_no_traceback(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk; the writer must not print anything of its own either."""
    program = f"""
import resource
from pathlib import Path
from agentenv.tracking import ForgivingTracker, make_tracker

tracker = ForgivingTracker(make_tracker("tensorboard", Path({str(tmp_path)!r})), print)
tracker.log(1, {{"loss": 1.0}})
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
for step in range(2, 300):
    tracker.log(step, {{"loss": 1.0}})
tracker.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    (warning,) = done.stdout.splitlines()
    assert "TensorBoardTracker" in warning
    assert "OSError" in warning

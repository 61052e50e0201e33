"""Experiment trackers behind one protocol: TensorBoard, Weights & Biases and MLflow, each an optional extra.

``tensorboard`` writes into a folder of the run itself, so that no two runs share one (``tensorboard --logdir runs`` shows
all of them); ``wandb:PROJECT`` and ``mlflow:EXPERIMENT`` open a run there under the name of the run's folder. Keys and
server addresses come from the environment variables of each service (``WANDB_API_KEY``, ``WANDB_MODE``,
``MLFLOW_TRACKING_URI``) and never from a config, so that no run folder can leak them. Trackers are copies for people: the
record of a run is its own ``metrics.jsonl``.
"""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from agentenv.errors import AgentEnvError, ConfigurationError, MissingExtra, check_known, first_line


@runtime_checkable
class Tracker(Protocol):
    """Where metrics are shown while a run goes on."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records ``metrics`` under ``step``, the number of updates done."""

    def close(self, *, failed: bool = False) -> None:
        """Writes what is buffered and ends the record; nothing may be logged after.

        Args:
            failed: whether an error or an interruption ended the run.
        """


class TensorBoardTracker:
    """Event files in the folder ``tensorboard`` of a run, for ``tensorboard --logdir``.

    Args:
        rest: nothing.
        run: the folder of the run.

    Raises:
        MissingExtra: tensorboard is not installed.
        OSError: the folder cannot be written to.
    """

    def __init__(self, rest: str, run: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise MissingExtra.of("tensorboard", "train,tensorboard") from error
        self._records: Any = RecordWriter
        self._event: Any = Event
        self._summary: Any = Summary
        folder = run / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names: a resumed run adds one.
        self._path = folder / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}"
        self._append(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds one scalar a metric.

        Raises:
            OSError: they cannot be written.
        """
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._append(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def close(self, *, failed: bool = False) -> None:
        """Nothing: every step is in the file."""

    def _append(self, event: Any) -> None:
        # TensorBoard's own writer has a thread, which prints a traceback where the disk is full.
        with self._path.open("ab") as file:
            self._records(file).write(event.SerializeToString())


class WandbTracker:
    """A Weights & Biases run; ``WANDB_MODE=offline`` keeps it on this machine.

    Raises:
        MissingExtra: wandb is not installed.
    """

    def __init__(self, project: str, run: Path) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingExtra.of("wandb", "wandb") from error
        self._run: Any = wandb.init(project=project, name=run.resolve().name)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs all metrics of a step together."""
        self._run.log(dict(metrics), step=step)

    def close(self, *, failed: bool = False) -> None:
        """Finishes the run, which is shown as failed where it has."""
        self._run.finish(exit_code=int(failed))


def mlflow_name(metric: str) -> str:
    """``metric`` with ``_`` for every character that MLflow refuses; names of sets (``reward_mean/NAME``) may have any."""
    return re.sub(r"[^\w.\- :/]", "_", metric)


class MlflowTracker:
    """An MLflow run in an experiment; ``MLFLOW_TRACKING_URI`` says where.

    Raises:
        MissingExtra: mlflow is not installed.
    """

    def __init__(self, experiment: str, run: Path) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise MissingExtra.of("mlflow", "mlflow") from error
        # The client, unlike mlflow's module functions, keeps no global run for a second tracker to fall into.
        self._client: Any = mlflow.MlflowClient()
        found = self._client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found else self._client.create_experiment(experiment)
        created = self._client.create_run(experiment_id, run_name=run.resolve().name)
        self._run_id: str = created.info.run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs one value a metric, under a name that MLflow takes."""
        for name, value in metrics.items():
            self._client.log_metric(self._run_id, mlflow_name(name), float(value), step=step)

    def close(self, *, failed: bool = False) -> None:
        """Marks the run as finished or failed."""
        self._client.set_terminated(self._run_id, "FAILED" if failed else "FINISHED")


class ForgivingTracker:
    """Another tracker, whose failure ends nothing: a full disk or a service that is down costs its metrics and not the run.

    Args:
        tracker: What is logged to until it fails.
        warn: Told of the first failure; nothing is logged to it afterwards.
    """

    def __init__(self, tracker: Tracker, warn: Callable[[str], None]) -> None:
        self._tracker: Tracker | None = tracker
        self._warn = warn

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records ``metrics``, unless something has failed."""
        if self._tracker is not None:
            with self._forgiven(f"step {step}"):
                self._tracker.log(step, metrics)

    def close(self, *, failed: bool = False) -> None:
        """Ends the record, unless the tracker has failed."""
        if self._tracker is not None:
            with self._forgiven("its end"):
                self._tracker.close(failed=failed)

    @contextmanager
    def _forgiven(self, what: str) -> Iterator[None]:
        name = type(self._tracker).__name__
        try:
            yield
        except Exception as error:
            self._tracker = None
            self._warn(
                f"{name} cannot record {what} ({type(error).__name__}: {error}); the run goes on, its metrics are in "
                "metrics.jsonl, and nothing more is sent to that tracker"
            )


TRACKERS: dict[str, Callable[[str, Path], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}
_PLACES = {"wandb": "PROJECT", "mlflow": "EXPERIMENT"}  # what those take after the colon
_NEEDS = {
    "wandb": "set WANDB_API_KEY, or WANDB_MODE=offline to keep the run on this machine",
    "mlflow": "set MLFLOW_TRACKING_URI to the address of a server; a database such as sqlite:///mlflow.db takes the whole "
    "package mlflow besides the extra",
}


def check_tracker(spec: str) -> None:
    """Refuses a spec that names no tracker; opens nothing.

    Raises:
        UnknownName: no such kind; carries the nearest.
        ConfigurationError: nothing stands after the colon where something must, or something where nothing may.
    """
    kind, _, rest = spec.partition(":")
    check_known("tracker", kind, TRACKERS)
    if kind in _PLACES and not rest:
        raise ConfigurationError(f"The tracker {spec!r} does not say where; write {kind}:{_PLACES[kind]}.")
    if kind not in _PLACES and rest:
        raise ConfigurationError(
            f"The tracker {kind!r} takes nothing after its name, not {rest!r}: it writes into the folder {kind!r} of the "
            "run, so that no two runs share one; `tensorboard --logdir` over the folder of all runs shows them together."
        )


def make_tracker(spec: str, run: Path) -> Tracker:
    """Opens the tracker that ``spec``, such as ``wandb:PROJECT``, names.

    Args:
        spec: as `check_tracker` accepts it.
        run: the folder of the run.

    Raises:
        UnknownName: no such kind; carries the nearest.
        ConfigurationError: what stands after the colon cannot be used, or the service takes no run.
        MissingExtra: the kind's package is not installed.
        OSError: the folder of the run cannot be written to.
    """
    check_tracker(spec)
    kind, _, rest = spec.partition(":")
    try:
        return TRACKERS[kind](rest, run)
    except AgentEnvError:
        raise
    except Exception as error:  # each service raises errors of its own
        if kind not in _NEEDS:
            raise
        raise ConfigurationError(
            f"the tracker {spec!r} cannot be opened ({type(error).__name__}: {first_line(error)}): {_NEEDS[kind]}, or leave "
            "the tracker out"
        ) from error

"""Experiment trackers behind one protocol: TensorBoard, Weights & Biases and MLflow, each an optional extra.

A tracker is named as every other part is, ``kind:rest``: ``tensorboard:DIR``, ``wandb:PROJECT``,
``mlflow:EXPERIMENT``. Keys and server addresses come from the environment variables of each service
(``WANDB_API_KEY``, ``WANDB_MODE``, ``MLFLOW_TRACKING_URI``) and never from a config, so that no run folder
can leak them. Trackers are copies for people: the record of a run is its own ``metrics.jsonl``.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from agentenv.errors import ConfigurationError, MissingExtra, UnknownName


@runtime_checkable
class Tracker(Protocol):
    """Where metrics are shown while a run goes on."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Records ``metrics`` under ``step``, the number of updates done."""

    def close(self) -> None:
        """Writes what is buffered and ends the record; nothing may be logged after."""


class TensorBoardTracker:
    """Event files in a folder, for ``tensorboard --logdir``.

    Args:
        folder: where the event file goes; made where absent.

    Raises:
        MissingExtra: tensorboard or torch is not installed.
    """

    def __init__(self, folder: str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra.of("tensorboard", "train,tensorboard") from error
        self._writer: Any = SummaryWriter(folder)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds one scalar a metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flushes the event file."""
        self._writer.close()


class WandbTracker:
    """A Weights & Biases run; ``WANDB_MODE=offline`` keeps it on this machine.

    Raises:
        MissingExtra: wandb is not installed.
    """

    def __init__(self, project: str) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingExtra.of("wandb", "wandb") from error
        self._run: Any = wandb.init(project=project)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs all metrics of a step together."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Finishes the run."""
        self._run.finish()


class MlflowTracker:
    """An MLflow run in an experiment; ``MLFLOW_TRACKING_URI`` says where.

    Raises:
        MissingExtra: mlflow is not installed.
    """

    def __init__(self, experiment: str) -> None:
        try:
            import mlflow
        except ImportError as error:
            raise MissingExtra.of("mlflow", "mlflow") from error
        # The client, unlike mlflow's module functions, keeps no global run for a second tracker to fall into.
        self._client: Any = mlflow.MlflowClient()
        found = self._client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found else self._client.create_experiment(experiment)
        self._run_id: str = self._client.create_run(experiment_id).info.run_id

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs one value a metric."""
        for name, value in metrics.items():
            self._client.log_metric(self._run_id, name, float(value), step=step)

    def close(self) -> None:
        """Marks the run as finished."""
        self._client.set_terminated(self._run_id)


TRACKERS: dict[str, Callable[[str], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "mlflow": MlflowTracker,
}


def make_tracker(spec: str) -> Tracker:
    """Opens the tracker that ``spec``, such as ``tensorboard:runs/tb``, names.

    Raises:
        UnknownName: no such kind; carries the nearest.
        ConfigurationError: nothing stands after the colon.
        MissingExtra: the kind's package is not installed.
    """
    kind, _, rest = spec.partition(":")
    if kind not in TRACKERS:
        raise UnknownName.among("tracker", kind, TRACKERS)
    if not rest:
        raise ConfigurationError(f"The tracker {spec!r} does not say where; write {kind}:NAME.")
    return TRACKERS[kind](rest)

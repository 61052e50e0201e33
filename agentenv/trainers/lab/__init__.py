"""Controlled comparisons of training runs."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.trainers.lab.lab import Experiment, experiments, load_experiment

__all__ = [
    "Experiment",
    "experiments",
    "load_experiment",
]

__getattr__, __dir__ = lazy_exports(__name__)

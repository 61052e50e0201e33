"""The command ``agentenv list``."""

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from agentenv.core.registry import registered


@dataclass(frozen=True)
class List:
    """Shows the environments, and the names that commands and presets accept.

    Example: agentenv list
    """

    def run(self) -> dict[str, Any]:
        """The names of every kind of part; environments with the class behind each."""
        from agentenv.core.scoring.scorers import SCORERS
        from agentenv.data.datasets import SETS
        from agentenv.data.sources import PROGRAM_SETS
        from agentenv.policies.policy_spec import KINDS
        from agentenv.retrievers.retriever_spec import FORMS
        from agentenv.sandbox.backends import BACKENDS
        from agentenv.tracking import TRACKERS
        from agentenv.trainers.config.config_files import presets
        from agentenv.trainers.credit.estimators import ESTIMATORS
        from agentenv.trainers.lab.lab import experiments
        from agentenv.trainers.selfplay.games import GAMES
        from agentenv.trainers.strategies.strategies import STRATEGIES
        from agentenv.trainers.task_sampling.samplers import SAMPLERS

        return {
            "environments": {id: spec.entry_point for id, spec in registered().items()},
            "retrievers": list(FORMS),
            "policies": list(KINDS),
            "datasets": sorted([*SETS, *PROGRAM_SETS]),
            "scorers": sorted(SCORERS),
            "estimators": sorted(ESTIMATORS),
            "strategies": sorted(STRATEGIES),
            "samplers": sorted(SAMPLERS),
            "games": sorted(GAMES),
            "presets": list(presets()),
            "experiments": list(experiments()),
            "sandboxes": list(BACKENDS),
            "trackers": sorted(TRACKERS),
        }

    def show(self, result: dict[str, Any], console: Console) -> None:
        """One block a kind."""
        for kind, names in result.items():
            console.print(kind, style="bold", highlight=False)
            if isinstance(names, dict):
                for name, target in names.items():
                    console.print(f"  {name:<26} {target}", highlight=False, markup=False, soft_wrap=True)
            else:
                console.print(f"  {', '.join(names)}", highlight=False, markup=False, soft_wrap=True)

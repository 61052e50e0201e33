"""The command ``agentenv list``."""

import textwrap
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
        """One block a kind; on a narrow terminal the class of an environment stands on a line of its own."""
        for kind, names in result.items():
            console.print(kind, style="bold")
            for line in _rows(names, console) if isinstance(names, dict) else _filled(names, console):
                console.print(line, markup=False)


def _rows(targets: dict[str, str], console: Console) -> list[str]:
    width = max(map(len, targets))
    rows = [f"  {name:<{width}}  {target}" for name, target in targets.items()]
    if console.is_terminal and max(map(len, rows)) > console.width:
        return [f"  {name}\n    {target}" for name, target in targets.items()]
    return rows


def _filled(names: list[str], console: Console) -> list[str]:
    """The names, separated by commas, on lines as wide as a terminal; on one line for a program that reads them."""
    text = f"  {', '.join(names)}"
    if not console.is_terminal:
        return [text]
    return textwrap.wrap(
        text, console.width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )

"""The command ``agentenv check``."""

import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.core.env import Env
from agentenv.core.registry import is_remote, load_class, make, spec
from agentenv.errors import ConfigurationError

MARKS = {"ok": "[green]ok     [/]", "failed": "[red]failed [/]", "skipped": "[yellow]skipped[/]"}


@dataclass(frozen=True)
class Check:
    """Runs the contract suite on an environment; leaves with 1 when a check fails.

    Example: agentenv check agentenv/LocalSearch-v0
    """

    env: Annotated[str, tyro.conf.Positional]
    """A registered id, remote:URL, or module:Class of one that is not registered; the module may stand in this folder."""

    def run(self) -> dict[str, Any]:
        """One row for each check, and whether none failed."""
        from agentenv.core.contract import check_env

        factory = self._factory()
        try:
            factory().close()
        except TypeError as error:
            raise ConfigurationError(f"{self.env} cannot be made without arguments: {error}") from error
        results = [asdict(result) for result in check_env(factory)]
        return {
            "env": self.env,
            "ok": all(row["status"] != "failed" for row in results),
            "checks": results,
        }

    def _factory(self) -> Callable[[], Env[Any]]:
        if is_remote(self.env):
            return lambda: make(self.env)
        if ":" not in self.env:
            spec(self.env)
            return lambda: make(self.env)
        sys.path.insert(0, str(Path.cwd()))
        try:
            return load_class(self.env)
        finally:
            sys.path.remove(str(Path.cwd()))

    def show(self, result: dict[str, Any], console: Console) -> None:
        """One line for each check, then the count."""
        from rich.markup import escape

        for row in result["checks"]:
            line = f"{MARKS[row['status']]} {row['name']:<13} {escape(row['detail'])}"
            console.print(line.rstrip(), highlight=False, soft_wrap=True)
        failed = sum(row["status"] == "failed" for row in result["checks"])
        console.print(f"{result['env']}: {failed} of {len(result['checks'])} checks failed", highlight=False)

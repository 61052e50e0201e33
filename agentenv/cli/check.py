"""The command ``agentenv check``."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table

from agentenv.core.env import Env
from agentenv.core.env_options import checked_arguments
from agentenv.core.registry import describe_error, env_class, is_remote, make
from agentenv.core.values import read_options
from agentenv.errors import AgentEnvError, ConfigurationError, Fault

MARKS = {"ok": "[green]ok     [/]", "failed": "[red]failed [/]", "skipped": "[yellow]skipped[/]"}


@dataclass(frozen=True)
class Check:
    """Tests seventeen properties of an environment. The exit code is 1 if one of them fails.

    Example:
        agentenv check agentenv/LocalSearch-v0
        agentenv check agentenv/JudgedSearch-v0 --option verdicts=sum
    """

    env: Annotated[str, tyro.conf.Positional]
    """A registered id, remote:URL, or module:Class; the module may stand in this folder."""
    option: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """KEY=VALUE for the environment's constructor, such as verdicts=sum; may be repeated. The value is written as in TOML,
    or as a bare word."""

    def run(self) -> dict[str, Any]:
        """One row for each check, and whether none failed."""
        from agentenv.core.concurrency.threads import in_time
        from agentenv.core.env_contract import CHECK_S, check_env

        factory = factory_of(self.env, **read_options(self.option))
        try:
            in_time(CHECK_S, lambda: factory().close())
        except Fault as error:
            raise ConfigurationError(f"{self.env} cannot be made and closed: {error}") from error
        except AgentEnvError:
            raise
        except TypeError as error:
            raise ConfigurationError(
                f"{self.env} cannot be made with {self._arguments()}: {describe_error(error)}"
            ) from error
        except Exception as error:
            raise ConfigurationError(
                f"{self.env} cannot be made and closed: {describe_error(error)}"
            ) from error
        results = [asdict(result) for result in check_env(factory, _say)]
        return {
            "env": self.env,
            "ok": all(row["status"] != "failed" for row in results),
            "checks": results,
        }

    def _arguments(self) -> str:
        return f"--option {' --option '.join(self.option)}" if self.option else "no arguments"

    def show(self, result: dict[str, Any], console: Console) -> None:
        """One line for each check, a table of the probes of the reward, then the count."""
        from rich.markup import escape

        for row in result["checks"]:
            line = f"{MARKS[row['status']]} {row['name']:<13} {escape(row['detail'])}"
            console.print(line.rstrip(), markup=True)
            if row["probes"]:
                console.print(probe_table(row["probes"]), soft_wrap=False)
        failed = sum(row["status"] == "failed" for row in result["checks"])
        console.print(f"{result['env']}: {failed} of {len(result['checks'])} checks failed")


def _say(sentence: str) -> None:
    print(f"agentenv check: {sentence}", file=sys.stderr, flush=True)


def probe_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What each probe of the reward earns beside the expert, or without one beside the declared ``reward_ceiling``."""
    bar = "expert" if all(row["has_expert"] for row in rows) else "ceiling"
    table = Table("probe of the reward", "earns", bar, "episodes", "masked", "cut", box=None)
    for row in rows:
        earned = [f"{row[name]:.3f}" if row[name] is not None else "-" for name in ("reward", "expert")]
        table.add_row(row["probe"], *earned, *(str(row[name]) for name in ("episodes", "masked", "cut")))
    return table


def factory_of(env: str, /, **arguments: Any) -> Callable[[], Env[Any]]:
    """What makes an environment by its id, by ``remote:URL`` or by ``module:Class``, whose module may stand in this folder.

    Raises:
        UnknownName: no such id, or no such argument of it.
        ConfigurationError: no such module or class, the class is no environment, or an argument of another type.
    """
    # A server may still be starting, and making an environment of it waits; its class is wanted for arguments alone.
    if arguments or not is_remote(env):
        # As a run and an evaluation take them: by the types that the constructor declares.
        arguments = checked_arguments(env_class(env), env, arguments)
    return partial(make, env, **arguments)

"""``agentenv serve``: an environment for other machines, libraries and languages."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.cli.check import factory_of
from agentenv.cli.flag_checks import require_at_least_one, require_positive
from agentenv.cli.process_exit import end_now
from agentenv.core.env import Env
from agentenv.core.values import read_value
from agentenv.errors import ConfigurationError


@dataclass(frozen=True)
class Serve:
    """Serves an environment over WebSocket (OpenEnv's contract) and as MCP tools.

    Each connection has an environment of its own. Routes: /ws, /mcp, GET /metadata, /schema, /healthz, /readyz, /metrics.
    Where the environment variable AGENTENV_SERVE_TOKEN is set, callers must send it as bearer token.

    Example: agentenv serve agentenv/Calculator-v0 --port 8100
    """

    env: tyro.conf.Positional[str]
    """A registered id, or module:Class of one that is not registered; the module may stand in this folder."""
    port: int = 8100
    """Port; 0 takes a free one."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines in."""
    allow_host: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    """Names under which callers may reach this server, beside its addresses, localhost and the machine's name; * is any."""
    set: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
    """Arguments of the environment; the value as in TOML or JSON, or a bare word."""
    sessions: int = 128
    """Number of environments that run at the same time."""
    per_client: int | None = None
    """Environments that one client (one address) may use at the same time; default: half of all, and at least two. Where all
    clients have one address, as behind a proxy, give as many as --sessions."""
    wait: float = 10.0
    """Seconds that a caller waits for a place when all are taken."""
    timeout: float = 120.0
    """Seconds that one call may take."""
    idle: float = 900.0
    """Seconds without a message after which a session ends."""
    expert: bool = False
    """Whether callers may ask for the expert's actions, which hold the answers."""

    client_tasks: bool = False
    """Whether callers may write tasks themselves, with question and accepted answers; else they name tasks of the
    environment by id. Entries of a task that name files are refused either way."""

    def run(self) -> dict[str, Any]:
        """Serves until it is told to stop; returns what was done."""
        from agentenv.serving.limits import ServerLimits
        from agentenv.serving.server import left_behind, run
        from agentenv.serving.service import EnvService
        from agentenv.serving.wire import TOKEN_VARIABLE
        from agentenv.web.gate import token_in
        from agentenv.web.server import address_of, listen

        bound = self.sessions if self.per_client is None else self.per_client
        require_at_least_one(sessions=self.sessions, per_client=bound)
        require_positive(wait=self.wait, timeout=self.timeout, idle=self.idle)
        make = factory_of(self.env, **dict(_argument(one) for one in self.set))
        limits = ServerLimits(
            sessions=self.sessions,
            per_client=self.per_client,
            waiting=self.sessions,
            wait_s=self.wait,
            call_s=self.timeout,
            idle_s=self.idle,
        )
        service = EnvService(
            self.env,
            limits,
            token=token_in(TOKEN_VARIABLE),
            expert=self.expert,
            client_tasks=self.client_tasks,
        )
        began = time.monotonic()
        with listen(self.host, self.port) as listening:
            address = address_of(listening)
            print(f"serving {self.env} at {address}", file=sys.stderr, flush=True)
            run(service, lambda: self._made(make), listening, self.allow_host)
        if left_behind():
            print(
                "a call of an environment never returned; the server ends without waiting for it",
                file=sys.stderr,
                flush=True,
            )
            end_now(1)  # Python would wait for its thread for ever
        return {
            "address": address,
            "env": self.env,
            "sessions": service.answered,
            "seconds": time.monotonic() - began,
        }

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints what was done."""
        console.print(f"{result['sessions']:,} sessions in {result['seconds']:.0f} s.")

    def _made(self, make: Callable[[], Env[Any]]) -> Env[Any]:
        try:
            return make()
        except TypeError as error:
            raise ConfigurationError(
                f"{self.env} cannot be made with --set {' '.join(self.set)}: {error}"
            ) from error


def _argument(given: str) -> tuple[str, Any]:
    """Name and value of ``NAME=VALUE``."""
    name, equals, value = given.partition("=")
    if not (equals and name.isidentifier()):
        raise ConfigurationError(f"--set takes NAME=VALUE, not {given!r}")
    return name, read_value(value)

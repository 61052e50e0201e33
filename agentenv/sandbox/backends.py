"""Makes executors by name: ``bwrap``, ``docker``, ``unsafe-local``, or ``module:function`` for the user's own."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from agentenv.core.options import load_part, made_part
from agentenv.errors import AgentEnvError, ConfigurationError
from agentenv.sandbox.executor import JailExecutor

BACKENDS = {
    "bwrap": "agentenv.sandbox.bwrap",
    "docker": "agentenv.sandbox.docker",
    "unsafe-local": "agentenv.sandbox.unsafe",
}
"""Modules of the backends, each with a function ``executor``."""
_KIND = "sandbox backend"


def make_executor(backend: str = "bwrap", *, isolation: str = "", **options: Any) -> JailExecutor:
    """Makes the executor that ``backend`` names.

    Args:
        backend: ``bwrap``, ``docker``, ``unsafe-local``, or ``module:function`` for a function of the user that makes one.
        isolation: ``strict`` runs the capability self-test first, and refuses a backend that fails any part of it.
        options: Arguments of the function ``executor`` of the backend's module, or of the named function.

    Raises:
        UnknownName: there is no such backend.
        ConfigurationError: it is not available here or not strict, or the named function does not make an executor.
        MissingExtra: a package that it needs is not installed.
    """
    if isolation not in ("", "strict"):
        raise ConfigurationError(f"isolation={isolation!r} must be 'strict' or ''")
    entries = {name: f"{module}:executor" for name, module in BACKENDS.items()}
    make = partial(load_part(_KIND, backend, entries), **options)
    made: JailExecutor = made_part(_KIND, backend, make, ("run", "open", "info", "close"))
    if isolation == "strict":
        from agentenv.sandbox.selftest import probe

        try:  # the attacks are not run on a backend without any isolation
            failed = (
                [row.name for row in probe(made) if not row.ok] if made.info().isolated else ["isolation"]
            )
            _refuse(failed, backend)
        except BaseException:
            made.close()
            raise
    return made


def unavailable(backend: str) -> str:
    """Returns why ``backend`` cannot run programs on this machine; empty if it can."""
    try:
        with make_executor(backend, size=1) as executor:
            return executor.run("print(1)").fault
    except AgentEnvError as error:
        return str(error)


def _refuse(failed: Sequence[str], backend: str) -> None:
    if failed:
        raise ConfigurationError(
            f"backend {backend!r} is not strict on this machine: {', '.join(failed)} failed"
        )

"""Task directories of Harbor and Terminal-Bench 2, as read in harbor 0.25.0.

A directory holds ``task.toml``, ``instruction.md``, ``environment/`` with a Dockerfile (or the name of an image in
``task.toml``), ``tests/`` with the program ``test.sh``, and for the oracle ``solution/`` with ``solve.sh``. A directory is
refused that asks for what an episode does not have here: several steps, several containers, GPUs, or tools of MCP servers.
"""

import json
import math
import os
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentenv.core.types import Task
from agentenv.errors import DatasetError

SETTINGS, INSTRUCTION = "task.toml", "instruction.md"
ENVIRONMENT, TESTS, SOLUTION = "environment", "tests", "solution"
_VERIFIER_S, _BUILD_S = 600.0, 600.0  # Harbor's defaults
_UNITS = {"K": 1 / 1024, "M": 1.0, "G": 1024.0}
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_REFUSED_FILES = ("environment/docker-compose.yaml", "environment/docker-compose.yml", "steps")


@dataclass(frozen=True)
class HarborTask:
    """What a directory asks for."""

    folder: Path
    image: str
    """Name of an image that exists; empty where ``environment/Dockerfile`` says how to make one."""
    workdir: str
    cpus: float | None
    memory_mb: int | None
    network: bool
    """Whether the task may use the network."""
    env: Mapping[str, str]
    verifier_env: Mapping[str, str]
    solution_env: Mapping[str, str]
    verifier_timeout_s: float
    build_timeout_s: float

    @property
    def has_solution(self) -> bool:
        """Whether there is a solution to check the task with."""
        return (self.folder / SOLUTION / "solve.sh").is_file()


def read_harbor_tasks(folder: Path, split: str = "") -> tuple[Task, ...]:
    """The tasks of a directory of task directories, or of one task directory, in the order of their names.

    Args:
        folder: The directory. Each task names its own in ``data["folder"]``.
        split: Of the tasks.

    Raises:
        DatasetError: there is none, or one is malformed or asks for what is not supported.
    """
    if not folder.is_dir():
        raise DatasetError(f"there is no folder {str(folder)!r}")
    alone = (folder / SETTINGS).is_file()
    folders = [folder] if alone else sorted(path.parent for path in folder.glob(f"*/{SETTINGS}"))
    if not folders:
        raise DatasetError(f"{str(folder)!r} holds no task directory of Harbor: none has a file {SETTINGS}")
    return tuple(_as_task(one, split) for one in folders)


def _as_task(folder: Path, split: str) -> Task:
    try:
        _read(folder, frozenset(os.environ))
        question = (folder / INSTRUCTION).read_text(encoding="utf-8").strip()
    except (OSError, ValueError, TypeError) as error:
        raise DatasetError(f"the task directory {str(folder)!r}: {error}") from error
    return Task(folder.name, question, (), split, {"folder": folder})


def read_harbor_task(folder: Path, variables: Collection[str] = ()) -> HarborTask:
    """What the task directory ``folder`` asks for.

    Args:
        folder: The directory.
        variables: Environment variables of this process that the task may be given where it names them. A directory may be
            somebody else's, and what is in its container may be sent away.

    Raises:
        DatasetError: it is malformed, asks for what is not supported, or needs a variable that it is not given.
    """
    try:
        return _read(folder, variables)
    except (OSError, ValueError, TypeError) as error:
        raise DatasetError(f"the task directory {str(folder)!r}: {error}") from error


def _read(folder: Path, allowed: Collection[str]) -> HarborTask:
    settings = tomllib.loads((folder / SETTINGS).read_text(encoding="utf-8"))
    for name in (INSTRUCTION, f"{TESTS}/test.sh"):
        if not (folder / name).is_file():
            raise ValueError(f"the file {name} is missing")
    for path in (folder / INSTRUCTION, folder / TESTS / "test.sh", *(folder / SOLUTION).rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(
                f"{path.relative_to(folder)} is a link that leads out of it, and it could show a private file of this "
                "machine; copy the directory with `cp -rL` if you trust it"
            )
    for name in _REFUSED_FILES:
        if (folder / name).exists():
            raise ValueError(f"it has {name}: tasks of several steps or several containers are not supported")
    environment = _table(settings, "environment")
    verifier, solution = _table(settings, "verifier"), _table(settings, "solution")
    _refuse(settings, environment, verifier)
    image = str(environment.get("docker_image") or "")
    if not image and not (folder / ENVIRONMENT / "Dockerfile").is_file():
        raise ValueError("it has neither environment/Dockerfile nor environment.docker_image in task.toml")
    cpus = environment.get("cpus")
    return HarborTask(
        folder=folder,
        image=image,
        workdir=str(environment.get("workdir") or ""),
        cpus=None if cpus is None else _positive("environment.cpus", cpus),
        memory_mb=_memory_mb(environment),
        network=_network(environment),
        env=_variables("environment.env", environment, allowed),
        verifier_env=_variables("verifier.env", verifier, allowed),
        solution_env=_variables("solution.env", solution, allowed),
        verifier_timeout_s=_positive("verifier.timeout_sec", verifier.get("timeout_sec", _VERIFIER_S)),
        build_timeout_s=_positive(
            "environment.build_timeout_sec", environment.get("build_timeout_sec", _BUILD_S)
        ),
    )


def _table(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = settings.get(name, {})
    if not isinstance(found, dict):
        raise ValueError(f"[{name}] is no table")
    return found


def _refuse(settings: Mapping[str, Any], environment: Mapping[str, Any], verifier: Mapping[str, Any]) -> None:
    """Raises a ``ValueError`` where a task asks for what an episode here does not have."""
    asked = {
        "several steps": settings.get("steps"),
        "a container of its own for the tests (verifier.environment_mode)": verifier.get(
            "environment_mode", "shared"
        )
        != "shared",
        "Windows (environment.os)": environment.get("os", "linux") != "linux",
        "GPUs (environment.gpus)": environment.get("gpus"),
        "a TPU (environment.tpu)": environment.get("tpu"),
        "MCP servers (environment.mcp_servers)": environment.get("mcp_servers"),
        "a health check (environment.healthcheck)": environment.get("healthcheck"),
        "a list of allowed hosts (network_mode)": "allowlist"
        in (environment.get("network_mode"), verifier.get("network_mode")),
    }
    wanted = [what for what, given in asked.items() if given]
    if wanted:
        raise ValueError(f"it asks for {', '.join(wanted)}, which is not supported")


def _network(environment: Mapping[str, Any]) -> bool:
    if (mode := environment.get("network_mode")) is not None:
        if mode not in ("public", "no-network"):
            raise ValueError(f"environment.network_mode is {mode!r}; it is public, no-network or allowlist")
        return bool(mode == "public")
    return bool(environment.get("allow_internet", True))


def _positive(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (0 < value < math.inf):
        raise ValueError(f"{name} is {value!r}; it must be a number above 0")
    return float(value)


def _memory_mb(environment: Mapping[str, Any]) -> int | None:
    """The memory in MiB; older directories write it as a text such as ``2G``."""
    number, text = environment.get("memory_mb"), environment.get("memory")
    if number is not None and text is not None:
        raise ValueError("environment has memory and memory_mb; one of them is enough")
    if text is None:
        return None if number is None else int(_positive("environment.memory_mb", number))
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG])", str(text).strip().upper())
    if found is None:
        raise ValueError(f"environment.memory is {text!r}; it must be a number with K, M or G, such as 2G")
    return max(1, int(float(found[1]) * _UNITS[found[2]]))


def _variables(name: str, table: Mapping[str, Any], allowed: Collection[str]) -> dict[str, str]:
    """The environment variables of a table, in which ``${NAME:-default}`` stands for a variable of this process."""
    given = table.get("env", {})
    if not isinstance(given, dict):
        raise ValueError(f"{name} is no table")

    def value(found: re.Match[str]) -> str:
        variable, default = found[1], found[2]
        value = os.environ.get(variable) if variable in allowed else None
        if value is None and default is None:
            raise ValueError(
                f"{name} asks for the environment variable {variable}: set it, and name it in the option `variables` if the "
                "task may have it"
            )
        return default if value is None else value

    return {key: _VARIABLE.sub(value, str(text)) for key, text in given.items()}


def parse_reward(json_text: bytes | None, text: bytes | None) -> dict[str, float] | None:
    """The rewards that a verifier has written, by name; None where it has written none that can be read.

    ``reward.json`` comes first: an object of finite numbers, or one number. ``reward.txt`` holds one number.
    """
    try:
        if json_text is not None:
            found = json.loads(json_text)
            return _finite(found if isinstance(found, dict) else {"reward": found})
        return None if text is None else _finite({"reward": float(text.decode("utf-8").strip())})
    except (ValueError, RecursionError):
        return None


def _finite(given: Mapping[str, Any]) -> dict[str, float] | None:
    numbers = {name: value for name, value in given.items() if isinstance(value, int | float)}
    if not given or len(numbers) != len(given) or not all(map(math.isfinite, numbers.values())):
        return None
    return {name: float(value) for name, value in numbers.items()}

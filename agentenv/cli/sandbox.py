"""``agentenv sandbox``: run a program in a sandbox, make the image of its Docker backend."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console

from agentenv.core.io.tables import UTF_8
from agentenv.errors import ConfigurationError
from agentenv.sandbox import image
from agentenv.sandbox.backends import make_executor
from agentenv.sandbox.docker import IMAGE
from agentenv.sandbox.types import ExecutionLimits


@dataclass(frozen=True)
class Run:
    """Runs a Python program in a sandbox and shows what it did. The exit code is 1 unless the program ran to its end.

    Example: agentenv sandbox run --backend bwrap program.py
    """

    file: tyro.conf.Positional[Path]
    """The program; its standard input is empty."""
    backend: str = "bwrap"
    """bwrap, docker or unsafe-local (no isolation at all)."""
    wall_s: float = 10.0
    """Seconds that the program may run."""
    memory_mb: int = 256
    """MiB of memory that the program may use."""
    isolation: Literal["", "strict"] = ""
    """strict refuses a backend that fails any row of the self-test of `agentenv doctor` on this machine."""

    def run(self) -> dict[str, Any]:
        """Runs the program; returns its result."""
        try:
            code = self.file.read_text(encoding=UTF_8)
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{self.file} is no text in UTF-8: {error}") from error
        limits = ExecutionLimits(wall_s=self.wall_s, cpu_s=self.wall_s, memory_mb=self.memory_mb)
        executor = make_executor(self.backend, size=1, isolation=self.isolation)
        try:
            result = executor.run(code, limits=limits, variables=True)
        finally:
            executor.close()
        names = (
            "stdout",
            "stderr",
            "exit_code",
            "signal",
            "truncated",
            "wall_s",
            "cpu_s",
            "memory_mb",
            "fault",
        )
        shown = {name: value for name, value in asdict(result).items() if name in names}
        return {"ok": result.ok, "backend": self.backend, "status": result.status.value, **shown}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints what the program printed, then how it ended."""
        console.out(result["stdout"], end="")
        console.out(result["stderr"], end="")
        figures = f"{result['wall_s']:.3f} s, {result['memory_mb']:.0f} MiB"
        console.print(
            f"{result['status']} in {result['backend']}: {figures} {result['fault']}".rstrip(), markup=False
        )


@dataclass(frozen=True)
class Build:
    """Builds the image for `agentenv sandbox run --backend docker`, by default from the files of the running Python.

    That needs a Docker engine and no registry.

    Example: agentenv sandbox build
    """

    root: Path | None = None
    """A folder that holds a root file system with a python3, as debootstrap makes it."""
    dockerfile: Path | None = None
    """A Dockerfile; its folder is the context, and the engine fetches the images that it names."""
    image: str = IMAGE
    """The name that the image gets."""

    def run(self) -> dict[str, Any]:
        """Builds; returns the image's name and size."""
        started = time.perf_counter()
        if self.root is not None and self.dockerfile is not None:
            raise ConfigurationError("--root and --dockerfile exclude each other; give one")
        if self.root is not None:
            size = image.build_from_root(self.root, self.image)
        elif self.dockerfile is not None:
            size = image.build_from_dockerfile(self.dockerfile, self.image)
        else:
            size = image.build_from_interpreter(self.image)
        return {"image": self.image, "bytes": size, "seconds": time.perf_counter() - started}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints what was made."""
        console.print(
            f"{result['image']}: {result['bytes'] / 1e6:.0f} MB, {result['seconds']:.1f} s.", markup=False
        )

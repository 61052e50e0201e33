"""Builds the image of the ``docker`` backend: from the running interpreter, from a folder, or from a Dockerfile."""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

from agentenv.errors import ConfigurationError
from agentenv.sandbox import docker
from agentenv.sandbox.bwrap import PYTHON, packages

PROGRAMS = (
    *("sh", "basename", "cat", "chmod", "cp", "cut", "date", "dirname", "du", "echo", "env", "expr", "false"),
    *("find", "grep", "head", "id", "ln", "ls", "mkdir", "mv", "printf", "pwd", "rm", "rmdir", "sed", "seq"),
    *("sleep", "sort", "stat", "tail", "tee", "test", "touch", "tr", "true", "uname", "uniq", "wc", "xargs"),
)
"""Programs besides Python that programs in a jail may start, if this machine has them."""
DATA = (Path("/usr/share/zoneinfo"), Path("/usr/lib/locale/C.utf8"))
LEFT_OUT = re.compile(
    r"(site-packages|dist-packages|test|idlelib|tkinter|turtledemo|ensurepip|lib2to3|config-[^/]*)/"
    r"|lib-dynload/_tkinter"
)
"""Parts of the standard library that no program in a jail needs."""
SYSTEM = re.compile(r"^(/usr)?/lib(32|64|x32)?/")
LIBRARY = re.compile(r"(?:=>\s+|^\s+)(/\S+) \(0x", re.MULTILINE)
LINKS = ("/bin", "/lib", "/lib32", "/lib64")
LDD_S = 300.0  # time limit for about 150 files


def build_from_interpreter(image: str = docker.IMAGE) -> int:
    """Builds ``image`` from the running interpreter: Python, its library, required shared libraries, numpy and a shell.

    Returns:
        The size of the image in bytes.

    Raises:
        ConfigurationError: no engine answers.
        MissingExtra: the package docker is not installed.
        SandboxFault: the engine refuses it.
    """
    return _import_image(image, lambda archive: add_files(archive, interpreter_files()))


def build_from_root(root: Path, image: str = docker.IMAGE) -> int:
    """Builds ``image`` from a folder that contains a root file system with a ``python3`` of at least 3.11.

    Returns:
        The size of the image in bytes.

    Raises:
        ConfigurationError: the folder contains no ``python3``, or no engine answers.
        MissingExtra: the package docker is not installed.
        SandboxFault: the engine refuses it.
    """
    if not any(os.path.lexists(f"{root}{folder}/python3") for folder in docker.PATH.split(":")):
        raise ConfigurationError(
            f"{str(root)!r} has no python3 in any of {docker.PATH}; make it with debootstrap --include=python3"
        )
    return _import_image(image, lambda archive: archive.add(root, "/"))


def build_from_dockerfile(dockerfile: Path, image: str = docker.IMAGE) -> int:
    """Builds ``image`` from a Dockerfile, with its folder as the context. The engine downloads what it names.

    Returns:
        The size of the image in bytes.

    Raises:
        ConfigurationError: the file does not exist, one of its steps fails, or no engine answers.
        MissingExtra: the package docker is not installed.
        SandboxFault: the engine refuses it.
    """
    if not dockerfile.is_file():
        raise ConfigurationError(f"there is no file {str(dockerfile)!r}")
    client = docker.engine()
    with contextlib.closing(client), docker.faults("an image cannot be built"):
        steps = client.build(
            path=str(dockerfile.parent), dockerfile=dockerfile.name, tag=image, rm=True, decode=True
        )
        complaints = [step["error"] for step in steps if "error" in step]
        if not complaints:
            return int(client.inspect_image(image)["Size"])
    raise ConfigurationError(f"{str(dockerfile)!r} cannot be built: {complaints[0].strip()}")


def _import_image(image: str, fill: Callable[[tarfile.TarFile], None]) -> int:
    client = docker.engine()
    name, _, tag = image.partition(":")
    with contextlib.closing(client), tempfile.TemporaryFile() as stream:
        with tarfile.open(fileobj=stream, mode="w") as archive:
            fill(archive)
        stream.seek(0)
        with docker.faults("an image cannot be imported"):
            client.import_image_from_data(stream, repository=name, tag=tag or "latest")
            return int(client.inspect_image(image)["Size"])


def interpreter_files() -> dict[str, Path]:
    """Returns the files of the image of the running interpreter, by their path there; the layout is that of ``bwrap``."""
    library = Path(os.__file__).parent
    files = {f"{PYTHON}/bin/python3": Path(sys.executable)}
    files |= tree(library, f"{PYTHON}/lib/{library.name}", LEFT_OUT)
    for source, target in packages().items():
        files |= tree(Path(source), target)
    for folder in DATA:
        files |= tree(folder, str(folder))
    for name in PROGRAMS:
        if found := shutil.which(name, path="/usr/bin:/bin"):
            files[f"/usr/bin/{name}"] = Path(found)
    return files | libraries(files.values(), [library, *map(Path, packages())])


def tree(root: Path, target: str, left_out: re.Pattern[str] = re.compile("$^")) -> dict[str, Path]:
    """Returns the files below ``root`` by their path below ``target``, except those whose path ``left_out`` matches."""
    found = {}
    for folder, _, names in os.walk(root):
        for path in (Path(folder, name) for name in names):
            below = str(path.relative_to(root))
            if path.is_file() and not left_out.match(below):  # skips broken links
                found[f"{target}/{below}"] = path
    return found


def libraries(files: Iterable[Path], inside: list[Path]) -> dict[str, Path]:
    """Returns the shared libraries that ``files`` need and that are outside of the folders ``inside``, by their path.

    Libraries of the system keep their path; others are placed where the loader searches by default.
    """
    binaries = [path for path in files if os.access(path, os.X_OK) or ".so" in path.suffixes]
    done = subprocess.run(
        ["ldd", *filter(_is_elf, binaries)], capture_output=True, text=True, timeout=LDD_S, check=False
    )
    found = {}
    for path in map(Path, sorted(set(LIBRARY.findall(done.stdout)))):
        if not any(path.is_relative_to(folder) for folder in inside):
            home = path.parent.resolve() if SYSTEM.match(str(path)) else Path("/usr/lib")
            found[str(home / path.name)] = path
    return found


def _is_elf(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def add_files(archive: tarfile.TarFile, files: dict[str, Path]) -> None:
    """Adds ``files``, their folders, and the links of a root with a single ``/usr`` to ``archive``."""
    archive.dereference = True
    folders = {str(folder) for target in files for folder in PurePosixPath(target).parents} - {"/"}
    for folder in sorted(folders):
        entry = tarfile.TarInfo(folder[1:])
        entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(entry)
    for target, source in sorted(files.items()):
        archive.add(source, target, recursive=False, filter=_root_owned)
    for link in LINKS:
        if link not in folders:
            entry = tarfile.TarInfo(link[1:])
            entry.type, entry.linkname = tarfile.SYMTYPE, f"usr{link}"
            archive.addfile(entry)


def _root_owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.mode & 0o100 else 0o644
    return entry

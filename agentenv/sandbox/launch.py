"""Becomes ``bwrap`` as an unprivileged user. The owner runs it as a script for every jail.

If root starts it, it first makes private copies of the mounts that the jail needs, because the interpreter's folder may be
accessible only to root; then it permanently drops root.
"""

import ctypes
import json
import os
import sys

NOBODY = 65534
CLONE_NEWNS, MS_BIND, MS_REC, MS_PRIVATE = 0x00020000, 4096, 16384, 1 << 18


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    """``mount(2)``."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = (source.encode(), target.encode(), kind.encode() if kind else None)
    if libc.mount(*names, ctypes.c_ulong(flags), None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def reachable(sources: list[str]) -> list[str]:
    """Returns paths of the same folders that an unprivileged user can access, visible only to this process's children."""
    if ctypes.CDLL(None).unshare(CLONE_NEWNS):
        return sources
    # Made private first, because the following mounts would otherwise appear in the host's own table.
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    # Opened first, because a source may lie in a folder that is covered by a later mount.
    handles = [os.open(source, os.O_PATH) for source in sources]
    mount("tmpfs", "/tmp", "tmpfs", 0)
    os.chmod("/tmp", 0o755)
    copies = []
    for index, handle in enumerate(handles):
        copies.append(f"/tmp/{index}")
        os.mkdir(copies[-1])
        mount(f"/proc/self/fd/{handle}", copies[-1], None, MS_BIND)
        os.close(handle)
    return copies


def main() -> None:
    """Reads the plan from the descriptor in the first argument, and replaces this process by bwrap."""
    with open(int(sys.argv[1]), encoding="utf-8") as stream:
        plan = json.load(stream)
    sources = [source for source, _ in plan["binds"]]
    if os.getuid() == 0:
        sources = reachable(sources)
        # Groups are dropped before the user, because that requires root.
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    arguments = list(plan["arguments"])
    for source, (_, target) in zip(sources, plan["binds"], strict=True):
        arguments += ["--ro-bind", source, target]
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    os.write(writing, b"\0".join(word.encode() for word in arguments) + b"\0")
    os.close(writing)
    # Arguments are passed by a descriptor, so that the process list shows only the label.
    os.execv(plan["bwrap"], [plan["label"], "--args", str(reading), *plan["command"]])


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"a jail cannot be started: {error}")

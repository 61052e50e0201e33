"""The capability self-test: small attacks inside a program, which show what a backend prevents on this machine."""

import contextlib
import os
import secrets
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from agentenv.core.io.temporary import temporary_folder
from agentenv.sandbox.bwrap import ENVIRONMENT
from agentenv.sandbox.types import ExecResult, ExecStatus, ExecutionLimits, Executor

LIMITS = ExecutionLimits(wall_s=5.0, cpu_s=3.0, memory_mb=128, processes=16)

COMMON = {*ENVIRONMENT, "LD_LIBRARY_PATH", "PWD", "LC_CTYPE", "HOSTNAME", "MKL_NUM_THREADS"}
"""Environment variables that every jail sets itself."""


class CheckRow(NamedTuple):
    """The result for one capability."""

    name: str
    ok: bool
    detail: str


PROGRAMS = {
    "processes": """
import os, time
made = 0
try:
    while made < 200:
        if os.fork() == 0:
            time.sleep(30)
        made += 1
except OSError:
    pass
print("contained" if made <= 16 else f"{made} processes")
""",
    "memory": "held = []\nwhile True: held.append(bytearray(10**7))",
    "memory of children": """
import os, time
for _ in range(6):
    if os.fork() == 0:
        held = bytearray(100 << 20)
        held[::4096] = b"1" * len(held[::4096])
        time.sleep(30)
time.sleep(30)
""",
    "daemons": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("/proc/self/comm", "w").write(MARK)
        for fd in range(3): os.close(fd)
        time.sleep(60)
    os._exit(0)
os.wait()
time.sleep(0.2)
print("contained")
""",
    "network": """
import socket
try:
    socket.create_connection(("127.0.0.1", PORT), 1)
    print("connected")
except OSError:
    print("contained")
""",
    "host files": """
try:
    open(CANARY).read()
    print("read")
except OSError:
    print("contained")
""",
    "environment": """
import os
seen = set(os.environ) & set(OWNERS)
print("seen " + " ".join(sorted(seen)) if seen else "contained")
""",
    "ptrace": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print("contained" if libc.ptrace(16, 1, 0, 0) == -1 and ctypes.get_errno() in (1, 3) else "attached")
""",
    "namespaces": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print("contained" if libc.unshare(0x10000000) == -1 else "unshared")
""",
    "keyring": """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
print("contained" if libc.syscall(248, b"user", b"a", b"b", 1, -2) == -1 else "added")
""",
    "privileges": """
lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
bare = all(int(lines[name], 16) == 0 for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb"))
print("contained" if bare and lines["NoNewPrivs"].strip() == "1" and lines["Seccomp"].strip() == "2" else "held")
""",
}


def probe(executor: Executor) -> list[CheckRow]:
    """Runs every program. An error becomes a failed row and is not raised."""
    with _attack_targets() as names:
        return [_judge(name, code, executor, names) for name, code in PROGRAMS.items()]


@contextlib.contextmanager
def _attack_targets() -> Iterator[dict[str, str]]:
    """Creates a secret file and an open port on the host, as targets of the attacks."""
    with temporary_folder("selftest") as folder, socket.create_server(("127.0.0.1", 0)) as server:
        canary = folder / "canary"
        canary.write_text("secret", encoding="utf-8")
        mark = f"canary{secrets.token_hex(4)}"
        names = {"CANARY": repr(str(canary)), "PORT": str(server.getsockname()[1]), "MARK": repr(mark)}
        names["OWNERS"] = repr(sorted(set(os.environ) - COMMON))
        yield names


def _judge(name: str, code: str, executor: Executor, names: dict[str, str]) -> CheckRow:
    for word, value in names.items():
        code = code.replace(word, value)
    result = executor.run(code, limits=LIMITS, domain="selftest")
    if name.startswith("memory"):
        return CheckRow(name, result.status is ExecStatus.OOM, result.status)
    if name == "daemons" and (alive := named(names["MARK"].strip("'"))):
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
        return CheckRow(name, False, "a daemon outlived its run")
    return CheckRow(name, result.stdout.strip() == "contained", result.stdout.strip()[:80] or _short(result))


def named(name: str) -> list[int]:
    """Returns the processes of this machine whose command line is ``name``."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == name:
                found.append(int(entry.name))
    return found


def _short(result: ExecResult) -> str:
    return f"{result.status} {result.fault or result.stderr.strip()[-80:]}".strip()

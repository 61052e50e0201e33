"""What the page on the sandbox says of every run and session, and what no attack stands for."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentenv.sandbox import docker
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.types import ExecutionLimits

LIMITS = ExecutionLimits(wall_s=20.0)


@pytest.fixture(name="box")
def _box(box_of_module: JailExecutor) -> JailExecutor:
    return box_of_module


def test_the_network_of_a_run_is_a_loopback_device_and_nothing_else(box: JailExecutor) -> None:
    code = (
        "import socket\nwith open('/proc/self/net/dev') as f: print([l.split(':')[0].strip() for l in f if ':' in l])\n"
        "s = socket.create_server(('127.0.0.1', 0))\nc = socket.create_connection(s.getsockname(), 5)\n"
        "c.send(b'heard'); print(s.accept()[0].recv(9))"
    )
    assert box.run(code, limits=LIMITS).stdout == "['lo']\nb'heard'\n"


def test_the_input_of_a_run_can_be_read_and_neither_written_nor_grown(box: JailExecutor) -> None:
    code = (
        "import mmap, os\nfor act in (lambda: os.write(0, b'x'), lambda: os.ftruncate(0, 1 << 20),\n"
        "  lambda: os.ftruncate(0, 0), lambda: mmap.mmap(0, 5, prot=mmap.PROT_WRITE)):\n"
        " try: act(); print('changed')\n except OSError: pass\nprint(input())"
    )
    assert box.run(code, stdin="given", limits=LIMITS).stdout == "given\n"


def test_large_objects_lie_in_huge_pages_where_the_system_has_them(box: JailExecutor) -> None:
    code = (
        "import os\nheld = bytearray(64 << 20); held[::4096] = b'x' * len(held[::4096])\n"
        "found = [int(l.split()[1]) for l in open('/proc/self/smaps_rollup') if l.startswith('AnonHugePages')]\n"
        "print('glibc.malloc.hugetlb=1' in os.environ['GLIBC_TUNABLES'], found[0] >= 32 << 10)"
    )
    present = "[never]" not in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(encoding="ascii")
    assert box.run(code, limits=LIMITS).stdout == f"True {present}\n"


def test_the_processor_time_of_a_session_has_no_limit_and_its_wall_time_has_one(box: JailExecutor) -> None:
    with box.open(limits=ExecutionLimits(wall_s=20.0, cpu_s=1.0)) as session:
        busy = "import time\nend = time.process_time() + 1.6\nwhile time.process_time() < end: pass\n'done'"
        assert session.run(busy).value == "'done'"
        assert session.run("while True: pass", wall_s=0.3).status == "timeout"


def test_as_many_processes_are_reserved_as_limits_allow(
    box: JailExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 and 2 for a run; 64, 32 snapshots and 2 for a session; 64 for each further fork."""
    reserved, channel = [], box._pool.channel

    def noted(domain: str, processes: int, **options: Any) -> Any:
        reserved.append(channel(domain, processes, **options))
        return reserved[-1]

    monkeypatch.setattr(box._pool, "channel", noted)
    assert box.run("1", limits=LIMITS).ok
    with box.open(limits=LIMITS) as session:
        found = [one.processes for one in reserved]
        with session.fork(), session.fork():
            found.append(reserved[-1].processes)
        found.append(reserved[-1].processes)
    assert found == [66, 98, 98 + 128, 98]


@pytest.mark.parametrize("armoured", [False, True])
def test_the_profile_of_apparmor_is_switched_off_where_the_engine_has_it(armoured: bool) -> None:
    """It forbids the mounts that a jail is made of; the rest of the hardening is the same."""

    class Engine:
        """Says what it has, and gives back what it is asked for."""

        def info(self) -> dict[str, Any]:
            return {
                "Runtimes": {"runc": {}},
                "MemTotal": 1 << 30,
                "SecurityOptions": ["name=apparmor"] if armoured else ["name=seccomp,profile=builtin"],
            }

        def create_host_config(self, **options: Any) -> dict[str, Any]:
            return options

    options = SimpleNamespace(**docker.hardening(Engine(), memory_mb=0, processes=100, runtime=""))
    assert options.security_opt[0] == "no-new-privileges"
    assert options.security_opt[1].startswith("seccomp={")
    assert options.security_opt[2:] == ["apparmor=unconfined"] * armoured
    assert (options.cap_drop, options.mem_limit) == (["ALL"], 1 << 29)

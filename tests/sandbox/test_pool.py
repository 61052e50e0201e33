"""The pool and the jails: trust domains, quotas, back-pressure, dead jails, dead owners."""

import contextlib
import dataclasses
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from agentenv.errors import ConfigurationError, SandboxFault, UnknownName
from agentenv.sandbox import labels
from agentenv.sandbox.backends import make_executor
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.jails import Channel, JailDied
from agentenv.sandbox.pool import Pool, Slots
from agentenv.sandbox.types import ExecStatus, ExecutionLimits

ROOT = Path(__file__).resolve().parents[2]


def until(check: Callable[[], bool], seconds: float = 5.0) -> bool:
    end = time.monotonic() + seconds
    while not check() and time.monotonic() < end:
        time.sleep(0.02)
    return check()


class FakeJail:
    """What a pool sees of a jail."""

    def __init__(self) -> None:
        self.closed, self.load, self.taken = False, 0, 0

    def await_ready(self) -> None:
        """Ready at once."""

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def jails() -> list[FakeJail]:
    return []


def pool(jails: list[FakeJail], **options: Any) -> Pool:
    def start() -> Any:
        jails.append(FakeJail())
        return jails[-1]

    return Pool(start, **options)


def test_domains_never_share_a_jail_at_a_time(jails: list[FakeJail]) -> None:
    made = pool(jails, size=1)
    first = cast(FakeJail, made.jail("a"))
    first.load = 1
    second = cast(FakeJail, made.jail("b"))
    assert first is not second
    assert cast(FakeJail, made.jail("a")) is first
    second.load = 1
    assert cast(FakeJail, made.jail("c")) not in (first, second)
    made.close()
    assert all(jail.closed for jail in jails)


def test_a_domain_whose_jails_are_full_is_given_another_one(jails: list[FakeJail]) -> None:
    made = pool(jails, size=1, quota=3, processes=100)
    leased = [made._lease("a", 40) for _ in range(5)]
    assert [leased.count(one) for one in dict.fromkeys(leased)] == [2, 2, 1]
    with pytest.raises(SandboxFault, match="3"):
        made._lease("a", 70)
    for one, taken in zip(dict.fromkeys(leased), (40, 80, 40), strict=True):
        jail = cast(FakeJail, one.result(5))
        jail.load, jail.taken = 1, taken
    for one in leased:
        made._release(one, 40)
    assert made._lease("a", 50) in (leased[0], leased[4])
    with pytest.raises(ConfigurationError, match="101"):
        made._lease("a", 101)
    made.close()


def test_a_jail_that_has_become_idle_serves_another_domain(jails: list[FakeJail]) -> None:
    made = pool(jails, size=1)
    first = made.jail("0")
    for number in range(1, 200):
        assert made.jail(str(number)) is first
    assert len(made._domains) == 1
    made.warm()
    assert len(jails) == 2  # with the one in reserve
    made.close()


def test_a_jail_that_is_about_to_be_used_is_given_to_no_other_domain(jails: list[FakeJail]) -> None:
    made = pool(jails, size=1)
    ordered = made._lease("a", 1)
    assert made.jail("b") is not ordered.result(5)
    made.close()


def test_a_dead_jail_is_replaced(jails: list[FakeJail]) -> None:
    made = pool(jails, size=1)
    first = made.jail("a")
    first.close()
    assert made.jail("a") is not first
    made.close()


def test_the_quota_takes_idle_jails_of_others_and_then_refuses(jails: list[FakeJail]) -> None:
    made = pool(jails, size=1, quota=2)
    first = cast(FakeJail, made.jail("a"))
    first.load = 1
    second = cast(FakeJail, made.jail("b"))
    assert second is not first
    assert cast(FakeJail, made.jail("c")) is second
    second.load = 1
    with pytest.raises(SandboxFault, match=r"\b2\b"):
        made.jail("d")
    made.close()


def test_who_waits_too_long_for_a_slot_is_refused(jails: list[FakeJail]) -> None:
    made = pool(jails, size=1, slots=1, wait_s=0.05)
    with made.slot(), pytest.raises(SandboxFault, match=r"\b0\.05\b"), made.slot():
        pass
    with made.slot() as waited:
        assert waited < 0.05
    made.close()


def test_who_waits_while_others_come_to_an_end_is_not_refused() -> None:
    """A queue of programs that all use up their time is no failure of the sandbox, however long it is."""
    slots = Slots(1, 0.5)
    assert slots.take()
    waited: list[bool] = []
    waiting = threading.Thread(target=lambda: waited.append(slots.take()))
    waiting.start()
    for _ in range(4):
        time.sleep(0.2)
        slots.moved()
    slots.give()
    waiting.join(5)
    assert waited == [True]


def test_a_machine_without_room_for_a_jail_is_a_typed_fault() -> None:
    def start() -> Any:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x")

    made = Pool(start, size=1)
    with pytest.raises(SandboxFault, match="No space left"):
        made.jail("a")
    made.close()


@pytest.mark.parametrize("cause", ["no bubblewrap", "a full disk"])
def test_what_a_machine_loses_while_it_runs_is_a_result_until_it_is_back(
    cause: str, bwrap: JailExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with make_executor("bwrap", size=1) as executor:
        executor.warm()
        with monkeypatch.context() as lost:
            if cause == "no bubblewrap":
                lost.setenv("PATH", "/nonexistent")
            else:
                lost.setattr(tempfile, "TemporaryFile", full)
            results = []
            for _ in range(3):  # what was started ahead is used up first
                results.append(executor.run("print(1)"))
                for jails in executor._pool._domains.values():
                    for jail in jails:
                        if jail.exception() is None:
                            jail.result().close()
            assert results[0].status is ExecStatus.OK
            assert results[-1].status is ExecStatus.SANDBOX_ERROR
            assert ("bubblewrap" if cause == "no bubblewrap" else "No space") in results[-1].fault
            with pytest.raises(SandboxFault):
                executor.open()
        assert executor.run("print(6 * 7)").stdout == "42\n"


LIMITED = """#!/bin/sh
exec unshare --user --map-root-user sh -c 'echo 1 > /proc/sys/user/{kind} && exec "$0" "$@"' {program} "$@"
"""


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("max_net_namespaces", "a run cannot have a network of its own: .*max_net_namespaces"),
        ("max_pid_namespaces", "no process can be started in the jail: clone: No space left"),
    ],
)
def test_a_system_without_room_for_namespaces_is_named(
    kind: str, said: str, bwrap: JailExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jail itself takes the only one that there may be."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, monkeypatch.context() as limited:
        program = Path(folder, "bwrap")
        program.write_text(LIMITED.format(kind=kind, program=shutil.which("bwrap")), encoding="utf-8")
        for path in (program, program.parent):
            path.chmod(0o755)
        limited.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        with make_executor("bwrap", size=1) as executor:
            result = executor.run("print(1)")
            assert result.status is ExecStatus.SANDBOX_ERROR
            assert re.fullmatch(f".*{said}.*", result.fault), result.fault


def test_a_closed_pool_hands_out_nothing(jails: list[FakeJail]) -> None:
    made = pool(jails, size=1)
    made.close()
    made.close()
    with pytest.raises(SandboxFault, match="closed"):
        made.jail("a")


def test_a_jail_that_cannot_start_is_a_typed_fault() -> None:
    def start() -> Any:
        raise SandboxFault("no wall today")

    with pytest.raises(SandboxFault, match="no wall today"):
        Pool(start, size=1).jail("a")


def test_waiting_is_charged_to_the_queue_and_not_to_the_run(doomed: JailExecutor) -> None:
    results = []
    limits = ExecutionLimits(wall_s=30.0)
    slots = len(os.sched_getaffinity(0))

    def go() -> None:
        results.append(doomed.run("import time; time.sleep(0.3)", limits=limits))

    threads = [threading.Thread(target=go) for _ in range(slots * 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert all(result.ok for result in results)
    assert max(result.queue_s for result in results) > 0.25


def test_a_run_whose_jail_dies_is_repeated_in_another(doomed: JailExecutor) -> None:
    def kill() -> None:
        time.sleep(0.5)
        doomed._pool.jail("").close()

    doomed.run("1")
    killer = threading.Thread(target=kill)
    killer.start()
    result = doomed.run("import time; time.sleep(1.5); print('done')")
    killer.join()
    assert (result.status, result.stdout) == (ExecStatus.OK, "done\n")


def test_a_large_answer_crosses_the_wall_and_harms_no_other(box: JailExecutor) -> None:
    limits = ExecutionLimits(wall_s=30.0)
    with box.open(limits=limits) as session:
        session.run("x = 7")
        code = "import os\nfor fd in (1, 2): os.write(fd, b'\\xff' * 65000)\nopen('f', 'wb').write(bytes(7_000_000))"
        result = box.run(code, collect=["f"], limits=limits)
        assert (result.status, len(result.stdout)) == (ExecStatus.OK, 65000)
        assert result.files["f"] == bytes(7_000_000)
        assert session.run("x").value == "7"


class Recorded:
    """A jail that sends nothing anywhere."""

    last_error = ""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, number: int, body: bytes) -> None:
        self.sent.append(body)

    def end(self, number: int) -> None:
        self.sent.append(b"")


def test_an_answer_that_came_too_late_is_not_taken_for_the_next() -> None:
    jail = Recorded()
    channel = Channel(jail, 1, 1)  # type: ignore[arg-type]
    channel.deliver(b'{"value": "old", "serial": 1}')
    assert channel.ask({"op": "cell"}, 1.0) == {"value": "old"}
    channel.deliver(b'{"value": "late", "serial": 1}')
    with pytest.raises(JailDied):
        channel.ask({"op": "cell"}, 1.0)
    assert [json.loads(body)["serial"] for body in jail.sent[:2]] == [1, 2]
    assert jail.sent[2:] == [b""]


def test_a_new_warden_refuses_an_order_for_one_that_is_gone(doomed: JailExecutor) -> None:
    channel = doomed._pool.jail("").channel()
    limits = dataclasses.asdict(ExecutionLimits())
    order = {"op": "open", "node": 1, "files": {}, "limits": limits, "replaces": False}
    assert next(channel._serials) == 1
    assert "gone" in channel.ask(order, 60.0)["fault"]
    channel.close()


def test_a_sandbox_that_always_breaks_is_a_typed_result() -> None:
    def start() -> Any:
        raise SandboxFault("no wall today")

    from agentenv.sandbox.types import ExecutorInfo

    with JailExecutor(ExecutorInfo("broken", isolated=True), start, size=1) as executor:
        result = executor.run("1")
        assert (result.status, result.fault) == (ExecStatus.SANDBOX_ERROR, "no wall today")
        with pytest.raises(SandboxFault):
            executor.open()


OWNER = """
import sys, time
from agentenv.sandbox.backends import make_executor
executor = make_executor(sys.argv[1], size=1)
session = executor.open()
session.run("x = 1")
session.snapshot()
print("ready", flush=True)
executor.run("import os, time\\nos.fork()\\ntime.sleep(600)")
"""


def test_nothing_is_left_of_a_killed_owner(bwrap: JailExecutor) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, "bwrap"], stdout=subprocess.PIPE, env=environment, text=True
    )
    assert owner.stdout is not None
    with owner, owner.stdout:
        assert owner.stdout.readline() == "ready\n"
        mine = {pid for pid, label in labels.jails().items() if label == labels.owner_of(owner.pid)}
        assert mine
        inside = [
            int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit() and _descends(int(p.name), mine)
        ]
        owner.send_signal(signal.SIGKILL)
    assert until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in (*mine, *inside)))


def _descends(pid: int, roots: set[int]) -> bool:
    while pid > 1 and pid not in roots:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            return False
    return pid in roots


def test_labels_name_their_owner() -> None:
    own = labels.parse(labels.label())
    assert own == labels.owner_of(os.getpid())
    assert own in labels.living()
    assert labels.owner_of(os.getppid()) not in (own, None)
    for name in ("python", "agentenv-jail:x", f"agentenv-jail:{os.getpid()}:1", f"{labels.label()}0"):
        assert labels.parse(name) is None


def test_no_name_of_a_jail_tells_the_number_of_its_owner(bwrap: JailExecutor, unsafe: JailExecutor) -> None:
    for executor in (bwrap, unsafe):
        executor.run("1")
    own = [pid for pid, owner in labels.jails().items() if owner == labels.owner_of(os.getpid())]
    number = re.compile(rf"(?<!\d){os.getpid()}(?!\d)")
    read = 0
    for pid in own:
        # A jail of an earlier test that ends now.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
            assert not number.search(words), words
            read += 1
    assert read


def test_orphans_are_reaped_by_their_label() -> None:
    orphan = subprocess.Popen([f"{labels.PREFIX}:{'0' * 24}", "60"], executable="/bin/sleep")
    own = subprocess.Popen([labels.label(), "60"], executable="/bin/sleep")
    assert until(lambda: {orphan.pid, own.pid} <= set(labels.jails()))
    assert labels.reap_orphans() >= 1
    assert orphan.wait(5) == -signal.SIGKILL
    assert own.poll() is None
    own.kill()
    own.wait(5)


def test_an_unknown_backend_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="bwrap"):
        make_executor("bwarp")
    with pytest.raises(ConfigurationError, match="strict"):
        make_executor("bwrap", isolation="perhaps")


def test_strict_isolation_refuses_a_backend_without_walls() -> None:
    from agentenv.sandbox import selftest
    from agentenv.sandbox.backends import _refuse

    _refuse([], "bwrap")
    with pytest.raises(ConfigurationError, match=r"'unsafe-local'.*network"):
        _refuse([row.name for row in [selftest.CheckRow("network", False, "connected")]], "unsafe-local")


def test_the_self_test_passes_here(doomed: JailExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the owner has set what every jail sets for itself, to something else."""
    from agentenv.sandbox.selftest import probe

    for name in ("LD_LIBRARY_PATH", "MALLOC_ARENA_MAX"):
        monkeypatch.setenv(name, "of-the-owner")
    assert [row for row in probe(doomed) if not row.ok] == []


def test_who_waits_for_a_jail_is_told_when_the_pool_is_closed() -> None:
    """The first jail is being started, and the second one is only ordered: to close the pool cancels it."""
    go = threading.Event()
    told: list[tuple[str, str]] = []

    def start() -> Any:
        go.wait(30)
        raise OSError(errno.ENOSPC, "no room")

    def wait_for(domain: str) -> None:
        try:
            made.channel(domain, 1)
        except SandboxFault as error:
            told.append((domain, str(error)))

    def leased(count: int) -> bool:
        return sum(made._leases.values()) == count

    made = Pool(start, size=2, wait_s=30)
    waiting = [threading.Thread(target=wait_for, args=(domain,), daemon=True) for domain in ("a", "b")]
    for count, thread in enumerate(waiting, start=1):
        thread.start()
        assert until(partial(leased, count))
    closing = threading.Thread(target=made.close, daemon=True)
    closing.start()
    assert until(lambda: bool(told))
    assert told == [("b", "the executor is closed")]
    go.set()
    for thread in (*waiting, closing):
        thread.join(30)
    assert [domain for domain, _ in told] == ["b", "a"]

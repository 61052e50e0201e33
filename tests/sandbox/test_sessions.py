"""Sessions: what a snapshot holds, when it is refused, how it is thinned out and rebuilt, and what forks can do to others."""

import gc
import os
import random
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from agentenv.core.snapshot import Resource
from agentenv.errors import ReplayDivergence, SandboxFault, SnapshotRefused
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.jail_session import JailSession, JailSnapshot, Point, snapshot_to_drop
from agentenv.sandbox.types import ExecStatus, ExecutionLimits, ExecutorSnapshot
from tests.sandbox.conftest import shared

LIMITS = ExecutionLimits(wall_s=20.0)


def value(session: JailSession, code: str) -> str | None:
    result = session.run(code)
    assert result.status is ExecStatus.OK, result
    return result.value


def test_a_session_is_a_resource_of_an_environments_state(session: JailSession) -> None:
    assert isinstance(session, Resource)
    assert isinstance(session.snapshot(), ExecutorSnapshot)


def test_python_and_numpy_generators_go_on_as_they_would_have(session: JailSession) -> None:
    session.run("import random, numpy as np\nrandom.seed(3); np.random.seed(4)")
    point = session.snapshot()
    first = value(session, "(random.random(), np.random.rand())")
    session.restore(point)
    assert value(session, "(random.random(), np.random.rand())") == first
    assert value(session, "(random.random(), np.random.rand())") != first


def test_two_interpreters_draw_different_numbers(box: JailExecutor) -> None:
    code = "import random, numpy as np\nprint(random.random(), np.random.rand())"
    assert not set(box.run(code).stdout.split()) & set(box.run(code).stdout.split())


def test_the_folder_and_open_generators_are_restored(session: JailSession) -> None:
    session.run("import os\nos.mkdir('sub'); os.chdir('sub')\nnumbers = iter(range(9)); next(numbers)")
    point = session.snapshot()
    session.run("os.chdir('..'); os.rmdir('sub'); next(numbers)")
    session.restore(point)
    assert (
        value(session, "(os.path.basename(os.getcwd()), next(numbers), os.path.isdir('../sub'))")
        == "('sub', 1, True)"
    )


def test_links_modes_and_times_of_files_are_restored(session: JailSession) -> None:
    look = "(os.readlink('l'), oct(os.stat('f').st_mode), os.stat('f').st_mtime_ns, open('d/e/g').read())"
    session.run("import os\nopen('f', 'w').write('x'); os.chmod('f', 0o741); os.symlink('f', 'l')")
    session.run("os.makedirs('d/e'); open('d/e/g', 'w').write('deep'); os.chmod('d', 0o500)")
    before = value(session, look)
    point = session.snapshot()
    session.run(
        "import os\nos.unlink('f'); os.unlink('l'); os.chmod('d', 0o700); open('d/e/g', 'w').write('other')"
    )
    session.restore(point)
    assert value(session, look) == before


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (
            "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "2 threads",
        ),
        ("import subprocess; p = subprocess.Popen(['sleep', '60'])", "1 child processes"),
        ("f = open('log', 'w')", "'log' open"),
    ],
)
def test_what_a_fork_would_lose_is_refused_with_its_name(
    session: JailSession, code: str, reason: str
) -> None:
    session.run("x = 1")
    session.run(code)
    with pytest.raises(SnapshotRefused, match=reason):
        session.snapshot()
    assert value(session, "x") == "1"


def test_a_restored_program_still_hears_how_its_children_ended(session: JailSession) -> None:
    session.run("import subprocess")
    point = session.snapshot()
    for _ in range(3):
        session.restore(point)
        assert value(session, "subprocess.run(['false']).returncode") == "1"


def test_an_interpreter_that_cannot_fork_is_refused_and_lives_on(session: JailSession) -> None:
    session.run(
        "import ctypes, gc\nx = 7\ngc.unfreeze()\nfor one in gc.get_objects():\n"
        " if type(one) is ctypes.PyDLL: one.syscall = lambda *_: -1"
    )
    with pytest.raises(SnapshotRefused):
        session.snapshot()
    assert value(session, "x") == "7"


def test_an_interpreter_that_is_not_there_is_a_fault_and_harms_no_other(session: JailSession) -> None:
    session.run("x = 7")
    fork = session.fork()
    session._node = 999
    result = session.run("x")
    assert (result.status, result.state_lost) == (ExecStatus.SANDBOX_ERROR, True)
    assert "NameError" in session.run("x").stderr
    assert value(fork, "x") == "7"
    fork.close()


def test_no_new_interpreter_answers_before_the_loss_of_the_old_one_was_told(box: JailExecutor) -> None:
    with box.open(limits=LIMITS, snapshots="replay") as session:
        session.run("import time; t = time.time_ns()")
        point = session.snapshot()
        with pytest.raises(ReplayDivergence):
            session.restore(point)
        result = session.run("t")
        assert (result.status, result.state_lost) == (ExecStatus.KILLED, True)
        assert "NameError" in session.run("t").stderr


LAST_WORD = """
import json, os, stat, struct
def is_socket(fd):
    try: return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError: return False
link = next(filter(is_socket, range(3, 64)))
answer = json.dumps(dict(ok=True, value="1", error=None, folder="/", digest="")).encode()
os.write(link, struct.pack(">I", len(answer)) + answer)
os._exit(0)
"""


def test_an_interpreter_that_answers_and_dies_is_no_fault_of_ours(session: JailSession) -> None:
    point = session.snapshot()
    for _ in range(5):
        assert session.run(LAST_WORD).status is ExecStatus.OK
        after = session.run("1")
        assert (after.status, after.state_lost) == (ExecStatus.KILLED, True)
        session.restore(point)


def test_between_cells_nothing_runs(session: JailSession) -> None:
    session.run("import threading, time\nn = [0]\ndef count():\n  while True: n[0] += 1; time.sleep(0.001)")
    session.run("threading.Thread(target=count, daemon=True).start()")
    first = int(value(session, "before = n[0]\nbefore") or "")
    time.sleep(0.3)
    assert int(value(session, "n[0]") or "") - first < 100


def test_a_slow_cell_is_interrupted_and_keeps_the_state(session: JailSession) -> None:
    session.run("x = 7")
    result = session.run("print('on', flush=True)\nwhile True: pass", wall_s=0.3)
    assert (result.status, result.stdout, result.state_lost) == (ExecStatus.TIMEOUT, "on\n", False)
    assert value(session, "x") == "7"


def test_a_cell_that_will_not_stop_loses_the_interpreter(session: JailSession) -> None:
    session.run("x = 7")
    stubborn = "import time\nwhile True:\n try: time.sleep(9)\n except KeyboardInterrupt: pass"
    result = session.run(stubborn, wall_s=0.3)
    assert (result.status, result.state_lost) == (ExecStatus.TIMEOUT, True)
    with pytest.raises(SnapshotRefused, match="died"):
        session.snapshot()
    assert "NameError" in session.run("x").stderr


@pytest.mark.parametrize("code", ["import os; os._exit(0)", "import os; os.kill(os.getpid(), 9)"])
def test_a_dead_interpreter_can_still_go_back(session: JailSession, code: str) -> None:
    session.run("x = 7")
    point = session.snapshot()
    result = session.run(code)
    assert (result.status, result.state_lost) == (ExecStatus.KILLED, True)
    session.restore(point)
    assert value(session, "x") == "7"


def test_memory_of_a_cell_is_bounded(box: JailExecutor) -> None:
    with box.open(limits=replace(LIMITS, memory_mb=64)) as session:
        result = session.run("held = [bytearray(10**7) for _ in iter(int, 1)]")
        assert result.status is ExecStatus.OOM


def test_output_of_a_cell_is_bounded(session: JailSession) -> None:
    result = session.run("while True: print('x' * 10**6)")
    assert result.status is ExecStatus.OUTPUT_LIMIT
    assert len(result.stdout) < 70_000


ATTACKS = {
    "kill everything": "os.kill(-1, 9)",
    "kill every pid": "for pid in range(1, 64):\n if pid != os.getpid():\n  try: os.kill(pid, 9)\n  except OSError: pass",
    "stop every pid": "for pid in range(1, 64):\n if pid != os.getpid():\n  try: os.kill(pid, 19)\n  except OSError: pass",
    "kill every group": "for pid in range(2, 64):\n if pid != os.getpid():\n  try: os.killpg(pid, 9)\n  except OSError: pass",
    "a child kills": "for pid in range(1, 64):\n if os.fork() == 0:\n  os.kill(pid, 9) if pid != os.getppid() else 0\n  os._exit(0)",
    "tgkill": "import ctypes\nfor p in range(1, 64):\n if p != os.getpid(): ctypes.CDLL(None).syscall(234, p, p, 9)",
    "tkill": "import ctypes\nfor p in range(1, 64):\n if p != os.getpid(): ctypes.CDLL(None).syscall(200, p, 9)",
    "pidfd": "import signal\nfor p in range(1, 64):\n try: signal.pidfd_send_signal(os.pidfd_open(p), 9)\n except OSError: pass",
    "limits of others": "import resource\nfor p in range(1, 64):\n try: resource.prlimit(p, 0, (0, 0))\n except OSError: pass",
    "owner of a descriptor": "import fcntl\nr, w = os.pipe()\nfor p in range(1, 64):\n try: fcntl.fcntl(r, 8, p)\n except OSError: pass",
    "ptrace": "import ctypes\nfor p in range(1, 64): ctypes.CDLL(None).ptrace(16, p, 0, 0)",
    "memory": "for p in range(1, 64):\n try: open(f'/proc/{p}/mem', 'r+b').write(b'x')\n except OSError: pass",
    "the snapshot folder": "import shutil\nfor p in ('/snapshots', '/box'):\n shutil.rmtree(p, ignore_errors=True)",
    "fill the disk": "try: open('full', 'wb').write(bytes(8 << 20)); open('full2', 'wb').write(bytes(8 << 20))\nexcept OSError: pass",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_fork_cannot_harm_its_snapshots_or_siblings(session: JailSession, attack: str) -> None:
    session.run("import os\nx = [1]\nopen('f', 'w').write('kept')")
    point = session.snapshot()
    left, right = session.fork(2)
    result = left.run(f"import os\n{ATTACKS[attack]}")
    assert result.status is not ExecStatus.SANDBOX_ERROR, result
    assert result.lost_snapshots == 0
    look = "(x, open('f').read())"
    for other in (right, session):
        assert value(other, look) == "([1], 'kept')"
    session.restore(point)
    assert value(session, look) == "([1], 'kept')"
    for fork in (left, right):
        fork.close()


def test_signals_to_ones_own_processes_still_work(session: JailSession) -> None:
    code = (
        "import subprocess, signal, os\np = subprocess.Popen(['sleep', '60'])\np.kill()\n"
        "caught = []\nsignal.signal(signal.SIGUSR1, lambda *_: caught.append(1))\nos.kill(os.getpid(), signal.SIGUSR1)\n"
        "(p.wait(), caught)"
    )
    assert value(session, code) == "(-9, [1])"
    session.snapshot()
    assert value(session, code) == "(-9, [1])"


def test_the_programs_children_are_its_own(session: JailSession) -> None:
    session.snapshot()
    assert "ChildProcessError" in session.run("import os\nos.wait()").stderr


def test_snapshots_are_thinned_out_and_rebuilt(box: JailExecutor) -> None:
    with box.open(limits=replace(LIMITS, snapshots=4)) as session:
        points = []
        for index in range(10):
            session.run(f"x = {index}")
            points.append(session.snapshot())
        live = [point.node is not None for point in points]
        assert sum(live) == 4
        assert live[0]
        assert live[-1]
        for index, point in enumerate(points):
            session.restore(point)
            assert value(session, "x") == str(index)


def test_thinning_keeps_the_first_the_newest_and_what_is_pinned() -> None:
    snapshots = [JailSnapshot(None, Point(), node, 0) for node in range(5)]  # type: ignore[arg-type]
    assert snapshot_to_drop(snapshots) is snapshots[1]
    snapshots[1].pin()
    assert snapshot_to_drop(snapshots) is snapshots[3]
    snapshots[3].pin()
    assert snapshot_to_drop(snapshots) is snapshots[2]
    assert snapshot_to_drop(snapshots[:2]) is None


@pytest.mark.parametrize("copies", [1, 2])
def test_memory_of_snapshots_is_bounded_also_where_two_hold_the_same(box: JailExecutor, copies: int) -> None:
    with box.open(limits=replace(LIMITS, snapshot_mb=40)) as session:
        session.run("x = bytearray(20 << 20)")
        points = []
        for index in range(1, 5):
            session.run(f"x[::1024] = b'{index}' * len(x[::1024])")
            points += [session.snapshot() for _ in range(copies)]
        assert sum(point.node is not None for point in points) < len(points)
        session.restore(points[copies])
        assert value(session, "bytes(x[:1])") == "b'2'"


def test_a_replay_that_reads_the_clock_is_a_divergence_and_a_fork_is_not(box: JailExecutor) -> None:
    for code in (
        "import time; t = time.time_ns()",
        "import random; r = random.random()",
        "import uuid\nprint(uuid.uuid4())",
    ):
        with box.open(snapshots="replay") as replayed, box.open() as forked:
            for session in (replayed, forked):
                session.run(code)
                point = session.snapshot()
                if session is replayed:
                    with pytest.raises(ReplayDivergence):
                        session.restore(point)
                else:
                    session.restore(point)


STATEMENTS = (
    "a.append(len(a))", "b = sum(a) + {n}", "d[{n}] = b", "a = a[::-1]", "open('f{n}', 'a').write(str(b))",
    "print(sorted(os.listdir('.')), b)", "b = 1 // ({n} - 2)", "d = dict(a=a, b=b)", "s = {{*a, {n}}}", "s",
    "a", "random.random()", "b = random.randint(0, 99)", "c = [a, d]", "os.path.exists('f{n}') and open('f{n}').read()",
    "gen = (i for i in a)", "next(gen, None)",
)  # fmt: skip


def test_restoring_shows_what_replaying_shows_on_random_programs(box: JailExecutor) -> None:
    """A hundred programs, others in each kind of jail."""
    rng = random.Random(box.info().name)
    start = "import os, random\nrandom.seed(1)\na, b, d, s, gen = [], 0, {}, set(), iter(())"
    with box.open(limits=LIMITS) as live, box.open(limits=LIMITS, snapshots="replay") as replayed:
        for session in (live, replayed):
            session.run(start)
        first = (live.snapshot(), replayed.snapshot())
        for _ in range(100):
            cells = [
                "\n".join(rng.choice(STATEMENTS).format(n=rng.randrange(4)) for _ in range(2))
                for _ in range(4)
            ]
            shown = []
            for session, beginning in zip((live, replayed), first, strict=True):
                session.restore(beginning)
                session.run(cells[0])
                session.run(cells[1])
                point = session.snapshot()
                session.run(cells[2])
                session.restore(point)
                shown.append(
                    [
                        (r.status, r.stdout, r.value, r.error)
                        for r in (session.run(cell) for cell in cells[2:])
                    ]
                )
                point.release()
            assert shown[0] == shown[1], cells


def test_a_jail_that_dies_is_a_typed_fault_and_its_snapshots_are_rebuilt(doomed: JailExecutor) -> None:
    with doomed.open() as session:
        session.run("x = 5")
        point = session.snapshot()
        doomed._pool.jail("").close()
        result = session.run("x")
        assert (result.status, result.state_lost) == (ExecStatus.SANDBOX_ERROR, True)
        session.restore(point)
        assert value(session, "x") == "5"


def test_a_session_whose_jail_died_says_so_when_forked(doomed: JailExecutor) -> None:
    with doomed.open() as session:
        doomed._pool.jail("").close()
        with pytest.raises(SandboxFault):
            session.fork()


INTERRUPTED = """
import os, signal, sys, time
from agentenv.sandbox.backends import make_executor
os.setpgrp()
for number in (signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda *_: None)
with make_executor(sys.argv[1], size=1) as box, box.open() as session:
    session.run("kept = 1")
    for number in (signal.SIGINT, signal.SIGHUP):
        os.killpg(0, number)
        time.sleep(0.5)
        print(session.run("kept + 1").value)
"""


@pytest.mark.parametrize("backend", ["bwrap", "unsafe-local"])
def test_a_session_outlives_what_the_terminal_tells_its_owner(backend: str) -> None:
    """A training finishes its step then, with the episodes that it has."""
    shared(backend)  # skips where there is none
    found = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, backend], capture_output=True, text=True, timeout=60, check=False
    )
    assert (found.stdout.split(), found.stderr) == (["2", "2"], "")


def test_sessions_that_nobody_closed_end_when_the_next_one_begins(box: JailExecutor) -> None:
    first = box.open(limits=LIMITS)
    fork, point = first.fork(), first.snapshot()
    jail = first._group._channel.jail  # type: ignore[union-attr]
    before = jail.load
    del first, fork, point
    gc.collect()
    with box.open(limits=LIMITS):
        deadline = time.monotonic() + 30
        while jail.load > before and time.monotonic() < deadline:
            time.sleep(0.02)
        assert jail.load == before


def test_a_forked_process_leaves_the_sessions_of_its_parent_alone(box: JailExecutor) -> None:
    session = box.open(limits=LIMITS)
    child = os.fork()
    if child == 0:
        del session
        gc.collect()
        os._exit(0 if box._pool._left.empty() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert value(session, "1 + 1") == "2"
    session.close()

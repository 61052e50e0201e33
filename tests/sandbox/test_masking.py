"""What a program takes from others, or lets last, fails nobody's episode: descriptors on their way, queues, deadlines."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import Task
from agentenv.data.code_tasks import generate_code_tasks
from agentenv.envs.code import Code
from agentenv.errors import SnapshotRefused
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.sandbox.backends import make_executor
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.grading import StdioTest
from agentenv.sandbox.jail import watch
from agentenv.sandbox.pool import Slots
from agentenv.sandbox.types import ExecStatus, ExecutionLimits
from tests.sandbox.conftest import WALLED, shared

LIMITS = ExecutionLimits(wall_s=20.0)
ON_THEIR_WAY = """
import array, os, socket, time
for _ in range({processes}):
    if os.fork() == 0:
        held, fds = [], array.array("i", [0] * {each})
        while True:
            pair = socket.socketpair()
            held.append(pair)
            try: pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            except OSError: break
        time.sleep(60)
print("on their way", flush=True)
time.sleep({seconds})
"""


@pytest.fixture(name="box")
def _box(box_of_module: JailExecutor) -> JailExecutor:
    return box_of_module


def unharmed(box: JailExecutor) -> None:
    """Runs, sessions, snapshots, forks and new interpreters work."""
    assert box.run("print(6 * 7)", limits=LIMITS).stdout == "42\n"
    with box.open(limits=LIMITS) as session:
        assert session.run("x = 6").ok
        point = session.snapshot()
        with session.fork() as fork:
            assert fork.run("x * 7").value == "42"
            assert fork.run("import os; os._exit(0)").status is ExecStatus.KILLED
            assert fork.run("6 * 7").value == "42"
        session.restore(point)
        assert session.run("x").value == "6"


@pytest.mark.parametrize(("processes", "each"), [(1, 65), (1, 253), (8, 250), (40, 60)])
def test_descriptors_on_their_way_keep_nobody_from_being_started(
    box: JailExecutor, processes: int, each: int
) -> None:
    """The kernel counts what a user sent and nobody received, and lets no process of a lower limit send more."""
    code = ON_THEIR_WAY.format(processes=processes, each=each, seconds=1.2)
    sender = threading.Thread(target=box.run, args=(code,), kwargs={"limits": LIMITS})
    sender.start()
    time.sleep(0.4)
    unharmed(box)
    sender.join()


@pytest.mark.parametrize("each", [65, 253])
def test_a_session_that_sends_descriptors_is_no_failure(box: JailExecutor, each: int) -> None:
    with box.open(limits=LIMITS) as session:
        session.run("x = 1")
        with session.fork() as fork:
            assert fork.run(ON_THEIR_WAY.format(processes=4, each=each, seconds=0.1)).ok
            unharmed(box)
            try:
                session.snapshot()
            except SnapshotRefused:
                pytest.fail("the session pays for its fork")
            assert session.run("x").value == "1"
            # Its children keep the link of who has ended.
            ended = fork.run("import os; os._exit(0)", wall_s=0.5)
            assert ended.status is ExecStatus.KILLED
            assert fork.run("6 * 7").value == "42"


def test_a_program_that_may_take_longer_than_anybody_waits_fails_nobody() -> None:
    slots = Slots(1, 0.3)
    assert slots.take(0.9)
    waited: list[bool] = []
    waiting = threading.Thread(target=lambda: waited.append(slots.take()))
    waiting.start()
    time.sleep(0.6)
    slots.give()
    waiting.join(5)
    assert waited == [True]
    assert not slots.take()  # nobody has come to an end since, and the time of the last has passed


STEP_S = 2.0
SLEEP = "import time\ntime.sleep(30)"
IGNORES = "import time\nwhile True:\n try: time.sleep(30)\n except BaseException: pass"


def played(
    box: JailExecutor, actions: list[str], tasks: Sequence[Task], deadline_s: float, *, stateful: bool = True
) -> list[Trajectory]:
    """The episodes of a policy that writes the same actions in all of them."""
    env = Code(executor=box, tasks=tasks, limits=replace(LIMITS, wall_s=60.0), stateful=stateful)
    envs = [env, *env.fork(len(tasks) - 1)] if len(tasks) > 1 else [env]
    specs = [EpisodeSpec(one, task, index) for index, (one, task) in enumerate(zip(envs, tasks, strict=True))]
    policy = ScriptedPolicy({f"t-{index}": actions for index in range(len(tasks))})
    config = RolloutConfig(context_tokens=1 << 16, turn_tokens=1 << 15, deadline_s=deadline_s)
    try:
        return asyncio.run(rollout(specs, policy, InlineFormat(ByteTokenizer()), config, name="t"))
    finally:
        for one in envs:
            one.close()


@pytest.mark.parametrize("code", [SLEEP, IGNORES], ids=["sleeps", "ignores every signal"])
@pytest.mark.parametrize("stateful", [True, False])
def test_no_program_outlasts_the_deadline_of_its_step(box: JailExecutor, stateful: bool, code: str) -> None:
    """Its limit is longer than the step may take, and the step shorter than the policy would like."""
    actions = [f"<python>{code}</python>", "<submit>0</submit>"]
    (episode,) = played(box, actions, generate_code_tasks(1), STEP_S, stateful=stateful)
    assert (episode.valid, episode.reward) == (True, 0.0), episode.error
    assert episode.turns[0].tool_results[0].data["status"] in ("timeout", "killed")


@pytest.mark.parametrize("program", [SLEEP, "import time\ntime.sleep(0.4)"], ids=["for ever", "a little"])
@pytest.mark.parametrize("kind", ["input", "calls"])
def test_no_number_of_tests_outlasts_the_deadline_of_its_step(
    box: JailExecutor, program: str, kind: str
) -> None:
    (task,) = generate_code_tasks(1)
    if kind == "input":
        task = replace(task, data={"tests": tuple(StdioTest(str(n), "1") for n in range(60))})
    (episode,) = played(box, [f"<submit>{program}</submit>"], [task], STEP_S)
    assert (episode.valid, episode.reward) == (True, 0.0), episode.error


@pytest.fixture(params=WALLED)
def narrow(request: pytest.FixtureRequest) -> Iterator[JailExecutor]:
    """An executor that runs one program at a time, and lets nobody wait long without an end of one."""
    shared(request.param)
    with make_executor(request.param, size=1, slots=1, wait_s=6.0) as executor:
        executor.warm()
        yield executor


@pytest.mark.parametrize("stateful", [True, False])
def test_a_queue_of_slow_programs_fails_no_step(narrow: JailExecutor, stateful: bool) -> None:
    """Together they take longer than a step may, and each waits for the others."""
    step_s, count = 6.0, 6  # a busy machine may start a program seconds late
    actions = ["<python>import time\ntime.sleep(1.1)\nprint('done')</python>", "<submit>0</submit>"]
    episodes = played(narrow, actions, generate_code_tasks(count), step_s, stateful=stateful)
    assert [episode.error for episode in episodes if not episode.valid] == []
    said = [episode.turns[0].tool_results[0].text for episode in episodes]
    assert ["done" in text for text in said] == [True] * count, said


REGIONS = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
for _ in range(57):
    if os.fork() == 0:
        while True: pass
for _ in range(3):
    if os.fork() == 0: break
for number in range(60000): libc.mmap(None, 4096, 1 + (number & 1) * 2, 0x22, -1, 0)
while True: pass
"""


@pytest.mark.parametrize("session", [False, True], ids=["run", "session"])
def test_no_program_makes_its_supervisor_late(box: JailExecutor, session: bool) -> None:
    """It has regions without number, which take long to be looked at, and processes that take the processors."""
    limits = ExecutionLimits(wall_s=4.0, cpu_s=60.0)
    with box.open(limits=limits) as opened:
        result = opened.run(REGIONS) if session else box.run(REGIONS, limits=limits)
    assert result.status in (ExecStatus.TIMEOUT, ExecStatus.OOM), result


@pytest.mark.parametrize("session", [False, True], ids=["run", "session"])
def test_a_program_comes_after_its_supervisor(box: JailExecutor, session: bool) -> None:
    code = (
        "import os\nshown = [os.nice(0)]\n"
        "try: os.nice(-1)\nexcept OSError as error: shown.append(error.errno)\nprint(shown)"
    )
    with box.open() as opened:
        result = opened.run(code) if session else box.run(code)
    first, error = json.loads(result.stdout)
    assert first >= 5 + min(0, os.nice(0)), result
    assert error in (1, 13), result


def test_a_look_at_memory_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(watch.LookEnded, match="timeout"):
        list(watch.in_time(time.monotonic())([1]))
    assert list(watch.in_time(time.monotonic() + 60.0)([1, 2])) == [1, 2]
    monkeypatch.setattr(watch, "LOOK_S", 0.0)
    with pytest.raises(watch.LookEnded, match="oom"):
        list(watch.in_time(time.monotonic() + 60.0)([1]))

"""What a program does to its own box is its own result: never a fault, and never at the cost of a fork beside it."""

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest

from agentenv.errors import ConfigurationError, SnapshotRefused
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.jail_session import JailSession
from agentenv.sandbox.types import ExecResult, ExecStatus, ExecutionLimits


@pytest.fixture(name="box")
def _box(box_of_module: JailExecutor) -> JailExecutor:
    return box_of_module


LIMITS = ExecutionLimits(wall_s=20.0)
LINK = """
import os, stat, struct, time
def is_socket(fd):
    try: return stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError: return False
link = next(filter(is_socket, range(3, 64)))
def say(body): os.write(link, struct.pack(">I", len(body)) + body)
"""


def own(result: ExecResult) -> ExecResult:
    """A result that is the program's own doing."""
    assert result.status is not ExecStatus.SANDBOX_ERROR, result
    return result


def unharmed(session: JailSession) -> None:
    """A fork has the names and files that it had."""
    result = session.run("(x, open('f').read())")
    assert (result.status, result.value) == (ExecStatus.OK, "([1], 'kept')"), result


def forged(**parts: Any) -> str:
    """A cell that answers in its interpreter's place, with ``parts`` in an answer that is right but for them."""
    answer = {"ok": False, "value": "1", "error": None, "folder": "/", "digest": ""} | parts
    return f"{LINK}\nsay({json.dumps(answer).encode()!r})"


def error(**parts: Any) -> str:
    return forged(error={"type": "T", "message": "m", "line": 1} | parts)


DEEP: Any = []
for _ in range(900):
    DEEP = [DEEP]
FORGED = {
    "an infinite line": error(line=1).replace('"line": 1', '"line": 1e999'),
    "a line that is no number": error(line=1).replace('"line": 1', '"line": NaN'),
    "a line of 4,000 digits": error(line=1).replace('"line": 1', '"line": ' + "9" * 4000),
    "a line of 9,000 digits": error(line=1).replace('"line": 1', '"line": ' + "9" * 9000),
    "a line below nothing": error(line=-(1 << 70)),
    "a line that is text": error(line="1e999"),
    "a type of many lists": error(type=DEEP),
    "a message of many lists": error(message=DEEP),
    "an error of many lists": forged(error=DEEP),
    "half a pair": error(type="\ud800", message="\udfff"),
    "half a pair as value": forged(ok=True, value="\ud83d"),
    "a value of many lists": forged(value=DEEP),
    "a folder of no name": forged(folder="\0\ud800"),
    "a folder that is a number": forged(folder=1e308),
    "words that are true": forged(ok="yes"),
    "a list": f"{LINK}\nsay(b'[]')",
    "a number": f"{LINK}\nsay(b'1e999')",
    "nothing": f"{LINK}\nsay(b'')",
    "100,000 brackets": f"{LINK}\nsay(b'[' * 100000)",
    "100,000 objects": f"{LINK}\nsay(b'{{\"a\":' * 100000)",
    "no text": f"{LINK}\nsay(b'\\xff\\xfe' * 500)",
    "the longest that is taken": f"{LINK}\nos.set_blocking(link, False)\nsay(b'1' * 65536)",
    "more than is taken": f"{LINK}\nos.write(link, b'\\xff' * 65536)",
    "half of an answer": f"{LINK}\nos.write(link, struct.pack('>I', 1000) + b'{{')",
    "a hundred answers": f"{LINK}\nfor _ in range(100): say(b'{{}}')",
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_answer_is_its_own_and_harms_no_other(session: JailSession, case: str) -> None:
    session.run("x = [1]\nopen('f', 'w').write('kept')")
    point = session.snapshot()
    fork = session.fork()
    for text in (own(fork.run(FORGED[case])), own(fork.run("2"))):
        for shown in (text.stdout, text.stderr, text.value or "", *(vars_of(text))):
            shown.encode()
    unharmed(session)
    session.restore(point)
    unharmed(session)
    fork.close()


def vars_of(result: ExecResult) -> tuple[str, ...]:
    return () if result.error is None else (result.error.type, result.error.message)


NEST = "import os\nfor _ in range({depth}):\n os.mkdir({name!r}); {before}os.chdir({name!r}){after}\n"
AWAY = "\nos.chdir('/')"
TREES = {
    "300 folders": NEST.format(depth=300, name="d", before="", after="") + AWAY,
    "3,000 folders": NEST.format(depth=3000, name="d", before="", after="") + AWAY,
    "3,000 folders, and it stays in the last": NEST.format(depth=3000, name="d", before="", after=""),
    "1,500 folders of long names": NEST.format(depth=1500, name="n" * 250, before="", after="") + AWAY,
    "500 folders that nobody may enter": NEST.format(
        depth=500, name="d", before="old = os.open('.', 0); ", after="; os.fchmod(old, 0); os.close(old)"
    )
    + AWAY,
    "a folder of its own that nobody may enter": "import os\nos.mkdir('d'); open('d/g', 'w'); os.chmod('d', 0)",
    "files that nobody may read": "import os\nfor i in range(50): open(f'g{i}', 'w').write('x'); os.chmod(f'g{i}', 0)",
    "a working folder that nobody may enter": "import os\nos.chmod('.', 0)",
    "a box that nobody may enter": "import os\nos.chmod('/box', 0)",
    "folders that cannot be changed": (
        "import os\nos.makedirs('a/b/c'); open('a/b/c/g', 'w')\n"
        "for p in ('a/b/c', 'a/b', 'a', '.', '..'): os.chmod(p, 0o500)"
    ),
    "no working folder": "import os, shutil\nshutil.rmtree('/box/work')",
    "a link for a working folder": "import os\nos.rename('/box/work', '/box/tmp/w'); os.symlink('/box/tmp/w', '/box/work')",
    "a file for a working folder": "import os\nos.rename('/box/work', '/box/tmp/w'); open('/box/work', 'w')",
    "a working folder in itself": (
        "import os\nos.rename('/box/work', '/box/tmp/w')\n"
        "os.mkdir('/box/work'); os.chdir('/box/work'); os.rename('../tmp/w', 'inner')"
    ),
    "4,000 names of one file": (
        "import os\nopen('g', 'wb').write(bytes(1 << 20))\n"
        "for i in range(4000):\n try: os.link('g', f'g{i}')\n except OSError: break"
    ),
    "4,000 files": "for i in range(5000):\n try: open(f'g{i}', 'w').close()\n except OSError: break",
    "1,000 large holes": "for i in range(1000): open(f'g{i}', 'w').truncate(8 << 20)",
    "a full disk": "i = 0\ntry:\n while True: open(f'g{(i := i + 1)}', 'wb').write(bytes(1 << 20))\nexcept OSError: pass",
    "names of no language": (
        "import os\nfor n in (b'\\xff\\xfe', b'a\\nb', b'\\x01', b'n' * 255, b' '):\n open(n, 'w').close()"
    ),
    "pipes and sockets": "import os, socket\nos.mkfifo('p'); s = socket.socket(socket.AF_UNIX); s.bind('s'); s.close()",
    "links in circles": (
        "import os\nos.symlink('l', 'l'); os.symlink('.', 'm')\n"
        "os.symlink('/', 'r'); os.symlink('x' * 4000, 'y')"
    ),
    "hidden descriptors": "import ctypes\nctypes.CDLL(None).prctl(4, 0)",
}
KEPT = "(x, open('f').read())"


@pytest.mark.parametrize("case", TREES)
def test_files_of_any_kind_are_no_fault_and_harm_no_other(session: JailSession, case: str) -> None:
    session.run("x = [1]\nopen('f', 'w').write('kept')")
    point = session.snapshot()
    fork = session.fork()
    own(fork.run(TREES[case]))
    unharmed(session)
    own(fork.run("1"))
    with contextlib.suppress(SnapshotRefused):
        fork.snapshot().release()
    own(fork.run("import os; os._exit(0)"))
    unharmed(session)
    assert fork.run("6 * 7").value == "42"
    session.restore(point)
    unharmed(session)
    fork.close()


@pytest.mark.parametrize(
    "case", ["3,000 folders", "500 folders that nobody may enter", "1,500 folders of long names"]
)
def test_deep_folders_are_rewound_like_any(session: JailSession, case: str) -> None:
    count = (
        "n, at = 0, os.open('/box', 0)\nnames = ['work']\nwhile names:\n os.chmod(names[0], 0o700, dir_fd=at)\n"
        " at, old = os.open(names[0], 0, dir_fd=at), at\n os.close(old); n += 1\n"
        " names = [e.name for e in os.scandir(at) if e.is_dir()]\nos.close(at)\nn"
    )
    session.run("import os")
    session.run(TREES[case])
    point = session.snapshot()
    wanted = session.run(count).value
    assert int(wanted or "0") >= 500
    session.run("import os\nos.rename('/box/work', '/box/tmp/w'); os.mkdir('/box/work')")
    session.restore(point)
    assert session.run(count).value == wanted


def test_modes_of_folders_are_kept_though_they_were_copied(session: JailSession) -> None:
    session.run(
        "import os\nos.mkdir('d'); open('d/g', 'w').write('in'); os.chmod('d/g', 0o200); os.chmod('d', 0)"
    )
    look = "oct(os.stat('d').st_mode)"
    point = session.snapshot()
    assert session.run(look).value == "'0o40000'"
    session.restore(point)
    assert session.run(look).value == "'0o40000'"
    shown = session.run(
        "os.chmod('d', 0o700); mode = oct(os.stat('d/g').st_mode); os.chmod('d/g', 0o600)\n(mode, open('d/g').read())"
    )
    assert shown.value == "('0o100200', 'in')"


@pytest.mark.parametrize("size", [1 << 12, 1 << 20])
def test_an_interpreter_that_reads_no_more_cells_is_killed(box: JailExecutor, size: int) -> None:
    with box.open(limits=replace(LIMITS, wall_s=1.0)) as session:
        session.run("x = [1]\nopen('f', 'w').write('kept')")
        fork = session.fork()
        answer = json.dumps({"ok": True, "value": "1", "error": None, "folder": "/", "digest": ""}).encode()
        own(
            fork.run(
                f"{LINK}\nsay({answer!r})\nwhile True:\n try: time.sleep(60)\n except BaseException: pass"
            )
        )
        result = own(fork.run(f"'{'x' * size}'"))
        assert result.state_lost
        unharmed(session)
        fork.close()


IN_THE_WAY = {
    "a file for a folder": "open('f', 'w')",
    "a link for the working folder": TREES["a link for a working folder"],
    "a link for a folder": "import os\nos.symlink('/tmp', 'f')",
    "a folder for the file": "import os\nos.makedirs('f/g')",
    "a folder that nobody may enter": "import os\nos.mkdir('f'); os.chmod('f', 0)",
    "no working folder": TREES["no working folder"],
    "a file that nobody may write": "import os\nos.mkdir('f'); open('f/g', 'w'); os.chmod('f/g', 0o400)",
    "a pipe": "import os\nos.mkdir('f'); os.mkfifo('f/g')",
    "a full disk": TREES["a full disk"],
}


@pytest.mark.parametrize("case", IN_THE_WAY)
def test_what_is_in_the_way_of_a_file_is_the_programs_doing(session: JailSession, case: str) -> None:
    session.run("x = 7")
    session.run(IN_THE_WAY[case])
    result = session.run("print('ran')", files={"f/g": bytes(1 << 16)})
    assert (result.status, result.stdout, result.state_lost) == (ExecStatus.ERROR, "", False)
    assert result.error is not None
    assert "f/g" in result.error.message
    assert "f/g" in result.stderr
    if case != "no working folder":  # without one there is no next cell in this interpreter
        assert session.run("x").value == "7"


@pytest.mark.parametrize("files", [{"../x": b""}, {"a": b"", "a/b": b""}, {"a": bytes((16 << 20) + 1)}])
def test_files_that_no_box_can_hold_are_the_callers_mistake(
    session: JailSession, files: dict[str, bytes]
) -> None:
    session.run("x = 7")
    with pytest.raises(ConfigurationError):
        session.run("1", files=files)
    assert session.run("x").value == "7"


def test_what_is_collected_is_bounded_together(box: JailExecutor) -> None:
    names = [f"g{i}" for i in range(40)]
    result = box.run("for i in range(40): open(f'g{i}', 'w').truncate(8 << 20)", collect=names, limits=LIMITS)
    assert result.status is ExecStatus.OK
    assert sum(map(len, result.files.values())) <= LIMITS.disk_mb << 20
    assert set(result.files) | set(result.refused) == set(names)


@pytest.mark.parametrize("who", ["True", "os.getpid() == first"], ids=["it and its fork", "it alone"])
def test_a_snapshot_that_ends_itself_is_built_again(session: JailSession, who: str) -> None:
    """It lets itself be frozen, for which it closes the four descriptors of its fork, and ends when it forks once more."""
    session.run("x = [1]\nopen('f', 'w').write('kept')")
    session.run(
        "import os\nclose, count = os.close, 0\ndef ends(fd, first=os.getpid()):\n global count\n count += 1\n"
        f" if count > 4 and {who}: os._exit(0)\n close(fd)\nos.close = ends"
    )
    point = session.snapshot()
    session.run("x.append(2)")
    frozen = point.node
    session.restore(point)
    assert point.node != frozen
    unharmed(session)


@pytest.mark.parametrize("kind", ["bytes", "names"])
def test_a_fork_for_whose_files_there_is_no_room_pays_itself(box: JailExecutor, kind: str) -> None:
    """The one whose files are in use at that moment keeps its state and its files."""
    fill = {
        "bytes": "open('big', 'wb').write(bytes((1 << 20) - 8192))",
        "names": "for i in range(240): open(f'g{i}', 'w').close()",
    }[kind]
    limits = ExecutionLimits(wall_s=20.0, disk_mb=1, file_mb=1, processes=64, snapshots=4)
    with box.open(limits=limits) as session, contextlib.ExitStack() as stack:
        session.run("x = [1]")
        forks = session.fork(44)
        for fork in forks:
            stack.callback(fork.close)
        alive: list[JailSession] = []
        for fork in forks:
            result = own(fork.run(f"x.append(2)\nopen('f', 'w').write('kept')\n{fill}"))
            if result.state_lost:
                break
            assert result.status is ExecStatus.OK, result
            alive.append(fork)
        else:
            pytest.fail("the snapshot folder was never full")
        for _ in range(2):
            assert own(fork.run("6 * 7")).state_lost
            kept = alive[-1].run("(x, open('f').read())")
            assert (kept.status, kept.value) == (ExecStatus.OK, "([1, 2], 'kept')"), kept
        with pytest.raises(SnapshotRefused):
            session.fork()
        alive[-1].close()  # there is room again
        assert fork.run("6 * 7").value == "42"
        assert alive[0].run("(x, open('f').read())").value == "([1, 2], 'kept')"


def test_a_file_that_a_fork_keeps_open_takes_no_room_from_its_sibling(session: JailSession) -> None:
    """The file loses its name when the sibling's files are brought, and its room when it is closed."""
    session.run("x = 1")
    holder, sibling = session.fork(2)
    held = "f = [open(f'big{i}', 'wb') for i in range(2)]\nfor one in f: one.write(bytes(7_900_000)); one.flush()"
    for _ in range(2):
        assert own(holder.run(held)).ok
        result = sibling.run(
            "open('mine', 'wb').write(bytes(8 << 20))\nopen('more', 'wb').write(bytes(7 << 20))"
        )
        assert (result.status, result.value) == (ExecStatus.OK, str(7 << 20)), result
    grown = sibling.run("for i in range(9): open(f'g{i}', 'wb').write(bytes(1 << 20))")
    assert grown.error is not None
    assert "Errno 28" in grown.error.message
    holder.close()
    sibling.close()

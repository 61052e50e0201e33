"""The attack list A1-A49: what an untrusted program tries, judged from inside it and on the host, on every backend.

After every row the owner is alive, the next run works, and no process, descriptor or mount is left.
"""

import os
import re
import resource
import socket
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from agentenv.errors import ConfigurationError
from agentenv.sandbox.executor import JailExecutor
from agentenv.sandbox.types import ExecResult, ExecStatus, ExecutionLimits

LIMITS = ExecutionLimits(wall_s=10.0, cpu_s=6.0)
QUICK = replace(LIMITS, wall_s=30.0, cpu_s=2.0)
SMALL = replace(QUICK, memory_mb=128)
LIBC = "import ctypes, errno, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"


def refused(box: JailExecutor, expression: str, *numbers: str) -> None:
    """A call of the C library gives -1 with one of the error numbers."""
    code = f"{LIBC}result = {expression}\nprint(result, errno.errorcode.get(ctypes.get_errno()))"
    shown = box.run(code, limits=QUICK)
    assert shown.stdout.strip() in {f"-1 {number}" for number in numbers}, shown


def printed(box: JailExecutor, code: str, limits: ExecutionLimits = QUICK) -> str:
    """What a program prints that runs to its end."""
    result = box.run(code, limits=limits)
    assert result.status is ExecStatus.OK, result
    return result.stdout.strip()


def test_a01_fork_bomb(box: JailExecutor) -> None:
    code = (
        "import os, time\nmade = 0\ntry:\n while True:\n  if os.fork() == 0: time.sleep(60)\n  made += 1\n"
        "except OSError as error:\n print(made, error.errno)"
    )
    made, number = map(int, printed(box, code).split())
    assert 1 <= made <= QUICK.processes
    assert number == 11
    assert box.run("import os\nwhile 1: os.fork()", limits=QUICK).status is not ExecStatus.SANDBOX_ERROR


def test_a02_thread_bomb(box: JailExecutor) -> None:
    code = (
        "import threading, time, os\nmade = 0\ntry:\n while True:\n"
        "  threading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n  made += 1\n"
        "except (RuntimeError, MemoryError):\n print(made, flush=True)\n os._exit(0)"
    )
    assert 1 <= int(printed(box, code)) <= QUICK.processes


def test_a03_memory_bomb(box: JailExecutor) -> None:
    result = box.run("a = [bytearray(10**7) for _ in iter(int, 1)]", limits=SMALL)
    assert result.status is ExecStatus.OOM
    assert result.memory_mb < 2 * SMALL.memory_mb


def test_a04_memory_by_many_children(box: JailExecutor) -> None:
    code = (
        "import os, time\nfor _ in range(6):\n if os.fork() == 0:\n  held = bytearray(100 << 20)\n"
        "  held[::4096] = b'1' * len(held[::4096])\n  time.sleep(60)\ntime.sleep(60)"
    )
    assert box.run(code, limits=SMALL).status is ExecStatus.OOM


def test_a05_one_endless_file(box: JailExecutor) -> None:
    code = "with open('big', 'wb') as f:\n while True: f.write(bytes(1 << 20))"
    result = box.run(code, limits=QUICK)
    assert "File too large" in result.stderr or result.signal == 25


def test_a06_many_files(box: JailExecutor) -> None:
    code = (
        "import os\nfor place in ('.', '/tmp', '/dev/shm'):\n i = 0\n try:\n  while True:\n"
        "   with open(f'{place}/f{i}', 'wb') as f: f.write(bytes(10000))\n   i += 1\n"
        " except OSError as error: print(error.errno)\n"
        "for root in ('/', '/dev', '/usr', '/var', '/run', '/proc'):\n"
        " try: open(root + '/x', 'w')\n except OSError: continue\n print('wrote', root)"
    )
    assert printed(box, code).split() == ["28"] * 3


def test_a07_output_flood(box: JailExecutor) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = box.run("while 1: print('x' * 10**6)", limits=QUICK)
    assert result.status is ExecStatus.OUTPUT_LIMIT
    assert result.truncated
    assert len(result.stdout) < QUICK.output_bytes + 100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def test_a08_binary_output(box: JailExecutor) -> None:
    result = box.run("import os\nos.write(1, bytes(range(256)) * 20)\nos.write(2, b'\\xff')", limits=QUICK)
    assert result.status is ExecStatus.OK
    assert "�" in result.stdout
    assert result.stderr == "�"


def test_a09_huge_text_and_deep_recursion(box: JailExecutor) -> None:
    assert box.run("print('[' * 10**6, end='')", limits=QUICK).truncated
    assert box.run("def f(): f()\nf()", limits=QUICK).status is ExecStatus.ERROR
    crash = "import ctypes\nctypes.string_at(0)"
    assert box.run(crash, limits=QUICK).signal == 11
    with box.open(limits=QUICK) as session:
        assert "left out" in (session.run("'x' * 10**6").value or "")
        assert session.run(crash).state_lost


def test_a10_busy_loop(box: JailExecutor) -> None:
    """The limit of processor time ends it; on a busy machine it may take a while to use up a second."""
    result = box.run("while 1: pass", limits=replace(QUICK, cpu_s=1.0, wall_s=600.0))
    assert result.status is ExecStatus.TIMEOUT
    assert result.wall_s < 500


def test_a11_ignores_every_signal(box: JailExecutor) -> None:
    code = (
        "import signal\nfor n in range(1, 65):\n try: signal.signal(n, signal.SIG_IGN)\n"
        " except (OSError, ValueError): pass\nwhile 1: pass"
    )
    assert box.run(code, limits=replace(QUICK, cpu_s=1.0)).status is ExecStatus.TIMEOUT


def test_a12_sleeps(box: JailExecutor) -> None:
    result = box.run(
        "import time\nprint('here', flush=True)\ntime.sleep(10**6)", limits=replace(QUICK, wall_s=0.5)
    )
    assert (result.status, result.stdout) == (ExecStatus.TIMEOUT, "here\n")


def test_a13_stops_its_supervisor(box: JailExecutor) -> None:
    code = (
        "import os, signal\nfor pid in (1, os.getppid()):\n"
        " for number in (signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV):\n"
        "  try: os.kill(pid, number)\n  except OSError: pass\nprint('alive')"
    )
    assert printed(box, code) == "alive"
    state = printed(box, code + "\nprint(open('/proc/1/stat').read().rpartition(')')[2].split()[0])")
    assert state.split()[-1] in "SR"


def test_a14_kills_everything(box: JailExecutor) -> None:
    result = box.run("import os\ntry: os.kill(-1, 9)\nexcept OSError as e: print(e.errno)", limits=QUICK)
    assert result.status in (ExecStatus.OK, ExecStatus.KILLED)


DAEMON = "import os, time, sys\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0:\n  {more}\n  time.sleep(600)\n os._exit(0)\nos.wait()\ntime.sleep(0.2)\nprint('done')"


def test_a15_daemon(box: JailExecutor) -> None:
    assert (
        printed(
            box, DAEMON.format(more="for fd in range(64):\n   try: os.close(fd)\n   except OSError: pass")
        )
        == "done"
    )


def test_a16_holds_the_pipe(box: JailExecutor) -> None:
    result = box.run(DAEMON.format(more="pass"), limits=QUICK)
    assert (result.status, result.stdout) == (ExecStatus.OK, "done\n")
    assert result.wall_s < 300


def test_a17_zombies(box: JailExecutor) -> None:
    code = "import os\nfor _ in range(50):\n if os.fork() == 0: os._exit(0)\nprint('done')"
    assert printed(box, code) == "done"
    assert printed(box, code) == "done"


def test_a18_network(box: JailExecutor) -> None:
    code = (
        "import socket\nfor address in (('1.1.1.1', 80), ('169.254.169.254', 80), ('10.0.0.1', 22)):\n"
        " try: socket.create_connection(address, 1); print('connected', address)\n except OSError: pass\n"
        "try:\n s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('8.8.8.8', 53)); print('sent')\n"
        "except OSError: pass\n"
        "try: print(socket.getaddrinfo('example.com', 80))\nexcept OSError: pass\n"
        "for kind in (socket.AF_PACKET, socket.AF_NETLINK, 38):\n"
        " try: socket.socket(kind, socket.SOCK_RAW); print('socket', kind)\n except OSError: pass"
    )
    assert printed(box, code) == ""


def test_a19_loopback_of_the_host(box: JailExecutor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket\nsocket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 1)"
        assert "ConnectionRefusedError" in box.run(code, limits=QUICK).stderr


def test_a20_unix_sockets_of_the_host(box: JailExecutor) -> None:
    name = f"agentenv-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"\0{name}")
        server.listen()
        code = (
            f"import socket\nfor path in ('\\0{name}', '/var/run/docker.sock', '/run/docker.sock'):\n"
            " try: socket.socket(socket.AF_UNIX).connect(path); print('connected', path)\n except OSError: pass"
        )
        assert printed(box, code) == ""


def test_a21_files_of_the_host(box: JailExecutor, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("secret", encoding="utf-8")
    places = [
        canary,
        Path.home(),
        Path.cwd(),
        Path(__file__),
        Path("/etc/shadow"),
        Path("/root"),
        Path("/home"),
    ]
    code = f"import os\nprint([p for p in {list(map(str, places))!r} if os.path.exists(p)])"
    assert printed(box, code) == "[]"


def test_a22_environment(box: JailExecutor) -> None:
    names = set(printed(box, "import os\nprint(' '.join(os.environ))").split())
    allowed = {
        "PATH",
        "HOME",
        "TMPDIR",
        "LANG",
        "LC_CTYPE",
        "PWD",
        "PYTHONHASHSEED",
        "PYTHONDONTWRITEBYTECODE",
    }
    allowed |= {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "HOSTNAME"}
    allowed |= {"LD_LIBRARY_PATH"}  # of a folder of the jail, where the interpreter has a shared library
    assert names <= allowed


def test_a23_procfs_of_others(box: JailExecutor) -> None:
    code = (
        "import os\nfor name in ('environ', 'maps', 'mem', 'root', 'cwd', 'fd/0', 'exe'):\n"
        " try: open(f'/proc/1/{name}').read(1); print('read', name)\n except OSError: pass\n"
        "print(open('/proc/1/cmdline').read(), open('/proc/self/mountinfo').read())\n"
        "print([p for p in os.listdir('/proc') if p.isdigit()])"
    )
    shown = printed(box, code)
    assert "read" not in shown.split()
    for secret in {str(Path.home()), str(Path.cwd()), os.path.realpath(sys.base_prefix)} - {"/usr", "/"}:
        assert secret not in shown
    assert len(shown.splitlines()[-1].split(",")) == 2


def test_a24_parent_through_procfs(box: JailExecutor) -> None:
    code = (
        "import os\nfor name in ('mem', 'root', 'fd'):\n"
        " try: os.listdir(p) if os.path.isdir(p := f'/proc/{os.getppid()}/{name}') else open(p, 'rb').read(1)\n"
        " except OSError: continue\n print('read', name)"
    )
    assert printed(box, code) == ""


def test_a25_sensitive_files(box: JailExecutor) -> None:
    paths = [
        "/proc/kcore",
        "/proc/sysrq-trigger",
        "/dev/mem",
        "/dev/sda",
        "/dev/vda",
        "/dev/kvm",
        "/dev/kmsg",
    ]
    paths += ["/proc/kallsyms", "/sys/kernel", "/dev/fuse", "/proc/keys"]
    code = f"for p in {paths!r}:\n try: open(p, 'rb').read(1)\n except OSError: continue\n print('read', p)"
    assert printed(box, code) == ""


def test_a26_sysctl(box: JailExecutor) -> None:
    paths = ["/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sys/kernel/hostname"]
    code = (
        f"for p in {paths!r}:\n try: open(p, 'w').write('1')\n except OSError: continue\n print('wrote', p)"
    )
    assert printed(box, code) == ""


def test_a27_read_only_root(box: JailExecutor) -> None:
    code = (
        "import os, sys\nfor p in ('/usr/lib', '/usr/bin', '/', '/dev', os.path.dirname(os.__file__), '/proc', '/snapshots'):\n"
        " try: open(p + '/x', 'w')\n except OSError: continue\n print('wrote', p)"
    )
    assert printed(box, code) == ""


def collected(box: JailExecutor, code: str, name: str = "out.txt") -> ExecResult:
    result = box.run(code, collect=[name], limits=QUICK)
    assert result.status is ExecStatus.OK, result
    assert not result.files
    return result


def test_a28_link_as_answer(box: JailExecutor) -> None:
    collected(box, "import os\nos.symlink('/etc/passwd', 'out.txt')")
    collected(box, "import os\nos.symlink('/usr/lib', 'd')", "d/os-release")
    collected(box, "import os\nos.makedirs('a')\nos.symlink('..', 'a/b')\nopen('x', 'w')", "a/b/x")


def test_a29_strange_files_as_answer(box: JailExecutor) -> None:
    assert "no regular file" in collected(box, "import os\nos.mkfifo('out.txt')").refused["out.txt"]
    collected(box, "import os\nos.mkdir('out.txt')")
    collected(box, "import socket\nsocket.socket(socket.AF_UNIX).bind('out.txt')")
    assert (
        "second name"
        in collected(box, "import os\nopen('a', 'w')\nos.link('a', 'out.txt')").refused["out.txt"]
    )
    huge = box.run("open('out.txt', 'wb').truncate(1 << 40)", collect=["out.txt"], limits=QUICK)
    assert "File too large" in huge.stderr
    assert huge.files.get("out.txt", b"") == b""


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a/../../x", "a\0b", "a\nb", "", "a" * 300, "a//b", ".", "a\ud800"]
)
def test_a30_path_traversal(box: JailExecutor, name: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(repr(name)[:60])):
        box.run("1", files={name: b"x"})
    with pytest.raises(ConfigurationError, match=re.escape(repr(name)[:60])):
        box.run("1", collect=[name])


def test_a31_archives(box: JailExecutor) -> None:
    """Files cross the wall one by one and by name: there is no archive to trick, an archive stays bytes."""
    code = (
        "import io, tarfile\nt = tarfile.open('out.tar', 'w')\ni = tarfile.TarInfo('../../evil')\n"
        "t.addfile(i, io.BytesIO())\nt.close()"
    )
    result = box.run(code, collect=["out.tar"], limits=QUICK)
    assert result.files["out.tar"][:10] == b"../../evil"


def test_a32_ptrace(box: JailExecutor) -> None:
    for target in ("1", "os.getppid()"):
        refused(box, f"libc.ptrace(16, {target}, 0, 0)", "EPERM")
    refused(box, "libc.process_vm_readv(1, None, 0, None, 0, 0)", "EPERM")


def test_a33_privileges(box: JailExecutor) -> None:
    refused(box, "libc.setuid(0)", "EPERM", "EINVAL")
    code = (
        "import subprocess\nfor c in (['su', '-c', 'id'], ['sudo', '-n', 'id'], ['mount', '-t', 'tmpfs', 'x', '/tmp']):\n"
        " try: r = subprocess.run(c, capture_output=True, stdin=subprocess.DEVNULL)\n except OSError: continue\n"
        " if r.returncode == 0: print('worked', c)\n"
        "print([l.split()[1] for l in open('/proc/self/status') if l.startswith('Cap')])"
    )
    assert printed(box, code) == str(["0" * 16] * 5)


def test_a34_namespaces_and_mounts(box: JailExecutor) -> None:
    for flag in ("0x10000000", "0x00020000", "0x20000000", "0x40000000"):
        refused(box, f"libc.unshare({flag})", "EPERM")
        refused(box, f"libc.syscall(56, {flag} | 17, 0, 0, 0, 0)", "EPERM")
    refused(box, "libc.mount(b'x', b'/tmp', b'tmpfs', 0, None)", "EPERM")
    refused(box, "libc.umount2(b'/proc', 2)", "EPERM")
    refused(box, "libc.chroot(b'/tmp')", "EPERM")
    refused(box, "libc.syscall(435, 0, 0)", "ENOSYS")


def test_a35_keyring(box: JailExecutor) -> None:
    refused(box, "libc.syscall(248, b'user', b'a', b'b', 1, -2)", "EPERM")
    refused(box, "libc.syscall(250, 0, -3)", "EPERM")


def test_a36_kernel_surface(box: JailExecutor) -> None:
    for number in (425, 426, 427, 321, 323, 298, 246, 320, 175, 313, 176, 155, 304):
        refused(box, f"libc.syscall({number}, 0, 0, 0, 0, 0)", "EPERM")


def test_a37_device_nodes(box: JailExecutor) -> None:
    code = "import os, stat\nos.mknod('d', stat.S_IFBLK | 0o666, os.makedev(254, 0))"
    assert "PermissionError" in box.run(code, limits=QUICK).stderr


def test_a38_terminal(box: JailExecutor) -> None:
    code = (
        "import fcntl, os\ntry: os.open('/dev/tty', os.O_RDWR); print('tty')\nexcept OSError: pass\n"
        "try: fcntl.ioctl(0, 0x5412, b'x'); print('pushed')\nexcept OSError: pass"
    )
    assert printed(box, code) == ""


def test_a39_clock(box: JailExecutor) -> None:
    assert "PermissionError" in box.run("import time\ntime.clock_settime(0, 0)", limits=QUICK).stderr


def test_a40_oom_score(box: JailExecutor) -> None:
    result = box.run("with open('/proc/self/oom_score_adj', 'w') as f: f.write('-1000')", limits=QUICK)
    assert result.status is ExecStatus.ERROR


def test_a41_shared_memory(box: JailExecutor) -> None:
    first = "open('/dev/shm/left', 'w').write('x')\nopen('/tmp/left', 'w').write('x')"
    assert printed(box, first) == ""
    assert printed(box, "import os\nprint(os.listdir('/dev/shm'), os.listdir('/tmp'))") == "[] []"
    refused(box, "libc.shmget(1, 4096, 0o1600)", "EPERM")
    refused(box, "libc.msgget(1, 0o1600)", "EPERM")


def test_a42_exec_from_the_work_folder(box: JailExecutor) -> None:
    """A script of its own may run, as with ``python script``: it is under the same walls."""
    code = (
        "import os, subprocess\nopen('s', 'w').write('#!/bin/sh\\necho $(id -u)')\nos.chmod('s', 0o4755)\n"
        "print(os.getuid() != 0, subprocess.run(['./s'], capture_output=True, text=True).stdout.strip() == str(os.getuid()))"
    )
    assert printed(box, code) == "True True"


def test_a43_descriptors(box: JailExecutor) -> None:
    code = (
        "import os\nfound = os.listdir('/proc/self/fd')\nprint(sorted(map(int, found))[:3], len(found))\n"
        "for fd in range(3, 300):\n try: os.write(fd, b'x'); print('wrote', fd)\n except OSError: pass"
    )
    assert printed(box, code) == "[0, 1, 2] 4"  # the fourth is the folder that is being listed


def test_a43_a_session_can_only_harm_itself_with_its_own_link(box: JailExecutor) -> None:
    with box.open(limits=QUICK) as session:
        result = session.run(
            "import os\nfor fd in range(3, 64):\n try: os.write(fd, b'\\xff' * 64)\n except OSError: pass"
        )
        assert result.status in (ExecStatus.KILLED, ExecStatus.ERROR)
        assert result.state_lost
        assert session.run("1 + 1").value == "2"


def test_a44_side_channels_between_runs(box: JailExecutor) -> None:
    first = (
        "import os, sys, json, builtins, socket\nopen('left', 'w').write('x')\nos.environ['LEFT'] = '1'\n"
        "json.loads = None\nbuiltins.left = 1\nsys.path.append('/left')\n"
        "s = socket.socket()\ns.bind(('127.0.0.1', 5555))\ns.listen()\n"
        "for root in ('/dev', '/site', '/py', '/usr/lib'):\n try: open(root + '/left', 'w')\n except OSError: pass"
    )
    assert printed(box, first) == ""
    second = (
        "import os, sys, json, builtins, socket\nprint(os.path.exists('left'), 'LEFT' in os.environ, json.loads is None,"
        "hasattr(builtins, 'left'), '/left' in sys.path, any(os.path.exists(r + '/left') for r in ('/dev', '/usr/lib')))\n"
        "try: socket.create_connection(('127.0.0.1', 5555), 1); print('connected')\nexcept OSError: pass"
    )
    assert printed(box, second) == " ".join(["False"] * 6)


def test_a45_process_limit_binds_for_root(box: JailExecutor) -> None:
    assert (
        printed(
            box, "import os\nprint(os.getuid() != 0 or open('/proc/self/uid_map').read().split()[1] != '0')"
        )
        == "True"
    )
    code = "import os, time\nmade = 0\ntry:\n while 1:\n  if os.fork() == 0: time.sleep(60)\n  made += 1\nexcept OSError: print(made)"
    assert int(printed(box, code, replace(QUICK, processes=20))) <= 20


def test_a48_a_hundred_megabytes_of_input(box: JailExecutor) -> None:
    code = "import sys\nprint(sum(len(part) for part in iter(lambda: sys.stdin.read(1 << 20), '')))"
    for program, size, shown in (("print('not read')", 100, "not read\n"), (code, 5, f"{5 << 20}\n")):
        assert box.run(program, stdin="x" * (size << 20), limits=QUICK).stdout == shown


def test_a49_exit_storm(box: JailExecutor) -> None:
    def storm() -> None:
        for _ in range(50):
            result = box.run("import os\nos._exit(1)", limits=QUICK)
            assert (result.status, result.exit_code) == (ExecStatus.ERROR, 1)

    threads = [threading.Thread(target=storm) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

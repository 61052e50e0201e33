"""A system without what Linux alone has imports the package and evaluates a model behind an endpoint.

The names that Windows lacks are taken from Python before the package is imported, in a process of its own.
"""

import subprocess
import sys
from pathlib import Path

WINDOWS = """
import asyncio, concurrent.futures, multiprocessing, os, platform, signal, subprocess, sys, sysconfig, tempfile
import anyio._backends._asyncio, gymnasium, httpcore, httpx, numpy, pydantic, rich.console, tomli_w, tyro

sysconfig.get_config_vars(), platform.uname()

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("fcntl", "grp", "pwd", "resource", "termios"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules.pop(name, None)
sys.meta_path.insert(0, Absent())
for name in ("fork", "register_at_fork", "sched_getaffinity", "sysconf", "geteuid", "getuid", "setsid", "killpg"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGCHLD", "SIGPIPE", "pthread_sigmask"):
    delattr(signal, name)
opened = os.open

def opens_no_folder(path, *rest, **named):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return opened(path, *rest, **named)

os.open, sys.platform = opens_no_folder, "win32"

from agentenv.cli.main import main
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint

with FakeEndpoint(lambda body: Answer("<answer>Ada</answer>")) as server:
    words = ["eval", "--policy", f"openai:any@{server.url}", "--env", "agentenv/Calculator-v0", "--limit", "2"]
    code = main([*words, "--out", sys.argv[1], "--json"])
sys.exit(code)
"""


def test_an_endpoint_is_evaluated_where_python_lacks_what_windows_does_not_have(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WINDOWS, str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "results.json").is_file()

"""The end of the process: no thread that hangs keeps it, its code is that of the command, what is registered runs."""

import signal
import subprocess
import sys

import pytest

CHILD = """
import atexit, sys, threading, time
from agentenv.cli import process_exit
from agentenv.core.env_calls import THREADS

process_exit._SETTLE_S, process_exit._END_S, process_exit._PATIENCE_S = 0.2, 0.5, 1.0
atexit.register(print, "registered work is done")
{stuck}

def refused(thread):
    raise RuntimeError("can't start new thread")

{more}
print("the result")
process_exit.leave(3)
sys.exit(3)
"""
STUCK = {
    "nothing": "",
    "a thread that is no daemon": "threading.Thread(target=time.sleep, args=(1000,)).start()",
    "a call that was given up": "call = THREADS.submit(time.sleep, 1000); time.sleep(0.1); call.cancel()",
    "a call that runs": "THREADS.submit(time.sleep, 1000); time.sleep(0.1)",
    "an atexit function": "atexit.register(time.sleep, 1000); atexit.register(print, flush=True)",
}


@pytest.mark.parametrize("stuck", STUCK)
def test_a_process_ends_with_its_code_whatever_hangs_in_it(stuck: str) -> None:
    child = CHILD.format(stuck=STUCK[stuck], more="")
    done = subprocess.run(
        [sys.executable, "-c", child], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3, done.stderr
    assert "the result" in done.stdout
    assert ("registered work is done" in done.stdout) == (stuck != "an atexit function")


@pytest.mark.parametrize("stuck", STUCK)
def test_a_process_ends_where_the_system_gives_no_further_thread(stuck: str) -> None:
    child = CHILD.format(stuck=STUCK[stuck], more="threading.Thread.start = refused")
    done = subprocess.run(
        [sys.executable, "-c", child], capture_output=True, text=True, timeout=60, check=False
    )
    # The end of a call that runs is waited for in another atexit function.
    hangs = stuck in ("an atexit function", "a call that runs")
    assert done.returncode == (-signal.SIGALRM if hangs else 3), done.stderr
    assert ("registered work is done" in done.stdout) == (stuck != "an atexit function")
    assert "Traceback" not in done.stderr

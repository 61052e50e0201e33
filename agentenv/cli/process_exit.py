"""The end of a process in which somebody's thread may hang: it is not waited for without a limit."""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Callable

from agentenv.core.concurrency.threads import wait_until_idle
from agentenv.core.env_calls import no_loop_is_running

_SETTLE_S = 10.0  # for calls that run
_END_S = 20.0  # for the interpreter to end by itself
_PATIENCE_S = 20.0  # for what was registered to run at the end


def leave(code: int) -> None:
    """Sees to it that this process ends with ``code``, whatever its threads do; does not return where one hangs.

    The interpreter waits for every thread that is no daemon, and an environment may have started one that never ends. What
    was registered with ``atexit`` (sandboxes, servers) is run in any case, with a deadline of its own. A signal from here on
    ends the process at once.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not (wait_until_idle(_SETTLE_S) and no_loop_is_running()):
        end_now(code)
    try:
        threading.Thread(target=_end, args=(_END_S, code), name="agentenv-leave", daemon=True).start()
    except RuntimeError:  # the system gives no more threads
        end_now(code)


def end_now(code: int) -> None:
    """Ends this process without a wait for its threads; what was registered with ``atexit`` is run with a deadline."""
    _end(0.0, code)


def _end(seconds: float, code: int) -> None:
    time.sleep(seconds)
    ending = threading.Thread(target=_quietly, args=(atexit._run_exitfuncs,), daemon=True)
    try:
        ending.start()
        ending.join(_PATIENCE_S)
    except RuntimeError:  # the system gives no more threads: the deadline is an alarm, which ends the process
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)
        _quietly(atexit._run_exitfuncs)
    for stream in (sys.stdout, sys.stderr):
        _quietly(stream.flush)
    os._exit(code)


def _quietly(work: Callable[[], object]) -> None:
    """Runs ``work``; there is nobody left who could be told what it raises."""
    try:
        work()
    except BaseException:
        return

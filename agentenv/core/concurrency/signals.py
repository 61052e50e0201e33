"""SIGINT, SIGTERM and SIGHUP: the first one ends a long piece of work in order, the second ends the process at once."""

import _thread
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

HANGUP: signal.Signals | None = getattr(signal, "SIGHUP", None)
"""The signal that a closing terminal sends; None on Windows, which lacks it."""
_STOPPING = (signal.SIGINT, signal.SIGTERM, *([HANGUP] if HANGUP else []))

_RESEND_DELAY_S = 0.05  # delay before a lost signal is sent again


class Interrupted(KeyboardInterrupt):
    """A signal asked the work to end. ``signal`` is its number."""

    def __init__(self, number: int, said: str = "") -> None:
        name = signal.Signals(number).name
        super().__init__(f"interrupted by {name}{said}")
        self.signal = number


def _send_later(number: int) -> None:
    time.sleep(_RESEND_DELAY_S)
    os.kill(os.getpid(), number)


class Interruptible:
    """A block in which the first SIGINT, SIGTERM or SIGHUP raises ``Interrupted``; within ``finishing`` it waits.

    The second signal of any kind ends the process at once, as without this block. Outside of the main thread, which alone
    receives signals, the block changes nothing. SIGHUP stays ignored if the process was started so, as by `nohup`.
    """

    def __init__(self, notice: str = "") -> None:
        """Stores the notice. Signals are handled only within the block.

        Args:
            notice: Printed to stderr when a signal has to wait for the end of a ``finishing`` part. A block without such a
                part needs none.
        """
        self._notice = notice
        self.asked = 0
        """The number of the signal that has asked for the end; 0 if none has."""
        self._waits = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # SIGINT is handled even where it is ignored: a shell without job control makes background processes ignore it,
            # although the user did not ask for that.
            ignored = HANGUP and signal.getsignal(HANGUP) is signal.SIG_IGN
            heard = [number for number in _STOPPING if number != HANGUP or not ignored]
            self._before = {number: signal.signal(number, self._ask) for number in heard}
            self._hook, sys.unraisablehook = sys.unraisablehook, self._resend_dropped
        return self

    def __exit__(self, *details: object) -> None:
        if self._before:
            sys.unraisablehook = self._hook
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        for other in self._before:
            signal.signal(other, signal.SIG_DFL)
        self.asked = number
        if not self._waits:
            raise Interrupted(number)
        # `os.write` instead of `print`: a `print` may be in progress and is not reentrant, and after SIGHUP there may be no
        # terminal.
        with contextlib.suppress(OSError):
            os.write(2, f"{signal.Signals(number).name}: {self._notice}\n".encode())

    def _resend_dropped(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Sends the signal again if Python dropped the exception, because it was raised in a destructor or callback."""
        if not isinstance(unraisable.exc_value, Interrupted):
            self._hook(unraisable)
            return
        for number in self._before:
            signal.signal(number, self._ask)
        # In another thread and after a delay, because an exception raised here would be dropped too. `_thread` is used
        # because its start takes no Python lock.
        _thread.start_new_thread(_send_later, (unraisable.exc_value.signal,))

    def check(self) -> None:
        """Raises ``Interrupted`` if a signal has asked for the end.

        Raises:
            Interrupted: a signal was received.
        """
        if self.asked:
            raise Interrupted(self.asked)

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Within the block nothing is interrupted: a signal waits until ``check`` is called."""
        with self._waiting(True):
            yield

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Part of a ``finishing`` block that may be interrupted after all.

        Raises:
            Interrupted: a signal came before or during this part.
        """
        with self._waiting(False):
            self.check()
            yield

    @contextmanager
    def _waiting(self, value: bool) -> Iterator[None]:
        before, self._waits = self._waits, value
        try:
            yield
        finally:
            self._waits = before


__all__ = ["HANGUP", "Interrupted", "Interruptible"]

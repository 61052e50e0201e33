"""SIGINT, SIGTERM and SIGHUP: a long piece of work ends in order at the first one and at once at the second."""

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
"""The signal of a terminal that closes, which Windows does not have."""
_STOPPING = (signal.SIGINT, signal.SIGTERM, *([HANGUP] if HANGUP else []))

_AGAIN_S = 0.05  # until a signal is sent again that was lost


class Interrupted(KeyboardInterrupt):
    """A signal asked the work to end; ``signal`` is its number."""

    def __init__(self, number: int, said: str = "") -> None:
        name = signal.Signals(number).name
        super().__init__(f"interrupted by {name}{said}")
        self.signal = number


def _send_later(number: int) -> None:
    time.sleep(_AGAIN_S)
    os.kill(os.getpid(), number)


class Interruptible:
    """A block in which the first SIGINT, SIGTERM or SIGHUP raises ``Interrupted``, or waits where it says ``finishing``.

    The second signal of any kind ends the process at once, as if nobody had taken care of it. In another thread than the
    main one, which gets no signals, the block changes nothing. SIGHUP stays ignored where the process was told to ignore it,
    as by `nohup`.
    """

    def __init__(self, notice: str = "") -> None:
        """Keeps what is said at a signal; signals are handled within the block.

        Args:
            notice: Printed to stderr when a signal has to wait for what the block is finishing; a block that never says
                ``finishing`` needs none.
        """
        self._notice = notice
        self.asked = 0
        """The number of the signal that has asked for the end; 0 is none."""
        self._waits = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            # A shell without job control lets what it starts in the background ignore SIGINT, which nobody has asked for.
            ignored = HANGUP and signal.getsignal(HANGUP) is signal.SIG_IGN
            heard = [number for number in _STOPPING if number != HANGUP or not ignored]
            self._before = {number: signal.signal(number, self._ask) for number in heard}
            self._hook, sys.unraisablehook = sys.unraisablehook, self._unheard
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
        # `print` may be under way already, and may not be entered twice; after SIGHUP there may be no terminal.
        with contextlib.suppress(OSError):
            os.write(2, f"{signal.Signals(number).name}: {self._notice}\n".encode())

    def _unheard(self, unraisable: "sys.UnraisableHookArgs") -> None:
        """Asks again where Python dropped the exception: a signal had come in a destructor or another callback."""
        if not isinstance(unraisable.exc_value, Interrupted):
            self._hook(unraisable)
            return
        for number in self._before:
            signal.signal(number, self._ask)
        # Later and not here, where it would be dropped too; by a bare thread, whose start takes no lock of Python's.
        _thread.start_new_thread(_send_later, (unraisable.exc_value.signal,))

    def check(self) -> None:
        """Ends the work here if a signal has asked for it.

        Raises:
            Interrupted: a signal has.
        """
        if self.asked:
            raise Interrupted(self.asked)

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """A part of the block that must not be interrupted: a signal waits until ``check`` is called."""
        with self._waiting(True):
            yield

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A part of what is being finished that may be given up all the same.

        Raises:
            Interrupted: a signal came before or during it.
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

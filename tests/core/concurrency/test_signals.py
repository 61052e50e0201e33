"""SIGINT, SIGTERM and SIGHUP: what is torn, what is finished first, and that the second one ends the process."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from agentenv.core.concurrency.signals import Interrupted, Interruptible


@pytest.fixture(autouse=True)
def _hears_hangups() -> Iterator[None]:
    """SIGHUP is not ignored, as it would be where the tests run under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


both = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])


@both
def test_the_first_signal_raises_and_handlers_come_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=number.name) as caught, Interruptible("wait"):
        os.kill(os.getpid(), number)
    assert caught.value.signal == number
    assert signal.getsignal(number) is before


@both
def test_a_signal_in_a_destructor_is_not_lost(number: signal.Signals) -> None:
    class Dropped:
        def __del__(self) -> None:
            os.kill(os.getpid(), number)  # Python drops what is raised here

    def drop_and_wait() -> None:
        Dropped()
        time.sleep(10)

    before = sys.unraisablehook
    with pytest.raises(Interrupted, match=number.name), Interruptible():
        drop_and_wait()
    assert sys.unraisablehook is before


@both
def test_what_is_being_finished_is_finished(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    with Interruptible("the step is finished first") as stop:
        with stop.finishing():
            os.kill(os.getpid(), number)
            assert stop.asked == number
        with pytest.raises(Interrupted):
            stop.check()
    assert "the step is finished first" in capfd.readouterr().err


def test_what_may_be_given_up_is(capfd: pytest.CaptureFixture[str]) -> None:
    with Interruptible("wait") as stop, stop.finishing():
        with pytest.raises(Interrupted), stop.at_once():
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted), stop.at_once():  # asked before: not begun at all
            raise AssertionError
    assert capfd.readouterr().err == ""


PROGRAM = """
import os, signal
from agentenv.core.concurrency.signals import Interruptible
with Interruptible("first") as stop, stop.finishing():
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.%s)
    print("still here", flush=True)
"""


@both
def test_the_second_signal_ends_the_process(number: signal.Signals) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM % number.name], capture_output=True, check=False)
    assert done.returncode == -number
    assert done.stdout == b""


def test_another_thread_is_left_alone() -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            with Interruptible("wait") as stop:
                stop.check()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []


def test_a_signal_that_is_ignored_stays_so() -> None:
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruptible("wait") as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.asked == 0
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_notice_that_nobody_can_see_does_not_end_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(descriptor: int, text: bytes) -> int:
        raise OSError(5, "Input/output error")

    with Interruptible("wait") as stop, stop.finishing():
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", gone)
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.asked == signal.SIGHUP

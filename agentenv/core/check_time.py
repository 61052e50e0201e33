"""Runs one check of the environment contract in a thread; abandons a check that hangs and says where it hangs."""

import threading
from collections.abc import Callable
from typing import TypeVar

from agentenv.core.concurrency.threads import in_time
from agentenv.core.error_places import place_of_thread

T = TypeVar("T")

_LONG_S = 15.0  # a check that takes longer is reported as still running


class CheckHung(TimeoutError):
    """A check did not end in time. It differs from a ``TimeoutError`` that the environment itself raises."""


def in_check_time(name: str, check: Callable[[], T], waiting: Callable[[str], None], seconds: float) -> T:
    """Runs a check of the contract in a thread and returns its result.

    Args:
        name: The name of the check.
        check: Takes no arguments.
        waiting: Called with a message if the check takes long; the message says where in the environment's code it is.
        seconds: The time limit of the check.

    Raises:
        CheckHung: the check took too long; the message says where it is.
    """
    threads: list[int] = []
    ended = threading.Event()

    def work() -> T:
        threads.append(threading.get_ident())
        try:
            return check()
        finally:
            ended.set()

    def place() -> str:
        return f", in {found}" if threads and (found := place_of_thread(threads[0])) else ""

    def say() -> None:
        waiting(f"the check {name!r} is still running{place()}; it may take {seconds:g} s")

    late = threading.Timer(_LONG_S, say)
    late.daemon = True
    late.start()
    try:
        return in_time(seconds, work)
    except TimeoutError as error:
        if ended.is_set():
            raise
        raise CheckHung(f"{error}{place()}") from None
    finally:
        late.cancel()

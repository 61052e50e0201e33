"""Deadlines: the time stands still while a call is held, and whoever watches is told once of each change."""

import time

from agentenv.core.concurrency.deadlines import Deadline


def test_the_time_stands_still_while_any_hold_lasts() -> None:
    deadline = Deadline(60.0)
    first, second = deadline.hold(), deadline.hold()
    left = deadline.left()
    first.end()
    time.sleep(0.01)
    assert (deadline.held, deadline.left()) == (True, left)
    second.end()
    time.sleep(0.01)
    assert not deadline.held
    assert deadline.left() < left


def test_who_watches_is_told_when_the_time_stops_and_when_it_goes_on() -> None:
    around = Deadline(60.0)
    deadline = Deadline(60.0, around)
    seen: list[tuple[str, bool]] = []
    deadline.watch(lambda: seen.append(("own", deadline.held)))
    around.watch(lambda: seen.append(("around", around.held)))
    first, second = deadline.hold(), deadline.hold()
    assert seen == [("own", True), ("around", True)]
    first.end()
    first.end()
    assert len(seen) == 2
    second.end()
    assert seen[2:] == [("own", False), ("around", False)]

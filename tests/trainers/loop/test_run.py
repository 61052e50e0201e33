"""What a training run holds: all of it is closed, in its order, whatever fails."""

from collections.abc import Callable
from typing import Any

import pytest

from agentenv.trainers.loop.run import Run


class Held:
    """A part of a run that says when it is closed, and then fails where it is told to."""

    def __init__(self, name: str, closed: list[str], *, fails: bool = False) -> None:
        self._name, self._closed, self._fails = name, closed, fails

    def close(self) -> None:
        self._closed.append(self._name)
        if self._fails:
            raise OSError(f"{self._name} cannot be closed")


def run_of(closed: list[str], *, fails: str = "") -> Any:
    """A run of which nothing is there but what is closed."""
    make: Callable[..., Any] = Run
    tracker, scheduler, policy = (
        Held(name, closed, fails=name == fails) for name in ("tracker", "scheduler", "policy")
    )
    rest = dict.fromkeys(("config", "folder", "display", "chat", "learner", "sampler"))
    rest |= dict.fromkeys(("train", "dev", "test", "demonstrations"))
    return make(**rest, policy=policy, scheduler=scheduler, trackers=[tracker])


@pytest.mark.parametrize("fails", ["", "tracker", "scheduler"])
def test_every_part_is_closed_though_another_one_fails(fails: str) -> None:
    closed: list[str] = []
    if fails:
        with pytest.raises(OSError, match=fails):
            run_of(closed, fails=fails).close()
    else:
        run_of(closed).close()
    assert closed == ["tracker", "scheduler", "policy"]

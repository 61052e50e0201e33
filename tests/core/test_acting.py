"""What an episode asks of its environment beside steps: a snapshot, the way back to it, its release, and forks.

Each of them may be refused, fail or hang. Refusals leave the episode as it is; failures end it as an infrastructure failure
that names the call; a release that fails hurts nobody.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentenv.core.acting import act, capture, check_task, fork, opening_of, release, rewind, step_env
from agentenv.core.env import Env
from agentenv.core.episodes import EpisodeSpec, EpisodeState, RolloutConfig
from agentenv.core.snapshot import Snapshot
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task
from agentenv.errors import EnvFault, SnapshotError, SnapshotRefused

TASK = Task("t", "Count.", ("3",))
PATIENT_S, SHORT_S = 60.0, 0.3
"""Deadlines of calls that are to succeed, and of those that hang."""
_gate = threading.Event()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    _gate.clear()
    yield
    _gate.set()


def hang() -> None:
    _gate.wait(20)


def refuse() -> None:
    raise SnapshotRefused("a thread runs")


def break_() -> None:
    raise OSError("no space left")


def nothing() -> None: ...


class File:
    """A resource that counts what is held of it, as a sandbox session would hold files."""

    def __init__(self, on_release: Callable[[], None] = nothing) -> None:
        self.lines: tuple[str, ...] = ()
        self.held = 0
        self.on_release = on_release
        self.released_in = ""

    def snapshot(self) -> "Handle":
        self.held += 1
        return Handle(self, self.lines)

    def restore(self, handle: "Handle") -> None:
        self.lines = handle.lines

    def fork(self) -> "File":
        twin = File()
        twin.lines = self.lines
        return twin

    def close(self) -> None: ...


@dataclass
class Handle:
    file: File
    lines: tuple[str, ...]

    def release(self) -> None:
        self.file.released_in = threading.current_thread().name
        self.file.on_release()
        self.file.held -= 1


@dataclass
class Count:
    turns: int = 0
    files: list[File] = field(default_factory=list)


class Counter(Env[Count]):
    """Counts its turns; ``trouble`` happens before each snapshot, restore and fork."""

    def __init__(self, trouble: Callable[[], None] = nothing, *files: File) -> None:
        super().__init__()
        self.trouble, self.files = trouble, files

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.state = Count(files=[*self.files])
        return (Message("user", "Count."),), {"task_id": TASK.id}

    def step(self, action: str) -> Step:
        self.check_running()
        self.state.turns += 1
        for file in self.state.files:
            file.lines += (action,)
        return self.result((Message("tool", str(self.state.turns)),), reward=0.25)

    def snapshot(self) -> Snapshot:
        self.trouble()
        return super().snapshot()

    def restore(self, snapshot: Snapshot) -> None:
        self.trouble()
        super().restore(snapshot)

    def fork(self, n: int = 1) -> list[Any]:
        self.trouble()
        return super().fork(n)


def begun(env: Counter) -> EpisodeState:
    env.reset(seed=0)
    return EpisodeState(EpisodeSpec(env, TASK, 0), "e-0")


def said(state: EpisodeState) -> str:
    """What the next turn of the environment shows; the episode goes on."""
    observation = asyncio.run(act(state, "on", RolloutConfig()))
    assert observation is not None
    return observation[0].text


class Keyed(Counter):
    """Says which state it is in."""

    def anchor_key(self) -> str:
        return f"after {self.state.turns}"


def test_a_turn_is_recorded_with_the_state_that_it_was_taken_in() -> None:
    state = begun(Keyed())
    assert [said(state), said(state)] == ["1", "2"]
    assert [turn.anchor_key for turn in state.turns] == ["after 0", "after 1"]
    assert [turn.observation[0].text for turn in state.turns] == ["1", "2"]
    assert [(turn.action, turn.reward, turn.valid) for turn in state.turns] == [("on", 0.25, True)] * 2


def test_a_snapshot_brings_the_environment_back_any_number_of_times() -> None:
    file = File()
    state = begun(Counter(nothing, file))
    assert said(state) == "1"
    snapshot = asyncio.run(capture(state, PATIENT_S))
    assert snapshot is not None
    for _ in range(2):
        assert [said(state), said(state)] == ["2", "3"]
        asyncio.run(rewind(state, snapshot, PATIENT_S))
        assert file.lines == ("on",)
    assert state.ended is None
    assert state.reward == 5 * 0.25  # the record is the caller's to wind back


def test_forks_are_as_many_as_asked_for_and_go_their_own_ways() -> None:
    state = begun(Counter())
    assert said(state) == "1"
    twins = asyncio.run(fork(state, 3, PATIENT_S))
    assert len(twins) == 3
    assert [twin.step("on").observation[0].text for twin in twins] == ["2"] * 3
    assert twins[0].step("on").observation[0].text == "3"
    assert said(state) == "2"


Ask = Callable[[EpisodeState], Coroutine[Any, Any, object]]


def asked(name: str, snapshot: Snapshot, deadline_s: float = PATIENT_S) -> Ask:
    calls: dict[str, Ask] = {
        "snapshot": lambda state: capture(state, deadline_s),
        "restore": lambda state: rewind(state, snapshot, deadline_s),
        "fork": lambda state: fork(state, 2, deadline_s),
    }
    return calls[name]


@pytest.mark.parametrize(("call", "nothing_given"), [("snapshot", None), ("fork", [])])
def test_a_state_that_refuses_to_be_captured_leaves_the_episode_as_it_is(
    call: str, nothing_given: object
) -> None:
    env = Counter()
    state = begun(env)
    snapshot = env.snapshot()
    env.trouble = refuse
    assert asyncio.run(asked(call, snapshot)(state)) == nothing_given
    assert state.ended is None
    assert said(state) == "1"


@pytest.mark.parametrize(("trouble", "named"), [(break_, "no space left"), (hang, "the environment's {}")])
@pytest.mark.parametrize(("call", "nothing_given"), [("snapshot", None), ("restore", None), ("fork", [])])
def test_a_failure_ends_the_episode_masked_and_named(
    call: str, nothing_given: object, trouble: Callable[[], None], named: str
) -> None:
    env = Counter()
    state = begun(env)
    snapshot = env.snapshot()
    env.trouble = trouble
    asking = asked(call, snapshot, SHORT_S if trouble is hang else PATIENT_S)
    assert asyncio.run(asking(state)) == nothing_given
    assert state.ended is not None
    assert (state.ended.end_reason, state.ended.valid, state.ended.reward) == (
        EndReason.ENV_FAULT,
        False,
        0.0,
    )
    assert named.format(call) in state.ended.error


def test_going_back_to_what_was_released_is_a_failure_of_that_episode() -> None:
    env = Counter()
    state = begun(env)
    snapshot = env.snapshot()
    snapshot.release()
    asyncio.run(rewind(state, snapshot, PATIENT_S))
    assert state.ended is not None
    assert state.ended.end_reason is EndReason.ENV_FAULT
    assert SnapshotError.__name__ in state.ended.error


def test_a_release_frees_what_is_held_in_a_thread_of_the_environments() -> None:
    """Freeing files may take long, so that the loop of the run must not do it; without any there is nothing to wait for."""
    file = File()
    state = begun(Counter(nothing, file))
    snapshot = asyncio.run(capture(state, PATIENT_S))
    assert snapshot is not None
    assert file.held == 1
    asyncio.run(release(snapshot, PATIENT_S))
    assert (file.held, snapshot.released) == (0, True)
    assert file.released_in != threading.current_thread().name
    bare = asyncio.run(capture(begun(Counter()), PATIENT_S))
    assert bare is not None
    asyncio.run(release(bare, PATIENT_S))
    assert bare.released


@pytest.mark.parametrize("trouble", [break_, hang])
def test_a_release_that_fails_or_hangs_hurts_nobody(trouble: Callable[[], None]) -> None:
    file = File(trouble)
    state = begun(Counter(nothing, file))
    snapshot = asyncio.run(capture(state, PATIENT_S))
    assert snapshot is not None
    asyncio.run(release(snapshot, SHORT_S if trouble is hang else PATIENT_S))
    assert file.held == 1  # what could not be freed is left to the environment's close
    assert state.ended is None


class Sleepy(Counter):
    """Hangs in its reset."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        hang()
        return super().reset(seed=seed)


def test_a_reset_that_hangs_is_named() -> None:
    with pytest.raises(EnvFault, match=r"\breset\b.*\b0\.3\b"):
        asyncio.run(opening_of(EpisodeSpec(Sleepy(), TASK, 0), RolloutConfig(deadline_s=SHORT_S)))


def test_another_task_than_the_one_to_be_posed_is_refused_with_both_names() -> None:
    check_task(TASK, {"task_id": "t"})
    for info, named in (({"task_id": "other"}, "'other'"), ({}, "task_id")):
        with pytest.raises(EnvFault, match=f"'t'.*{named}"):
            check_task(TASK, info)


def test_a_step_outside_of_a_record_gives_what_it_shows_and_how_long_that_is() -> None:
    env = Counter()
    env.reset(seed=0)
    step, size = asyncio.run(step_env(env, "on", RolloutConfig()))
    assert (step.observation, step.reward, size) == ((Message("tool", "1"),), 0.25, 1)

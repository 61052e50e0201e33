"""Environment base: turns and ends, time travel with and without resources, what a failing one leaves."""

import asyncio
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentenv.core.env import AsyncEnv, Env, run_sync
from agentenv.core.snapshot import Snapshot, fork_value, resources_of
from agentenv.core.types import EndReason, Info, Message, Observation, Step, Task
from agentenv.errors import ConfigurationError, EpisodeOver, SnapshotError


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scorers", ()),
        ("scorers", "em_squad"),
        ("scorers", (5,)),
        ("stop", "</answer>"),
        ("stop", ("",)),
        ("call_markers", None),
    ],
)
def test_a_declaration_of_another_type_is_refused_where_the_class_is_written(name: str, value: Any) -> None:
    """Each would fail in every episode: no headline, or a stop text of single letters."""
    with pytest.raises(ConfigurationError, match=f"Odd.{name}"):
        type("Odd", (Env,), {name: value})


@dataclass
class Handle:
    """What a session gives for a snapshot; counts how often it is released."""

    value: int
    bytes: int = 100
    released: int = 0

    def release(self) -> None:
        self.released += 1


class Session:
    """A resource: a number that Python must not copy, with a journal of what was done to it."""

    def __init__(self, value: int = 0, broken: Sequence[str] = ()) -> None:
        self.value = value
        self.broken = set(broken)
        self.handles: list[Handle] = []
        self.forks: list[Session] = []
        self.closed = 0

    def __deepcopy__(self, memo: object) -> "Session":
        raise AssertionError("a resource is never copied")

    def _try(self, verb: str) -> None:
        if verb in self.broken:
            raise OSError(f"{verb} is broken")

    def snapshot(self) -> Handle:
        self._try("snapshot")
        self.handles.append(Handle(self.value))
        return self.handles[-1]

    def restore(self, handle: Handle) -> None:
        self._try("restore")
        self.value = handle.value

    def fork(self) -> "Session":
        self._try("fork")
        self.forks.append(Session(self.value))
        return self.forks[-1]

    def close(self) -> None:
        self._try("close")
        self.closed += 1


@dataclass
class State:
    sum: int = 0
    drawn: list[float] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict)


class Adder(Env[State]):
    """Adds the numbers it is given and a random one; ``stop`` ends the episode."""

    def __init__(self, *sessions: Session) -> None:
        super().__init__()
        self.sessions = sessions

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.state = State(sessions={str(i): session for i, session in enumerate(self.sessions)})
        return (Message("user", "Numbers, please."),), {}

    def step(self, action: str) -> Step:
        self.check_running()
        if action == "stop":
            return self.result((), reward=float(self.state.sum), end=EndReason.SUBMITTED)
        self.state.sum += int(action)
        self.state.drawn.append(float(self.np_random.random()))
        for session in self.state.sessions.values():
            session.value += int(action)
        return self.result((Message("user", f"{self.state.sum} {self.state.drawn[-1]}"),))


def begun(*sessions: Session) -> Adder:
    env = Adder(*sessions)
    env.reset(seed=1)
    return env


def test_info_always_has_its_entries_and_the_reason_only_at_the_end() -> None:
    env = begun()
    step = env.step("2")
    assert step.info == {"turn": 1, "tool_results": (), "valid": True}
    assert (step.terminated, step.truncated) == (False, False)
    end = env.step("stop")
    assert end.info == {"turn": 2, "tool_results": (), "valid": True, "end_reason": EndReason.SUBMITTED}
    assert (end.reward, end.terminated, end.truncated) == (2.0, True, False)


class Holding(Adder):
    """Holds two tasks."""

    def held_tasks(self) -> tuple[Task, ...]:
        return (Task("a", "?"), Task("b", "?"))


def test_the_task_of_the_options_goes_before_one_that_the_seed_draws() -> None:
    env, given = Holding(), Task("c", "?")
    ids: list[str] = []
    for seed in range(20):
        env.reset(seed=seed)
        drawn, after = env.choose_task(None), env.np_random.random()
        env.reset(seed=seed)
        assert env.choose_task({"task": given}) is given
        assert env.np_random.random() == after  # what is drawn later is the same
        assert drawn is not None
        ids.append(drawn.id)
    assert set(ids) == {"a", "b"}
    assert begun().choose_task({}) is None
    assert begun().choose_task({"task": given}) is given


def test_a_budget_of_ours_truncates() -> None:
    env = begun()
    step = env.result((), end=EndReason.TURN_LIMIT, truncated=True, note="spent")
    assert (step.terminated, step.truncated, step.info["note"]) == (False, True, "spent")


def test_stepping_an_episode_that_is_over_or_never_began_changes_nothing() -> None:
    env = Adder()
    with pytest.raises(EpisodeOver):
        env.step("1")
    env.reset(seed=1)
    env.step("stop")
    with pytest.raises(EpisodeOver):
        env.step("1")
    assert env.state.sum == 0
    env.reset(seed=1)
    assert env.step("1").info["turn"] == 1


def test_restore_brings_back_state_generator_turn_and_end() -> None:
    env = begun()
    env.step("1")
    snapshot = env.snapshot()
    first = [env.step("2"), env.step("stop")]
    env.restore(snapshot)
    assert [env.step("2"), env.step("stop")] == first
    env.restore(snapshot)
    assert [env.step("2"), env.step("stop")] == first


def test_a_snapshot_is_not_reached_by_later_changes() -> None:
    env = begun()
    snapshot = env.snapshot()
    env.step("5")
    env.restore(snapshot)
    env.state.drawn.append(9.0)  # in the brought-back copy, not in the snapshot
    env.restore(snapshot)
    assert env.state == State()


def test_forks_are_independent_and_share_what_is_no_state() -> None:
    env = begun()
    env.step("1")
    one, two = env.fork(2)
    assert one.sessions is env.sessions
    wanted = [env.step("3"), env.step("stop")]
    assert [one.step("3"), one.step("stop")] == wanted
    assert two.state.sum == 1
    assert [two.step("3"), two.step("stop")] == wanted
    assert env.fork(0) == []
    with pytest.raises(ValueError, match="-1 times"):
        env.fork(-1)


def test_a_fork_before_reset_has_a_generator_of_its_own() -> None:
    env = Adder()
    (fork,) = env.fork()
    env.reset(seed=3)
    fork.reset(seed=3)
    assert env.step("1") == fork.step("1")


def test_resources_travel_by_their_own_verbs() -> None:
    session = Session()
    env = begun(session)
    env.step("4")
    snapshot = env.snapshot()
    env.step("5")
    (fork,) = env.fork()
    env.restore(snapshot)
    assert env.state.sessions["0"] is session
    assert session.value == 4
    assert fork.state.sessions["0"] is session.forks[0]
    assert session.forks[0].value == 9
    assert snapshot.bytes > 100
    snapshot.release()
    snapshot.release()
    assert session.handles[0].released == 1
    with pytest.raises(SnapshotError, match="released"):
        env.restore(snapshot)


def test_closing_closes_every_resource_of_the_state() -> None:
    sessions = Session(), Session()
    env = begun(*sessions)
    env.close()
    env.close()
    assert [session.closed for session in sessions] == [1, 1]
    Adder().close()


class Renting(Adder):
    """Opens a session of its own in every episode."""

    broken: tuple[str, ...] = ()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        self.sessions = (Session(broken=self.broken),)
        return super().reset(seed=seed, options=options)


def test_a_reset_closes_what_the_episode_before_held_once() -> None:
    """An environment that was reset a thousand times kept a thousand sessions open."""
    env = Renting()
    seen: list[Session] = []
    for seed in range(3):
        env.reset(seed=seed)
        seen += env.sessions
    assert [session.closed for session in seen] == [1, 1, 0]
    env.close()
    env.reset(seed=3)
    assert [session.closed for session in seen] == [1, 1, 1]


def test_a_state_without_resources_outlives_a_reset() -> None:
    """An environment that fills the state of its constructor anew in each episode lost it at the first reset."""

    class Reusing(Adder):
        def __init__(self) -> None:
            super().__init__()
            self.state = State()

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Observation, Info]:
            Env.reset(self, seed=seed, options=options)
            self.state.sum = 0
            self.state.drawn.clear()
            return (Message("user", "Numbers, please."),), {}

    env = Reusing()
    for _ in range(2):
        env.reset(seed=1)
        assert env.step("3").observation[0].text.startswith("3 ")


def test_what_cannot_be_closed_is_logged_and_does_not_keep_the_next_episode(
    caplog: pytest.LogCaptureFixture,
) -> None:
    env = Renting()
    env.broken = ("close",)
    env.reset(seed=1)
    env.reset(seed=2)
    assert "Renting" in caplog.text
    assert "close is broken" in caplog.text
    with pytest.raises(OSError, match="close is broken"):
        env.close()


def test_an_environment_of_coroutines_closes_in_a_thread_what_the_episode_before_held() -> None:
    """Closing may take its time, and other episodes wait on the same event loop."""
    threads: list[int] = []

    class Slow(Session):
        def close(self) -> None:
            threads.append(threading.get_ident())

    class Holder(Waiter):
        async def areset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Observation, Info]:
            given = await super().areset(seed=seed)
            self.state = State(sessions={"it": Slow()})
            return given

    async def twice() -> None:
        env = Holder()
        await env.areset(seed=1)
        await env.areset(seed=2)

    asyncio.run(twice())
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_a_failing_capture_releases_what_was_taken() -> None:
    good, bad = Session(), Session(broken=["snapshot"])
    for sessions in ((good, bad), (bad, good)):
        with pytest.raises(SnapshotError, match="snapshot is broken"):
            begun(*sessions).snapshot()
    assert all(handle.released == 1 for handle in good.handles)
    assert good.handles


def test_a_failing_fork_closes_what_was_forked() -> None:
    good, bad = Session(), Session(broken=["fork"])
    for sessions in ((good, bad), (bad, good)):
        with pytest.raises(SnapshotError, match="fork is broken"):
            begun(*sessions).fork()
    assert all(fork.closed == 1 for fork in good.forks)
    assert good.forks


def test_forks_made_before_a_failing_one_are_closed() -> None:
    session = Session()
    env = begun(session)
    calls = iter([None, None, OSError("no room")])

    def fork() -> Session:
        if error := next(calls):
            raise error
        session.forks.append(Session())
        return session.forks[-1]

    session.fork = fork  # type: ignore[method-assign]
    with pytest.raises(SnapshotError, match="no room"):
        env.fork(3)
    assert [fork.closed for fork in session.forks] == [1, 1]


def test_a_failing_restore_is_a_typed_error() -> None:
    env = begun(Session(broken=["restore"]))
    with pytest.raises(SnapshotError, match="restore is broken"):
        env.restore(env.snapshot())


def test_only_a_snapshot_is_restored() -> None:
    with pytest.raises(SnapshotError, match="'state'"):
        begun().restore("state")  # type: ignore[arg-type]


def test_state_that_cannot_be_copied_is_a_typed_error_and_leaves_no_handle() -> None:
    session = Session()
    env = begun(session)
    env.state.drawn.append(i for i in range(3))  # type: ignore[arg-type]
    with pytest.raises(SnapshotError, match="'generator'"):
        env.snapshot()
    assert session.handles[0].released == 1


def test_one_release_that_fails_does_not_keep_the_others() -> None:
    sessions = [Session(), Session(), Session()]
    snapshot = Snapshot(None, sessions)

    def refuse() -> None:
        raise OSError("gone")

    sessions[1].handles[0].release = refuse  # type: ignore[method-assign]
    with pytest.raises(OSError, match="gone"):
        snapshot.release()
    assert [session.handles[0].released for session in sessions] == [1, 0, 1]
    assert snapshot.released


def test_another_environment_s_snapshot_is_refused() -> None:
    snapshot = begun().snapshot()
    with pytest.raises(SnapshotError, match="fork"):
        begun().restore(snapshot)


def test_resources_are_found_once_in_containers_and_data_classes() -> None:
    shared, other = Session(), Session()
    nested: dict[str, Any] = {"a": [shared, (shared, State(sessions={"x": other}))], "b": {1, "text"}}
    nested["loop"] = nested
    assert sorted(map(id, resources_of(nested))) == sorted([id(shared), id(other)])


def test_a_forked_value_keeps_its_shape() -> None:
    session = Session(7)
    twin = fork_value([session, session, [1]])
    assert twin[0] is twin[1] is session.forks[0]
    assert twin[2] == [1]


class Waiter(AsyncEnv[State]):
    """Waits a moment in every step."""

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        await super().areset(seed=seed)
        self.state = State()
        return (Message("user", "Go on."),), {}

    async def astep(self, action: str) -> Step:
        self.check_running()
        await asyncio.sleep(0)
        return self.result((), reward=1.0, end=EndReason.ANSWERED)


def test_sync_twins_of_coroutines_also_run_inside_a_loop() -> None:
    async def inside() -> Step:
        env = Waiter()
        env.reset(seed=0)
        return env.step("x")

    assert asyncio.run(inside()).reward == 1.0


def test_async_twins_of_plain_methods() -> None:
    async def play() -> Step:
        env = Adder()
        await env.areset(seed=1)
        return await env.astep("2")

    assert asyncio.run(play()) == begun().step("2")


def test_run_sync_hands_on_exceptions() -> None:
    async def fail() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        run_sync(fail())


def test_run_sync_does_not_wait_for_itself() -> None:
    async def nested() -> None:
        run_sync(asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="run_sync"):
        run_sync(nested())


@pytest.mark.parametrize("name", ["reset", "step", "close", "render", "expert"])
def test_a_coroutine_that_nothing_would_await_is_refused_with_its_class(name: str) -> None:
    """An ``async def close`` was called and never run: the environment stayed open, and nobody was told."""

    async def later(self: Any, *args: Any, **options: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=f"Late.{name}") as refused:
        type("Late", (Env,), {name: later})
    twin = ", or the coroutine a" + name if name in ("reset", "step") else ""
    assert str(refused.value).endswith(f"a plain function{twin}")


@pytest.mark.parametrize("name", ["reset", "step"])
def test_a_plain_method_that_training_would_not_call_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"async def a{name}"):
        type("Plain", (AsyncEnv,), {name: lambda self, *args, **kwargs: None})


@pytest.mark.parametrize(
    ("name", "function", "written"),
    [
        ("step", lambda self: None, "def step(self, action)"),
        ("step", lambda self, action, tool: None, "def step(self, action)"),
        ("reset", lambda self: None, "def reset(self, *, seed=None, options=None)"),
        ("reset", lambda self, seed=None: None, "def reset(self, *, seed=None, options=None)"),
    ],
)
def test_a_signature_that_no_episode_can_call_is_refused_where_the_class_is_defined(
    name: str, function: Any, written: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(written)) as caught:
        type("Wrong", (Env,), {name: function})
    assert f"Wrong.{name}(self" in str(caught.value)


@pytest.mark.parametrize(
    "make_tasks",
    [
        lambda self, n, *, seed=0, split="train": [],
        classmethod(lambda cls, n: []),
        classmethod(lambda cls, n, seed: []),
    ],
    ids=["no class method", "neither seed nor split", "no split"],
)
def test_tasks_that_cannot_be_made_by_the_class_are_refused(make_tasks: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Wrong\.make_tasks.*`@classmethod`.*a default"):
        type("Wrong", (Env,), {"make_tasks": make_tasks})


@pytest.mark.parametrize(
    "members",
    [
        {"step": lambda self, action, *more, **options: None},
        {"step": lambda *given: None, "reset": lambda self, **given: None},
        {"reset": lambda self, seed=None, options=None, level=1: None},
    ],
)
def test_a_signature_that_takes_more_is_accepted(members: dict[str, Any]) -> None:
    type("Wide", (Env,), members)


def test_a_state_that_cannot_be_copied_says_where_and_what_to_do() -> None:
    env = begun()
    env.state.sessions["lock"] = threading.Lock()  # type: ignore[assignment]
    for going in (env.snapshot, env.fork):
        with pytest.raises(SnapshotError, match=r"state\.sessions\.lock: .*StateCapability\.NONE"):
            going()

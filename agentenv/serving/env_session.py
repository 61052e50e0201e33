"""One session: an environment, its snapshots, and what a caller may ask of it."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from agentenv.core.concurrency.deadlines import Deadline, deadline_of
from agentenv.core.env import Env
from agentenv.core.episodes import cut_reward
from agentenv.core.snapshot import Snapshot
from agentenv.core.types import Step, is_context
from agentenv.errors import EnvFault, EpisodeOver, Fault, SnapshotError
from agentenv.serving.asking import asking_out, turn_in
from agentenv.serving.limits import ServerLimits
from agentenv.serving.toolbox import readable
from agentenv.serving.wire import (
    ActionData,
    ExtensionData,
    ResetData,
    opening_out,
    plain,
    step_out,
)

T = TypeVar("T")


class SessionMeter(Protocol):
    """Counts what happens in sessions."""

    def episode(self, end_reason: str) -> None:
        """Counts an episode by how it ended."""

    def fault(self, kind: str) -> None:
        """Counts an infrastructure failure by its class."""

    def request(self, route: str, status: int | str, seconds: float) -> None:
        """Counts an answered request."""


class SessionHost(Protocol):
    """What a session needs of the service that it belongs to; `EnvService` is one."""

    @property
    def name(self) -> str:
        """The name of the environment."""

    @property
    def limits(self) -> ServerLimits:
        """The bounds of the service."""

    @property
    def expert(self) -> bool:
        """Whether callers may ask for the expert's actions."""

    @property
    def meter(self) -> SessionMeter:
        """What counts episodes, faults and requests."""

    def options(self, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The options of ``reset`` that a caller sent, as the environment takes them."""

    async def wrap(self, env: Env[Any], client: str) -> "EnvSession":
        """A session of an environment that is there already."""

    async def await_call(self, call: asyncio.Future[T], what: str, deadline: Deadline) -> T:
        """The result of ``call`` within its deadline."""

    def close_later(
        self, close: Callable[[], None], call: asyncio.Future[Any] | None, client: str
    ) -> asyncio.Task[None]:
        """Closes an environment once the call in it is over, and gives its slot back."""


class EnvSession:
    """What one caller plays. Calls run one after the other; one that misses its deadline is the last.

    Args:
        service: whose bounds hold, and where the slot goes back to.
        env: nobody else's.
        client: address of its caller.
    """

    def __init__(self, service: SessionHost, env: Env[Any], client: str = "") -> None:
        self.id = uuid.uuid4().hex
        self.client = client
        self.expires = time.monotonic() + service.limits.claim_s
        """When the housekeeper may end it, in monotonic seconds, if it is kept without a connection."""
        self.opening = ""
        """The text of the first observation of the present episode."""
        self._service = service
        self._env: Env[Any] | None = env
        self._turn = asyncio.Lock()
        self._call: asyncio.Future[Any] | None = None
        self._snapshots: dict[str, Snapshot] = {}
        self._episode = ""
        self._steps = 0

    @property
    def env(self) -> Env[Any]:
        """The environment that is played.

        Raises:
            EnvFault: the session is over.
        """
        if self._env is None:
            raise EnvFault("this session has ended; open another one")
        return self._env

    @property
    def begun(self) -> bool:
        """Whether it was reset."""
        return bool(self._episode)

    @property
    def busy(self) -> bool:
        """Whether a call is under way or waits for another one."""
        return self._turn.locked()

    @property
    def over(self) -> bool:
        """Whether it was ended, by `end` or by a deadline."""
        return self._env is None

    async def reset(self, data: ResetData) -> dict[str, Any]:
        """Begins an episode.

        Raises:
            ConfigurationError: an option or a task that callers may not give.
            Fault: the environment broke or missed the deadline.
        """
        options = self._service.options(data.options)

        async def work(env: Env[Any]) -> dict[str, Any]:
            env.native = data.native
            observation, info = await env.areset(seed=data.seed, options=options)
            opening = opening_out(observation, info, env.anchor_key(), _cut_reward(env))
            opening["metadata"] |= asking_out(env, opens=True)
            return opening

        reply = await self._run("reset", work)
        self._episode, self._steps = data.episode_id or uuid.uuid4().hex, 0
        self.opening = reply["observation"]["text"]
        return reply

    async def step(self, data: ActionData) -> dict[str, Any]:
        """Acts once.

        Raises:
            EpisodeOver: the episode has ended or never begun.
            Fault: the environment broke or missed the deadline; there is no reward then, not even 0.
        """
        turn = None if data.turn is None else turn_in(data.turn)

        def acted(env: Env[Any]) -> Coroutine[Any, Any, Step]:
            said = data.text if turn is None else env.native_action(turn)
            return env.astep(readable(env, said))

        return await self.act(acted)

    async def act(self, action: Callable[[Env[Any]], Coroutine[Any, Any, Step]]) -> dict[str, Any]:
        """Acts as `step` does, by an action that is more than its text."""

        async def work(env: Env[Any]) -> dict[str, Any]:
            step = await action(env)
            over = step.terminated or step.truncated
            reply = step_out(step, env.anchor_key(), 0.0 if over else _cut_reward(env))
            reply["metadata"] |= {} if over else asking_out(env, opens=is_context(step.observation))
            return reply

        reply = await self._run("step", work)
        self._steps += 1
        if reply["done"]:
            self._service.meter.episode(str(reply["metadata"]["info"].get("end_reason")))
        return reply

    def state(self) -> dict[str, Any]:
        """OpenEnv's state: which episode, and how many steps of it."""
        return {"episode_id": self._episode or None, "step_count": self._steps, "env": self._service.name}

    async def extension(self, data: ExtensionData) -> dict[str, Any]:
        """Carries out one of our own verbs, such as a snapshot.

        Raises:
            SnapshotError: a snapshot that is not there, that cannot be taken, or one too many.
            Fault: the environment broke or missed the deadline.
        """
        verbs: dict[str, Callable[[str], Coroutine[Any, Any, dict[str, Any]]]] = {
            "snapshot": self._take,
            "restore": self._restore,
            "release": self._release,
            "fork": self._fork,
            "expert": self._expert,
            "render": self._render,
        }
        return await verbs[data.verb](data.id)

    def end(self) -> asyncio.Task[None] | None:
        """Ends the session: the call under way is given up, the environment closed, the slot given back.

        Returns:
            What ends when the slot has been given back; None of a session that is over.
        """
        if (env := self._env) is None:
            return None
        # Before anything else, so that no call that waits for its turn is made on it any more, and the slot is given
        # back once.
        self._env = None
        # Not waited for here: closing may take as long as the call that is given up.
        return self._service.close_later(partial(_close, env, self._snapshots), self._call, self.client)

    async def _run(self, what: str, work: Callable[[Env[Any]], Coroutine[Any, Any, T]]) -> T:
        began, status = time.perf_counter(), "ok"
        # An environment is for one thread at a time; `asyncio.Lock` serves those who wait in the order in which they came.
        async with self._turn:
            self.expires = time.monotonic() + self._service.limits.idle_s
            with deadline_of(self._service.limits.call_s) as deadline:
                self._call = asyncio.ensure_future(work(self.env))
            try:
                return await self._service.await_call(self._call, what, deadline)
            except BaseException as error:
                status = type(error).__name__
                # Nobody knows what the environment is doing, so the session ends here instead of being stepped again.
                if not self._call.done():  # too late, or the caller is gone
                    self.end()
                if isinstance(error, Fault):
                    self._service.meter.fault(status)
                raise
            finally:
                self._call = None
                self._service.meter.request(what, status, time.perf_counter() - began)

    async def _take(self, _: str) -> dict[str, Any]:
        async def work(env: Env[Any]) -> dict[str, Any]:
            if len(self._snapshots) >= self._service.limits.snapshots:
                raise SnapshotError(f"this session holds {len(self._snapshots)} snapshots; release some")
            # Whatever was captured after the deadline would hold its memory for good, because nobody has its id.
            snapshot = await _made(env.snapshot, Snapshot.release)
            id = uuid.uuid4().hex
            self._snapshots[id] = snapshot
            return {"id": id, "bytes": snapshot.bytes, "seconds": snapshot.seconds}

        return await self._run("snapshot", work)

    async def _restore(self, id: str) -> dict[str, Any]:
        async def work(env: Env[Any]) -> dict[str, Any]:
            if id not in self._snapshots:
                raise SnapshotError(f"this session holds no snapshot {id!r}")
            await asyncio.to_thread(env.restore, self._snapshots[id])
            return {}

        return await self._run("restore", work)

    async def _release(self, id: str) -> dict[str, Any]:
        async def work(env: Env[Any]) -> dict[str, Any]:
            # Taken out before it is released: a second release of the same id then finds nothing.
            if (snapshot := self._snapshots.pop(id, None)) is not None:
                await asyncio.to_thread(snapshot.release)
            return {}

        return await self._run("release", work)

    async def _fork(self, _: str) -> dict[str, Any]:
        async def work(env: Env[Any]) -> dict[str, Any]:
            (twin,) = await _made(env.fork, lambda twins: twins[0].close())
            if self.over:  # nobody would learn its id
                await asyncio.to_thread(twin.close)
                raise EnvFault("this session has ended; open another one")
            session = await self._service.wrap(twin, self.client)
            session._episode, session._steps = self._episode, self._steps
            if self.over:  # while it waited for a slot
                session.end()
            return {"id": session.id}

        return await self._run("fork", work)

    async def _expert(self, _: str) -> dict[str, Any]:
        async def work(env: Env[Any]) -> dict[str, Any]:
            self._check_begun()
            actions = await asyncio.to_thread(env.expert)
            return {"actions": None if actions is None else list(actions), "why": env.no_expert}

        if not self._service.expert:
            return {"actions": None, "why": "the server does not hand out the expert's actions"}
        return await self._run("expert", work)

    def _check_begun(self) -> None:
        if not self.begun:  # an environment has no state before, and would fail with a traceback in the log
            raise EpisodeOver("no episode has begun here; reset before you ask for the expert or a picture")

    async def _render(self, _: str) -> dict[str, Any]:
        async def work(env: Env[Any]) -> dict[str, Any]:
            self._check_begun()
            return {"text": plain(await asyncio.to_thread(env.render))}

        return await self._run("render", work)


def _cut_reward(env: Env[Any]) -> float | None:
    """What its episode earns further where it is cut now; None where it fails to say so."""
    try:
        return cut_reward(env)
    except Exception:
        return None


def _close(env: Env[Any], snapshots: dict[str, Snapshot]) -> None:
    with contextlib.ExitStack() as stack:  # one that fails must not keep the others
        stack.callback(env.close)
        for snapshot in snapshots.values():
            stack.callback(snapshot.release)


async def _made(make: Callable[[], T], discard: Callable[[T], object]) -> T:
    """What ``make`` makes in a thread. The thread goes on where the call is cancelled; what it then makes is discarded."""
    making = asyncio.ensure_future(asyncio.to_thread(make))
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        making.add_done_callback(partial(_discard_late, discard))
        raise


def _discard_late(discard: Callable[[T], object], making: asyncio.Future[T]) -> None:
    if making.cancelled() or making.exception() is not None:
        return

    def quietly() -> None:
        with contextlib.suppress(Exception):
            discard(making.result())

    asyncio.get_running_loop().run_in_executor(None, quietly)

"""A session: one environment with its snapshots, and the calls that its caller may make."""

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
    """What a session needs from its service; `EnvService` implements it."""

    @property
    def name(self) -> str:
        """The name of the environment."""

    @property
    def limits(self) -> ServerLimits:
        """The limits of the service."""

    @property
    def expert(self) -> bool:
        """Whether callers may ask for the expert's actions."""

    @property
    def meter(self) -> SessionMeter:
        """Counts episodes, faults and requests."""

    def options(self, given: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """Returns the options of ``reset`` from a caller in the form that the environment takes."""

    async def wrap(self, env: Env[Any], client: str) -> "EnvSession":
        """Makes a session for an existing environment."""

    async def await_call(self, call: asyncio.Future[T], what: str, deadline: Deadline) -> T:
        """Returns the result of ``call``; a missed deadline is an error."""

    def close_later(
        self, close: Callable[[], None], call: asyncio.Future[Any] | None, client: str
    ) -> asyncio.Task[None]:
        """Closes an environment after ``call`` has ended, and gives its slot back."""


class EnvSession:
    """The environment of one caller. Calls run one at a time; a call that misses its deadline ends the session.

    Args:
        service: Sets the limits, and takes the slot back.
        env: An environment that nobody else uses.
        client: The address of the caller.
    """

    def __init__(self, service: SessionHost, env: Env[Any], client: str = "") -> None:
        self.id = uuid.uuid4().hex
        self.client = client
        self.expires = time.monotonic() + service.limits.claim_s
        """When an unclaimed session may be ended, in seconds of the monotonic clock."""
        self.opening = ""
        """The text of the first observation of the current episode."""
        self._service = service
        self._env: Env[Any] | None = env
        self._turn = asyncio.Lock()
        self._call: asyncio.Future[Any] | None = None
        self._snapshots: dict[str, Snapshot] = {}
        self._episode = ""
        self._steps = 0

    @property
    def env(self) -> Env[Any]:
        """The environment of the session.

        Raises:
            EnvFault: the session has ended.
        """
        if self._env is None:
            raise EnvFault("this session has ended; open another one")
        return self._env

    @property
    def begun(self) -> bool:
        """Whether an episode was started."""
        return bool(self._episode)

    @property
    def busy(self) -> bool:
        """Whether a call is running."""
        return self._turn.locked()

    @property
    def over(self) -> bool:
        """Whether `end` or a missed deadline has ended the session."""
        return self._env is None

    async def reset(self, data: ResetData) -> dict[str, Any]:
        """Begins an episode.

        Raises:
            ConfigurationError: an option or a task is not open to callers.
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
        """Takes one step.

        Raises:
            EpisodeOver: the episode has ended, or none was started.
            Fault: the environment broke or missed the deadline; the step then has no reward, not even 0.
        """
        turn = None if data.turn is None else turn_in(data.turn)

        def acted(env: Env[Any]) -> Coroutine[Any, Any, Step]:
            said = data.text if turn is None else env.native_action(turn)
            return env.astep(readable(env, said))

        return await self.act(acted)

    async def act(self, action: Callable[[Env[Any]], Coroutine[Any, Any, Step]]) -> dict[str, Any]:
        """Takes a step as `step` does, by a function rather than a text."""

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
        """Returns OpenEnv's state: the id of the episode and its number of steps."""
        return {"episode_id": self._episode or None, "step_count": self._steps, "env": self._service.name}

    async def extension(self, data: ExtensionData) -> dict[str, Any]:
        """Carries out a verb beyond OpenEnv's, such as ``snapshot``.

        Raises:
            SnapshotError: the snapshot does not exist or cannot be taken, or there are too many.
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
        """Ends the session: gives up the running call, closes the environment and gives the slot back.

        Returns:
            A task that is done when the slot has been given back; None if the session had already ended.
        """
        if (env := self._env) is None:
            return None
        # This comes first, so that no waiting call uses the environment any more, and the slot is given back only once.
        self._env = None
        # This does not wait, because closing may take as long as the call that is given up.
        return self._service.close_later(partial(_close, env, self._snapshots), self._call, self.client)

    async def _run(self, what: str, work: Callable[[Env[Any]], Coroutine[Any, Any, T]]) -> T:
        began, status = time.perf_counter(), "ok"
        # An environment may be used by one thread at a time; `asyncio.Lock` serves waiting callers in order of arrival.
        async with self._turn:
            self.expires = time.monotonic() + self._service.limits.idle_s
            with deadline_of(self._service.limits.call_s) as deadline:
                self._call = asyncio.ensure_future(work(self.env))
            try:
                return await self._service.await_call(self._call, what, deadline)
            except BaseException as error:
                status = type(error).__name__
                # The state of the environment is unknown, so the session ends and the environment is not stepped again.
                if not self._call.done():  # it missed the deadline, or the caller has left
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
            # A snapshot that is taken after the deadline would never be released, because nobody has its id.
            snapshot = await _make_in_thread(env.snapshot, Snapshot.release)
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
            # It is removed before its release, so that a second release of the same id finds nothing.
            if (snapshot := self._snapshots.pop(id, None)) is not None:
                await asyncio.to_thread(snapshot.release)
            return {}

        return await self._run("release", work)

    async def _fork(self, _: str) -> dict[str, Any]:
        async def work(env: Env[Any]) -> dict[str, Any]:
            (twin,) = await _make_in_thread(env.fork, lambda twins: twins[0].close())
            if self.over:  # nobody would get the id of the fork
                await asyncio.to_thread(twin.close)
                raise EnvFault("this session has ended; open another one")
            session = await self._service.wrap(twin, self.client)
            session._episode, session._steps = self._episode, self._steps
            if self.over:  # it ended while the fork waited for a slot
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
        # before an episode an environment has no state, and fails with a traceback in the log
        if not self.begun:
            raise EpisodeOver("no episode has begun here; reset before you ask for the expert or a picture")

    async def _render(self, _: str) -> dict[str, Any]:
        async def work(env: Env[Any]) -> dict[str, Any]:
            self._check_begun()
            return {"text": plain(await asyncio.to_thread(env.render))}

        return await self._run("render", work)


def _cut_reward(env: Env[Any]) -> float | None:
    """Returns the further reward if the episode is cut now; None if the environment fails to compute it."""
    try:
        return cut_reward(env)
    except Exception:
        return None


def _close(env: Env[Any], snapshots: dict[str, Snapshot]) -> None:
    with contextlib.ExitStack() as stack:  # an error of one must not keep the others from being closed
        stack.callback(env.close)
        for snapshot in snapshots.values():
            stack.callback(snapshot.release)


async def _make_in_thread(make: Callable[[], T], discard: Callable[[T], object]) -> T:
    """Runs ``make`` in a thread and returns its result; discards the result if the call is cancelled meanwhile."""
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

"""``remote:URL``: an environment behind ``agentenv serve``, the same to a trainer as one in the process.

A connection that breaks is a fault: the episode is lost, masked and counted, and the next ``reset`` opens another one.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import httpx
from pydantic import BaseModel, FiniteFloat, ValidationError

from agentenv.core.assistant_turns import AssistantTurn, ToolForm
from agentenv.core.env import AsyncEnv
from agentenv.core.types import Info, Observation, StateCapability, Step, Task
from agentenv.core.validation import sentence
from agentenv.errors import ConfigurationError, EnvFault
from agentenv.serving.asking import Asking, TurnAction, asking_in, turn_out
from agentenv.serving.link import CONNECT_S, Link, LinkTimeouts, headers, reason
from agentenv.serving.wire import VERSION, info_in, observation_in, options_out, step_in
from agentenv.web.client import HTTPClient, Request, run_in_thread
from agentenv.web.retries import GaveUp, RetryPolicy, TryAgain

_STARTING = RetryPolicy(timeout_s=None, connect_s=None, tries=240, pause_s=0.5, longest_pause_s=0.5)
"""For two minutes: a server may load an index first."""
_REMEMBERED_S = (
    60.0  # what a server says of its environment, while a run asks about the class again and again
)
_TASKS_S = 180.0  # for a server to make tasks


@dataclass
class RemoteState:
    """What changes within an episode: everything else is at the server."""

    link: Link
    anchor: str | None
    cut_reward: float | None
    """What the episode earns further where it is cut now; None where the environment cannot say."""
    asking: Asking
    """How the policy is asked next."""


class RemoteEnv(AsyncEnv[RemoteState]):
    """An environment behind ``agentenv serve``; time travel included.

    Args:
        url: address of the server, such as ``http://127.0.0.1:8100``.
        timeouts: bounds; None takes the defaults.
        render_mode: ``ansi`` or None.

    Raises:
        ConfigurationError: there is no such server, or it does not let us in.
        EnvFault: there was one before in this process, and it does not answer now.
    """

    refuses_half_escapes = True  # the server deals with them, for an environment that does not

    def __init__(
        self, url: str, *, timeouts: LinkTimeouts | None = None, render_mode: str | None = None
    ) -> None:
        super().__init__(render_mode=render_mode)
        self.url = url.rstrip("/")
        self._timeouts = timeouts or LinkTimeouts()
        try:
            self.card = _card(self.url)
            """What the server says of its environment."""
        except ConfigurationError as error:
            if self.url in _known:  # a server that goes away within a run costs episodes and not the run
                raise EnvFault(str(error)) from error
            raise
        vars(self).update(
            capability=StateCapability[self.card["capability"].upper()],
            reward_floor=self.card["reward_floor"],
            reward_ceiling=self.card["reward_ceiling"],
            no_expert=self.card["no_expert"],
            call_markers=self.card["call_markers"],
            reports_searches=self.card["reports_searches"],
        )

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Begins an episode at the server, over the same connection as before where that still stands.

        Raises:
            ConfigurationError: an option cannot be sent, or the environment refuses it.
            Fault: the server, or what is behind it, failed.
        """
        await super().areset(seed=seed)
        before: RemoteState | None = vars(self).get("state")
        # Only a connection that was opened for this reset is closed when it fails; an older one closes itself where
        # it broke. One that the server closed between two episodes is replaced: nothing that was played is lost with it.
        fresh = before is None or not before.link.standing
        link = Link(self.url, self._timeouts) if before is None or fresh else before.link
        try:
            native = {"native": True} if self.native else {}
            data = await link.ask("reset", "observation", seed=seed, options=self._sent(options), **native)
            with _decoding(self.url):
                opening = observation_in(data["observation"]), info_in(data["metadata"]["info"])
                asking = asking_in(data["metadata"])
                self.state = RemoteState(link, data["metadata"]["anchor_key"], _cut_reward(data), asking)
        except BaseException:
            if fresh:
                await asyncio.to_thread(link.close)
            raise
        return opening

    def _leave_episode(self) -> None:
        """Closes nothing: the server ends the episode before, and the next one goes over the same connection."""

    def _sent(self, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """``options`` as this server takes them: a whole task with the data that the environment reads, or its id.

        The question goes with the id, so that a server whose task of that id is another one refuses.
        """
        if not isinstance(task := (options or {}).get("task"), Task):
            return options_out(options)
        sent: Any = {"id": task.id, "question": task.question}
        if self.card["client_tasks"]:
            read = self.card["client_data"]
            sent = replace(task, data={name: task.data[name] for name in read if name in task.data})
        return options_out({**(options or {}), "task": sent})

    async def astep(self, action: str) -> Step:
        """Acts once.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            Fault: the server, or what is behind it, failed; there is no reward then.
        """
        self.check_running(action)
        turn = {"turn": turn_out(action.turn)} if isinstance(action, TurnAction) else {}
        data = await self.state.link.ask("step", "observation", text=action, **turn)
        with _decoding(self.url):
            step = step_in(data)
            self.state.anchor, self.state.cut_reward = data["metadata"]["anchor_key"], _cut_reward(data)
            self.state.asking = asking_in(data["metadata"], self.state.asking)
        self._turn += 1
        self._over = step.terminated or step.truncated
        return step

    def turn_stop(self, stop: tuple[str, ...]) -> tuple[str, ...]:
        """As the environment at the server wants them for the turn that comes."""
        return self.state.asking.turn_stop(stop, self.card["stop"])

    def native_tools(self) -> Sequence[ToolForm]:
        """The tools of the environment at the server in the present context.

        Raises:
            ConfigurationError: the server does not serve policies that speak in their model's form.
        """
        if self.state.asking.tools is None:
            raise ConfigurationError(
                f"{self.url} does not say which tools to declare to a model in its native form, as servers of this version "
                "do: update the server, or take the format template"
            )
        return self.state.asking.tools

    def native_action(self, turn: AssistantTurn) -> str:
        """``turn`` itself, which the environment at the server reads."""
        return TurnAction(turn)

    def anchor_key(self) -> str | None:
        """The key that came with the last answer: asking for it costs no call."""
        return self.state.anchor

    def cut_reward(self) -> float:
        """What came with the last answer, too.

        Raises:
            EnvFault: the environment at the server failed to say it.
        """
        if self.state.cut_reward is None:
            raise EnvFault(f"the environment at {self.url} failed to say what an episode earns that is cut")
        return self.state.cut_reward

    def expert(self) -> Sequence[str] | None:
        """The expert's actions, where the server hands them out."""
        told = self.state.link.ask_now("expert")
        with _decoding(self.url):
            vars(self)["no_expert"] = told["why"]
            return None if told["actions"] is None else tuple(told["actions"])

    def render(self) -> str:
        """What the environment at the server renders."""
        told = self.state.link.ask_now("render")
        with _decoding(self.url):
            return str(told["text"])


def remote_class(url: str) -> type[RemoteEnv]:
    """The environment at ``url`` as a class: how its actions end, and tasks that the server makes.

    A server that answered once in this process and does not now is what it was, so that a run outlives it.

    Raises:
        ConfigurationError: nobody has answered there yet, or somebody else does.
    """
    url, now = url.rstrip("/"), time.monotonic()
    known = _known.get(url)
    if known is None or now - known.asked > _REMEMBERED_S:
        try:
            known = _Known(_class_at(url), now)
        except ConfigurationError:
            if known is None:
                raise
            known = _Known(known.served, now)
        _known[url] = known
    return known.served


class _Known(NamedTuple):
    """A server that has answered in this process."""

    served: type[RemoteEnv]
    asked: float
    """When it was asked last, in seconds of the monotonic clock."""


_known: dict[str, _Known] = {}


def _class_at(url: str) -> type[RemoteEnv]:
    found = _card(url)

    class Served(RemoteEnv):
        """An environment behind ``agentenv serve``; its episodes are scored by the rewards that the server gives."""

        card = found
        stop = found["stop"]

        def __init__(self, *, timeouts: LinkTimeouts | None = None, render_mode: str | None = None) -> None:
            super().__init__(url, timeouts=timeouts, render_mode=render_mode)

        @classmethod
        def make_tasks(cls, n: int, *, seed: int = 0, split: str = "train") -> Sequence[Task]:
            """Tasks that the server makes, without their answers unless it hands out the expert's actions too."""
            asked = {"n": n, "seed": seed, "split": split}
            rows = _asked(url, "tasks", asked, _TASKS_S)["tasks"]
            # Without answers only the id tells two tasks of one question apart.
            return [
                Task(
                    row["id"], row["question"], tuple(row["answers"]), row["split"], {"served_as": row["id"]}
                )
                for row in rows
            ]

    return Served


def _card(url: str) -> dict[str, Any]:
    """What the server says of its environment; waits for one that is starting.

    Raises:
        ConfigurationError: nobody answers there, or somebody else does.
    """
    card = _asked(url, "metadata", {}, CONNECT_S)
    if card.get("version") != VERSION:
        raise ConfigurationError(f"{url} speaks version {card.get('version')!r}, not {VERSION!r}")
    try:
        return card | _Card.model_validate(card).model_dump()
    except ValidationError as error:
        raise ConfigurationError(f"no environment is served at {url!r}: {sentence(error)}") from error


class _Card(BaseModel):
    """What is read of ``/metadata``; a server that says something else there is another one."""

    capability: Literal["none", "replay", "memory", "files", "process"]
    reward_floor: FiniteFloat
    reward_ceiling: FiniteFloat
    no_expert: str
    call_markers: tuple[str, ...]
    stop: tuple[str, ...] = ()
    reports_searches: bool = False
    client_tasks: bool = False
    client_data: tuple[str, ...] = ()


def _asked(url: str, route: str, query: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """The JSON object that a server gives on a route; waits for one that is starting.

    Raises:
        ConfigurationError: nobody answers there, or the server refuses.
    """
    direct = httpx.AsyncHTTPTransport()  # not through a proxy that the environment names
    client = HTTPClient(
        url, retry_policy=_STARTING, headers=headers, fault=ConfigurationError, transport=direct
    )

    async def ask(_: int) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                response = await client.send(Request("GET", f"/{route}", params=query))
        except TryAgain as error:  # nobody listens there, and only a server that starts is waited for
            raise ValueError(error) from error
        if response.status == httpx.codes.SERVICE_UNAVAILABLE:
            raise TryAgain(reason(response.body))
        if not httpx.codes.is_success(response.status):
            raise ValueError(reason(response.body))
        return dict(response.json())

    try:
        return run_in_thread(_STARTING.run(ask))
    except (GaveUp, ValueError, TypeError, TimeoutError) as error:
        raise ConfigurationError(f"no environment is served at {url!r}: {error}") from error


def _cut_reward(data: Mapping[str, Any]) -> float | None:
    given = data["metadata"].get("cut_reward", 0.0)  # which older servers do not send
    return None if given is None else float(given)


@contextlib.contextmanager
def _decoding(url: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise EnvFault(f"{url} answered in another form than this version's: {error!r}") from error

"""``remote:URL``: an environment behind ``agentenv serve``, which a trainer uses like a local one.

A broken connection is a fault: the episode is lost, masked and counted, and the next ``reset`` opens a new connection.
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

_START_RETRIES = RetryPolicy(timeout_s=None, connect_s=None, tries=240, pause_s=0.5, longest_pause_s=0.5)
"""Tries for two minutes, because a starting server may have to load an index first."""
_CARD_CACHE_S = 60.0  # seconds for which a server's answer to ``/metadata`` is cached
_MAKE_TASKS_TIMEOUT_S = 180.0  # time limit for making tasks on the server


@dataclass
class RemoteState:
    """What changes within an episode at the client; everything else is on the server."""

    link: Link
    anchor: str | None
    cut_reward: float | None
    """The further reward if the episode is cut now; None if the environment cannot tell."""
    asking: Asking
    """How to sample the next turn."""


class RemoteEnv(AsyncEnv[RemoteState]):
    """An environment behind ``agentenv serve``, including snapshots and forks.

    Args:
        url: Address of the server, such as ``http://127.0.0.1:8100``.
        timeouts: Time limits; None uses the defaults.
        render_mode: ``ansi`` or None.

    Raises:
        ConfigurationError: no server answers there, or it does not admit this client.
        EnvFault: a server has answered there in this process, and does not now.
    """

    refuses_half_escapes = True  # the server repairs them for environments that cannot take them

    def __init__(
        self, url: str, *, timeouts: LinkTimeouts | None = None, render_mode: str | None = None
    ) -> None:
        super().__init__(render_mode=render_mode)
        self.url = url.rstrip("/")
        self._timeouts = timeouts or LinkTimeouts()
        try:
            self.card = _card(self.url)
            """What the server's ``/metadata`` says of its environment."""
        except ConfigurationError as error:
            if self.url in _known:  # losing a server costs episodes and does not end the run
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
        """Begins an episode on the server; uses the previous connection again if it is still open.

        Raises:
            ConfigurationError: an option cannot be sent, or the environment refuses it.
            Fault: the server or its environment failed.
        """
        await super().areset(seed=seed)
        before: RemoteState | None = vars(self).get("state")
        # Only a connection that was opened for this reset is closed on an error; an older one closes itself when it breaks.
        # One that the server closed between two episodes is replaced, which loses nothing.
        fresh = before is None or not before.link.standing
        link = Link(self.url, self._timeouts) if before is None or fresh else before.link
        try:
            native = {"native": True} if self.native else {}
            data = await link.ask(
                "reset", "observation", seed=seed, options=self._options_to_send(options), **native
            )
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
        """Closes nothing: the server ends the previous episode, and the next one uses the same connection."""

    def _options_to_send(self, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """Returns ``options`` as this server takes them: a whole task with the data that the environment reads, or its id.

        The question is sent with the id, so that a server on which the id means another task refuses.
        """
        if not isinstance(task := (options or {}).get("task"), Task):
            return options_out(options)
        sent: Any = {"id": task.id, "question": task.question}
        if self.card["client_tasks"]:
            read = self.card["client_data"]
            sent = replace(task, data={name: task.data[name] for name in read if name in task.data})
        return options_out({**(options or {}), "task": sent})

    async def astep(self, action: str) -> Step:
        """Takes one step.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            Fault: the server or its environment failed; there is no reward then.
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
        """Returns the stop strings that the environment on the server wants for the next turn."""
        return self.state.asking.turn_stop(stop, self.card["stop"])

    def native_tools(self) -> Sequence[ToolForm]:
        """Returns the tools that the environment on the server declares in the current context.

        Raises:
            ConfigurationError: the server does not support native formats.
        """
        if self.state.asking.tools is None:
            raise ConfigurationError(
                f"{self.url} does not say which tools to declare to a model in its native form, as servers of this version "
                "do: update the server, or take the format template"
            )
        return self.state.asking.tools

    def native_action(self, turn: AssistantTurn) -> str:
        """Returns ``turn`` itself as the action, for the environment on the server to read."""
        return TurnAction(turn)

    def anchor_key(self) -> str | None:
        """Returns the key that came with the last answer; it makes no call."""
        return self.state.anchor

    def cut_reward(self) -> float:
        """Returns the cut reward that came with the last answer.

        Raises:
            EnvFault: the environment on the server failed to compute it.
        """
        if self.state.cut_reward is None:
            raise EnvFault(f"the environment at {self.url} failed to say what an episode earns that is cut")
        return self.state.cut_reward

    def expert(self) -> Sequence[str] | None:
        """Returns the expert's actions, if the server gives them."""
        told = self.state.link.ask_now("expert")
        with _decoding(self.url):
            vars(self)["no_expert"] = told["why"]
            return None if told["actions"] is None else tuple(told["actions"])

    def render(self) -> str:
        """Returns what the environment on the server renders."""
        told = self.state.link.ask_now("render")
        with _decoding(self.url):
            return str(told["text"])


def remote_class(url: str) -> type[RemoteEnv]:
    """Returns the class of the environment at ``url``, with its stop strings and with the tasks that the server makes.

    If a server that answered earlier in this process does not answer now, its class is reused, so that the run goes on.

    Raises:
        ConfigurationError: no server of environments has answered there yet.
    """
    url, now = url.rstrip("/"), time.monotonic()
    known = _known.get(url)
    if known is None or now - known.asked > _CARD_CACHE_S:
        try:
            known = _KnownServer(_class_at(url), now)
        except ConfigurationError:
            if known is None:
                raise
            known = _KnownServer(known.served, now)
        _known[url] = known
    return known.served


class _KnownServer(NamedTuple):
    """A server that has answered in this process."""

    served: type[RemoteEnv]
    asked: float
    """When it last answered, in seconds of the monotonic clock."""


_known: dict[str, _KnownServer] = {}


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
            """Returns tasks that the server makes, without answers unless the server also gives the expert's actions."""
            asked = {"n": n, "seed": seed, "split": split}
            rows = _get_json(url, "tasks", asked, _MAKE_TASKS_TIMEOUT_S)["tasks"]
            # Without answers, only the id tells two tasks with the same question apart.
            return [
                Task(
                    row["id"], row["question"], tuple(row["answers"]), row["split"], {"served_as": row["id"]}
                )
                for row in rows
            ]

    return Served


def _card(url: str) -> dict[str, Any]:
    """Returns the server's ``/metadata``; waits for a server that is starting.

    Raises:
        ConfigurationError: no server of environments answers there.
    """
    card = _get_json(url, "metadata", {}, CONNECT_S)
    if card.get("version") != VERSION:
        raise ConfigurationError(f"{url} speaks version {card.get('version')!r}, not {VERSION!r}")
    try:
        return card | _Card.model_validate(card).model_dump()
    except ValidationError as error:
        raise ConfigurationError(f"no environment is served at {url!r}: {sentence(error)}") from error


class _Card(BaseModel):
    """The part of ``/metadata`` that is used; a server that sends something else is not one of agentenv."""

    capability: Literal["none", "replay", "memory", "files", "process"]
    reward_floor: FiniteFloat
    reward_ceiling: FiniteFloat
    no_expert: str
    call_markers: tuple[str, ...]
    stop: tuple[str, ...] = ()
    reports_searches: bool = False
    client_tasks: bool = False
    client_data: tuple[str, ...] = ()


def _get_json(url: str, route: str, query: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Returns the JSON object that a server gives on ``route``; waits for a server that is starting.

    Raises:
        ConfigurationError: no server answers there, or it refuses.
    """
    direct = httpx.AsyncHTTPTransport()  # ignores the proxy of the environment variables
    client = HTTPClient(
        url, retry_policy=_START_RETRIES, headers=headers, fault=ConfigurationError, transport=direct
    )

    async def ask(_: int) -> dict[str, Any]:
        try:
            async with asyncio.timeout(seconds):
                response = await client.send(Request("GET", f"/{route}", params=query))
        except TryAgain as error:  # nothing listens there; only a starting server is tried again
            raise ValueError(error) from error
        if response.status == httpx.codes.SERVICE_UNAVAILABLE:
            raise TryAgain(reason(response.body))
        if not httpx.codes.is_success(response.status):
            raise ValueError(reason(response.body))
        return dict(response.json())

    try:
        return run_in_thread(_START_RETRIES.run(ask))
    except (GaveUp, ValueError, TypeError, TimeoutError) as error:
        raise ConfigurationError(f"no environment is served at {url!r}: {error}") from error


def _cut_reward(data: Mapping[str, Any]) -> float | None:
    given = data["metadata"].get("cut_reward", 0.0)  # older servers do not send it
    return None if given is None else float(given)


@contextlib.contextmanager
def _decoding(url: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise EnvFault(f"{url} answered in another form than this version's: {error!r}") from error

"""``remote:URL``: an environment behind ``agentenv serve``, the same to a trainer as one in the process.

A connection that breaks is a fault: the episode is lost, masked and counted, and the next ``reset`` opens another one.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from agentenv.core.env import AsyncEnv
from agentenv.core.types import Info, Observation, StateCapability, Step, Task
from agentenv.errors import ConfigurationError, EnvFault
from agentenv.serving.link import CONNECT_S, Link, Patience, headers, reason
from agentenv.serving.wire import VERSION, info_in, observation_in, options_out, step_in

_START_S = 120.0  # a server may load an index first
_ROUND_S = 0.5


@dataclass
class RemoteState:
    """What changes within an episode: everything else is at the server."""

    link: Link
    anchor: str | None


class RemoteEnv(AsyncEnv[RemoteState]):
    """An environment behind ``agentenv serve``; time travel included.

    Args:
        url: address of the server, such as ``http://127.0.0.1:8100``.
        patience: bounds; None takes the defaults.
        render_mode: ``ansi`` or None.

    Raises:
        ConfigurationError: there is no such server, or it does not let us in.
    """

    def __init__(self, url: str, *, patience: Patience | None = None, render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.url = url.rstrip("/")
        self._patience = patience or Patience()
        self.card = _card(self.url)
        """What the server says of its environment."""
        vars(self).update(
            capability=StateCapability[self.card["capability"].upper()],
            reward_floor=self.card["reward_floor"],
            reward_ceiling=self.card["reward_ceiling"],
            no_expert=self.card["no_expert"],
            call_markers=tuple(self.card["call_markers"]),
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
        fresh = before is None or before.link.broken
        link = Link(self.url, self._patience) if before is None or fresh else before.link
        try:
            data = await link.ask("reset", "observation", seed=seed, options=self._sent(options))
            with _decoding(self.url):
                opening = observation_in(data["observation"]), info_in(data["metadata"]["info"])
                self.state = RemoteState(link, data["metadata"]["anchor_key"])
        except BaseException:
            if fresh:
                await asyncio.to_thread(link.close)
            raise
        return opening

    def _sent(self, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """``options`` as this server takes them: a whole task with the data that the environment reads, or its id.

        The question goes with the id, so that a server whose task of that id is another one refuses.
        """
        if not isinstance(task := (options or {}).get("task"), Task):
            return options_out(options)
        sent: Any = {"id": task.id, "question": task.question}
        if self.card.get("client_tasks"):
            read = self.card["client_data"]
            sent = replace(task, data={name: task.data[name] for name in read if name in task.data})
        return options_out({**(options or {}), "task": sent})

    async def astep(self, action: str) -> Step:
        """Acts once.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            Fault: the server, or what is behind it, failed; there is no reward then.
        """
        self.check_running()
        data = await self.state.link.ask("step", "observation", text=action)
        with _decoding(self.url):
            step = step_in(data)
            self.state.anchor = data["metadata"]["anchor_key"]
        self._turn += 1
        self._over = step.terminated or step.truncated
        return step

    def anchor_key(self) -> str | None:
        """The key that came with the last answer: asking for it costs no call."""
        return self.state.anchor

    def expert(self) -> Sequence[str] | None:
        """The expert's actions, where the server hands them out."""
        told = self.state.link.ask_now("expert")
        vars(self)["no_expert"] = told["why"]
        return None if told["actions"] is None else tuple(told["actions"])

    def render(self) -> str:
        """What the environment at the server renders."""
        return str(self.state.link.ask_now("render")["text"])


def _card(url: str) -> dict[str, Any]:
    """What the server says of its environment; waits for one that is starting.

    Raises:
        ConfigurationError: nobody answers there, or somebody else does.
    """
    began = time.monotonic()
    while True:
        try:
            response = httpx.get(f"{url}/metadata", headers=headers(), timeout=CONNECT_S, trust_env=False)
            if response.is_success:
                card: dict[str, Any] = response.json()
                if card["version"] != VERSION:
                    raise ConfigurationError(f"{url} speaks version {card['version']!r}, not {VERSION!r}")
                return card
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"no environment is served at {url!r}: {error}") from error
        starting = response.status_code == httpx.codes.SERVICE_UNAVAILABLE
        if not starting or time.monotonic() - began > _START_S:
            raise ConfigurationError(f"no environment is served at {url!r}: {reason(response.content)}")
        time.sleep(_ROUND_S)


@contextlib.contextmanager
def _decoding(url: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise EnvFault(f"{url} answered in another form than this version's: {error!r}") from error

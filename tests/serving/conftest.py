"""A service of environments on a real socket in a thread, and an environment that misbehaves on demand."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from agentenv.core.env import Env
from agentenv.core.types import EndReason, Info, Message, Observation, StateCapability, Step
from agentenv.errors import RetrieverFault

WAIT_S = 60.0


class Served(NamedTuple):
    """A running service."""

    service: Any
    url: str

    def until_open(self, sessions: int) -> None:
        """Waits until so many sessions are open; fails where that does not come true."""
        deadline = time.monotonic() + WAIT_S
        while self.service.active != sessions:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    @contextmanager
    def call(self, **options: Any) -> "Iterator[Line]":
        """A raw connection, as any client of OpenEnv's contract opens it."""
        from websockets.sync.client import connect

        address = self.url.replace("http", "ws") + "/ws"
        with connect(address, open_timeout=WAIT_S, proxy=None, max_size=None, **options) as socket:
            yield Line(socket)

    def metric(self, name: str) -> float:
        """The value of a gauge or counter without labels."""
        lines = self.service.meter.text().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"agentenv_{name} ")))


class Line:
    """One connection: asks with frames."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket

    def ask(self, type: str, **data: Any) -> dict[str, Any]:
        """Sends a frame and returns the answer."""
        self.socket.send(json.dumps({"type": type, "data": data}))
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """The next frame from the server."""
        answer: dict[str, Any] = json.loads(self.socket.recv(timeout=WAIT_S))
        return answer


Serving = Callable[..., AbstractContextManager[Served]]


@pytest.fixture
def serving() -> Serving:
    """A context manager that takes what makes an environment and limits, gives a `Served`, and ends with its block."""
    for module in ("fastapi", "uvicorn", "orjson", "prometheus_client", "websockets"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    from agentenv.serving.limits import ServerLimits
    from agentenv.serving.server import run
    from agentenv.serving.service import EnvService
    from agentenv.web.server import address_of, listen

    @contextmanager
    def serve(
        make: Callable[[], Env[Any]],
        *,
        token: str | None = None,
        expert: bool = False,
        client_tasks: bool = False,
        connections: Any = None,
        **limits: Any,
    ) -> Iterator[Served]:
        service = EnvService(
            "test/Env-v0", ServerLimits(**limits), token=token, expert=expert, client_tasks=client_tasks
        )
        service.open(make)
        with listen("127.0.0.1", 0) as listening:
            thread = threading.Thread(
                target=run, args=(service, make, listening, (), connections), daemon=True
            )
            thread.start()
            try:
                yield Served(service, address_of(listening))
            finally:
                service.stop()
                thread.join(WAIT_S)
        assert not thread.is_alive()

    return serve


@dataclass
class HouseState:
    """All that changes within an episode."""

    actions: list[str] = field(default_factory=list)


class House(Env[HouseState]):
    """Does what an action says: ``wait`` until let go, ``fault``, ``crash``, ``nan``, ``long``, ``end``; else it echoes."""

    capability = StateCapability.MEMORY

    def __init__(self) -> None:
        super().__init__()
        self.shared = Shared()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.state = HouseState()
        self.shared.live(self)
        return (Message("user", f"seed {seed}, options {options}"),), {"options": options}

    def step(self, action: str) -> Step:
        self.check_running()
        self.state.actions.append(action)
        if action == "wait":
            self.shared.entered.set()
            self.shared.opened.wait(WAIT_S)
        if action == "fault":
            raise RetrieverFault("the index is gone")
        if action == "crash":
            raise ZeroDivisionError("by our own hand")
        if action == "nan":
            return self.result((), reward=float("nan"))
        if action == "long":
            return self.result((Message("tool", "x" * 2**24),))
        if action == "end":
            return self.result((), reward=0.5, end=EndReason.ANSWERED)
        return self.result((Message("tool", f"{action} after {len(self.state.actions) - 1}"),), reward=0.25)

    def close(self) -> None:
        self.shared.closed(self)
        super().close()


class Shared:
    """What all forks of one `House` have in common."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()
        self.most = self.closes = 0
        self._live: set[int] = set()
        self._lock = threading.Lock()

    def live(self, env: House) -> None:
        """Counts an environment that plays."""
        with self._lock:
            self._live.add(id(env))
            self.most = max(self.most, len(self._live))

    def closed(self, env: House) -> None:
        """Counts one that was closed."""
        with self._lock:
            self._live.discard(id(env))
            self.closes += 1


@pytest.fixture
def house() -> House:
    return House()

"""An endpoint on this machine whose answers are written beforehand, for tests.

It is a real HTTP server on a free port of the loopback interface, so that clients are tested through a socket. It speaks
Chat Completions and Responses of OpenAI, whole and as streams.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from agentenv.policies.fake_wires import FORMS

Body = Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """One HTTP response. Where ``raw`` is None it is a completion of ``text`` in the form that was asked for."""

    text: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: str | None = None
    usage: bool = True
    says_stop: bool = False
    """Whether it names the stop string that ended it, as vLLM does."""
    delay_s: float = 0.0
    calls: tuple[tuple[str, str, str], ...] = ()
    """Id, name and arguments of each tool call."""
    reasoning: str = ""
    reasoning_key: str = "reasoning_content"
    """The field of Chat Completions that holds it."""
    refusal: str = ""
    finish: str = ""
    """Why it ended; empty says that by itself."""
    cut: int | None = None
    """Bytes after which the connection is closed; None sends all."""


class FakeEndpoint:
    """Serves ``answer(body)`` for every request while used as a context manager.

    A completion is cut at the request's stop strings, which it leaves out, and at its bound of pieces.

    Example:
        ```python
        with FakeEndpoint(lambda body: Answer("<answer>Ada</answer>")) as server:
            client = ChatClient(Endpoint("any", server.url))
        ```
    """

    def __init__(self, answer: Callable[[Body], Answer]) -> None:
        self._answer = answer
        self.bodies: list[dict[str, Any]] = []
        """Every request so far."""
        self.headers: list[dict[str, str]] = []
        self.most_at_once = 0
        self._under_way = 0
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        """The base address."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> "FakeEndpoint":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def _serve(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[Answer, bytes]:
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            self._under_way += 1
            self.most_at_once = max(self.most_at_once, self._under_way)
        try:
            form = FORMS.get(path.partition("?")[0].removeprefix("/v1"))
            if form is None:
                return Answer(status=404), b'{"error": {"message": "no such path"}}'
            answer = self._answer(body)
            time.sleep(answer.delay_s)
            return answer, (form(body, answer) if answer.raw is None else answer.raw).encode()
        finally:
            with self._lock:
                self._under_way -= 1

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                answer, content = fake._serve(
                    self.path, {k.lower(): v for k, v in self.headers.items()}, body
                )
                try:
                    self.send_response(answer.status)
                    for name, value in answer.headers.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content[: answer.cut])
                except (BrokenPipeError, ConnectionResetError):  # the client has given up
                    self.close_connection = True
                self.close_connection = self.close_connection or answer.cut is not None

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: tests print nothing."""

        return Handler

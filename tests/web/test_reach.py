"""Whether an address is found to be one at which nobody takes connections, and that what takes them is let through."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from agentenv.errors import ConfigurationError, RetrieverFault
from agentenv.web.reach import refuse_unreachable


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket with an address of its own, at which nobody listens yet."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


def address(of: socket.socket) -> str:
    return f"http://127.0.0.1:{of.getsockname()[1]}/v1"


def test_an_address_at_which_nobody_listens_is_refused_within_seconds(listener: socket.socket) -> None:
    began = time.monotonic()
    with pytest.raises(ConfigurationError, match="refused") as caught:
        refuse_unreachable(address(listener))
    assert time.monotonic() - began < 10
    assert address(listener) in str(caught.value)


def test_the_error_is_of_the_kind_that_is_asked_for() -> None:
    with pytest.raises(RetrieverFault, match=r"http://nobody\.invalid"):
        refuse_unreachable("http://nobody.invalid", RetrieverFault)
    with pytest.raises(ConfigurationError, match="label"):
        refuse_unreachable(f"http://{'a' * 70}.invalid")


def test_a_server_that_takes_connections_is_let_through_though_it_says_nothing(
    listener: socket.socket,
) -> None:
    listener.listen()
    refuse_unreachable(address(listener))


def test_a_server_that_is_there_a_moment_later_is_let_through(listener: socket.socket) -> None:
    starting = threading.Timer(0.2, listener.listen)
    starting.start()
    refuse_unreachable(address(listener))
    starting.join()


def test_behind_a_proxy_nothing_is_tried(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    refuse_unreachable(address(listener))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(ConfigurationError):
        refuse_unreachable(address(listener))

"""WebSocket peers that write frames by hand: fragments without end, floods of pings, texts that are no UTF-8."""

import socket
import struct
from typing import Any

import pytest

pytest.importorskip("websockets", reason="websockets is not installed")

WAIT_S = 60.0
CONTINUED, TEXT, PING = 0, 1, 9
UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def frame(kind: int, payload: bytes, *, last: bool = True) -> bytes:
    """A short masked frame, as RFC 6455, section 5.2 has it."""
    return bytes([0x80 * last | kind, 0x80 | len(payload)]) + bytes(4) + payload


def opened(served: Any) -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", int(served.url.rpartition(":")[2])), timeout=WAIT_S)
    peer.sendall(UPGRADE)
    assert b" 101 " in peer.recv(4_096)
    return peer


def close_code(peer: socket.socket) -> int | None:
    """The code of the close frame with which the connection ends; None where there is none."""
    got = b""
    try:
        while part := peer.recv(2**16):
            got += part
    except ConnectionResetError:
        pass
    _, _, rest = got.rpartition(b"\x88")
    return struct.unpack(">H", rest[1:3])[0] if len(rest) > 2 else None


def test_a_message_of_fragments_without_end_is_refused(serving: Any, house: Any) -> None:
    with serving(lambda: house) as served:
        with opened(served) as peer:
            sent = 0
            peer.sendall(frame(TEXT, b"a", last=False))
            try:
                while sent < 5_000:  # a few more than are taken, so that the reason is not lost to a reset
                    peer.sendall(frame(CONTINUED, b"", last=False) * 100)
                    sent += 100
            except (ConnectionResetError, BrokenPipeError):
                pass
            assert close_code(peer) in (1009, None)
        served.until_open(0)


@pytest.mark.parametrize("parts", [(b"\xff",), (b"\xc3", b"("), (b"\xed\xa0\x80",)])
def test_a_text_that_is_no_utf_8_is_refused_without_a_traceback(
    serving: Any, house: Any, parts: tuple[bytes, ...], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(lambda: house) as served:
        with opened(served) as peer:
            for number, part in enumerate(parts):
                kind = CONTINUED if number else TEXT
                peer.sendall(frame(kind, part, last=number == len(parts) - 1))
            assert close_code(peer) == 1007
        served.until_open(0)
    assert [record.exc_info for record in caplog.records if record.exc_info] == []


def test_who_pings_and_reads_no_pongs_is_let_go(serving: Any, house: Any) -> None:
    flood, sent, most = frame(PING, b"a" * 125) * 1_000, 0, 64 * 2**20
    with serving(lambda: house) as served:
        with opened(served) as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            try:
                while sent < most:
                    peer.sendall(flood)
                    sent += len(flood)
            except (ConnectionResetError, BrokenPipeError):
                pass
        assert sent < most
        served.until_open(0)


def test_many_pings_of_who_reads_the_pongs_are_answered(serving: Any, house: Any) -> None:
    with serving(lambda: house) as served, opened(served) as peer:
        for _ in range(1_000):
            peer.sendall(frame(PING, b"abc"))
            assert peer.recv(5, socket.MSG_WAITALL) == b"\x8a\x03abc"

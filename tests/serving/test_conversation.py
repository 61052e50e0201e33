"""What a WebSocket caller can do, rightly and wrongly: every frame has its answer, and no caller harms another one."""

import collections
import json
import socket as sockets
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import httpx
import pytest

pytest.importorskip("websockets", reason="websockets is not installed")

from websockets.exceptions import ConnectionClosed, InvalidStatus

from agentenv.core.env import Env
from agentenv.core.types import Info, Message, Observation, Step
from agentenv.envs.calculator import Calculator

WAIT_S = 60.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def closed(line: Any) -> int:
    """The code with which the server closes."""
    with pytest.raises(ConnectionClosed) as caught:
        collections.deque(iter(lambda: line.socket.recv(timeout=WAIT_S), object()))
    assert caught.value.rcvd is not None
    return int(caught.value.rcvd.code)


def test_an_episode_has_openenvs_shape(serving: Any, house: Any) -> None:
    with serving(lambda: house) as served, served.call() as line:
        opening = line.ask("reset", seed=3, episode_id="e", a_field_of_somebody_else=1)
        assert opening == {
            "type": "observation",
            "data": {
                "observation": {
                    "text": "seed 3, options None",
                    "messages": [{"role": "user", "content": "seed 3, options None"}],
                },
                "reward": None,
                "done": False,
                "metadata": {
                    "terminated": False,
                    "truncated": False,
                    "anchor_key": None,
                    "cut_reward": 0.0,
                    "turn_stop": [],
                    "info": {"options": None},
                },
            },
        }
        step = line.ask("step", text="a")["data"]
        assert (step["observation"]["text"], step["reward"], step["done"]) == ("a after 0", 0.25, False)
        state = {"episode_id": "e", "step_count": 1, "env": "test/Env-v0"}
        assert line.ask("state") == {"type": "state", "data": state}
        last = line.ask("step", text="end")["data"]
        assert (last["reward"], last["done"], last["metadata"]["terminated"]) == (0.5, True, True)
        assert last["metadata"]["info"]["end_reason"] == "answered"
        over = line.ask("step", text="a")
        assert (over["type"], over["data"]["kind"], over["data"]["fault"]) == ("error", "EpisodeOver", False)
        line.socket.send('{"type": "close"}')
        assert closed(line) == 1000


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("no json", "INVALID_JSON"),
        ("", "INVALID_JSON"),
        (b'{"type": "state"}', "INVALID_JSON"),
        ('{"type": "reset", "data": {"seed": NaN}}', "INVALID_JSON"),
        ("[" * 200_000, "INVALID_JSON"),
        ('{"type": "reset", "data": {"seed": ' + "9" * 5000 + "}}", "INVALID_JSON"),
        ("[]", "VALIDATION_ERROR"),
        ('{"data": {}}', "VALIDATION_ERROR"),
        ('{"type": 1}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": []}', "VALIDATION_ERROR"),
        ('{"type": "step"}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"text": null}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"text": "a", "more": 1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": -1}}', "VALIDATION_ERROR"),
        ('{"type": "reset", "data": {"seed": "x"}}', "VALIDATION_ERROR"),
        ('{"type": "agentenv", "data": {"verb": "__class__"}}', "VALIDATION_ERROR"),
        ('{"type": "fly"}', "UNKNOWN_TYPE"),
        ('{"type": "step", "data": {"text": "fault"}}', "EXECUTION_ERROR"),
        ('{"type": "reset", "data": {"options": {"task": {"colour": 1}}}}', "EXECUTION_ERROR"),
        ('{"type": "agentenv", "data": {"verb": "restore", "id": "x"}}', "EXECUTION_ERROR"),
        ('{"type": "agentenv", "data": {"verb": "attach", "id": "x"}}', "SESSION_ERROR"),
    ],
)
def test_a_wrong_frame_has_an_answer_and_the_session_goes_on(
    serving: Any, house: Any, sent: str | bytes, code: str
) -> None:
    with serving(lambda: house) as served, served.call() as line:
        line.ask("reset", seed=0)
        line.socket.send(sent)
        answer = line.answer()
        assert (answer["type"], answer["data"]["code"]) == ("error", code)
        assert len(answer["data"]["message"]) < 500
        assert line.ask("step", text="a")["type"] == "observation"


@pytest.mark.parametrize(
    ("action", "kind"), [("fault", "RetrieverFault"), ("crash", "ZeroDivisionError"), ("nan", "EnvFault")]
)
def test_a_fault_is_an_error_and_never_a_reward(serving: Any, house: Any, action: str, kind: str) -> None:
    with serving(lambda: house) as served, served.call() as line:
        line.ask("reset")
        answer = line.ask("step", text=action)
        assert answer["type"] == "error"
        assert (answer["data"]["kind"], answer["data"]["fault"]) == (kind, True)
        assert "reward" not in answer["data"]


@pytest.mark.parametrize(("text", "seen"), [(42, "42"), (True, "true"), ([1], "[1]"), ("042", "042")])
def test_an_action_that_a_client_parsed_is_text_again(serving: Any, house: Any, text: Any, seen: str) -> None:
    with serving(lambda: house) as served, served.call() as line:
        line.ask("reset")
        assert line.ask("step", text=text)["data"]["observation"]["text"] == f"{seen} after 0"


class Decodes(Env[None]):
    """Shows what an action in JSON says."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        super().reset(seed=seed)
        self.state = None
        return (Message("user", "Say something in JSON."),), {}

    def step(self, action: str) -> Step:
        return self.result((Message("tool", json.loads(action)),))


def test_an_escape_of_half_a_character_is_shown_as_a_training_of_ours_shows_it(serving: Any) -> None:
    """Whatever the client: text that nothing can encode would let a policy end its episode as a fault."""
    with serving(Decodes) as served, served.call() as line:
        line.ask("reset")
        step = line.ask("step", text=json.dumps("a \ud83d b"))["data"]
        assert step["observation"]["text"] == "a \ufffd b"


def test_half_a_surrogate_pair_travels(serving: Any, house: Any) -> None:
    with serving(lambda: house) as served, served.call() as line:
        line.ask("reset")
        assert line.ask("step", text="\ud83d")["data"]["observation"]["text"] == "\ud83d after 0"


def test_a_message_that_is_too_long_ends_its_session_and_no_other(serving: Any, house: Any) -> None:
    with (
        serving(lambda: house, message_bytes=10_000) as served,
        served.call() as other,
        served.call() as line,
    ):
        other.ask("reset")
        line.ask("reset")
        line.socket.send(json.dumps({"type": "step", "data": {"text": "x" * 10_000}}))
        assert closed(line) == 1009
        assert other.ask("step", text="a")["type"] == "observation"
        served.until_open(1)


def test_who_sends_far_ahead_of_the_answers_is_cut_off(serving: Any, house: Any) -> None:
    with serving(lambda: house, backlog=4) as served, served.call() as line:
        line.ask("reset")
        with suppress(ConnectionClosed):  # the cut may come between two sends
            for _ in range(8):
                line.socket.send('{"type": "step", "data": {"text": "wait"}}')
        assert closed(line) == 1008
        house.shared.opened.set()
        served.until_open(0)


def test_who_sends_much_ahead_of_the_answers_is_cut_off(serving: Any, house: Any) -> None:
    with serving(lambda: house, message_bytes=1_000) as served, served.call() as line:
        line.ask("reset")
        with suppress(ConnectionClosed):
            for text in ("wait", "x" * 900, "x" * 900, "x" * 900):
                line.socket.send(json.dumps({"type": "step", "data": {"text": text}}))
        assert closed(line) == 1008
        house.shared.opened.set()
        served.until_open(0)


def test_a_client_that_is_killed_in_the_middle_of_a_step_gives_its_place_back(
    serving: Any, house: Any
) -> None:
    with serving(lambda: house, sessions=1) as served:
        with served.call() as line:
            line.ask("reset")
            line.socket.send('{"type": "step", "data": {"text": "wait"}}')
            assert house.shared.entered.wait(WAIT_S)
            reset = struct.pack("ii", 1, 0)  # close() then sends RST, as the system does for a killed process
            line.socket.socket.setsockopt(sockets.SOL_SOCKET, sockets.SO_LINGER, reset)
            line.socket.socket.shutdown(sockets.SHUT_RDWR)
        assert house.shared.closes == 0  # nobody closes what is still being stepped
        house.shared.opened.set()
        with served.call() as line:
            assert line.ask("reset")["type"] == "observation"
        assert house.shared.closes >= 1
        assert house.shared.most == 1


def test_a_step_that_misses_its_deadline_ends_its_session(serving: Any, house: Any) -> None:
    with serving(lambda: house, call_s=0.5) as served, served.call() as line:
        line.ask("reset")
        answer = line.ask("step", text="wait")
        assert (answer["type"], answer["data"]["kind"]) == ("error", "EnvFault")
        assert "0.5 s" in answer["data"]["message"]
        assert closed(line) == 1011
        # It holds its place as long as it works.
        assert (served.service.active, house.shared.closes) == (1, 0)
        house.shared.opened.set()
        served.until_open(0)
        assert house.shared.closes == 1


def test_client_slots_are_waited_for_and_then_refused(serving: Any, house: Any) -> None:
    with serving(lambda: house, sessions=1, wait_s=0.5, waiting=1) as served, served.call() as first:
        first.ask("reset")
        with served.call() as second:
            answer = second.answer()
            assert (answer["type"], answer["data"]["code"]) == ("error", "CAPACITY_REACHED")
            assert "0.5 s" in answer["data"]["message"]
            assert closed(second) == 1013
        first.socket.close()
        with served.call() as third:
            assert third.ask("reset")["type"] == "observation"


def test_two_hundred_callers_share_eight_places(serving: Any, house: Any) -> None:
    def play(number: int) -> str:
        with served.call() as line:
            line.ask("reset", seed=number)
            line.ask("step", text=str(number))
            return str(line.ask("step", text="end")["data"]["reward"])

    with serving(lambda: house, sessions=8, per_client=8, waiting=400, wait_s=WAIT_S) as served:
        with ThreadPoolExecutor(200) as threads:
            assert set(threads.map(play, range(200))) == {"0.5"}
        assert house.shared.most <= 8
        served.until_open(0)
        assert (house.shared.closes, served.service.answered) == (200, 200)


def test_who_says_nothing_is_let_go(serving: Any, house: Any) -> None:
    with serving(lambda: house, idle_s=0.3) as served, served.call() as line:
        answer = line.answer()
        assert (answer["data"]["code"], answer["data"]["message"]) == (
            "SESSION_ERROR",
            "nothing came for 0.3 s",
        )
        assert closed(line) == 1001
        served.until_open(0)


def test_who_does_not_take_the_answers_is_let_go(serving: Any, house: Any) -> None:
    with serving(lambda: house, send_s=0.5) as served, ExitStack() as stack:
        raw = stack.enter_context(sockets.create_connection(("127.0.0.1", int(served.url.rsplit(":")[-1]))))
        raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
        key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        raw.sendall(
            f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n{key}\r\n".encode()
        )
        assert raw.recv(4096).startswith(b"HTTP/1.1 101")
        for text in ('{"type": "reset"}', *['{"type": "step", "data": {"text": "long"}}'] * 2):
            raw.sendall(bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text.encode())
        until(lambda: house.shared.most == 1)
        served.until_open(0)


def test_a_fork_that_nobody_takes_expires(serving: Any, house: Any) -> None:
    with serving(lambda: house, claim_s=2.0) as served, served.call() as line:
        line.ask("reset")
        id = line.ask("agentenv", verb="fork")["data"]["id"]
        assert served.service.active == 2
        served.until_open(1)
        assert line.ask("agentenv", verb="attach", id=id)["data"]["code"] == "SESSION_ERROR"
        assert line.ask("step", text="a")["type"] == "observation"


def test_a_fork_is_taken_over_by_another_connection(serving: Any, house: Any) -> None:
    with serving(lambda: house, sessions=6) as served, served.call() as line, served.call() as other:
        line.ask("reset")
        line.ask("step", text="a")
        id = line.ask("agentenv", verb="fork")["data"]["id"]
        assert other.ask("agentenv", verb="attach", id=id) == {"type": "agentenv", "data": {}}
        assert other.ask("state")["data"]["step_count"] == 1
        assert other.ask("step", text="b")["data"]["observation"]["text"] == "b after 1"
        assert line.ask("step", text="c")["data"]["observation"]["text"] == "c after 1"
        served.until_open(2)
        assert other.ask("agentenv", verb="attach", id=id)["data"]["code"] == "SESSION_ERROR"


def test_forks_need_places_too(serving: Any, house: Any) -> None:
    with serving(lambda: house, sessions=1, wait_s=0.2) as served, served.call() as line:
        line.ask("reset")
        assert line.ask("agentenv", verb="fork")["data"]["code"] == "CAPACITY_REACHED"
        assert line.ask("step", text="a")["type"] == "observation"


def test_snapshots_are_bounded_and_released(serving: Any, house: Any) -> None:
    with serving(lambda: house, snapshots=1) as served, served.call() as line:
        line.ask("reset")
        id = line.ask("agentenv", verb="snapshot")["data"]["id"]
        line.ask("step", text="a")
        refused = line.ask("agentenv", verb="snapshot")
        assert (refused["data"]["kind"], refused["data"]["fault"]) == ("SnapshotError", False)
        line.ask("agentenv", verb="restore", id=id)
        assert line.ask("step", text="b")["data"]["observation"]["text"] == "b after 0"
        for _ in range(2):
            assert line.ask("agentenv", verb="release", id=id)["data"] == {}
        assert line.ask("agentenv", verb="snapshot")["type"] == "agentenv"


def test_the_expert_is_handed_out_on_demand_only(serving: Any, house: Any) -> None:
    with serving(lambda: house) as served, served.call() as line:
        line.ask("reset")
        told = line.ask("agentenv", verb="expert")["data"]
        assert told == {"actions": None, "why": "the server does not hand out the expert's actions"}


@pytest.mark.parametrize("verb", ["render", "expert"])
def test_what_needs_an_episode_is_refused_before_one_has_begun(
    serving: Any, verb: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(Calculator, expert=True) as served, served.call() as line:
        told = line.ask("agentenv", verb=verb)
        assert (told["type"], told["data"]["kind"]) == ("error", "EpisodeOver")
        line.ask("reset", seed=1)
        assert line.ask("agentenv", verb=verb)["type"] == "agentenv"
    assert "Traceback" not in caplog.text


def test_browsers_strangers_and_early_callers_are_refused(serving: Any, house: Any) -> None:
    def status(**headers: str) -> int:
        with pytest.raises(InvalidStatus) as caught, served.call(additional_headers=headers):
            pass
        assert json.loads(caught.value.response.body)["error"]
        return int(caught.value.response.status_code)

    with serving(lambda: house, token="secret") as served:
        assert status() == 401
        assert status(authorization="Bearer other") == 401
        assert status(authorization="Bearer secret", origin="http://page.example") == 403
        assert httpx.get(f"{served.url}/metadata", timeout=WAIT_S).status_code == 401
        assert httpx.get(f"{served.url}/healthz", timeout=WAIT_S).json()["status"] == "healthy"
        with served.call(additional_headers={"authorization": "Bearer secret"}) as line:
            assert line.ask("reset")["type"] == "observation"
        served.service.state = "starting"
        assert status(authorization="Bearer secret") == 503
        assert httpx.get(f"{served.url}/readyz", timeout=WAIT_S).status_code == 503


def test_a_stop_lets_the_answer_under_way_out(serving: Any, house: Any) -> None:
    with serving(lambda: house) as served, served.call() as line:
        line.ask("reset")
        line.socket.send('{"type": "step", "data": {"text": "wait"}}')
        assert house.shared.entered.wait(WAIT_S)
        served.service.stop()
        until(lambda: served.service.ending.is_set())
        threading.Timer(0.1, house.shared.opened.set).start()
        assert line.answer()["data"]["observation"]["text"] == "wait after 0"
        assert closed(line) in (1001, 1012)
    assert house.shared.closes == 1


def test_an_environment_that_cannot_be_made_is_said(serving: Any, house: Any) -> None:
    def fork(n: int = 1) -> list[Any]:
        raise ZeroDivisionError("no more of these")

    house.fork = fork
    with serving(lambda: house) as served, served.call() as line:
        answer = line.answer()
        assert (answer["data"]["code"], answer["data"]["fault"]) == ("FACTORY_ERROR", True)
        assert closed(line) == 1013
        served.until_open(0)

"""Servers that hang, list without end, flood or fail: every wait is bounded, and no process and no memory is left behind."""

import gc
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="needs the mcp extra")

from agentenv.core.types import ToolResult
from agentenv.envs.mcp import session
from agentenv.envs.mcp.server import McpServer, _end_group
from agentenv.envs.mcp.tools_env import McpTools
from agentenv.errors import ConfigurationError, EnvFault
from agentenv.sandbox.labels import start_time


def server(fault: str, *more: str) -> str:
    words = [sys.executable, "-S", "-E", str(Path(__file__).with_name("faulty.py")), fault, *more]
    return f"stdio:{shlex.join(words)}"


def call(env: McpTools, name: str) -> ToolResult:
    step = env.step(f"<tool_call>{json.dumps({'name': name, 'arguments': {}})}</tool_call>")
    result: ToolResult = step.info["tool_results"][0]
    return result


def ended(process: int, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while Path(f"/proc/{process}").exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def children(fault: str) -> list[str]:
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = place.read_bytes().split(b"\0")
        except OSError:
            continue
        if fault.encode() in words and any(word.endswith(b"faulty.py") for word in words):
            found.append(place.parent.name)
    return found


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("hangs at start", "did not list its tools within 1 s|did not answer within 1 s"),
        ("hangs", "did not list its tools within 1 s"),
        ("refuses", "did not list its tools: no list for you"),
        ("new pages", "did not list its tools within 1 s"),
        ("same page", "page '1' follows itself"),
    ],
)
def test_a_server_that_cannot_list_its_tools_is_a_fault_and_its_process_ends(
    fault: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "OPEN_S", 1.0)
    with pytest.raises(EnvFault, match=said):
        McpTools(server=server(fault), timeout_s=0.5 if fault == "hangs at start" else 5)
    assert not children(fault)


def test_a_server_that_lists_its_tools_no_more_is_no_mistake_of_the_policy() -> None:
    env = McpTools(server=server("lists at first"))
    env.server = McpServer(server("refuses"))
    with pytest.raises(EnvFault, match="did not list its tools: no list for you"):
        env.reset(seed=0)
    env.close()


def test_a_tool_that_a_server_has_no_more_is_no_mistake_of_the_policy() -> None:
    env = McpTools(server=server("lists at first"))
    env.server = McpServer(server("reserved"))
    env.reset(seed=0)
    with pytest.raises(EnvFault, match="has no tool 'count' any more"):
        call(env, "count")
    env.close()


def test_what_is_no_message_is_named_with_the_call_that_it_was_to_answer() -> None:
    env = McpTools(server=server(""), timeout_s=1)
    env.reset(seed=0)
    with pytest.raises(EnvFault, match=r"'garble' within 1 s .*\"resu.*no message of MCP"):
        call(env, "garble")
    env.close()


def test_what_a_server_has_started_ends_with_it_although_it_ends_by_itself() -> None:
    env = McpTools(server=server(""))
    env.reset(seed=0)
    stray = Path("/proc") / call(env, "stray").text / "cmdline"
    assert stray.exists()
    env.close()
    deadline = time.monotonic() + 10
    while stray.exists() and stray.read_bytes():  # empty where nobody has taken note of its end yet
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_process_that_has_got_the_number_of_a_server_is_left_alone() -> None:
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        _end_group(other.pid, "when the server had begun")
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.3)
        _end_group(other.pid, start_time(other.pid))
        assert other.wait(10) == -signal.SIGKILL
    finally:
        other.kill()
        other.wait()


def test_a_reserved_name_says_how_to_leave_it_out() -> None:
    with pytest.raises(ConfigurationError, match=r"'reset'.*the option 'tools' names"):
        McpTools(server=server("reserved"))


def test_an_episode_can_be_forked_and_restored_before_its_first_call() -> None:
    env = McpTools(server=server(""))
    env.reset(seed=0)
    (twin,) = env.fork(1)
    assert call(twin, "process").text != call(env, "process").text
    twin.close()
    env.close()


def test_what_a_server_writes_to_stderr_is_read_and_only_its_end_is_kept() -> None:
    env = McpTools(server=server(""), timeout_s=20)
    env.reset(seed=0)
    call(env, "flood")
    with pytest.raises(EnvFault, match="the last that came from it: 'xxx"):
        call(env, "fail")
    assert env.state.session is not None
    assert len(env.state.session._stderr._kept) < 5000
    env.close()


def test_a_process_ends_with_the_environment_that_nobody_closed() -> None:
    env = McpTools(server=server(""))
    env.reset(seed=0)
    process = int(call(env, "process").text)
    del env
    gc.collect()
    assert ended(process)


def test_environments_that_are_made_at_once_start_one_server_to_list_its_tools(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    address = server("counts its starts", str(starts))
    with ThreadPoolExecutor(6) as pool:
        assert len([*pool.map(lambda _: McpTools(server=address), range(6))]) == 6
    assert starts.read_text() == "x"


def test_a_shared_connection_remembers_no_calls_and_is_opened_again_after_a_failure() -> None:
    env = McpTools(server=server("shared"), server_state="none", timeout_s=1)
    env.reset(seed=0)
    first = call(env, "process").text
    assert [call(env, "process").text for _ in range(3)] == [first] * 3
    assert len(session._shared[env.server, False].calls) == 1
    with pytest.raises(EnvFault, match="within 1 s"):
        call(env, "sleep")  # the process reads nothing any more
    env.reset(seed=0)
    assert call(env, "process").text != first
    assert ended(int(first), 20)


def test_a_call_that_was_given_up_makes_a_restore_start_afresh() -> None:
    import asyncio

    env = McpTools(server=server(""))

    async def scene() -> None:
        await env.areset(seed=0)
        snapshot = env.snapshot()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(env.called("sleep", {}), 0.3)
        await asyncio.to_thread(env.restore, snapshot)
        assert (await asyncio.wait_for(env.called("count", {}), 5)).text

    asyncio.run(scene())
    env.close()


def test_environments_can_be_pickled_before_their_first_episode() -> None:
    import pickle

    env = pickle.loads(pickle.dumps(McpTools(server=server(""))))
    env.reset(seed=0)
    assert call(env, "count").text
    env.close()


def test_closing_on_an_event_loop_does_not_stop_the_loop() -> None:
    import asyncio

    env = McpTools(server=server("hangs at the end"))

    async def scene() -> float:
        await env.areset(seed=0)
        began = time.monotonic()
        env.close()
        return time.monotonic() - began

    assert asyncio.run(scene()) < 0.5


def test_a_server_that_nothing_but_a_kill_ends_is_gone_although_it_was_closed_twice() -> None:
    """By the environment and at the end of the process: the second one broke off what the first was waiting for."""
    import asyncio

    env = McpTools(server=server("ignores the end"))
    env.reset(seed=0)
    process, connection = int(call(env, "process").text), env.state.session
    assert connection is not None

    async def twice() -> None:
        first = asyncio.create_task(asyncio.to_thread(connection.close))
        await asyncio.sleep(0.5)
        await asyncio.gather(first, asyncio.to_thread(connection.close))

    asyncio.run(twice())
    assert ended(process, seconds=1)


def test_an_error_of_http_is_named_and_the_url_shows_no_secrets() -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    place = f"127.0.0.1:{httpd.server_port}/mcp"
    try:
        with pytest.raises(EnvFault, match="HTTP 401 Unauthorized") as caught:
            McpTools(server=f"http://{place}?key=secret")
    finally:
        httpd.shutdown()
        httpd.server_close()
    assert f"'http://{place}'" in str(caught.value)


def test_a_status_that_has_nothing_to_do_with_the_fault_is_not_named() -> None:
    class Html(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer(405, b"")

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            about = {"capabilities": {"tools": {}}, "serverInfo": {"name": "html", "version": "1"}}
            results = {
                "initialize": {"protocolVersion": "2025-06-18", **about},
                "tools/list": {"tools": [{"name": "page", "inputSchema": {"type": "object"}}]},
            }
            if request["method"] == "tools/call":
                self.answer(200, b"<html>", "text/html")
            elif (result := results.get(request["method"])) is None:
                self.answer(202 if "id" not in request else 400, b"")
            else:
                self.answer(
                    200, json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}).encode()
                )

        def answer(self, status: int, body: bytes, kind: str = "application/json") -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Html)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    try:
        env = McpTools(server=f"http://127.0.0.1:{httpd.server_port}/mcp", timeout_s=10)
        env.reset(seed=0)
        with pytest.raises(EnvFault, match=r"text/html$"):
            call(env, "page")
        env.close()
    finally:
        httpd.shutdown()
        httpd.server_close()


def test_a_program_that_never_closed_its_environment_ends_and_leaves_no_process() -> None:
    import subprocess

    code = (
        "import json\nfrom agentenv.envs.mcp.tools_env import McpTools\n"
        f"env = McpTools(server={server('')!r})\nenv.reset(seed=0)\n"
        "print(env.step('<tool_call>{\"name\": \"process\"}</tool_call>').info['tool_results'][0].text)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ended(int(done.stdout))


def test_a_forked_process_has_servers_of_its_own() -> None:
    import multiprocessing

    env = McpTools(server=server("shared"), server_state="none", timeout_s=10)
    own = McpTools(server=server("own"), timeout_s=10)
    env.reset(seed=0)
    own.reset(seed=0)
    ours = {call(env, "process").text, call(own, "process").text}

    def scene(sending: Connection) -> None:
        try:
            call(own, "count")
        except EnvFault as fault:
            sending.send(str(fault))
        env.reset(seed=0)
        own.reset(seed=0)
        sending.send({call(env, "process").text, call(own, "process").text})

    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=scene, args=(sending,))
    child.start()
    assert receiving.poll(30)
    assert "has ended its connection" in receiving.recv()
    assert receiving.poll(30)
    assert len(receiving.recv() | ours) == 4
    child.join(30)
    assert {call(env, "process").text, call(own, "process").text} == ours
    own.close()

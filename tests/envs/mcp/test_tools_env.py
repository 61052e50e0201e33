"""Tools of an MCP server as an environment: calls, time travel, and which failures are whose."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp", reason="needs the mcp extra")

from agentenv.core.images import images_of
from agentenv.core.types import StateCapability, Step, Task, ToolStatus
from agentenv.envs.mcp.tools_env import McpTools
from agentenv.errors import (
    ConfigurationError,
    EnvFault,
    MissingExtra,
    SnapshotError,
    SnapshotRefused,
    UnknownName,
)

COMMAND = f"stdio:{sys.executable} {Path(__file__).with_name('servers.py')} stdio"
SUM = Task("sum", "What is 6 / 4?", ("1.5",))


@pytest.fixture
def env() -> Iterator[McpTools]:
    made = McpTools(server=COMMAND, timeout_s=20)
    made.reset(seed=0, options={"task": SUM})
    yield made
    made.close()


def call(env: McpTools, name: str, **arguments: Any) -> Step:
    return env.step(f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>")


def said(step: Step) -> str:
    (result,) = step.info["tool_results"]
    text: str = result.text
    return text


def test_the_policy_calls_the_servers_tools_and_its_answer_is_scored(env: McpTools) -> None:
    assert [tool.name for tool in env.native_tools()][:3] == ["add_note", "read_notes", "divide"]
    step = call(env, "divide", a=6, b=4)
    assert said(step) == "1.5"
    assert "1.5" in step.observation[0].text
    last = env.step(" 1.5\n")
    assert (last.reward, last.terminated, last.info["answer"]) == (1.0, True, "1.5")
    env.reset(seed=0, options={"task": SUM})
    assert env.step("2.5").reward == 0


def test_mistakes_are_the_policys_own(env: McpTools) -> None:
    kinds: list[tuple[tuple[str, dict[str, Any]], ToolStatus]] = [
        (("divide", {"a": 1, "b": 0}), ToolStatus.ERROR),
        (("divide", {"a": "x"}), ToolStatus.FORMAT_ERROR),
        (("nothing", {}), ToolStatus.FORMAT_ERROR),
    ]
    for (name, arguments), status in kinds:
        step = call(env, name, **arguments)
        assert step.info["tool_results"][0].status is status
        assert not step.terminated


def test_a_restored_episode_goes_on_from_where_it_was(env: McpTools) -> None:
    call(env, "add_note", text="one")
    snapshot = env.snapshot()
    call(env, "add_note", text="two")
    assert said(call(env, "read_notes")) == "one\ntwo"
    env.restore(snapshot)
    assert said(call(env, "read_notes")) == "one"


def test_forks_have_servers_of_their_own(env: McpTools) -> None:
    call(env, "add_note", text="one")
    first, second = env.fork(2)
    try:
        call(first, "add_note", text="two")
        assert [said(call(one, "read_notes")) for one in (first, second, env)] == ["one\ntwo", "one", "one"]
    finally:
        first.close()
        second.close()


def test_a_server_that_answers_otherwise_cannot_go_back(env: McpTools) -> None:
    call(env, "process")  # another process has another number
    snapshot = env.snapshot()
    env.restore(snapshot)  # nothing has happened since
    call(env, "read_notes")
    with pytest.raises(SnapshotError, match="call 1, of 'process', otherwise than before"):
        env.restore(snapshot)


def test_calls_that_must_not_be_made_again_refuse_snapshots() -> None:
    env = McpTools(server=COMMAND, server_state="kept")
    env.reset(seed=0)
    env.snapshot()
    call(env, "read_notes")
    with pytest.raises(SnapshotRefused, match="server_state='replayed'"):
        env.snapshot()
    # Otherwise strategies that go back would make the calls again in place of a snapshot.
    assert env.capability is StateCapability.NONE
    env.close()


def test_a_server_that_ends_is_an_infrastructure_failure_and_the_next_episode_has_another(
    env: McpTools,
) -> None:
    snapshot = env.snapshot()
    with pytest.raises(EnvFault, match="out of coffee"):
        call(env, "crash")
    with pytest.raises(EnvFault, match="has ended its connection"):
        call(env, "read_notes")
    env.restore(snapshot)
    assert said(call(env, "add_note", text="again")) == "1 notes"
    env.reset(seed=0)
    assert said(call(env, "add_note", text="first")) == "1 notes"


def test_a_server_that_does_not_answer_in_time_is_an_infrastructure_failure() -> None:
    env = McpTools(server=COMMAND, timeout_s=3)
    env.reset(seed=0)
    began = time.monotonic()
    with pytest.raises(EnvFault, match=r"a call of 'hang' within 3 s"):
        call(env, "hang")
    assert time.monotonic() - began < 30
    env.close()


def test_a_server_without_memory_is_shared_and_connected_again_when_it_has_ended() -> None:
    env = McpTools(server=COMMAND, server_state="none")
    env.reset(seed=0)
    first = said(call(env, "process"))
    (twin,) = env.fork(1)
    twin.restore(twin.snapshot())
    assert said(call(twin, "process")) == first
    with pytest.raises(EnvFault):
        call(env, "crash")
    twin.reset(seed=0)
    assert said(call(twin, "process")) != first


def test_many_episodes_may_open_the_shared_connection_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    def scene(a: int) -> str:
        # A server that no other test has connected to.
        env = McpTools(server=COMMAND + " ", server_state="none")
        env.reset(seed=0)
        return said(call(env, "divide", a=a, b=2))

    with ThreadPoolExecutor(6) as pool:
        assert [*pool.map(scene, range(6))] == [str(a / 2) for a in range(6)]


def test_tools_may_be_left_out_and_variables_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_KEY", "k")
    monkeypatch.setenv("OUR_SECRET", "s")
    env = McpTools(server=COMMAND, tools=["variables"], variables=["OUR_KEY"])
    env.reset(seed=0)
    assert [*env.tools] == ["variables"]
    names = said(call(env, "variables")).split()
    assert "OUR_KEY" in names
    assert "OUR_SECRET" not in names
    env.close()
    with pytest.raises(UnknownName, match=r"'varables'.*'variables'"):
        McpTools(server=COMMAND, tools=["varables"])


def test_a_long_result_is_cut_in_the_middle() -> None:
    env = McpTools(server=COMMAND, result_chars=10)
    env.reset(seed=0)
    call(env, "add_note", text="x" * 100)
    assert said(call(env, "read_notes")) == "xxxxx\n[90 characters left out]\nxxxxx"
    env.close()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"server": "notes"}, "stdio:COMMAND"),
        ({"server": "stdio:"}, "stdio:COMMAND"),
        ({"server": "stdio:'a"}, "No closing quotation"),
        ({"server": "https://me:secret@tools.example/mcp"}, "'https://tools.example/mcp' .* token_variable"),
        ({"server": COMMAND, "variables": ["NO_SUCH"]}, "'NO_SUCH' .* is not set"),
        ({"server": COMMAND, "timeout_s": 0}, "timeout_s is 0"),
        ({"server": COMMAND, "max_turns": 0}, "max_turns is 0"),
    ],
)
def test_bad_settings_are_refused_before_the_server_is_started(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        McpTools(**options)


@pytest.mark.parametrize("token", ["schlüssel", "two words", "a\nb"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(
    token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_TOKEN", token)
    with pytest.raises(ConfigurationError, match="MCP_TOKEN") as refused:
        McpTools(server="http://127.0.0.1:9/mcp", token_variable="MCP_TOKEN")
    assert token not in str(refused.value)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("stdio:no-such-program", "there is no program 'no-such-program'"),
        ("stdio:echo hello", "cannot be used: "),
        ("http://127.0.0.1:9/mcp", "cannot be used: ConnectError"),
    ],
)
def test_what_is_no_server_is_an_infrastructure_failure(address: str, said: str) -> None:
    with pytest.raises(EnvFault, match=said):
        McpTools(server=address)


def test_without_the_sdk_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"agentenv-suite\[mcp\]"):
        McpTools(server="stdio:no-other-test-names-this")


def test_over_http_a_server_is_used_by_its_url(tmp_path: Path) -> None:
    import socket
    import subprocess

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with (tmp_path / "log").open("w") as log:
        command = [*COMMAND.removeprefix("stdio:").split()[:-1], "http", str(port)]
        started = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                env = McpTools(server=f"http://127.0.0.1:{port}/mcp")
                break
            except EnvFault:
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.2)
        env.reset(seed=0)
        assert said(call(env, "divide", a=1, b=8)) == "0.125"
        env.close()
        env = McpTools(server=f"http://127.0.0.1:{port}/mcp", pixels=True)
        env.reset(seed=0)
        assert len(images_of(call(env, "chart", color="red").observation)) == 1
        env.close()
    finally:
        started.kill()
        started.wait(30)

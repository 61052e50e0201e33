"""Agent programs whose model is the policy: replies, contexts, time travel, and which failures are whose."""

import gc
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the serve extra")

import psutil

from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.types import EndReason, Step, Task, TurnTokens, is_context
from agentenv.envs.agent_program.endpoint import endpoint
from agentenv.envs.agent_program.env import AgentProgram
from agentenv.errors import ConfigurationError, EnvFault, SnapshotError, SnapshotRefused
from agentenv.trainers.strategies.rewind import Rewinder

HERE = Path(__file__).parent
SUM = Task("sum", "What is 2 + 3?", ("5",))
CALL = '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 3}}</tool_call>'


@pytest.fixture(autouse=True)
def _agents_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)


def command(name: str) -> str:
    return f"stdio:{sys.executable} {HERE / 'agents.py'} {name}"


@contextmanager
def playing(agent: str, **options: Any) -> Iterator[AgentProgram]:
    address = agent if ":" in agent else f"python:agents:{agent}"
    env = AgentProgram(agent=address, **{"timeout_s": 60} | options)
    try:
        env.reset(seed=0, options={"task": SUM})
        yield env
    finally:
        env.close()


def running_agents() -> list[psutil.Process]:
    """The commands that this process has started; of other tests it may have children that live longer."""
    return [one for one in psutil.Process().children() if "agents.py" in " ".join(one.cmdline())]


def texts_of(env: AgentProgram) -> list[str]:
    return [message.text for message in env.state.request.messages]


def texts(step: Step) -> list[str]:
    return [message.text.strip() for message in step.observation]


@pytest.mark.parametrize("agent", ["python:agents:plain", command("plain")])
def test_what_the_policy_answers_reaches_the_agent_and_the_agents_answer_is_scored(agent: str) -> None:
    env = AgentProgram(agent=agent, variables=["PYTHONPATH"] if "PYTHONPATH" in os.environ else [])
    try:
        for said, reward in (("5", 1.0), ("6", 0.0)):
            shown, info = env.reset(seed=0, options={"task": SUM})
            assert [(m.role, m.text) for m in shown] == [("user", SUM.question)]
            assert info["task_id"] == "sum"
            step = env.step(said)
            assert (step.reward, step.terminated, step.info["answer"]) == (reward, True, said)
            assert step.info["end_reason"] is EndReason.ANSWERED
    finally:
        env.close()


def test_tools_of_the_agent_are_declared_and_their_results_come_in_the_order_of_the_calls() -> None:
    with playing("with_tools") as env:
        shown, _ = env.reset(seed=0, options={"task": SUM})
        assert '"name": "add"' in shown[0].text
        assert shown[0].text.endswith("Use the tool.")
        other = CALL.replace("2", "40")
        step = env.step(f"I add. {CALL}{other}")
        assert texts(step) == [
            "<tool_response>\n5\n</tool_response>",
            "<tool_response>\n43\n</tool_response>",
        ]
        assert step.info["valid"]
        assert env.step("5").reward == 1


def test_a_call_that_cannot_be_read_reaches_the_agent_as_text() -> None:
    with playing("with_tools") as env:
        step = env.step("<tool_call>{broken</tool_call>")
        assert step.info["answer"] == "<tool_call>{broken</tool_call>"
        assert (step.reward, step.info["valid"]) == (0, False)


def test_a_request_that_does_not_go_on_from_the_one_before_is_a_context_of_its_own() -> None:
    with playing("forgetful") as env:
        step = env.step("one")
        assert is_context(step.observation)
        assert texts(step) == ["", f"{SUM.question} Note 1: one"]
        step = env.step("two")
        assert texts(step)[1:] == [f"{SUM.question} Note 2: two"]
        assert env.step("5").reward == 1


def test_a_message_of_the_system_within_a_conversation_leaves_nothing_out() -> None:
    for said, shown in (("Five, I think.", []), (CALL, ["<tool_response>\n5\n</tool_response>"])):
        with playing("reminding") as env:
            step = env.step(said)
            assert is_context(step.observation)
            assert step.observation[1].text.endswith(SUM.question)
            assert texts(step)[2:] == [said, *shown, "One word."]
            assert env.step("5").reward == 1


def test_a_turn_without_text_is_scored() -> None:
    with playing("as_it_came") as env:
        step = env.step("")
        assert (step.reward, step.info["answer"]) == (0, "")
        assert step.info["end_reason"] is EndReason.ANSWERED


def test_stop_strings_of_the_agent_end_a_turn_and_are_no_part_of_it() -> None:
    with playing("react") as env:
        assert env.turn_stop(("</a>",)) == ("</a>", "Observation:")
        step = env.step("Look it up. Observation: rain, and more that a sampler without the string writes")
        assert env.state.session.exchanges[0].reply.turn.text == "Look it up. "
        assert texts(step) == ["Observation: sunny"]
        assert env.step("5").reward == 1
        env.native = True
        with pytest.raises(ConfigurationError, match="stop at 'Observation:'"):
            env.reset(seed=0)


def test_an_episode_is_cut_after_its_turns() -> None:
    with playing("with_tools", max_turns=2) as env:
        assert not env.step(CALL).truncated
        step = env.step(CALL)
        assert (step.truncated, step.reward, step.info["end_reason"]) == (True, 0, EndReason.TURN_LIMIT)


def test_going_back_lets_the_agent_work_again_and_forks_have_agents_of_their_own() -> None:
    with playing("with_tools") as env:
        env.step(CALL)
        snapshot = env.snapshot()
        assert env.step("6").reward == 0
        env.restore(snapshot)
        (twin,) = env.fork(1)
        assert texts(twin.step(CALL)) == ["<tool_response>\n5\n</tool_response>"]
        assert env.step("5").reward == 1
        assert twin.step("5").reward == 1
        twin.close()


def test_an_agent_that_asks_otherwise_the_second_time_cannot_go_back() -> None:
    with playing("by_chance") as env:
        snapshot = env.snapshot()
        env.restore(snapshot)  # nothing has happened since
        env.step("5")
        with pytest.raises(SnapshotError, match="after 0 answers it does something else"):
            env.restore(snapshot)


def test_an_agent_that_must_not_work_twice_refuses_snapshots_after_the_first_answer() -> None:
    with playing("with_tools", agent_state="kept") as env:
        before = env.snapshot()
        env.step(CALL)
        with pytest.raises(SnapshotRefused, match="agent_state='kept'"):
            env.snapshot()
        with pytest.raises(SnapshotError, match="agent_state='kept'"):
            env.restore(before)
        # A strategy that goes back would otherwise play the actions again in place of a snapshot.
        with pytest.raises(ConfigurationError, match="neither be captured nor replayed"):
            Rewinder(EpisodeSpec(env, SUM, 0), RolloutConfig())


@pytest.mark.parametrize(
    ("agent", "named"),
    [
        ("python:agents:raises", "KeyError"),
        (command("raises"), "ended with code 1.*KeyError"),
        ("python:agents:gives_a_number", "returned 5 of type int"),
        (command("leaves"), "ended with code 3"),
    ],
)
def test_an_agent_that_fails_is_an_infrastructure_failure(agent: str, named: str) -> None:
    options = {"variables": ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    with playing(agent, **options) as env:
        with pytest.raises(EnvFault, match=named):
            env.step("5")
        env.reset(seed=0)  # the next episode is another one


@pytest.mark.parametrize(
    ("agent", "error"),
    [("python:agents:raises", "LookupError"), (command("leaves"), "exit 3")],
)
def test_errors_that_are_named_as_the_policys_earn_nothing(agent: str, error: str) -> None:
    options = {"variables": ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    with playing(agent, policy_errors=["ValueError", error], **options) as env:
        step = env.step("5")
        assert (step.reward, step.terminated, step.info["valid"]) == (0, True, False)
        assert step.info["end_reason"] is EndReason.PARSE_ERROR


def test_an_agent_that_does_nothing_is_given_up() -> None:
    env = AgentProgram(agent="python:agents:sleeps", timeout_s=0.3)
    with pytest.raises(EnvFault, match=r"neither asked its model nor ended for 0\.3 s"):
        env.reset(seed=0)
    env.close()


def test_an_agent_that_never_asks_cannot_be_trained() -> None:
    env = AgentProgram(agent="python:agents:knows")
    with pytest.raises(EnvFault, match="before it asked its model: its answer is '5'"):
        env.reset(seed=0)
    env.close()


def test_a_command_ends_with_its_episode_and_so_does_what_it_has_started() -> None:
    options = {"variables": ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    with playing(command("with_child"), **options):
        (agent,) = running_agents()
        before = [agent, *agent.children(recursive=True)]
        assert len(before) == 2
    _, alive = psutil.wait_procs(before, timeout=20)
    assert not alive


def test_a_command_has_answered_when_it_ends_although_a_child_holds_its_output() -> None:
    options = {"variables": ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    with playing(command("leaves_a_child"), **options, timeout_s=20) as env:
        assert env.step("5").reward == 1


def test_the_agent_of_an_environment_that_nobody_has_any_more_ends() -> None:
    variables = [name for name in ("PYTHONPATH",) if name in os.environ]
    env = AgentProgram(agent=command("plain"), variables=variables)
    env.reset(seed=0)
    agents = running_agents()
    assert len(agents) == 1
    del env
    gc.collect()
    _, alive = psutil.wait_procs(agents, timeout=20)
    assert not alive


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "python:MODULE:FUNCTION"),
        ({"agent": "agents.py"}, "python:MODULE:FUNCTION"),
        ({"agent": "python:agents:nobody"}, "nobody"),
        ({"agent": "python:agents:ADD"}, "no function"),
        ({"agent": "stdio:"}, "python:MODULE:FUNCTION"),
        ({"agent": "stdio:python 'x"}, "cannot be read"),
        ({"agent": "stdio:x", "variables": ["NOT_SET_ANYWHERE"]}, "NOT_SET_ANYWHERE"),
        ({"agent": "stdio:x", "policy_errors": ["exit"]}, ""),
        ({"agent": "stdio:x", "policy_errors": ["exit now"]}, "exit now"),
        ({"agent": "stdio:x", "max_turns": 0}, "max_turns is 0"),
        ({"agent": "stdio:x", "timeout_s": 0}, "timeout_s 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], named: str) -> None:
    if not named:
        AgentProgram(**options)
        return
    with pytest.raises(ConfigurationError, match=named):
        AgentProgram(**options)


def test_only_what_can_be_called_is_proposed_in_place_of_a_function_that_does_not_exist() -> None:
    with pytest.raises(ConfigurationError, match=r"agents:AD'") as refused:
        AgentProgram(agent="python:agents:AD")
    assert "agents:ADD" not in str(refused.value)  # a mapping of that module


def test_a_command_that_does_not_exist_is_named() -> None:
    env = AgentProgram(agent="stdio:no-such-agent --now")
    with pytest.raises(EnvFault, match="'no-such-agent' cannot be started"):
        env.reset(seed=0)
    env.close()


def test_a_client_that_asks_again_because_it_was_impatient_is_answered() -> None:
    with playing("impatient_twice") as env:
        time.sleep(2.5)
        assert env.step("5").reward == 1


def test_a_client_that_has_given_up_is_no_failure_of_the_policy() -> None:
    with playing("impatient") as env:
        time.sleep(2.5)
        with pytest.raises(EnvFault, match=r"longer timeout|ended while its model wrote"):
            env.step("5")


def test_a_connection_that_is_idle_for_some_seconds_serves_again() -> None:
    with playing("pausing") as env:
        env.step("4")
        assert env.step("5").reward == 1


def test_half_a_character_of_a_request_is_replaced() -> None:
    with playing("cuts_a_character") as env:
        assert env.state.request.messages[0].text == "Go on: ? \\ud83d \U0001f600"
        assert env.step("5").reward == 1


def test_requests_at_the_same_time_are_answered_one_after_the_other() -> None:
    with playing("twins") as env:
        first = env.step("left")
        assert is_context(first.observation)
        assert env.step("right").info["answer"] == "left and right"


def test_coroutines_that_ask_in_threads_do_not_wait_for_each_other() -> None:
    """More episodes than the standard library's pool has threads (32 at most), all of which ask before one is answered."""
    envs = [AgentProgram(agent="python:agents:forgetful", timeout_s=20) for _ in range(40)]
    try:
        for env in envs:
            env.reset(seed=0, options={"task": SUM})
        assert [env.step("so").terminated for env in envs] == [False] * 40
    finally:
        for env in envs:
            env.close()


def test_what_an_agent_that_has_ended_still_asks_is_nobodys_concern() -> None:
    with playing("leaves_requests") as env:
        time.sleep(1.5)
        step = env.step("6")
        assert (step.terminated, step.info["answer"]) == (True, "5")


def test_a_request_that_waits_is_not_lost_where_another_one_is_asked_again() -> None:
    with playing("impatient_beside_another") as env:
        time.sleep(3)
        step = env.step("one")
        assert texts(step) == ["", "right"]
        assert env.step("two").info["answer"] == "one and two"


def test_a_request_that_was_given_up_before_its_turn_is_not_posed() -> None:
    with playing("gives_up_one") as env:
        assert texts_of(env) == ["first"]
        time.sleep(3)
        assert texts(env.step("one")) == ["", "after one"]
        assert env.step("5").reward == 1


def test_an_agent_that_hides_a_refusal_is_not_scored_and_one_that_does_without_is() -> None:
    with playing("hides_a_refusal") as env, pytest.raises(EnvFault, match="refused: tool_choice"):
        env.step("5")
    with playing("does_without") as env:
        assert env.step("5").reward == 1


def test_an_interface_that_is_not_served_is_named() -> None:
    env = AgentProgram(agent="python:agents:asks_elsewhere")
    with pytest.raises(EnvFault, match="POST /v1/responses is not served, but POST /v1/chat/completions"):
        env.reset(seed=0)
    env.close()


@pytest.mark.parametrize("agent", ["with_openai", "with_openai_stream"])
def test_the_client_of_openai_is_served(agent: str) -> None:
    pytest.importorskip("openai", reason="needs OpenAI's client")
    with playing(agent) as env:
        step = env.step(CALL)
        assert texts(step) == ["<tool_response>\n5\n</tool_response>"]
        assert env.step("5").reward == 1


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"n": 2}, "n:"),
        ({"stop": [3]}, "stop"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages"),
        ({"tools": [{"type": "function", "function": {}}]}, "tool"),
    ],
)
def test_what_is_not_served_is_refused_in_a_sentence_that_reaches_the_log(
    body: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_BODY", json.dumps(body))
    env = AgentProgram(agent="python:agents:asks_for_more")
    with pytest.raises(EnvFault, match=named):
        env.reset(seed=0)
    env.close()


def test_parts_of_a_text_are_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [{"type": "text", "text": text} for text in ("Read.", "Answer.")]
    monkeypatch.setenv("AGENT_BODY", json.dumps({"messages": [{"role": "user", "content": parts}]}))
    with playing("asks_for_more") as env:
        assert env.state.request.messages[0].text == "Read.\nAnswer."


def test_a_key_of_another_time_is_refused() -> None:
    with playing("plain") as env:
        env.step("5")
    with playing("with_a_wrong_key") as env:
        assert "no episode that is being played has this key" in env.state.request.messages[0].text


def test_headers_without_end_are_refused_while_an_episode_is_played() -> None:
    with playing("plain") as env:
        port = int(endpoint._url.rpartition(":")[2].removesuffix("/v1"))
        with socket.create_connection(("127.0.0.1", port), timeout=30) as peer:
            peer.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * 100_000)
            assert b" 431 " in peer.recv(100)
        assert env.step("5").reward == 1.0


def test_an_agent_that_works_again_is_told_of_the_same_tokens() -> None:
    pytest.importorskip("openai", reason="needs OpenAI's client")
    with playing("accounts") as env:
        for tokens in (TurnTokens(7, 3), TurnTokens(20, 4, truncated=True)):
            env.sampled = tokens
            env.step("so")
        (fork,) = env.fork()
        try:
            for one in (env, fork):
                told = json.loads(one.step("so").info["answer"])
                assert told == [[7, 3, 10, "stop"], [20, 4, 24, "length"], [0, 0, 0, "stop"]]
        finally:
            fork.close()


def test_a_client_that_raises_on_an_answer_that_was_cut_has_met_a_mistake_of_the_policy() -> None:
    pytest.importorskip("openai", reason="needs OpenAI's client")
    with playing("with_openai_stream") as env:
        env.sampled = TurnTokens(20, 4, truncated=True)
        step = env.step("5")
        assert (step.reward, step.info["end_reason"]) == (0, EndReason.PARSE_ERROR)
        assert "length limit" in step.info["error"]


def test_an_agent_that_takes_one_call_gets_the_first() -> None:
    with playing("one_at_a_time") as env:
        step = env.step(CALL * 2)
        assert (texts(step), is_context(step.observation)) == (
            ["<tool_response>\n1\n</tool_response>"],
            False,
        )
        assert env.step("5").reward == 1

"""What environments return, checked value by value: what is taken, in which form, and what each refusal names."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentenv.core.env_outputs import (
    checked_key,
    checked_opening,
    checked_step,
    most_chars,
    step_without_surrogates,
)
from agentenv.core.types import EndReason, Message, MessagePart, Step, ToolResult, ToolStatus
from agentenv.errors import EnvFault

PNG = b"\x89PNG and more"
SAID = (Message("user", "Who?"),)
INFO: dict[str, Any] = {"tool_results": (), "valid": True}
RESULT: Any = ToolResult("search", ToolStatus.OK, "a page", data={"ids": [["d1"], ["d2", "d3"]]})
HALF = "\ud800"


def step(**parts: Any) -> tuple[Any, ...]:
    given = {
        "observation": SAID,
        "reward": 0.0,
        "terminated": False,
        "truncated": False,
        "info": INFO,
    } | parts
    return tuple(given.values())


def info(**entries: Any) -> tuple[Any, ...]:
    return step(info=INFO | entries)


def test_as_much_text_is_taken_as_the_context_could_hold_at_128_characters_a_token() -> None:
    assert most_chars(10) == 1280
    assert most_chars(62_500) == most_chars(62_501) == most_chars(10**9) == 8_000_000


def test_an_opening_is_taken_as_it_is() -> None:
    seen = (Message("user", (MessagePart("image", image=PNG),)),)
    assert checked_opening((SAID, {"task_id": "t"}), 4) == (SAID, {"task_id": "t"})
    assert checked_opening(([*SAID], {}), 4) == (SAID, {})
    assert checked_opening((seen, {}), 0) == (seen, {})


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("text", "'text'"),
        ((SAID, {}, 1), "returned .*Message"),
        ((SAID,), "returned .*Message"),
        (([], {}), r"\[\]"),
        (((Message("user", ""),), {}), "gave the observation .*Message"),
        (((Message("user", (MessagePart("text", ""),)),), {}), "gave the observation .*Message"),
        (((Message("user", "12345"),), {}), r"\b5\b.*\b4\b"),
        ((SAID, None), "None"),
        ((None, {}), "None"),
        (("Who?", {}), "'Who"),
        ((("Who?",), {}), "'Who"),
        (((Message("robot", "Who?"),), {}), "'robot'.*user"),  # type: ignore[arg-type]
        (((Message("user", 7),), {}), r"\b7\b"),  # type: ignore[arg-type]
        (((Message("user", ("Who?",)),), {}), "'Who"),  # type: ignore[arg-type]
        (((Message("user", (MessagePart("text", 7),)),), {}), r"\b7\b"),  # type: ignore[arg-type]
        (((Message("user", (MessagePart("image", image=b"GIF"),)),), {}), "GIF"),
        (((Message("user", (MessagePart("image", image="text"),)),), {}), "'text'"),  # type: ignore[arg-type]
        (((Message("user", f"a{HALF}"),), {}), r"ud800.*\b1\b"),
    ],
)
def test_an_opening_that_cannot_be_used_is_named(given: Any, named: str) -> None:
    with pytest.raises(EnvFault, match=named) as refused:
        checked_opening(given, 4)
    assert "reset" in str(refused.value)


def test_a_step_comes_back_in_plain_values() -> None:
    given = step(
        reward=np.float32(0.5), terminated=np.bool_(True), info=INFO | {"end_reason": "answered", "more": 1}
    )
    taken, size = checked_step(given, 10)
    assert isinstance(taken, Step)
    assert size == 4
    assert [type(taken.reward), type(taken.terminated)] == [float, bool]
    assert taken == (SAID, 0.5, True, False, {**INFO, "end_reason": EndReason.ANSWERED, "more": 1})


@pytest.mark.parametrize(
    ("reward", "taken"),
    [
        (1, 1),
        (True, 1.0),
        (-0.5, -0.5),
        (1e15, 1e15),
        (np.int64(3), 3),
        (np.array([0.25]), 0.25),
        (np.array(0.25), 0.25),
    ],
)
def test_a_reward_is_a_number_of_python(reward: Any, taken: float) -> None:
    found = checked_step(step(reward=reward), 10)[0].reward
    assert found == taken
    assert type(found) is type(taken)


@pytest.mark.parametrize(
    "reward", [None, "1", float("nan"), float("inf"), 1.1e15, -1.1e15, 10**400, np.array([1.0, 2.0]), 1j]
)
def test_a_reward_that_is_no_finite_number_is_refused(reward: Any) -> None:
    with pytest.raises(EnvFault, match=r"step gave the reward .*1e\+15"):
        checked_step(step(reward=reward), 10)


def test_an_observation_is_cut_message_by_message_and_its_full_size_is_told() -> None:
    long = (Message("tool", "abcdef"), Message("user", "ghij"), Message("user", "k"))
    taken, size = checked_step(step(observation=long), 8)
    assert (size, taken.observation) == (
        11,
        (Message("tool", "abcdef"), Message("user", "gh"), Message("user", "")),
    )
    assert checked_step(step(observation=long), 11)[0].observation == long
    assert checked_step(step(observation=()), 8)[1] == 0


def test_what_a_step_says_of_itself_is_cut_and_checked() -> None:
    given = info(answer="abcdefgh", solved=np.bool_(True), tool_results=[RESULT], valid=np.bool_(False))
    found = checked_step(given, 3)[0].info
    assert found == {
        "answer": "abc",
        "solved": True,
        "valid": False,
        "tool_results": (replace(RESULT, text="a p"),),
    }
    assert type(found["solved"]) is type(found["valid"]) is bool
    parts = checked_step(info(reward_parts={"right": np.float32(0.5)}), 3)[0].info["reward_parts"]
    assert (parts, type(parts["right"])) == ({"right": 0.5}, float)
    assert checked_step(info(answer=12), 3)[0].info["answer"] == "12"
    assert checked_step(info(answer=None), 3)[0].info["answer"] is None
    assert checked_step(info(tool_results=(RESULT,)), 6)[0].info["tool_results"][0] is RESULT
    assert checked_step(info(end_reason="nonsense"), 3)[0].info["end_reason"] == "nonsense"  # it goes on


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("text", "'text'"),
        (step()[:4], "returned .*Message"),
        ([*step()], "returned .*Message"),
        (step(terminated=1), r"terminated is 1"),
        (step(truncated=None), "truncated is None"),
        (step(terminated=np.array([True, False])), "terminated"),
        (step(info=None), "info None"),
        (step(info={"valid": True}), "tool_results.* None"),
        (info(tool_results=7), r"tool_results.* 7"),
        (step(info={"tool_results": ()}), "'valid'.* None"),
        (info(valid=1), r"'valid'.* 1"),
        (info(solved="yes"), r"'solved'.* 'yes'"),
        (info(reward_parts=[1.0]), r"'reward_parts'.* \[1\.0\]"),
        (info(reward_parts={1: 1.0}), "'reward_parts'"),
        (info(reward_parts={"right": float("nan")}), "'right'.*nan"),
        (info(strategy={}), "'strategy'"),
        (info(game={}), "'game'"),
        (info(answer=HALF), r"'answer'.*ud800.*\b0\b"),
        (step(terminated=True), "'end_reason'.* None"),
        (step(truncated=True, info=INFO | {"end_reason": "tired"}), "'end_reason'.* 'tired'"),
        (info(tool_results=("page",)), "tool result.* 'page'"),
        (info(tool_results=(replace(RESULT, status="ok"),)), "tool result"),
        (info(tool_results=(replace(RESULT, name=7),)), r"name is 7"),
        (info(tool_results=(replace(RESULT, text=None),)), "text is None"),
        (info(tool_results=(replace(RESULT, error_class=HALF),)), "error_class.*ud800"),
        (info(tool_results=(replace(RESULT, data=None),)), "data None"),
        (info(tool_results=(replace(RESULT, data={"ids": "d1"}),)), "'d1'"),
        (info(tool_results=(replace(RESULT, data={"ids": 7}),)), r"\b7\b"),
        (info(tool_results=(replace(RESULT, data={"ids": ["d1"]}),)), "'d1'"),
        (info(tool_results=(replace(RESULT, data={"ids": [["d1"], [7]]}),)), r"an id is 7"),
        (step(observation=(Message("user", HALF),)), "observation.*ud800"),
    ],
)
def test_a_step_that_cannot_be_used_is_named(given: Any, named: str) -> None:
    with pytest.raises(EnvFault, match=named) as refused:
        checked_step(given, 100)
    assert "step" in str(refused.value)


def test_a_value_that_cannot_be_shown_is_named_by_its_class() -> None:
    class deque:  # a name by which a short form is chosen that this one does not have
        pass

    with pytest.raises(EnvFault, match="class deque"):
        checked_step(step(reward=deque()), 10)


def test_a_tool_result_without_ids_is_taken() -> None:
    several: tuple[dict[str, Any], ...] = ({}, {"ids": []}, {"ids": ()})
    for data in several:
        plain = replace(RESULT, data=data)
        assert checked_step(info(tool_results=(plain,)), 10)[0].info["tool_results"] == (plain,)


def test_lone_surrogates_are_mended_wherever_text_stands() -> None:
    parts = (MessagePart("image", f"b{HALF}", PNG), MessagePart("text", "c"))
    given = step(
        observation=[Message("user", f"a{HALF}"), Message("user", parts)],
        info=INFO
        | {
            "tool_results": [replace(RESULT, name=f"n{HALF}", text=f"t{HALF}", error_class=f"e{HALF}")],
            "answer": f"x{HALF}",
        },
    )
    observation, reward, terminated, truncated, found = step_without_surrogates(given)
    assert observation == (
        Message("user", "a?"),
        Message("user", (MessagePart("image", "b?", PNG), MessagePart("text", "c"))),
    )
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert found["tool_results"] == (replace(RESULT, name="n?", text="t?", error_class="e?"),)
    assert found["answer"] == "x?"
    assert given[4]["answer"] == f"x{HALF}"  # what was given is not changed


@pytest.mark.parametrize(
    "given",
    ["text", step()[:4], step(info=None), step(observation=None), info(tool_results=7), info(answer=7)],
)
def test_what_cannot_be_read_is_not_mended_and_refused_later(given: Any) -> None:
    assert step_without_surrogates(given) == given


def test_an_anchor_key_is_text_or_none() -> None:
    assert checked_key(None) is None
    assert checked_key("page 1") == "page 1"
    for given, named in ((7, "anchor_key is 7"), (HALF, "anchor_key.*ud800")):
        with pytest.raises(EnvFault, match=named):
            checked_key(given)

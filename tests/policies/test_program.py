"""A function of somebody's own as a policy: the contract, what it is shown, what is recorded, and its mistakes."""

import asyncio
from threading import Event
from typing import Any, ClassVar

import pytest

from agentenv.core.protocols import Policy
from agentenv.core.types import Completion, FinishReason, Message, Sampling
from agentenv.errors import ConfigurationError, PolicyFault, UnknownName
from agentenv.policies.endpoint_formats import MessageFormat
from agentenv.policies.policy_contract import PolicyContract
from agentenv.policies.policy_spec import make_program_policy
from agentenv.policies.program import ProgramPolicy


def prompt(text: str) -> tuple[int, ...]:
    return tuple(MessageFormat().prompt([Message("user", text)]))


class TestProgramPolicy(PolicyContract):
    prompts: ClassVar[tuple[tuple[int, ...], ...]] = (prompt("Hey"), prompt("a longer message"), prompt("Z"))

    def make(self) -> Policy:
        return ProgramPolicy("mine:upper", str.upper)


def ask(function: Any, text: str, sampling: Sampling) -> Completion:
    policy = ProgramPolicy("mine:function", function)
    ids = policy.chat.prompt([Message("system", "before"), Message("user", text)])
    return asyncio.run(policy.generate(ids, sampling))


def test_it_is_shown_the_latest_message_letter_by_letter() -> None:
    shown = " Zoë\n日本 <|im_end|> a\n\n"
    assert ask(lambda text: text, shown, Sampling(99)).text == shown


def test_what_it_writes_is_cut_as_what_a_model_writes() -> None:
    stopped = ask(lambda _: "<a>x</a> and more", "", Sampling(99, stop=("</a>",)))
    assert (stopped.text, stopped.finish) == ("<a>x</a>", FinishReason.STOP)
    cut = ask(lambda _: "one two three", "", Sampling(2))
    assert (cut.text, cut.finish, len(cut.ids)) == ("one two", FinishReason.LENGTH, 2)


def leave(text: str) -> str:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("function", "named"),
    [(lambda _: 1 / 0, "ZeroDivisionError"), (lambda text: None, "None"), (leave, "SystemExit")],
)
def test_a_function_that_fails_or_gives_no_text_is_a_fault_of_its_episode(function: Any, named: str) -> None:
    with pytest.raises(PolicyFault, match=f"mine:function.*{named}"):
        ask(function, "", Sampling(9))


def test_a_function_that_does_not_return_is_left_behind() -> None:
    waiting = Event()

    async def asked() -> None:
        policy = ProgramPolicy("mine:hangs", lambda _: str(waiting.wait(60)))
        async with asyncio.timeout(0.2):
            await policy.generate(prompt("x"), Sampling(9))

    with pytest.raises(TimeoutError):
        asyncio.run(asked())
    waiting.set()
    assert ask(str.upper, "still answers", Sampling(9)).text == "STILL ANSWERS"


def test_it_is_found_by_its_name() -> None:
    assert make_program_policy("python:textwrap:dedent").function("  a") == "a"
    with pytest.raises(ConfigurationError, match=r"textwrap:deden\b.*textwrap:dedent"):
        make_program_policy("python:textwrap:deden")
    with pytest.raises(UnknownName, match="python:MODULE:NAME"):
        make_program_policy("python:textwrap")

"""Scripted policies: the contract, what a script plays, its end, and the floor actions."""

import asyncio

import pytest

from agentenv.core.protocols import Policy
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import ConfigurationError, PolicyFault
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.policy_contract import PolicyContract
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.scripted import ScriptedPolicy


class TestScriptedPolicy(PolicyContract):
    reads_episode = True

    def make(self) -> Policy:
        return ScriptedPolicy({episode: [f"{episode}, é!"] for episode in self.episodes})


def play(policy: ScriptedPolicy, sampling: Sampling, episode: str | None = "e-0") -> Completion:
    return asyncio.run(policy.generate([1], sampling, episode=episode))


def test_actions_come_turn_by_turn_and_end_with_the_end_of_turn_id() -> None:
    policy = ScriptedPolicy({"e-0": ["ab", "c"]})
    assert play(policy, Sampling(9)) == Completion((97, 98, 256), "ab", (0.0,) * 3, FinishReason.EOS)
    assert play(policy, Sampling(9)).text == "c"
    with pytest.raises(PolicyFault, match=r"\b3\b"):
        play(policy, Sampling(9))


def test_a_stop_string_takes_the_place_of_the_end_of_turn() -> None:
    done = play(ScriptedPolicy({"e-0": ["<a>x</a> and more"]}), Sampling(99, stop=("</a>",)))
    assert (done.text, done.finish, done.ids[-1]) == ("<a>x</a>", FinishReason.STOP, ord(">"))


def test_a_stop_string_behind_the_token_limit_is_never_reached() -> None:
    done = play(ScriptedPolicy({"e-0": ["<a>x</a>"]}), Sampling(4, stop=("</a>",)))
    assert (done.text, done.finish) == ("<a>x", FinishReason.LENGTH)


def test_an_unknown_episode_and_none_are_faults() -> None:
    for episode in ("e-1", None):
        with pytest.raises(PolicyFault, match=r"\b0\b"):
            play(ScriptedPolicy({"e-0": ["a"]}), Sampling(9), episode)


def test_episodes_that_lack_a_script_for_the_same_reason_say_the_same() -> None:
    """So that a report counts them together."""
    policy, said = ScriptedPolicy({}, failures=dict.fromkeys(("e-0", "e-1"), "the server is gone")), set()
    for episode in ("e-0", "e-1"):
        with pytest.raises(PolicyFault, match="the server is gone") as caught:
            play(policy, Sampling(9), episode)
        said.add(str(caught.value))
    assert len(said) == 1


@pytest.mark.parametrize("text", ["", "Zoë", "日本<|im_end|>", "a\nb<|im_end|><|im_end|>c"])
def test_bytes_decode_to_what_was_encoded(text: str) -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text).count(256) == text.count("<|im_end|>")


@pytest.mark.parametrize("spec", ["scripted", "scripted:extractive"])
def test_who_has_no_weights_cannot_be_trained(spec: str) -> None:
    with pytest.raises(ConfigurationError, match=f"'{spec}'"):
        make_policy(spec)

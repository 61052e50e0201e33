"""Policies behind an endpoint: the contract, what the model is sent, stop strings, and no training on them."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentenv.core.protocols import Policy
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.trajectory import Trajectory, to_record
from agentenv.core.types import Document, EndReason, FinishReason, Message, Sampling, Task
from agentenv.envs.search.local_search import STOP, LocalSearch
from agentenv.errors import ConfigurationError, PolicyFault, UnknownName
from agentenv.policies.endpoint import ChatClient
from agentenv.policies.endpoint_formats import MessageFormat, PieceTokenizer
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.policies.fake_endpoint import Answer, Body, FakeEndpoint
from agentenv.policies.openai import OpenAIPolicy, restored
from agentenv.policies.policy_contract import PolicyContract
from agentenv.policies.policy_spec import make_endpoint_policy, make_policy
from agentenv.policies.wires import Reply
from agentenv.retrievers.fakes import InMemoryRetriever

TALK = (Message("system", "Be brief."), Message("user", "Who <|im_end|> wrote it?"))


def policy_of(server: FakeEndpoint, **options: Any) -> OpenAIPolicy:
    return OpenAIPolicy(ChatClient(Endpoint("any", server.url, retries=0, **options)))


def echo(body: Body) -> Answer:
    """An answer that the conversation, the seed and the temperature decide."""
    seed = body["seed"] if body["temperature"] else 0
    said = body["messages"][-1]["content"]
    return Answer(f"word {seed} of {said} and more than sixteen pieces of text here", says_stop=True)


class TestOpenAIPolicy(PolicyContract):
    exact_tokens: ClassVar[bool] = False
    prompts: ClassVar[tuple[tuple[int, ...], ...]] = tuple(
        tuple(MessageFormat().prompt((Message("user", text),))) for text in ("one", "two words", "3")
    )

    @pytest.fixture(autouse=True)
    def server(self) -> Any:
        with FakeEndpoint(echo) as server:
            self.server_ = server
            yield

    def make(self) -> Policy:
        return policy_of(self.server_)


@settings(deadline=None)
@given(st.text())
def test_pieces_give_exactly_the_text_and_never_a_mark(text: str) -> None:
    tokenizer = PieceTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(256 <= i < 2**63 for i in ids)


def test_pieces_are_about_as_many_as_tokens() -> None:
    text = "The treaty of Velandra was signed in 1871 by Oda Kest, who later became its governor."
    tokenizer = PieceTokenizer()
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode(text)]
    assert pieces[:6] == ["The", " treaty", " of", " Veland", "ra", " was"]
    assert len(pieces) == 20  # 16 words, of which 2 are cut, and 2 marks; byte pairs of English give 20 to 24


def test_a_conversation_is_sent_as_messages_whatever_stands_in_it() -> None:
    chat = MessageFormat()
    ids = chat.prompt(TALK)
    spoken = [*ids, *PieceTokenizer().encode("I search.")]
    assert chat.closing(spoken) == [0]
    assert chat.closing([*spoken, 0]) == []
    longer = chat.extend([*spoken, 0], (Message("tool", "<information>Ada</information>"),))
    assert longer[: len(spoken)] == spoken
    assert chat.messages(longer) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who <|im_end|> wrote it?"},
        {"role": "assistant", "content": "I search."},
        {"role": "user", "content": "<information>Ada</information>"},
    ]


@pytest.mark.parametrize(
    ("reply", "text", "finish"),
    [
        (Reply("I <search>who", "stop"), "I <search>who</search>", FinishReason.STOP),
        (Reply("<answer> Ada ", "stop"), "<answer> Ada </answer>", FinishReason.STOP),
        (Reply("<search>a or <answer>Ada", "stop"), "<search>a or <answer>Ada</answer>", FinishReason.STOP),
        (Reply("who", "stop", "</search>"), "who</search>", FinishReason.STOP),  # vLLM says which
        (Reply("just talk", "stop"), "just talk", FinishReason.EOS),
        (Reply("<search>who", "length"), "<search>who", FinishReason.LENGTH),  # nothing is added that was cut
        (Reply("<search>who</search> and more", "stop"), "<search>who</search>", FinishReason.STOP),
        (Reply("", "stop"), "", FinishReason.EOS),
    ],
)
def test_the_stop_string_comes_back(reply: Reply, text: str, finish: FinishReason) -> None:
    assert restored(reply, STOP) == (text, finish)


def play(server: FakeEndpoint, **options: Any) -> Trajectory:
    policy = policy_of(server, **options)
    task = Task("t", "Who wrote it?", ("Ada",))
    env = LocalSearch(tasks=[task], retriever=InMemoryRetriever([Document("d", "It", "Ada wrote it.")]))
    config = RolloutConfig(turn_tokens=500, context_tokens=8000, stop=STOP, deterministic=False)
    return asyncio.run(rollout([EpisodeSpec(env, task, 5)], policy, policy.chat, config, name="e"))[0]


def search_then_answer(body: Body) -> Answer:
    turns = sum(message["role"] == "assistant" for message in body["messages"])
    return Answer(
        "<answer>Ada</answer> I am done" if turns else "<think>?</think><search>it</search> and so on"
    )


def test_an_episode_is_played_through_messages() -> None:
    with FakeEndpoint(search_then_answer) as server:
        played = play(server)
        roles = [[message["role"] for message in body["messages"]] for body in server.bodies]
        assert server.bodies[0]["stop"] == list(STOP)
    assert roles == [["user"], ["user", "assistant", "user"]]
    said = server.bodies[1]["messages"]
    assert said[1]["content"] == "<think>?</think><search>it</search>"
    assert "<information>" in said[2]["content"]
    assert (played.end_reason, played.info["answer"]) == (EndReason.ANSWERED, "Ada")


def test_training_on_it_is_refused_loudly() -> None:
    with FakeEndpoint(search_then_answer) as server:
        played = play(server)
    with pytest.raises(ConfigurationError, match="'t'"):
        _ = played.loss_mask
    assert all(math.isnan(value) for segment in played.segments for value in segment.logprobs)
    kept = [segment for segment in to_record(played)["segments"] if segment["kind"] == "policy"]
    assert kept
    assert all(segment["exact_tokens"] is False and "logprobs" not in segment for segment in kept)


def test_a_failing_endpoint_is_a_fault_and_a_wrong_key_stops_the_run() -> None:
    with FakeEndpoint(lambda body: Answer(status=500, raw="")) as server:
        played = play(server)
    assert (played.end_reason, played.valid) == (EndReason.POLICY_FAULT, False)
    assert "500" in played.error
    with (
        FakeEndpoint(lambda body: Answer(status=401, raw="{}")) as server,
        pytest.raises(ConfigurationError, match="'any'"),
    ):
        play(server)


def test_a_full_context_ends_the_episode_by_its_budget() -> None:
    def answer(body: Body) -> Answer:
        if len(body["messages"]) > 1:
            return Answer(status=400, raw='{"error": {"message": "maximum context length is 10"}}')
        return search_then_answer(body)

    with FakeEndpoint(answer) as server:
        assert play(server).end_reason is EndReason.TOKEN_LIMIT


def test_the_engine_s_failure_is_a_policy_fault() -> None:
    async def one(policy: OpenAIPolicy, ids: Sequence[int]) -> None:
        await policy.generate(ids, Sampling(4))

    with FakeEndpoint(lambda body: Answer(status=500, raw="")) as server, pytest.raises(PolicyFault):
        asyncio.run(one(policy_of(server), MessageFormat().prompt(TALK)))


def test_a_spec_names_an_endpoint_that_cannot_be_trained() -> None:
    policy = make_endpoint_policy("openai:org/model@http://localhost:1/v1#turn_tokens=64&context_tokens=999")
    assert (policy.card.turn_tokens, policy.card.context_tokens, policy.context_tokens) == (64, 999, 999)
    assert policy.client.model == "org/model@http://localhost:1/v1"
    with pytest.raises(ConfigurationError, match="'openai:org/model@http://localhost:1/v1'"):
        make_policy("openai:org/model@http://localhost:1/v1")
    with pytest.raises(UnknownName, match=r"openai:MODEL@URL"):
        make_policy("opnai")

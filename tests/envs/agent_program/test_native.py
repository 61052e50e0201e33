"""Agent programs before a policy that calls tools in its model's own form: exact tokens, contexts, training."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the serve extra")
pytest.importorskip("transformers", reason="needs the train extra")

from agentenv.api import evaluate, train
from agentenv.core.chat import ends_of_turn
from agentenv.core.chat_formats import make_chat_format
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.tool_replies import NOT_RUN
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.envs.agent_program.env import AgentProgram
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.fakes import chat_tokenizer, random_model
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import changed, load_config

from .agents import ADD

HERE = Path(__file__).parent
SUM = Task("sum", "What is 2 + 3?", ("5",))
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'


@pytest.fixture(autouse=True)
def _agents_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """One with the chat template of Qwen2.5."""
    trl = pytest.importorskip("trl", reason="needs the interop extra, which brings the template")
    source = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    return chat_tokenizer(
        source.read_text(encoding="utf-8"),
        eos="<|im_end|>",
        special=["<|im_start|>"],
        added=["<tool_call>", "</tool_call>"],
    )


def play(agent: str, actions: Sequence[str], tokenizer: Any, turn_tokens: int = 500) -> Trajectory:
    env = AgentProgram(agent=f"python:agents:{agent}", timeout_s=60)
    chat = make_chat_format("native", tokenizer, ends_of_turn(tokenizer))
    policy = ScriptedPolicy({"e-0": actions}, tokenizer)
    config = RolloutConfig(turn_tokens=turn_tokens, context_tokens=4096)
    try:
        (played,) = asyncio.run(rollout([EpisodeSpec(env, SUM, 0)], policy, chat, config, name="e"))
    finally:
        env.close()
    return played


def rows_of(played: Trajectory, tokenizer: Any) -> list[str]:
    rows = sorted({segment.row for segment in played.segments})
    return [tokenizer.decode([i for s in played.segments if s.row == row for i in s.ids]) for row in rows]


def rendered(tokenizer: Any, messages: list[Any], tools: Any = None) -> str:
    """What a server of the model would feed it."""
    text: str = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=True
    )
    return text


def test_an_agent_with_tools_is_one_row_of_what_a_server_would_feed(tokenizer: Any) -> None:
    played = play("with_tools", [CALL, "5"], tokenizer)
    assert (played.reward, played.end_reason) == (1.0, EndReason.ANSWERED)
    (row,) = rows_of(played, tokenizer)
    call = {"function": {"name": "add", "arguments": {"a": 2, "b": 3}}, "type": "function", "id": "x"}
    said = [
        {"role": "system", "content": "Use the tool."},
        {"role": "user", "content": SUM.question},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "5"},
    ]
    assert row == rendered(tokenizer, said, [ADD]) + "5<|im_end|>"
    sampled = [tokenizer.decode(list(s.ids)) for s in played.segments if s.kind is SegmentKind.POLICY]
    assert sampled == [f"{CALL}<|im_end|>", "5<|im_end|>"]


def test_an_agent_is_told_of_the_tokens_and_of_an_answer_that_was_cut(tokenizer: Any) -> None:
    pytest.importorskip("openai", reason="needs OpenAI's client")
    played = play("accounts", ["one", "far too long", "two"], tokenizer, turn_tokens=6)
    told, read, expected = json.loads(played.info["answer"]), 0, []
    for segment in played.segments:
        if segment.kind is SegmentKind.POLICY:
            written = len(segment.ids)
            expected.append([read, written, read + written, "length" if segment.turn == 1 else "stop"])
        read += len(segment.ids)
    assert told == expected
    assert told[1][1] == 6


def test_every_context_of_its_own_is_what_a_server_would_feed(tokenizer: Any) -> None:
    played = play("forgetful", ["one", "two", "5"], tokenizer)
    assert played.reward == 1
    for place, (row, before) in enumerate(zip(rows_of(played, tokenizer), ["", "one", "two"], strict=True)):
        said = [{"role": "user", "content": f"{SUM.question} Note {place}: {before}"}]
        assert row.startswith(rendered(tokenizer, said))


def test_a_context_of_its_own_shows_earlier_calls_as_the_template_writes_them(tokenizer: Any) -> None:
    played = play("changing", [CALL, "5"], tokenizer)
    assert played.reward == 1
    call = {"function": {"name": "add", "arguments": {"a": 2, "b": 3}}, "type": "function", "id": "x"}
    said = [
        {"role": "system", "content": "Request 1."},
        {"role": "user", "content": SUM.question},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "5"},
    ]
    assert rows_of(played, tokenizer)[1] == rendered(tokenizer, said, [ADD]) + "5<|im_end|>"


def test_a_call_that_cannot_be_read_is_text_to_the_agent(tokenizer: Any) -> None:
    played = play("with_tools", ["Hm. <tool_call>\n{broken\n</tool_call>"], tokenizer)
    assert played.end_reason is EndReason.ANSWERED
    assert "{broken" in played.info["answer"]


def test_a_call_beside_one_that_cannot_be_read_is_text_too(tokenizer: Any) -> None:
    played = play("with_tools", [f"Hm. {CALL}\n<tool_call>\n{{broken\n</tool_call>"], tokenizer)
    assert played.end_reason is EndReason.ANSWERED
    first, second = played.info["answer"].index('"add"'), played.info["answer"].index("{broken")
    assert 0 < first < second


def test_an_agent_that_takes_one_call_gets_the_first(tokenizer: Any) -> None:
    played = play("one_at_a_time", [f"{CALL}\n{CALL}", "5"], tokenizer)
    assert (played.reward, played.end_reason) == (1.0, EndReason.ANSWERED)
    assert [message.text for message in played.turns[0].observation] == ["1", NOT_RUN]
    assert len(rows_of(played, tokenizer)) == 1


def test_a_context_of_its_own_shows_calls_to_templates_that_are_strict_about_ids() -> None:
    template = Path(__file__).parents[2] / "core" / "templates" / "mistral_small_3_2.jinja"
    strict = chat_tokenizer(
        template.read_text(encoding="utf-8"),
        eos="</s>",
        special=["<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[TOOL_RESULTS]"],
    )
    call = '[TOOL_CALLS]add[CALL_ID]call00000[ARGS]{"a": 2, "b": 3}'
    played = play("changing", [call, "5"], strict)
    assert (played.end_reason, played.reward) == (EndReason.ANSWERED, 1)
    assert '[ARGS]{"a": 2, "b": 3}' in rows_of(played, strict)[1]


def test_an_endpoint_is_sent_the_calls_of_a_context_of_its_own() -> None:
    def answer(body: Any) -> Answer:
        calls = (("c1", "add", '{"a": 2, "b": 3}'),) if len(body["messages"]) < 3 else ()
        return Answer("" if calls else "5", calls=calls)

    with FakeEndpoint(answer) as server:
        found = evaluate(
            f"openai:any@{server.url}",
            env="agentenv/AgentProgram-v0",
            options={"agent": "python:agents:changing"},
            format="native",
            tasks=[SUM],
        )
    assert found.score.mean == 1
    last = server.bodies[-1]["messages"]
    assert [message["role"] for message in last] == ["system", "user", "assistant", "tool"]
    assert last[2]["tool_calls"][0]["id"] == last[3]["tool_call_id"]
    assert json.loads(last[2]["tool_calls"][0]["function"]["arguments"]) == {"a": 2, "b": 3}


def test_a_policy_is_trained_inside_an_agent(tokenizer: Any, tmp_path: Path) -> None:
    model = random_model(
        len(tokenizer), layers=1, width=16, inner=32, context=4096, eos=tokenizer.eos_token_id
    )
    model.save_pretrained(tmp_path / "policy")
    tokenizer.save_pretrained(tmp_path / "policy")
    (tmp_path / "questions.jsonl").write_text(
        "".join(
            json.dumps({"id": f"q{i}", "question": f"What is {i} + 1?", "answers": [str(i + 1)]}) + "\n"
            for i in range(8)
        )
    )
    data = {f"{part}.dataset": str(tmp_path / "questions.jsonl") for part in ("train", "dev", "test")}
    config = changed(
        load_config("own-env"),
        data
        | {
            "policy": f"hf:{tmp_path / 'policy'}",
            "env.id": "agentenv/AgentProgram-v0",
            "env.options": {"agent": "python:agents:with_tools", "max_turns": 2},
            "format": "native",
            "rollout.questions": 1,
            "rollout.group_size": 2,
            "rollout.turn_tokens": 24,
            "optimizer.steps": 2,
            "dev.limit": 2,
            "test.limit": 2,
            "evaluation.on_training_tasks": True,
        },
    )
    result = train(config, out=tmp_path / "run", display=SilentDisplay())
    assert result.after.n == 2
    assert '"faults": 0' in (tmp_path / "run" / "metrics.jsonl").read_text()

"""Our environments in the released verl, as an agent loop that its own registry finds and its own token builder serves."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentenv.core.types import Task
from agentenv.envs.calculator import Calculator
from agentenv.errors import ConfigurationError, RetrieverFault
from agentenv.serving.rows import rows

pytest.importorskip("verl", reason="verl is not installed; .ci/peers tests against it")
agent_loop = pytest.importorskip(
    "verl.experimental.agent_loop.agent_loop", reason="verl's own needs are not met"
)

from hydra.utils import instantiate  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402

import agentenv.serving.verl as ours  # noqa: E402

CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "20 * 3"}}</tool_call>'
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
(ROW,) = rows(tasks=[Task("t", "20 * 3", ("60",))])
ENTRY = """
- name: agentenv
  _target_: agentenv.serving.verl.AgentenvLoop
  env: agentenv/Calculator-v0
"""
"""What a file of ``agent_loop_config_path`` holds."""


@dataclass
class Sampled:
    """What verl's engine client returns."""

    token_ids: list[int]
    log_probs: list[float] | None
    extra_fields: dict[str, Any] = field(default_factory=lambda: {"global_steps": 7})


class Engine:
    """Says what is written."""

    def __init__(self, tokenizer: Any, texts: list[str]) -> None:
        self.tokenizer, self.texts = tokenizer, texts
        self.asked: list[list[int]] = []

    async def generate(
        self, *, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> Sampled:
        self.asked.append(list(prompt_ids))
        ids = self.tokenizer.encode(self.texts[len(self.asked) - 1] + "<|im_end|>")
        return Sampled(ids, [-0.5] * len(ids))


def play(tokenizer: Any, texts: list[str], room: int = 4000, **row: Any) -> tuple[Any, Engine]:
    tokenizer.chat_template = CHATML
    engine = Engine(tokenizer, texts)
    rollout = {"prompt_length": 2000, "response_length": room}
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})

    async def scene() -> Any:
        assert ours.AgentenvLoop.__name__ == "AgentenvLoop"
        (entry,) = OmegaConf.create(ENTRY)
        loop = instantiate(
            entry,
            trainer_config=agent_loop.DictConfigWrap(config),
            server_manager=engine,
            tokenizer=tokenizer,
            processor=None,
            dataset_cls=None,
            data_config=agent_loop.DictConfigWrap(config.data),
        )
        assert isinstance(loop, agent_loop.AgentLoopBase)
        return await loop.run({"temperature": 1.0}, raw_prompt=[], **row)

    return asyncio.run(scene()), engine


def test_an_episode(byte_tokenizer: Any) -> None:
    output, engine = play(byte_tokenizer, [CALL, "60"], extra_info=ROW)
    assert isinstance(output, agent_loop.AgentLoopOutput)
    assert (output.reward_score, output.num_turns) == (1.0, 4)
    assert output.extra_fields["turn_scores"] == [0.0, 1.0]
    assert (output.extra_fields["end_reason"], output.extra_fields["global_steps"]) == ("answered", 7)
    assert "what is 20 * 3?" in byte_tokenizer.decode(output.prompt_ids)
    ids, mask = output.response_ids, output.response_mask
    assert len(ids) == len(mask) == len(output.response_logprobs)
    sampled = byte_tokenizer.decode([one for one, own in zip(ids, mask, strict=True) if own])
    assert sampled == f"{CALL}<|im_end|>60<|im_end|>"
    seen = byte_tokenizer.decode([one for one, own in zip(ids, mask, strict=True) if not own])
    assert "<tool_response>\n60\n</tool_response>" in seen
    assert engine.asked[1][: len(engine.asked[0])] == engine.asked[0]
    assert engine.asked[1] == (output.prompt_ids + ids)[: len(engine.asked[1])]
    assert output.as_dict()["rm_scores"].sum().item() == 1.0


def test_a_response_is_no_longer_than_it_may_be(byte_tokenizer: Any) -> None:
    output, engine = play(byte_tokenizer, [CALL, "60"], room=20, extra_info=ROW)
    assert len(output.response_ids) == len(output.response_mask) == 20
    assert len(engine.asked) == 1
    assert (output.reward_score, output.extra_fields["end_reason"]) == (0.0, "token_limit")


def test_who_is_cut_gets_what_giving_up_earns(byte_tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Calculator, "cut_reward", lambda self: -0.5)
    output, _ = play(byte_tokenizer, [CALL, "60"], room=20, extra_info=ROW)
    assert (output.reward_score, output.extra_fields["turn_scores"]) == (-0.5, [-0.5])
    output, _ = play(byte_tokenizer, [CALL, "60"], extra_info=ROW)
    assert output.reward_score == 1.0


def test_a_fault_is_played_again_and_then_raised(
    byte_tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, faults = Calculator.astep, [2]

    async def shaky(self: Calculator, action: str) -> Any:
        faults[0] -= 1
        if faults[0] >= 0:
            raise RetrieverFault("the index is gone")
        return await real(self, action)

    monkeypatch.setattr(Calculator, "astep", shaky)
    output, engine = play(byte_tokenizer, ["1", "2", "60"], extra_info=ROW)
    assert (output.reward_score, len(engine.asked)) == (1.0, 3)
    faults[0] = ours.TRIES
    with pytest.raises(RetrieverFault):
        play(byte_tokenizer, ["1", "2", "3"], extra_info=ROW)


def test_a_row_without_an_episode_is_refused(byte_tokenizer: Any) -> None:
    with pytest.raises(ConfigurationError, match="seed"):
        play(byte_tokenizer, [])


def test_a_row_that_chooses_its_environment_is_refused(byte_tokenizer: Any) -> None:
    for chosen in ({"env": "agentenv/SQL-v0"}, {"arguments": '{"executor": "unsafe-local"}'}):
        with pytest.raises(ConfigurationError, match=next(iter(chosen))):
            play(byte_tokenizer, [], extra_info=ROW | chosen)

"""Our environments in the released TRL: its own trainer finds the tools, plays the calls and asks for the reward."""

import asyncio
import inspect
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.types import Task
from agentenv.errors import ConfigurationError, EnvFault, EpisodeOver, RetrieverFault

for module in ("trl", "datasets", "torch", "transformers"):
    pytest.importorskip(module, reason=f"{module} is not installed")

from agentenv.serving.trl import ToolFailed, to_trl  # noqa: E402

TASKS = [Task("t", "20 * 3", ("60",)), Task("u", "7 - 2", ("5",), data={"hops": 1})]


def spec() -> Any:
    return to_trl("agentenv/Calculator-v0", tasks=TASKS)


def test_the_class_is_what_trl_asks_for() -> None:
    factory = pickle.loads(pickle.dumps(spec().environment_factory))
    one, two = factory(), factory()
    assert type(one) is type(two)
    assert type(one).__name__ == "Calculator"
    public = {
        name for name, _ in inspect.getmembers(type(one), inspect.isfunction) if not name.startswith("_")
    }
    assert public == {"reset", "get_reward", "calculate", "submit"}
    assert {name for name in vars(one) if not name.startswith("_")} == set()


def test_the_opening_says_nothing_of_calls_that_trl_declares() -> None:
    """The policy was told to write tags in which its own chat template calls no tool."""
    told = spec().environment_factory().reset(**spec().train_dataset[0])
    assert "20 * 3" in told
    assert "tool_call" not in told


def test_trl_reads_the_tools_schema_off_the_method() -> None:
    from transformers.utils import get_json_schema

    schema = get_json_schema(spec().environment_factory().calculate)["function"]
    assert schema["name"] == "calculate"
    assert schema["description"] == "Evaluates integer arithmetic."
    (argument,) = schema["parameters"]["properties"].items()
    assert argument == (
        "expression",
        {"type": "string", "description": "Integers, parentheses and the operators + - * //."},
    )


def test_instances_are_played_again_and_again() -> None:
    made = spec()
    env = made.environment_factory()

    async def play(row: dict[str, Any], answer: str) -> Any:
        assert "what is" in env.reset(**row)
        with pytest.raises(ToolFailed, match="is not allowed"):
            await env.calculate(expression="1 / 0")
        assert await env.calculate(expression="20 * 3") == "60"
        assert env.get_reward() == 0.0
        await env.submit(answer=answer)
        with pytest.raises(EpisodeOver):
            await env.calculate(expression="1")
        return env.get_reward()

    rows = list(made.train_dataset)
    assert [asyncio.run(play(rows[n], answer)) for n, answer in ((0, "60"), (1, "60"), (1, "5"))] == [
        1.0,
        0.0,
        1.0,
    ]
    with pytest.raises(ConfigurationError, match="needs tasks or seeds"):
        to_trl("agentenv/Calculator-v0")


def test_a_row_chooses_no_environment() -> None:
    env = to_trl("agentenv/Calculator-v0", seeds=[1]).environment_factory()
    for chosen in ({"env": "agentenv/SQL-v0"}, {"arguments": '{"executor": "unsafe-local"}'}):
        with pytest.raises(ConfigurationError, match=next(iter(chosen))):
            env.reset(seed=1, **chosen)
    assert env.get_reward() is None


def test_calls_of_one_turn_run_one_after_the_other() -> None:
    env = to_trl("agentenv/Calculator-v0", seeds=[1]).environment_factory()

    async def at_once() -> list[str]:
        return list(await asyncio.gather(*(env.calculate(expression=f"{n} + 0") for n in range(5))))

    env.reset(seed=1)
    assert asyncio.run(at_once()) == ["0", "1", "2", "3", "4"]
    assert env._env.state.calls == 5


@pytest.mark.parametrize("error", [RetrieverFault("the index is gone"), ZeroDivisionError("ours")])
def test_a_fault_leaves_no_reward(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    env = to_trl("agentenv/Calculator-v0", seeds=[1]).environment_factory()
    assert env.get_reward() is None
    env.reset(seed=1)

    async def broken(action: str) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(env._env, "astep", broken)
        with pytest.raises(type(error)):
            asyncio.run(env.calculate(expression="1"))
    with pytest.raises(EpisodeOver, match="a fault"):
        asyncio.run(env.calculate(expression="1"))
    assert env.get_reward() is None
    env.reset(seed=1)
    assert env.get_reward() == 0.0


@pytest.mark.parametrize("error", [RetrieverFault("the index is gone"), ZeroDivisionError("ours")])
def test_a_fault_in_reset_costs_the_completion_and_not_the_training(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    env = to_trl("agentenv/Calculator-v0", seeds=[1]).environment_factory()

    def broken(**_: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(env._env, "reset", broken)
        assert env.reset(seed=1)
    assert str(error) in caplog.text
    with pytest.raises(EpisodeOver, match="a fault"):
        asyncio.run(env.calculate(expression="1"))
    assert env.get_reward() is None
    env.reset(seed=1)
    assert env.get_reward() == 0.0


def test_who_stops_without_an_answer_gets_what_giving_up_earns(monkeypatch: pytest.MonkeyPatch) -> None:
    env = to_trl("agentenv/Calculator-v0", tasks=TASKS).environment_factory()
    row = to_trl("agentenv/Calculator-v0", tasks=TASKS).train_dataset[0]
    monkeypatch.setattr(env._env, "cut_reward", lambda: -0.5, raising=False)
    env.reset(**row)
    assert env.get_reward() == -0.5
    asyncio.run(env.calculate(expression="20 * 3"))
    assert env.get_reward() == -0.5
    asyncio.run(env.submit(answer="60"))
    assert env.get_reward() == 1.0
    env.reset(**row)
    monkeypatch.setattr(env._env, "cut_reward", lambda: float("nan"))
    assert env.get_reward() is None


def test_a_reward_that_is_no_number_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    env = to_trl("agentenv/Calculator-v0", seeds=[1]).environment_factory()
    env.reset(seed=1)
    monkeypatch.setattr(env._env, "answer", lambda text: env._env.result((), reward=float("nan")))
    with pytest.raises(EnvFault, match="nan"):
        asyncio.run(env.submit(answer="60"))
    assert env.get_reward() is None


@pytest.mark.filterwarnings("ignore")
def test_the_trainer_plays_an_episode_and_takes_its_reward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, byte_tokenizer: Any
) -> None:
    import torch
    import trl
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    words = byte_tokenizer
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    words.chat_template = template.read_text(encoding="utf-8")
    config = Qwen3Config(
        vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=8192,
    )  # fmt: skip
    calls = [("calculate", {"expression": "20 * 3"}), ("submit", {"answer": "60"})]
    said = [
        f"<tool_call>\n{json.dumps({'name': n, 'arguments': a})}\n</tool_call><|im_end|>" for n, a in calls
    ]
    script = [said[0], said[1], "Done.<|im_end|>"]
    prompts: list[str] = []

    class Scripted(GRPOTrainer):  # type: ignore[misc,unused-ignore]
        """Says what is written, in place of what the weights would say; every second sample of a group hands in 61."""

        def _generate_single_turn(self, prompt_ids: Any, *rest: Any, **more: Any) -> Any:
            turn = len(prompts) // 2
            prompts.extend(words.decode(ids) for ids in prompt_ids)
            texts = [script[turn].replace('"60"', f'"6{n % 2}"') for n in range(len(prompt_ids))]
            ids = [words.encode(text, add_special_tokens=False) for text in texts]
            return ids, [[-1.0] * len(one) for one in ids]

    made = to_trl("agentenv/Calculator-v0", tasks=TASKS[:1])
    trainer = Scripted(
        Qwen3ForCausalLM(config).to(torch.float32),
        reward_funcs=made.reward_funcs,
        args=GRPOConfig(
            str(tmp_path), per_device_train_batch_size=2, num_generations=2, max_completion_length=2000,
            max_steps=1, report_to=[], bf16=False, use_cpu=True, save_strategy="no", logging_steps=1,
            gradient_checkpointing=False, chat_template_kwargs={"enable_thinking": False},
        ),
        train_dataset=made.train_dataset,
        processing_class=words,
        environment_factory=made.environment_factory,
    )  # fmt: skip
    trainer.train()
    assert "what is 20 * 3?" in prompts[0]
    assert '"name": "submit"' in prompts[0]
    assert "<tool_response>\n60\n</tool_response>" in prompts[2]
    (logged,) = [entry for entry in trainer.state.log_history if "reward" in entry]
    assert logged["rewards/Calculator/mean"] == 0.5
    assert logged["tools/call_frequency"] == 2.0
    assert logged["tools/failure_frequency"] == 0.0

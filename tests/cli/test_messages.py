"""``agentenv messages``: what a conversation holds natively and in tags, what is left out, and TRL trains on the file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentenv.api import evaluate, evaluate_suite
from agentenv.cli.main import main
from agentenv.core.types import Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.evaluation.records import read_evaluation, write_evaluation
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.retrievers.fakes import InMemoryRetriever


def answered(body: Mapping[str, Any]) -> Answer:
    """A teacher that thinks, computes a formula twice in one turn, and says the result."""
    results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    if results:
        return Answer(results[0])
    formula = body["messages"][-1]["content"].split("what is ")[-1].rstrip("?")
    arguments = [json.dumps({"expression": text}) for text in (formula, f"0 + {formula}")]
    calls = tuple((f"id{place}", "calculate", text) for place, text in enumerate(arguments))
    return Answer("Let me see.", calls=calls, reasoning="I compute it twice.")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("teacher") / "out"
    with FakeEndpoint(answered) as server:
        evaluate(f"openai:any@{server.url}", env="agentenv/Calculator-v0", limit=3, format="native", out=out)
    return out


def exported(out: Path, *words: Any) -> list[dict[str, Any]]:
    assert main(["messages", *map(str, words), "--out", str(out)]) == 0
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


def test_calls_thinking_and_results_are_messages(teacher: Path, tmp_path: Path) -> None:
    found = exported(tmp_path / "sft.jsonl", teacher)
    records = read_evaluation(teacher).records
    assert len(found) == len(records) == 3
    for one, record in zip(found, records, strict=True):
        formula, result = record["question"], record["answers"][0]
        calls = [
            {
                "type": "function",
                "id": f"call0000{place}",
                "function": {"name": "calculate", "arguments": {"expression": text}},
            }
            for place, text in enumerate((formula, f"0 + {formula}"))
        ]
        assert one["messages"] == [
            {"role": "user", "content": record["prompt"]},
            {
                "role": "assistant",
                "content": "Let me see.",
                "reasoning_content": "I compute it twice.",
                "tool_calls": calls,
            },
            *(
                {"role": "tool", "name": "calculate", "tool_call_id": f"call0000{place}", "content": result}
                for place in range(2)
            ),
            {"role": "assistant", "content": result},
        ]
        assert (one["id"], one["reward"]) == (record["id"], 1.0)
        assert one["tools"][0]["function"]["parameters"]["required"] == ["expression"]


def test_tags_stay_texts_and_their_results_are_the_user_s(tmp_path: Path) -> None:
    evaluate("scripted", env="agentenv/Calculator-v0", limit=2, out=tmp_path / "out")
    for one in exported(tmp_path / "sft.jsonl", tmp_path / "out"):
        assert [message["role"] for message in one["messages"]] == ["user", "assistant", "user", "assistant"]
        assert one["messages"][1]["content"].startswith("<tool_call>")
        assert "tools" not in one


def test_a_conversation_ends_with_what_the_policy_said(tmp_path: Path) -> None:
    world = FictionalWorld.generate(WorldConfig(documents=200, questions=2))
    answers = {task.question: task.answers[0] for task in world.questions}

    def searching(body: Mapping[str, Any]) -> Answer:
        question = body["messages"][0]["content"].split("Question: ")[-1].strip()
        if any(message["role"] == "tool" for message in body["messages"]):
            return Answer("", calls=(("b", "answer", json.dumps({"answer": answers[question]})),))
        return Answer("", calls=(("a", "search", json.dumps({"query": question})),))

    with FakeEndpoint(searching) as server:
        evaluate(
            f"openai:any@{server.url}",
            env="agentenv/LocalSearch-v0",
            tasks=world.questions,
            retriever=InMemoryRetriever(world.documents),
            format="native",
            out=tmp_path / "out",
        )
    found = exported(tmp_path / "sft.jsonl", tmp_path / "out")
    assert len(found) == 2
    for one in found:
        assert [message["role"] for message in one["messages"]] == ["user", "assistant", "tool", "assistant"]
        assert one["messages"][-1]["tool_calls"][0]["function"]["name"] == "answer"


@pytest.mark.parametrize("form", ["native", "inline"])
def test_each_context_is_a_conversation_of_its_own(tmp_path: Path, form: str) -> None:
    with FakeEndpoint(lambda body: Answer(f"said {len(body['messages'])}")) as server:
        evaluate(
            f"openai:any@{server.url}",
            env="agentenv/AgentProgram-v0",
            tasks=[Task("t", "Why?", ("said 1",))],
            options={"agent": "python:tests.envs.agent_program.agents:forgetful"},
            format=form,
            out=tmp_path / "out",
        )
    found = exported(tmp_path / "sft.jsonl", tmp_path / "out")
    assert [one["id"] for one in found] == ["t"] * 3
    assert [one["messages"] for one in found] == [
        [
            {"role": "user", "content": f"Why? Note {place}: {said}"},
            {"role": "assistant", "content": "said 1"},
        ]
        for place, said in enumerate(("", "said 1", "said 1"))
    ]


def test_calls_of_tools_that_later_contexts_lack_are_not_read_by_the_tools_of_these(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last context declares no tools, and the call of the first one stood as text in a conversation without tools."""

    def answered_by_tools(body: Mapping[str, Any]) -> Answer:
        calls = (("a", "add", json.dumps({"a": 2, "b": 3})),)
        return Answer("", calls=calls) if body.get("tools") else Answer("5")

    with FakeEndpoint(answered_by_tools) as server:
        evaluate(
            f"openai:any@{server.url}",
            env="agentenv/AgentProgram-v0",
            tasks=[Task("t", "Why?", ("5",))],
            options={"agent": "python:tests.envs.agent_program.agents:plans_and_says"},
            format="native",
            out=tmp_path / "out",
        )
    (record,) = read_evaluation(tmp_path / "out").records
    assert (record["reward"], "tools" in record) == (1.0, False)
    assert main(["messages", str(tmp_path / "out"), "--out", str(tmp_path / "sft.jsonl")]) == 1
    assert "no declarations of tools: they changed" in capsys.readouterr().err


def test_a_suite_is_the_evaluations_of_its_sets(tmp_path: Path) -> None:
    for name, question in (("one", "What is 2 + 3?"), ("two", "What is 1 + 1?")):
        row = {"id": name, "question": question, "answers": ["5" if name == "one" else "2"]}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row))
    suite = {name: {"dataset": str(tmp_path / f"{name}.jsonl")} for name in ("one", "two")}
    evaluate_suite(lambda messages: "5", suite, env="agentenv/Calculator-v0", out=tmp_path / "out")
    found = exported(tmp_path / "sft.jsonl", tmp_path / "out", "--least", 0)
    assert [one["id"] for one in found] == ["one", "two"]


def test_the_folder_of_a_training_run_is_answered_with_that_of_its_evaluation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "evaluation" / "after").mkdir(parents=True)
    assert main(["messages", str(tmp_path), "--out", str(tmp_path / "sft.jsonl")]) == 1
    assert str(tmp_path / "evaluation" / "after") in capsys.readouterr().err


def changed(teacher: Path, out: Path, change: Any) -> Path:
    found = read_evaluation(teacher)
    records: list[Any] = [json.loads(json.dumps(record)) for record in found.records]
    for record in records[:1]:
        change(record)
    write_evaluation(out, found.results, records)
    return out


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda record: record.update(canary="canary"), "sealed"),
        (lambda record: record.pop("tools"), "hold no declarations of tools"),
        (lambda record: record["turns"][0].update(cut=True), "a budget of tokens cut off"),
        (lambda record: record["turns"][0].update(images=1), "pictures"),
        (lambda record: record["turns"][0].update(action="<tool_call>{</tool_call>"), "cannot be read"),
    ],
)
def test_what_cannot_be_written_is_left_out_and_counted(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: Any, why: str
) -> None:
    folder = changed(teacher, tmp_path / "changed", change)
    capsys.readouterr()
    assert len(exported(tmp_path / "sft.jsonl", folder)) == 2
    shown = capsys.readouterr().out
    assert "2 conversations of 3 episodes" in shown
    assert "Left out: 1" in shown
    assert why in shown


def test_failures_of_the_infrastructure_and_low_rewards_are_no_conversations(
    teacher: Path, tmp_path: Path
) -> None:
    low = changed(teacher, tmp_path / "low", lambda record: record.update(reward=0.5))
    assert len(exported(tmp_path / "a.jsonl", low)) == 2
    assert len(exported(tmp_path / "b.jsonl", low, "--least", 0.5)) == 3
    fault = changed(teacher, tmp_path / "fault", lambda record: record.update(valid=False, reward=1.0))
    assert len(exported(tmp_path / "c.jsonl", fault)) == 2


def test_nothing_to_write_is_one_sentence(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*words: Any) -> str:
        capsys.readouterr()
        assert main(["messages", *map(str, words)]) == 1
        return capsys.readouterr().err.splitlines()[-1]

    out = tmp_path / "sft.jsonl"
    assert "none of 3 episodes earns 2 and can be written" in refused(teacher, "--least", 2, "--out", out)
    assert "no folder is given" in refused("--out", out)
    assert not out.exists()
    out.write_text("mine")
    assert "exists already" in refused(teacher, "--out", out)


def test_trl_trains_on_the_file(teacher: Path, tmp_path: Path) -> None:
    """The loss falls, so that the turns are what is learned."""
    trl = pytest.importorskip("trl", reason="needs the interop extra")
    datasets = pytest.importorskip("datasets", reason="needs the eval extra")
    from agentenv.policies.fakes import random_model
    from tests.core.test_native_episodes import tokenizer_of

    out = tmp_path / "sft.jsonl"
    exported(out, teacher)
    tokenizer = tokenizer_of()
    model = random_model(
        len(tokenizer), layers=1, width=16, inner=32, context=4096, eos=tokenizer.eos_token_id
    )
    rows = datasets.load_dataset(
        "json", data_files=str(out), split="train", cache_dir=str(tmp_path / "cache")
    )
    settings = trl.SFTConfig(
        output_dir=str(tmp_path / "trained"),
        max_steps=4,
        learning_rate=1e-2,
        per_device_train_batch_size=1,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
    )
    trainer = trl.SFTTrainer(model=model, args=settings, train_dataset=rows, processing_class=tokenizer)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    shown = tokenizer.decode(trainer.train_dataset[0]["input_ids"])
    assert shown.count("<tool_call>{") == 2
    assert '"name": "calculate", "arguments": {"expression": ' in shown

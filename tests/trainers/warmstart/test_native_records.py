"""Learning natively from a teacher with other tokens: its calls become calls in the form of the learner."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv.api import evaluate
from agentenv.cli.main import main
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.errors import ConfigurationError
from agentenv.evaluation.records import read_evaluation
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.fakes import random_model
from agentenv.policies.policy_spec import make_policy
from agentenv.trainers.config.config_files import config_of
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.warmstart.recorded_episodes import in_tokens
from tests.core.test_native_episodes import CHATML, tokenizer_of


def answered(body: Mapping[str, Any]) -> Answer:
    """A teacher that thinks, computes both sides of a product in one turn, and says the result."""
    results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
    question = next(message["content"] for message in body["messages"] if message["role"] == "user")
    if not results:
        formula = question.split("what is ")[-1].rstrip("?")
        sides = [json.dumps({"expression": text}) for text in (formula, f"0 + {formula}")]
        calls = tuple((f"id{place}", "calculate", text) for place, text in enumerate(sides))
        return Answer("", calls=calls, reasoning="I compute it twice.")
    return Answer(results[0])


def evaluated(answer: Callable[[Mapping[str, Any]], Answer], out: Path) -> Path:
    with FakeEndpoint(answer) as server:
        evaluate(
            f"openai:any@{server.url}",
            env="agentenv/Calculator-v0",
            split="train",
            limit=4,
            format="native",
            out=out,
        )
    return out


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return evaluated(answered, tmp_path_factory.mktemp("teacher") / "out")


def learner(folder: Path, template: str = CHATML, **changes: Any) -> TrainConfig:
    """A run of a random model with another tokenizer than the teacher's."""
    tokenizer = tokenizer_of(template)
    random_model(len(tokenizer), eos=tokenizer.eos_token_id, context=4096).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    values = {
        "base": "own-env",
        "policy": f"hf:{folder}",
        "env": {"id": "agentenv/Calculator-v0"},
        "format": "native",
        "train": {"limit": 4},
        "test": {"limit": 2},
        "rollout": {"strategy": "plain", "turn_tokens": 300, "context_tokens": 4000},
    }
    return config_of(values | changes, "small")


def texts(one: Trajectory, tokenizer: Any) -> list[str]:
    return [tokenizer.decode(segment.ids) for segment in one.segments if segment.kind is SegmentKind.POLICY]


def test_two_calls_and_a_thought_of_a_teacher_are_spelt_in_the_learners_form(
    teacher: Path, tmp_path: Path
) -> None:
    evaluation = read_evaluation(teacher)
    assert evaluation.results["settings"]["tool_call_form"] == "endpoint"
    assert all(len(record["turns"][0]["messages"]) == 2 for record in evaluation.records)
    run = learner(tmp_path)
    policy = make_policy(run.policy)
    shown, exact, _ = in_tokens(run, policy, [(evaluation, evaluation.records)])
    assert (len(shown), exact) == (4, 0)
    for one, record in zip(shown, evaluation.records, strict=True):
        first, last = texts(one, policy.tokenizer)
        assert first.startswith("<think>I compute it twice.</think><tool_call>")
        assert first.count("<tool_call>") == 2
        assert first.endswith("</tool_call><|im_end|>")
        assert last == f"{record['prediction']}<|im_end|>"
        rows = [s for s in one.segments if s.kind is SegmentKind.PROMPT]
        assert len(rows) == 2  # the template drops the thinking of an earlier turn
        assert policy.tokenizer.decode(rows[1].ids).count(f"<|im_start|>user\n{record['prediction']}") == 2


def imitated(teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """What the command found, and what it said beside that."""
    run = learner(tmp_path / "model")
    (tmp_path / "run.toml").write_text(
        f"""\
base = "own-env"
name = "small"
policy = "{run.policy}"
format = "native"
[train]
limit = 4
[test]
limit = 2
[rollout]
turn_tokens = 300
context_tokens = 4000
"""
    )
    words = [
        "warmstart",
        "--imitate",
        str(tmp_path / "run.toml"),
        "--trust-config",
        "--episodes",
        str(teacher),
    ]
    capsys.readouterr()
    more = ["--steps", "1", "--batch", "2", "--out", str(tmp_path / "policy"), "--json"]
    assert main([*words, *more]) == 0
    said = capsys.readouterr()
    return json.loads(said.out), said.err


def test_the_command_learns_them_and_its_policy_is_asked_natively(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, said = imitated(teacher, tmp_path, capsys)
    assert (found["demonstrations"], found["tasks"], found["exact"]) == (4, 4, 0)
    assert "left out" not in said
    assert json.loads((tmp_path / "policy" / "episode.json").read_text())["format"] == "native"


def test_the_command_says_how_many_it_left_out_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bounds = iter(["length"])

    def bounded(body: Mapping[str, Any]) -> Answer:
        """The same teacher, of which a budget cuts the first turn behind its calls."""
        answer = answered(body)
        return replace(answer, finish=next(bounds, "")) if answer.calls else answer

    folder = evaluated(bounded, tmp_path / "teacher")
    found, said = imitated(folder, tmp_path, capsys)
    assert found["demonstrations"] == 3
    assert "1 of 4 solved episodes are left out: 1 have a turn that a budget of tokens cut off" in said


def test_turns_of_another_family_are_read_as_it_wrote_them(teacher: Path, tmp_path: Path) -> None:
    """As where the teacher is a model of this machine with a tokenizer of its own."""
    evaluation = read_evaluation(teacher)
    evaluation.results["settings"]["tool_call_form"] = "llama"
    records: list[Any] = [json.loads(json.dumps(record)) for record in evaluation.records]
    for record in records:
        first = record["turns"][0]
        first["action"] = json.dumps({"name": "calculate", "parameters": {"expression": record["question"]}})
        first["observation"] = record["answers"][0]
        del first["messages"], record["roles"]
    run = learner(tmp_path)
    policy = make_policy(run.policy)
    shown, *_ = in_tokens(run, policy, [(evaluation, records)])
    assert [texts(one, policy.tokenizer)[0] for one in shown] == [
        f'<tool_call>{{"name": "calculate", "arguments": {{"expression": "{record["question"]}"}}}}</tool_call><|im_end|>'
        for record in records
    ]


def refused(run: TrainConfig, teacher: Path, **settings: Any) -> str:
    evaluation = read_evaluation(teacher)
    evaluation.results["settings"] |= settings
    with pytest.raises(ConfigurationError) as caught:
        in_tokens(run, make_policy(run.policy), [(evaluation, evaluation.records)])
    return str(caught.value)


def test_a_teacher_in_another_form_is_refused(teacher: Path, tmp_path: Path) -> None:
    native = learner(tmp_path / "native")
    assert "4 were played in another chat format" in refused(native, teacher, tool_call_form="")
    plain = learner(tmp_path / "plain", format="template")
    assert "4 were played in another chat format" in refused(plain, teacher)


def test_turns_that_the_learner_cannot_write_are_left_out(teacher: Path, tmp_path: Path) -> None:
    """A template that shows the first call of a turn alone."""
    one_call = CHATML.replace("in m.tool_calls or []", "in (m.tool_calls or [])[:1]")
    said = refused(learner(tmp_path, one_call), teacher)
    assert said.startswith(
        "none of 4 solved episodes can be learned: 4 have a turn that the chat template of the learner"
    )


def test_turns_that_a_budget_would_cut_are_left_out(teacher: Path, tmp_path: Path) -> None:
    short = learner(tmp_path, rollout={"strategy": "plain", "turn_tokens": 60, "context_tokens": 4000})
    assert "4 are longer than the budgets of the run" in refused(short, teacher)


def test_recorded_ids_are_learned_without_opening_the_environment(tmp_path: Path) -> None:
    run = learner(tmp_path / "model")
    out = tmp_path / "own"
    evaluate(
        run.policy,
        env=run.env.id,
        split="train",
        limit=2,
        format="native",
        token_ids=True,
        out=out,
        bounds=False,
    )
    evaluation = read_evaluation(out)
    away = run.model_copy(
        update={"train": run.train.model_copy(update={"dataset": str(tmp_path / "gone.jsonl")})}
    )
    shown, exact, left_out = in_tokens(away, make_policy(run.policy), [(evaluation, evaluation.records)])
    assert (len(shown), exact, left_out.total()) == (2, 2, 0)


def test_a_damaged_record_says_how_it_failed(teacher: Path, tmp_path: Path) -> None:
    """It does not count as longer than the budgets."""
    run = learner(tmp_path)
    evaluation = read_evaluation(teacher)
    records: list[Any] = [json.loads(json.dumps(record)) for record in evaluation.records]
    records[0]["roles"][1] = ["tool", "nobody"]
    _, _, left_out = in_tokens(run, make_policy(run.policy), [(evaluation, records)])
    ((why, count),) = left_out.items()
    assert count == 1
    assert "cannot be played again" in why
    assert "nobody" in why

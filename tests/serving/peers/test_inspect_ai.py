"""Our benchmarks as a task of the released inspect_ai, whose own provider asks a fake endpoint."""

import json
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

inspect_ai = pytest.importorskip(
    "inspect_ai", reason="inspect_ai is not installed; .ci/peers tests against it"
)
get_model = inspect_ai.model.get_model
pytest.importorskip("openai", reason="the provider of inspect_ai needs openai")

from inspect_ai._util.error import PrerequisiteError  # noqa: E402
from inspect_ai._util.registry import registry_info  # noqa: E402

from agentenv.core.types import Task  # noqa: E402
from agentenv.envs.calculator import Calculator  # noqa: E402
from agentenv.errors import RetrieverFault  # noqa: E402
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint  # noqa: E402
from agentenv.serving.inspect_ai import _tool, benchmark  # noqa: E402

# Inspect leaves streams to the garbage collector, and calls tenacity as its earlier releases were called.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CALCULATOR = "agentenv/Calculator-v0"
Model = Callable[[Mapping[str, Any]], dict[str, Any]]


def expression(body: Mapping[str, Any]) -> str:
    return str(body["messages"][0]["content"]).partition("what is ")[2].partition("?")[0]


def call(text: str, id: str = "call-1") -> dict[str, Any]:
    function = {"name": "calculate", "arguments": json.dumps({"expression": text})}
    return {"id": id, "type": "function", "function": function}


def calculates(body: Mapping[str, Any]) -> dict[str, Any]:
    """Asks the calculator and repeats what it says."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return {"content": last["content"]}
    return {"content": None, "reasoning_content": "The tool knows.", "tool_calls": [call(expression(body))]}


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., tuple[Any, FakeEndpoint]]:
    """Evaluates a model on questions; gives the log and the endpoint that was asked."""

    def evaluate(
        model: Model, *, finish: str = "", native: bool = True, limit: int = 4, **settings: Any
    ) -> Any:
        def answer(body: Mapping[str, Any]) -> Answer:
            message = {"role": "assistant", **model(body)}
            reason = finish or ("tool_calls" if message.get("tool_calls") else "stop")
            choice = {"index": 0, "message": message, "finish_reason": reason}
            usage = {"prompt_tokens": 50, "completion_tokens": 5, "total_tokens": 55}
            reply = {"id": "1", "object": "chat.completion", "created": 1, "model": "any"}
            raw = json.dumps({**reply, "choices": [choice], "usage": usage})
            return Answer(raw=raw, headers={"Content-Type": "application/json"})

        with FakeEndpoint(answer) as endpoint:
            served = get_model("openai-api/fake/any", base_url=endpoint.url, api_key="none", memoize=False)
            (log,) = inspect_ai.eval(
                benchmark(env=CALCULATOR, limit=limit, native=native),
                model=served,
                log_dir=str(tmp_path / "logs"),
                display="none",
                max_retries=0,
                **settings,
            )
        return log, endpoint

    return evaluate


def result(sample: Any) -> dict[str, Any]:
    score = sample.scores["agentenv"]
    return {**score.metadata, "answer": score.answer, "score": score.value["reward"]}


def test_a_model_that_calls_the_tools_is_scored(play: Any) -> None:
    log, endpoint = play(calculates)
    assert log.status == "success", log.error
    assert log.results.scores[0].metrics["mean"].value == 1.0
    for sample in log.samples:
        assert result(sample)["end_reason"] == "answered"
        assert [message.role for message in sample.messages] == ["user", "assistant", "tool", "assistant"]
        assert sample.messages[2].text == result(sample)["answer"]
    second = next(body for body in endpoint.bodies if len(body["messages"]) == 3)
    assert [tool["function"]["name"] for tool in second["tools"]] == ["calculate"]
    assert second["messages"][1]["reasoning_content"] == "The tool knows."
    assert second["messages"][2]["tool_call_id"] == second["messages"][1]["tool_calls"][0]["id"]


def test_every_call_of_a_turn_is_answered(play: Any) -> None:
    def twice(body: Mapping[str, Any]) -> dict[str, Any]:
        if body["messages"][-1]["role"] == "tool":
            return {"content": "0"}
        broken = {"id": "b", "type": "function", "function": {"name": "calculate", "arguments": "{oops"}}
        return {"content": None, "tool_calls": [call("1 + 1", "a"), broken]}

    log, endpoint = play(twice, limit=1)
    assert log.status == "success"
    answers = [message for message in endpoint.bodies[-1]["messages"] if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in answers] == ["a", "b"]
    assert answers[0]["content"] == "2"
    assert "oops" in answers[1]["content"] or "pars" in answers[1]["content"].lower()


def test_a_model_that_writes_its_actions_as_text(play: Any) -> None:
    def tagged(body: Mapping[str, Any]) -> dict[str, Any]:
        assert "tools" not in body
        if len(body["messages"]) > 1:
            return {"content": body["messages"][-1]["content"].partition(">")[2].partition("<")[0].strip()}
        said = json.dumps({"name": "calculate", "arguments": {"expression": expression(body)}})
        return {"content": f"<tool_call>{said}</tool_call>"}

    log, _ = play(tagged, native=False, limit=2)
    assert log.status == "success"
    assert [result(sample)["score"] for sample in log.samples] == [1.0, 1.0]


def test_epochs_play_the_same_questions_with_other_seeds(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    reset = Calculator.areset

    async def noted(self: Calculator, *, seed: int | None = None, options: Any = None) -> Any:
        seeds.append(seed or 0)
        return await reset(self, seed=seed, options=options)

    monkeypatch.setattr(Calculator, "areset", noted)
    log, _ = play(calculates, limit=2, epochs=3)
    assert len(log.samples) == 6
    assert len({sample.id for sample in log.samples}) == 2
    assert len(set(seeds)) == 6


def test_a_fault_of_the_environment_is_an_error_and_no_score(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, times = Calculator.answer, iter(range(100))

    def once_broken(self: Calculator, text: str) -> Any:
        if next(times) == 0:
            raise RetrieverFault("the index is gone")
        return answer(self, text)

    monkeypatch.setattr(Calculator, "answer", once_broken)
    log, _ = play(calculates, max_samples=1)
    failed = [sample for sample in log.samples if sample.error]
    assert log.status == "success"
    assert len(failed) == 1
    assert "the index is gone" in failed[0].error.message
    assert not failed[0].scores
    assert log.results.scores[0].metrics["mean"].value == 1.0
    assert log.results.scores[0].scored_samples == 3


def test_a_sample_whose_model_failed_gets_no_score_later(play: Any) -> None:
    def broken(body: Mapping[str, Any]) -> dict[str, Any]:
        raise KeyError("no such model")

    log, _ = play(broken, limit=1, fail_on_error=False)
    (sample,) = log.samples
    assert sample.error is not None
    assert "agentenv" not in sample.store


def test_the_schema_of_a_tool_reaches_the_model_whole() -> None:
    place = {"type": "object", "properties": {"city": {"type": "string"}}}
    schema = {
        "type": "object",
        "properties": {"to": {"$ref": "#/$defs/place"}, "by": {"oneOf": [{"const": "rail"}]}, "note": True},
        "$defs": {"place": place},
    }
    declared = _tool({"function": {"name": "go", "description": "Goes.", "parameters": schema}})
    shown = declared.parameters.model_dump(exclude_none=True)["properties"]
    assert shown == {"to": place, "by": {"anyOf": [{"enum": ["rail"]}]}, "note": {}}


def test_an_endpoint_that_refuses_everything_ends_the_evaluation(play: Any) -> None:
    def broken(body: Mapping[str, Any]) -> dict[str, Any]:
        raise KeyError("no such model")

    log, _ = play(broken)
    assert log.status == "error"


def test_a_limit_ends_an_episode_with_what_it_has_earned(play: Any) -> None:
    def goes_on(body: Mapping[str, Any]) -> dict[str, Any]:
        return {"content": None, "tool_calls": [call("1 + 1", f"call-{len(body['messages'])}")]}

    log, _ = play(goes_on, limit=1, token_limit=100)
    (sample,) = log.samples
    assert sample.limit.type == "token"
    assert sample.error is None
    assert (result(sample)["score"], result(sample)["end_reason"]) == (0.0, "token_limit")
    log, _ = play(goes_on, limit=1, message_limit=1)
    (sample,) = log.samples
    assert (result(sample)["score"], result(sample)["turns"]) == (0.0, 0)


def test_a_refusal_is_a_score(play: Any) -> None:
    log, _ = play(lambda body: {"content": ""}, finish="content_filter", limit=1)
    (sample,) = log.samples
    assert (result(sample)["score"], result(sample)["end_reason"]) == (0.0, "refused")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"env": "agentenv/Calculater-v0"}, "Calculator-v0"),
        ({"env": CALCULATOR, "scorers": "exact"}, "scorer"),
        ({"env": CALCULATOR, "retriever": "bm25"}, "searches nothing"),
        ({"env": CALCULATOR, "options": {"turns": 3}}, "turns"),
        ({}, "name a question set"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_one_sentence(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(PrerequisiteError, match=said):
        benchmark(**asked)


def test_a_sealed_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = [Task("t", "20 * 3", ("60",), data={"canary": "c"})]
    monkeypatch.setattr(Calculator, "make_tasks", classmethod(lambda *_, **__: sealed))
    with pytest.raises(PrerequisiteError, match="sealed"):
        benchmark(env=CALCULATOR)


def test_inspect_finds_the_task_by_its_name() -> None:
    (found,) = entry_points(group="inspect_ai", name="agentenv")
    assert found.load() is benchmark
    assert registry_info(benchmark).name == "agentenv/benchmark"

"""Training and evaluating from Python: typed results, own agents and policies, notebooks, and the commands do the same."""

import asyncio
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agentenv
from agentenv.cli.main import main
from agentenv.core.types import Document, Message, MessagePart, Sampling, Task
from agentenv.errors import AgentEnvError, ConfigurationError, DatasetError, Fault, MissingExtra, UnknownName
from agentenv.policies.agent import AgentPolicy
from agentenv.policies.fakes import ByteTokenizer, random_policy
from agentenv.policies.scripted import complete
from agentenv.retrievers.fakes import InMemoryRetriever

CALCULATOR = "agentenv/Calculator-v0"


class Quiet:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.warnings: list[str] = []

    def phase(self, name: str, total: int) -> None:
        self.phases.append(name)

    def advance(self, done: int, metrics: dict[str, Any]) -> None:
        pass

    def note(self, sentence: str) -> None:
        self.warnings.append(sentence)

    warn = note


def evaluated(policy: Any, **settings: Any) -> agentenv.EvaluationResult:
    given: dict[str, Any] = {"env": CALCULATOR, "limit": 10, "display": Quiet()} | settings
    return agentenv.evaluate(policy, **given)


def solve(messages: list[dict[str, Any]]) -> str:
    """Calls the tool for the sum in the question, then gives what the tool said."""
    if len(messages) > 1:
        return str(messages[-1]["content"]).split()[1]  # within <tool_response>
    expression = messages[0]["content"].rpartition("what is ")[2].rstrip("?")
    call = {"name": "calculate", "arguments": {"expression": expression}}
    return f"<tool_call>{json.dumps(call)}</tool_call>"


async def solve_async(messages: list[dict[str, Any]]) -> str:
    await asyncio.sleep(0)
    return solve(messages)


class Solver:
    """An agent with a memory of its own."""

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, messages: list[dict[str, Any]]) -> str:
        self.asked += 1
        return solve(messages)


@pytest.mark.parametrize(
    "agent",
    [solve, solve_async, Solver(), functools.partial(solve_async), lambda messages: solve_async(messages)],
)
def test_an_agent_is_any_function_from_messages_to_text(agent: Any) -> None:
    result = evaluated(agent)
    assert (result.score.scorer, result.score.mean, result.score.n) == ("reward", 1.0, 10)
    assert result.score.ci95 is not None
    assert result.score.ci95[0] < 1.0
    assert (result.n, result.faults, result.out, result.report) == (10, 0, None, None)
    assert len(result.episodes) == 10
    assert [turn["action"] for turn in result.episodes[0]["turns"]][1] in result.episodes[0]["answers"]


def test_one_scorer_is_named_by_its_text_and_a_result_fits_a_screen() -> None:
    result = evaluated(solve, scorers="em_squad")
    assert result.score.scorer == "em_squad"
    assert "em_squad" in repr(result)
    assert len(repr(result)) < 400


def test_what_would_need_tokens_is_left_out() -> None:
    result = evaluated(solve, limit=2)
    assert result.results["tokens"] == {}
    assert all("tokens" not in episode for episode in result.episodes)
    assert all("policy_tokens" not in turn for episode in result.episodes for turn in episode["turns"])


@pytest.mark.parametrize("is_async", [True, False])
def test_an_exception_of_the_agent_ends_one_episode_and_says_what_happened(is_async: bool) -> None:
    asked = 0

    def fragile(messages: list[dict[str, Any]]) -> Any:
        nonlocal asked
        asked += 1
        failures: dict[int, Callable[[], Any]] = {
            3: lambda: 1 / 0,
            5: lambda: 42,
            7: lambda: exec("raise SystemExit(3)"),
            9: lambda: exec("raise ConfigurationError('mine')", {"ConfigurationError": ConfigurationError}),
        }
        return failures.get(asked, lambda: "no number")()

    async def fragile_async(messages: list[dict[str, Any]]) -> Any:
        return fragile(messages)

    result = evaluated(fragile_async if is_async else fragile, concurrency=1)
    assert (result.n, result.faults) == (6, 4)
    assert result.results["end_reasons"] == {"answered": 6, "policy_fault": 4}
    said = [str(episode.get("error", "")) for episode in result.episodes]
    for words in ("ZeroDivisionError", "42", "SystemExit", "mine"):
        assert sum(words in one for one in said) == 1
    assert all("reward" not in episode for episode in result.episodes if not episode["valid"])


def test_an_agent_that_always_fails_ends_the_evaluation_with_its_error() -> None:
    def broken(messages: list[dict[str, Any]]) -> str:
        raise KeyError("no such model")

    with pytest.raises(Fault, match="KeyError"):
        evaluated(broken)


def test_an_agent_sees_what_a_chat_endpoint_takes() -> None:
    seen: list[list[dict[str, Any]]] = []

    def watch(messages: list[dict[str, Any]]) -> str:
        seen.append(messages)
        return solve(messages)

    evaluated(watch, limit=1)
    assert [[message["role"] for message in messages] for messages in seen] == [
        ["user"],
        ["user", "assistant", "user"],
    ]
    assert seen[1][1]["content"].startswith("<tool_call>")


def test_an_action_ends_where_the_environment_says() -> None:
    policy = AgentPolicy(lambda messages: "<answer>no</answer> and more <search>x</search>")
    ids = policy.chat.prompt([Message("user", "Where?")])
    sampling = Sampling(max_tokens=1, stop=("</search>", "</answer>"))
    completion = asyncio.run(policy.generate(ids, sampling))
    assert completion.text == "<answer>no</answer>"
    assert not completion.exact_tokens  # so that nobody trains on it
    policy.close()


def test_an_agent_is_shown_pictures_as_a_chat_endpoint_takes_them() -> None:
    seen: list[Any] = []

    def watch(messages: list[dict[str, Any]]) -> str:
        seen.extend(messages)
        return "done"

    policy = AgentPolicy(watch)
    picture = MessagePart("image", image=b"\x89PNG")
    ids = policy.chat.prompt([Message("tool", (MessagePart("text", "The screen:"), picture))])
    asyncio.run(policy.generate(ids, Sampling(max_tokens=1)))
    (message,) = seen
    assert message["role"] == "user"  # the role `tool` needs calls by id
    assert message["content"] == [
        {"type": "text", "text": "The screen:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
    ]
    policy.close()


def test_it_runs_in_a_notebook_whose_loop_is_running() -> None:
    async def cell() -> Any:
        result = evaluated(solve_async, limit=2)
        await asyncio.sleep(0)  # the loop goes on
        return result

    assert asyncio.run(cell()).n == 2


class Own:
    """A policy of one's own: an object with the methods of `Policy` and a tokenizer."""

    version = 0
    tokenizer = ByteTokenizer()

    async def generate(self, prompt_ids: Any, sampling: Any, *, episode: str | None = None) -> Any:
        return complete("no number", self.tokenizer, sampling)

    def release(self, episode: str) -> None:
        pass

    async def score(self, ids: Any, *, temperature: float = 1.0) -> Any:
        return [0.0] * len(ids)


def test_a_policy_object_is_evaluated_with_its_tokens(tmp_path: Path) -> None:
    policy = Own()
    result = evaluated(policy, limit=3, out=tmp_path / "out")
    assert (result.score.mean, result.n, result.results["tokens"]["unit"]) == (0.0, 3, "bytes")
    assert result.report is not None
    assert result.report.is_file()
    policy.version = 1  # the weights have changed, and the folder holds the scores of the earlier ones
    with pytest.raises(ConfigurationError, match="policy"):
        evaluated(policy, limit=3, out=tmp_path / "out")


def test_a_folder_is_not_continued_with_another_agent(tmp_path: Path) -> None:
    first = evaluated(solve, limit=3, out=tmp_path / "out")
    assert evaluated(solve, limit=3, out=tmp_path / "out").results == first.results
    with pytest.raises(ConfigurationError, match="policy"):
        evaluated(solve_async, limit=3, out=tmp_path / "out")


def test_an_environment_may_be_given_as_a_class() -> None:
    from agentenv.envs.calculator import Calculator

    assert evaluated(solve, env=Calculator, limit=2).results["settings"]["env"] == CALCULATOR

    class Hidden(Calculator):
        pass

    for wrong in (Hidden, int):
        with pytest.raises(ConfigurationError, match=wrong.__name__):
            evaluated(solve, env=wrong)


DOCUMENTS = [Document("a", "Vell", "Vell lies in Iria."), Document("b", "Orra", "Orra lies in Nemm.")]
QUESTIONS = [Task("vell", "Where is Vell?", ("Iria",)), Task("orra", "Where is Orra?", ("Nemm",))]


def look_up(messages: list[dict[str, Any]]) -> str:
    """Searches for the question, then answers with the last word of the first passage."""
    if len(messages) == 1:
        return f"<search>{'Vell' if 'Vell' in str(messages) else 'Orra'}</search>"
    return f"<answer>{str(messages[-1]['content']).partition(' lies in ')[2].partition('.')[0]}</answer>"


def searched(**changes: Any) -> agentenv.EvaluationResult:
    given = {"env": "", "limit": None, "tasks": QUESTIONS, "retriever": InMemoryRetriever(DOCUMENTS), "k": 1}
    return evaluated(look_up, **given | changes)


def test_tasks_and_a_retriever_may_be_objects(tmp_path: Path) -> None:
    result = searched(out=tmp_path / "out")
    assert (result.score.scorer, result.score.mean, result.score.n) == ("em_squad", 1.0, 2)
    assert [episode["id"] for episode in result.episodes] == ["vell", "orra"]
    assert result.results["retriever"] == InMemoryRetriever(DOCUMENTS).info().name
    assert searched(limit=1).n == 1
    for change in ({"tasks": QUESTIONS[:1]}, {"retriever": InMemoryRetriever(DOCUMENTS[:1])}):
        with pytest.raises(ConfigurationError, match="out holds an evaluation"):
            searched(out=tmp_path / "out", **change)


@pytest.mark.parametrize(
    ("changes", "error", "word"),
    [
        ({"dataset": "nq"}, ConfigurationError, "'nq'"),
        ({"tasks": []}, DatasetError, "tasks"),
        ({"tasks": [QUESTIONS[0], QUESTIONS[0]]}, DatasetError, "'vell'"),
        ({"tasks": ["Where?"]}, DatasetError, r"'Where\?'"),
        ({"retriever": 7}, ConfigurationError, "7"),
        ({"retriever": ""}, ConfigurationError, "retriever"),
        ({"env": CALCULATOR}, ConfigurationError, CALCULATOR),
    ],
)
def test_objects_that_cannot_be_used_are_refused_by_name(
    changes: dict[str, Any], error: type[AgentEnvError], word: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=word):
        searched(out=tmp_path / "out", **changes)
    assert not (tmp_path / "out").exists()


def test_a_suite_is_a_mapping_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = {"limit": 3, "env": {"seed": 1}, "more": {"dataset": "env", "seed": 2, "limit": 5}}
    result = agentenv.evaluate_suite(solve, tables, env=CALCULATOR, display=lambda name: Quiet())
    assert {name: part.n for name, part in result.sets.items()} == {"env": 3, "more": 5}
    assert (result.macro["reward"].mean, result.macro["reward"].n) == (1.0, 2)
    assert (result.micro["reward"].n, result.out, result.report) == (8, None, None)
    file = tmp_path / "suite.toml"
    file.write_text("limit = 3\n[env]\nseed = 1\n[more]\ndataset = 'env'\nseed = 2\nlimit = 5\n")
    out = tmp_path / "out"
    same = agentenv.evaluate_suite("scripted", file, env=CALCULATOR, out=out, trust_config=True)
    assert same.macro["reward"] == result.macro["reward"]
    assert same.report is not None
    assert same.report.is_file()
    words = ["--suite", str(file), "--trust-config", "--env", CALCULATOR, "--policy", "scripted"]
    assert main(["eval", *words, "--out", str(tmp_path / "command"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {key: found[key] for key in same.results} == json.loads(json.dumps(same.results))


def test_a_suite_cannot_name_what_is_given_as_an_object() -> None:
    with pytest.raises(ConfigurationError, match="policy"):
        agentenv.evaluate_suite(solve, {"nq": {"policy": "tiny"}})
    with pytest.raises(ConfigurationError, match="retriever"):
        agentenv.evaluate_suite(solve, {"nq": {"retriever": "bm25"}}, retriever=InMemoryRetriever(DOCUMENTS))


@pytest.mark.parametrize(
    ("settings", "error", "word"),
    [
        ({"env": ""}, ConfigurationError, "environment"),
        ({"env": "agentenv/Calculater-v0"}, UnknownName, "Calculater"),
        ({"scorers": ["em_sqad"]}, UnknownName, "em_sqad"),
        ({"concurrency": 0}, ConfigurationError, "0"),
        ({"options": {"colour": 1}}, UnknownName, "colour"),
        ({"scorers": "em_sqad"}, UnknownName, "em_sqad"),
        ({"retriever": "bm25"}, ConfigurationError, "retriever"),
        ({"corpus": "corpus.jsonl"}, ConfigurationError, "corpus"),
        ({"dataset": "hotpotqua"}, UnknownName, "hotpotqua"),
    ],
)
def test_mistakes_are_typed_errors_that_leave_nothing(
    settings: dict[str, Any], error: type[AgentEnvError], word: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=word):
        evaluated(solve, out=tmp_path / "out", **settings)
    assert not (tmp_path / "out").exists()
    for policy in (3, None):
        with pytest.raises(ConfigurationError, match=type(policy).__name__):
            evaluated(policy)


def test_the_command_gives_the_same_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = agentenv.evaluate("scripted", env=CALCULATOR, limit=4, display=Quiet())
    words = ["--env", CALCULATOR, "--policy", "scripted", "--limit", "4", "--out", str(tmp_path / "out")]
    assert main(["eval", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {key: found[key] for key in result.results} == result.results


SMALL = {
    "policy": "",
    "threads": 1,
    "train.limit": 8,
    "dev.limit": 2,
    "test.limit": 3,
    "rollout": {"questions": 2, "group_size": 2, "turn_tokens": 4, "context_tokens": 600},
    "evaluation.bounds": False,
}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("small")
    random_policy(folder, ["Reply with the number alone: what is 12 * 3 - 4?"])
    return SMALL | {"policy": f"hf:{folder}"}


def test_a_policy_is_trained_from_a_notebook_as_by_the_command(
    small: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display = Quiet()

    async def cell() -> agentenv.TrainResult:
        return agentenv.train(
            "own-env", out=tmp_path / "python", overrides=small, display=display, optimizer__steps=2
        )

    result = asyncio.run(cell())
    assert (result.before.scorer, result.before.n, result.after.n) == ("reward", 3, 3)
    assert result.after.ci95 is not None
    assert result.report.is_file()
    assert (result.policy / "model.safetensors").is_file()
    assert result.results["steps"] == 2
    assert "training" in display.phases
    (tmp_path / "same.toml").write_bytes((tmp_path / "python" / "config.toml").read_bytes())
    assert main(["train", str(tmp_path / "same.toml"), "--out", str(tmp_path / "command"), "--json"]) == 0
    for name in ("metrics.jsonl", "evaluation/after/episodes.jsonl"):
        assert (tmp_path / "command" / name).read_bytes() == (tmp_path / "python" / name).read_bytes()
    # The run goes on from Python too, from its own configuration.
    more = agentenv.train(out=tmp_path / "python", resume=True, display=Quiet(), optimizer__steps=3)
    assert more.results["steps"] == 3


def test_a_configuration_is_read_changed_and_checked(tmp_path: Path) -> None:
    config = agentenv.load_config("own-env")
    assert isinstance(config, agentenv.TrainConfig)
    wrong: list[tuple[dict[str, Any], type[AgentEnvError], str]] = [
        ({"optimiser__steps": 2}, UnknownName, "optimiser"),
        ({"optimizer__steps": 0}, ConfigurationError, "steps"),
        ({"seed": 1, "overrides": {"seed": 2}}, ConfigurationError, "seed"),
        ({"config": "own-enf"}, UnknownName, "own-enf"),
        ({"config": "own-env", "resume": True}, ConfigurationError, "resume"),
        ({"config": None, "out": None, "resume": True}, ConfigurationError, "resume"),
        ({"config": None, "resume": True}, ConfigurationError, "out"),
    ]
    for arguments, error, word in wrong:
        given: dict[str, Any] = {"config": config, "out": tmp_path / "out", "display": Quiet()} | arguments
        with pytest.raises(error, match=word):
            agentenv.train(**given)
    path = tmp_path / "theirs.toml"
    path.write_text('[env]\nid = "remote:http://127.0.0.1:9"')
    with pytest.raises(ConfigurationError, match=r"remote:http://127\.0\.0\.1:9"):
        agentenv.train(path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("begin", [functools.partial(evaluated, solve), agentenv.train])
def test_without_jinja2_nothing_is_begun_whose_report_could_not_be_written(
    begin: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra, match=r"agentenv-suite\[report\]"):
        begin(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()

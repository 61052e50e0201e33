"""An evaluation as programs run it: the card of the policy, what is kept of its settings, the phases that are shown."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agentenv
from agentenv.core.chat import TemplateFormat
from agentenv.core.io.claims import claim
from agentenv.core.types import Document, Task
from agentenv.data.world import WorldConfig, write_world
from agentenv.envs.calculator import Calculator
from agentenv.envs.code import Code
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.evaluation.benchmark import (
    Benchmark,
    BenchmarkParts,
    _identity,
    _in_format,
    _options,
    _sources,
    check_names,
    other_env_note,
    run_benchmark,
)
from agentenv.evaluation.eval_agent import make_eval_agent
from agentenv.evaluation.journal import evaluating
from agentenv.evaluation.records import read_records
from agentenv.evaluation.runner import first_seed
from agentenv.policies.agent import AgentPolicy
from agentenv.policies.card import EpisodeCard
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.progress import SilentDisplay, indexing
from agentenv.retrievers.encoder import HashEncoder
from agentenv.retrievers.fakes import InMemoryRetriever

SCRIPT = {"run-0-0": ["<search>who founded it</search>", "<answer>nobody</answer>"]}


class Display(SilentDisplay):
    """Keeps the phases."""

    def __init__(self) -> None:
        self.phases: dict[str, int] = {}

    def phase(self, name: str, total: int) -> None:
        self.phases[name] = total


class Carded(ScriptedPolicy):
    """A scripted policy with a card."""

    card = EpisodeCard(observation_tokens=12)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worlds") / "world"
    write_world(WorldConfig(seed=11, documents=200, questions=4), folder)
    return folder


def evaluated(
    world: Path, out: Path, policy: Any, display: Display | None = None, **more: Any
) -> dict[str, Any]:
    given: dict[str, Any] = {"retriever": "bm25", "limit": 1, "bounds": False} | more
    benchmark = Benchmark("fictional", "mine", data=world, **given)
    return run_benchmark(benchmark, out, display or Display(), given=BenchmarkParts(policy))


@pytest.mark.parametrize(("kind", "most"), [(Carded, 12), (ScriptedPolicy, 500)])
def test_an_observation_is_as_long_as_the_card_of_the_policy_says(
    world: Path, tmp_path: Path, kind: Any, most: int
) -> None:
    evaluated(world, tmp_path / "out", kind(SCRIPT))
    (record,) = read_records(tmp_path / "out" / "episodes.jsonl")
    words = len(record["turns"][0]["observation"].split())
    assert words <= most
    assert words > most / 10


class Judging(ScriptedPolicy):
    """A scripted policy whose card says that pages which it judges useless are dropped."""

    card = EpisodeCard(
        env="agentenv/JudgedSearch-v0", strategy="judge", strategy_options={"verdict": "<judge>no</judge>"}
    )


@pytest.mark.parametrize(
    ("env", "strategy", "dropped"),
    [
        ("agentenv/JudgedSearch-v0", "", True),
        ("agentenv/JudgedSearch-v0", "plain", False),
        ("agentenv/LocalSearch-v0", "", False),  # the card speaks of another environment
    ],
)
def test_the_strategy_is_that_of_the_card_unless_another_is_named(
    world: Path, tmp_path: Path, env: str, strategy: str, dropped: bool
) -> None:
    script = ["<search>who founded it</search>", "<judge>no</judge><answer>nobody</answer>"]
    found = evaluated(world, tmp_path / "out", Judging({"run-0-0": script}), env=env, strategy=strategy)
    (record,) = read_records(tmp_path / "out" / "episodes.jsonl")
    assert ("of no use" in record["turns"][0]["observation"]) is dropped
    assert found["settings"].get("strategy", "") == ("judge" if dropped else "")


def test_another_environment_than_that_of_the_training_is_told() -> None:
    """The default of a question set is `LocalSearch-v0`, whose tags a policy of another one may not know."""
    asked = Benchmark("hotpotqa", "hf:runs/reseek/policy")
    said = other_env_note(asked, Judging.card)
    assert "hf:runs/reseek/policy was trained in agentenv/JudgedSearch-v0" in said
    assert "--env agentenv/JudgedSearch-v0" in said
    assert other_env_note(replace(asked, env="agentenv/JudgedSearch-v0"), Judging.card) == ""
    assert (
        other_env_note(Benchmark("humaneval", "openai:m@http://h/v1"), EpisodeCard()) == ""
    )  # nothing says so


def test_results_say_how_they_were_sampled(world: Path, tmp_path: Path) -> None:
    """How many episodes run at a time decides batches, and nothing where there are none."""
    batched = evaluated(world, tmp_path / "batched", ScriptedPolicy(SCRIPT), concurrency=8)["settings"]
    agent = evaluated(world, tmp_path / "agent", AgentPolicy(lambda messages: "<answer>nobody</answer>"))[
        "settings"
    ]
    assert (batched["decoding"], batched["concurrency"]) == ("greedy", 8)
    assert agent["decoding"] == "greedy"
    assert "concurrency" not in agent
    warm = evaluated(world, tmp_path / "warm", ScriptedPolicy(SCRIPT), temperature=0.5)["settings"]
    assert warm["decoding"] == "temperature 0.5"


def test_tasks_that_are_given_are_played_in_place_of_those_of_the_set(tmp_path: Path) -> None:
    given = BenchmarkParts(
        ScriptedPolicy({"run-0-0": ["<answer>here</answer>"]}),
        tasks=(Task("own", "Where?", ("here",)),),
        retriever=InMemoryRetriever([Document("d", "t", "x")]),
    )
    results = run_benchmark(Benchmark("mine", "mine", bounds=False), tmp_path / "out", Display(), given=given)
    (record,) = read_records(tmp_path / "out" / "episodes.jsonl")
    assert (record["id"], record["question"], record["prediction"]) == ("own", "Where?", "here")
    assert (results["dataset"], results["retriever"], results["n"]) == ("mine", "memory", 1)


def test_passages_that_are_encoded_are_a_phase_of_their_own(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentenv.retrievers.encoder.make_encoder", lambda name: HashEncoder())
    display = Display()
    evaluated(world, tmp_path / "out", ScriptedPolicy(SCRIPT), display, retriever="")
    assert display.phases["indexing passages"] == 200


def test_what_is_not_named_is_that_of_the_set_or_of_the_environment() -> None:
    plain = Benchmark("hotpotqa", "tiny")
    assert (plain.env, plain.bounds, plain.concurrency, plain.seed) == (
        "agentenv/LocalSearch-v0",
        True,
        64,
        0,
    )
    assert plain.scorers == ("em_squad", "f1_squad", "em_cover")
    code = Benchmark("humaneval", "tiny")
    assert code.env == "agentenv/Code-v0"
    assert code.scorers == Code.scorers
    own = Benchmark("", "tiny", env="agentenv/Calculator-v0")
    assert (own.dataset, own.scorers) == ("env", Calculator.scorers)
    ranked = Benchmark("", "tiny", env="agentenv/Rewrite-v0")
    assert ranked.scorers == ("mrr", "recall@10", "recall@100", "reward")
    assert Benchmark("hotpotqa", "tiny", scorers=("cem",)).scorers == ("cem",)
    assert Benchmark("hotpotqa", "openai:m@http://h/v1").bounds is False
    assert Benchmark("hotpotqa", "openai:m@http://h/v1", bounds=True).bounds is True
    assert Benchmark("hotpotqa", "tiny", bounds=False).bounds is False
    assert Benchmark("hotpotqa", "tiny", concurrency=1).concurrency == 1


def test_no_two_seeds_or_samples_have_an_episode_seed_in_common() -> None:
    """Added to the place of a question, seeds 0 and 1 gave question 1 and question 0 the same random numbers."""
    firsts = [
        Benchmark("hotpotqa", "tiny", seed=seed, sample=sample).episode_seed
        for seed in (0, 1, 2, 1008, 1009)
        for sample in (0, 1, 1008)
    ]
    episodes = [first + place for first in firsts for place in (0, 1, 2, 1_000_002)]
    assert len(set(episodes)) == len(episodes)
    assert firsts[0] == 0


def test_episode_seeds_of_evaluations_are_apart_and_below_two_to_the_31() -> None:
    """Environments may seed generators that take no larger number; seed 5 alone led to one of 5,045,015,135."""
    firsts = sorted(first_seed(seed, sample) for seed in range(1000) for sample in range(32))
    assert min(right - left for left, right in pairwise(firsts)) >= 14_000
    large = [first_seed(seed, 1008) for seed in (5, 42, 20_261_128, 2**31, 2**63)]
    assert max(firsts + large) + 1_000_002 < 2**31


class _OldDice(agentenv.Env[str]):
    """Draws with the generator that many environments still have."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        task = (options or {})["task"]
        self.state = str(np.random.RandomState(seed).randint(6))
        return (agentenv.Message("user", task.question),), {"task_id": task.id}

    def step(self, action: str) -> Any:
        return self.result((), reward=float(action == self.state), end=agentenv.EndReason.ANSWERED)


def test_an_environment_with_a_generator_of_32_bits_is_evaluated_under_every_seed() -> None:
    tasks = [Task("a", "Guess.", ("1",))]
    found = agentenv.evaluate("tiny", env=_OldDice, tasks=tasks, seed=20_261_128, bounds=False)
    assert [record["valid"] for record in found.episodes] == [True]


def test_seeds_sample_other_actions_for_every_question() -> None:
    """One question asked twenty times: seed 1 samples none of what seed 0 sampled in another place."""
    tasks = [Task(str(place), "What is 12 + 30?", ("42",)) for place in range(20)]
    said = []
    for seed in (0, 1):
        found = agentenv.evaluate(
            "tiny", env="agentenv/Calculator-v0", tasks=tasks, temperature=1.0, seed=seed, bounds=False
        )
        said.append([record["turns"][0]["action"] for record in found.episodes])
    shifted = sum(one == other for one, other in zip(said[0][1:], said[1], strict=False))
    assert len(set(said[0])) > 15
    assert shifted < 3


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({"dataset": ""}, ConfigurationError, "question set"),
        ({"concurrency": 0}, ConfigurationError, r"\b0\b"),
        ({"seed": -1}, ConfigurationError, "-1"),
        ({"temperature": -0.5}, ConfigurationError, r"-0\.5.*\b0\b"),
        ({"sample": -2}, ConfigurationError, "-2"),
        ({"sample": 1009}, ConfigurationError, "1009"),
        ({"format": "inlin"}, UnknownName, "'inlin'.*'inline'"),
        ({"family": "qwen"}, ConfigurationError, "'qwen'.*'inline'"),
        ({"format": "template", "family": "qwen"}, ConfigurationError, "'qwen'.*'template'"),
        ({"format": "native", "family": "qwem"}, UnknownName, "'qwem'.*'qwen'"),
        ({"template_options": {"a": 1}}, ConfigurationError, "'a'"),
        ({"env": "agentenv/LocalSerch-v0"}, UnknownName, "LocalSearch-v0"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_by_name(
    given: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        Benchmark(**{"dataset": "hotpotqa", "policy": "tiny"} | given)


@pytest.mark.parametrize(
    ("given", "objects", "named"),
    [
        ({"dataset": "hotpot"}, {}, "'hotpotqa'"),
        ({"split": "devv"}, {}, "devv"),
        ({"scorers": ("em_squat",)}, {}, "'em_squad'"),
        ({"scorers": ("em_squad", "mrr")}, {}, "mrr"),
        ({"retriever": "fais:x"}, {}, "'faiss'"),
        ({"policy": "tinny"}, {}, "tinny"),
    ],
)
def test_names_are_checked_before_anything_is_opened(
    given: dict[str, Any], objects: dict[str, Any], named: str
) -> None:
    asked = Benchmark(**{"dataset": "hotpotqa", "policy": "tiny"} | given)
    with pytest.raises(ConfigurationError, match=named):
        check_names(asked, BenchmarkParts(**objects))
    for name, value in (("dataset", {"tasks": ()}), ("policy", {"policy": ScriptedPolicy({})})):
        if name in given:
            check_names(asked, BenchmarkParts(**value))  # the name stands for nothing then


@pytest.mark.parametrize(
    ("policy", "batched"),
    [("tiny", True), ("openai:m@http://h/v1", False), ("vllm:somewhere", False), ("agent:mine:act", False)],
)
def test_how_many_episodes_run_at_a_time_is_part_of_what_is_evaluated_where_it_decides_batches(
    policy: str, batched: bool
) -> None:
    asked = Benchmark("hotpotqa", policy, concurrency=7)
    held = _identity(asked)
    assert held["concurrency"] == (7 if batched else None)
    assert not {"format", "family", "template_options"} & held.keys()
    native = _identity(Benchmark("hotpotqa", policy, format="native", family="qwen"))
    assert (native["format"], native["family"], native["template_options"]) == ("native", "qwen", {})
    assert (held["dataset"], held["policy"]) == ("hotpotqa", policy)


def test_questions_and_search_of_a_benchmark() -> None:
    asked = Benchmark(
        "hotpotqa", "tiny", data=Path("d"), split="dev", limit=3, seed=4, retriever="bm25", corpus="c",
        options={"executor": "local"},
    )  # fmt: skip
    source, search = _sources(asked)
    assert (source.dataset, source.data, source.split, source.limit, source.seed) == (
        "hotpotqa", Path("d"), "dev", 3, 4,
    )  # fmt: skip
    assert (search.retriever, search.corpus, source.options) == ("bm25", "c", {})
    code, _ = _sources(Benchmark("humaneval", "tiny", options={"executor": "local", "more": 1}))
    assert (code.options, code.split) == ({"executor": "local"}, None)
    own, _ = _sources(Benchmark("", "tiny", env="agentenv/Calculator-v0"))
    assert (own.split, own.options) == ("test", {})
    dialled = Benchmark("", "tiny", env="agentenv/Code-v0", task_options={"steps": 3})
    assert _sources(dialled)[0].options == {"steps": 3}
    assert _identity(dialled)["task_options"] == {"steps": 3}
    assert "task_options" not in _identity(replace(dialled, task_options={}))
    with pytest.raises(ConfigurationError, match="hotpotqa"):
        Benchmark("hotpotqa", "tiny", task_options={"steps": 3})


def test_options_that_are_asked_for_stand_above_those_of_the_card() -> None:
    card = EpisodeCard(
        observation_tokens=12, k=7, max_turns=3, prompt="Q: {question}", env="agentenv/LocalSearch-v0"
    )
    asked = Benchmark("hotpotqa", "tiny", k=2, options={"found_reward": 0.5})
    assert _options(asked, card) == {
        "observation_tokens": 12, "k": 2, "max_turns": 3, "prompt": "Q: {question}", "found_reward": 0.5,
    }  # fmt: skip
    bare = _options(Benchmark("hotpotqa", "tiny", max_turns=9, options={"k": 4}), EpisodeCard(k=7))
    assert (bare["k"], bare["max_turns"], "prompt" in bare) == (4, 9, False)
    shaped = replace(card, options={"queries": 8, "repeat_notice": True, "of_another_version": 1})
    assert _options(Benchmark("hotpotqa", "tiny", options={"queries": 2}), shaped).items() >= {
        ("queries", 2), ("repeat_notice", True), ("k", 7),
    }  # fmt: skip
    assert "of_another_version" not in _options(Benchmark("hotpotqa", "tiny"), shaped)
    other = Benchmark("hotpotqa", "tiny", env="agentenv/SelfSearch-v0")
    assert "queries" not in _options(other, shaped)  # another environment has a form of its own
    code = Benchmark("humaneval", "tiny", max_turns=2)
    assert _options(code, card) == {"max_turns": 2}  # of a card for another environment nothing holds


@pytest.mark.parametrize(
    ("env", "context", "bounds"),
    [
        ("agentenv/HybridSearch-v0", 4096, {"observation_tokens": 512}),  # its own are 4096, and ten turns
        ("agentenv/HybridSearch-v0", 32_768, {}),
        ("agentenv/LongSearch-v0", 16_384, {"observation_tokens": 2048}),  # its own are 8192, and 128 turns
        ("agentenv/LocalSearch-v0", 1024, {}),
    ],
)
def test_a_policy_without_a_card_is_asked_with_the_budgets_of_the_environment(
    env: str, context: int, bounds: dict[str, int]
) -> None:
    """An observation takes an eighth of its context at most, and 500 tokens in any case."""
    asked = Benchmark("hotpotqa", "openai:m@http://h/v1", env=env)
    assert _options(asked, EpisodeCard(context_tokens=context)) == bounds


def test_a_format_that_is_named_replaces_that_of_the_card_and_its_opening_message() -> None:
    policy = ScriptedPolicy({}, ByteTokenizer(chat=True))
    policy.card = EpisodeCard(prompt="Q: {question}", k=7)  # type: ignore[attr-defined]
    agent = make_eval_agent(policy, "mine", 3, ())
    plain = Benchmark("hotpotqa", "mine")
    assert _in_format(plain, agent) is agent
    same = _in_format(replace(plain, format="inline"), agent)
    assert (same.card.prompt, same.card.k) == ("Q: {question}", 7)
    other = _in_format(replace(plain, format="template"), agent)
    assert (other.card.prompt, other.card.format, other.card.k) == (None, "template", 7)
    assert isinstance(other.chat, TemplateFormat)
    assert (other.policy, other.batch) == (policy, 3)


def test_the_index_is_a_phase_whose_length_is_told_once_and_again_where_another_begins() -> None:
    told: list[Any] = []

    class Told(SilentDisplay):
        def phase(self, name: str, total: int) -> None:
            told.append((name, total))

        def advance(self, done: int, metrics: dict[str, Any]) -> None:
            told.append((done, metrics))

        def note(self, sentence: str) -> None:
            told.append(sentence)

    progress = indexing(Told(), "it is not kept")
    for done, passages in ((1, 4), (4, 4), (2, 2)):
        progress(done, passages)
    assert told == [("indexing passages", 4), (1, {}), (4, {}), ("indexing passages", 2), (2, {})]
    told.clear()
    progress(0, 5000)
    assert told == ["it is not kept", ("indexing passages", 5000), (0, {})]


def test_a_folder_in_which_somebody_evaluates_is_refused_and_left_as_it_is(
    world: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with claim(tmp_path, "the folder above is another one"), evaluating(out):
        (out / "run.log").touch()
        with pytest.raises(ConfigurationError, match="out"):
            evaluated(world, out, ScriptedPolicy(SCRIPT))
        assert [path.name for path in out.iterdir()] == ["run.log"]
    assert evaluated(world, out, ScriptedPolicy(SCRIPT))["n"] == 1


def test_a_finished_folder_is_returned_and_its_page_made_again(world: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = evaluated(world, out, ScriptedPolicy(SCRIPT))
    (out / "report.html").unlink()
    display = Display()
    again = evaluated(world, out, ScriptedPolicy({}), display)  # which could answer nothing
    assert again == first
    assert (out / "report.html").is_file()
    assert display.phases == {"preparing questions and index": 0}
    with pytest.raises(ConfigurationError, match="seed"):
        evaluated(world, out, ScriptedPolicy(SCRIPT), seed=3)
    told = ("dataset", "policy", "retriever", "n", "faults", "bounds", "seed")
    assert [first[name] for name in told] == ["fictional", "mine", "bm25", 1, 0, {}, 0]


def test_the_folder_of_a_training_run_names_its_evaluation(tmp_path: Path) -> None:
    (tmp_path / "evaluation" / "after").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="evaluation/after"):
        read_records(tmp_path / "episodes.jsonl")

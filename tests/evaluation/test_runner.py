"""Playing an evaluation: the expert, the floors, faults, the record of an episode, bounds."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.floors import FLOORS, floor_action
from agentenv.core.rollout import RolloutConfig
from agentenv.core.types import Completion, EndReason, Passage, Query, QueryContext, Sampling, Task
from agentenv.data.sources import Source
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.local_search import STOP, LocalSearch
from agentenv.errors import ConfigurationError, DatasetError, EnvFault
from agentenv.evaluation.closed_book import closed_book
from agentenv.evaluation.eval_agent import EvalAgent, open_eval_agent
from agentenv.evaluation.pipeline import play_evaluation
from agentenv.evaluation.results import summarize
from agentenv.evaluation.runner import (
    expert_policy,
    play,
    play_batch,
    play_expert,
    to_record,
    valid_episodes,
)
from agentenv.evaluation.task_env import EnvConfig, TaskEnv
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.policy_spec import make_endpoint_policy
from agentenv.policies.scripted import ScriptedPolicy, complete
from agentenv.progress import SilentDisplay
from agentenv.retrievers.fakes import FaultyRetriever, InMemoryRetriever
from agentenv.retrievers.oracle import OracleRetriever

WORLD = FictionalWorld.generate(WorldConfig(seed=4, documents=200, questions=20))
TASKS = WORLD.questions
RETRIEVER = InMemoryRetriever(WORLD.documents)
CONFIG = RolloutConfig(context_tokens=1 << 16, turn_tokens=1 << 12, temperature=0.0, stop=STOP)
CHAT = InlineFormat(ByteTokenizer())


def environment(**options: Any) -> LocalSearch:
    given: dict[str, Any] = {"tasks": TASKS, "retriever": RETRIEVER, "max_turns": 4}
    return LocalSearch(**given | options)


def em(records: list[Any]) -> dict[str, Any]:
    return summarize(records, ["em_squad"], dataset="world", split="test", policy="p", retriever="r", k=3)


def scripted(actions: list[list[str]], name: str = "eval") -> ScriptedPolicy:
    return ScriptedPolicy({f"{name}-0-{i}": script for i, script in enumerate(actions)})


def test_the_expert_scores_full_through_the_same_loop() -> None:
    played = play_expert(environment, TASKS, CONFIG)
    summary = em([to_record(t) for t in played])
    assert (summary["n"], summary["faults"], summary["scores"]["em_squad"]["mean"]) == (20, 0, 1.0)
    assert {t.end_reason for t in played} == {EndReason.ANSWERED}
    assert [t.task.id for t in played] == [task.id for task in TASKS]


def test_an_expert_longer_than_one_chunk_of_episodes() -> None:
    """Questions are played 128 at a time; every script reaches its own episode."""
    tasks = [Task(f"t{i}", f"q{i}", (f"a{i}",)) for i in range(131)]
    done: list[int] = []
    made: list[int] = []

    def make() -> LocalSearch:
        made.append(len(done))
        return environment(tasks=tasks)

    played = play_expert(make, tasks, CONFIG, progress=done.append)
    assert [t.info["answer"] for t in played] == [f"a{i}" for i in range(131)]
    assert done == [128, 131]
    assert made.count(1) == 2 * 3  # those of the second batch, for its scripts and its episodes


@pytest.mark.parametrize("floor", FLOORS)
def test_the_floors_score_zero(floor: str) -> None:
    rng = np.random.default_rng(0)
    scripts = []
    for task in TASKS:
        env = environment()
        opening, _ = env.reset(seed=0, options={"task": task})
        scripts.append([floor_action(floor, opening, rng) for _ in range(5)])
    played = play(scripted(scripts), CHAT, environment, TASKS, CONFIG)
    summary = em([to_record(t) for t in played])
    assert summary["scores"]["em_squad"]["mean"] == 0
    assert summary["reward_mean"] == 0
    assert summary["faults"] == 0


def test_an_environment_without_an_expert_says_so() -> None:
    class Mute(LocalSearch):
        def expert(self) -> None:
            return None

    with pytest.raises(ConfigurationError, match=f"Mute.*'{TASKS[0].id}'"):
        play_expert(lambda: Mute(tasks=TASKS, retriever=RETRIEVER), TASKS[:1], CONFIG)


def test_faults_are_counted_and_are_no_score() -> None:
    """Two of ten searches fail: 8 questions are scored, the means do not move, and no reward is written down."""
    tasks = TASKS[:10]
    faulty = FaultyRetriever(RETRIEVER, {2, 7})
    script = [["<search>who</search>", f"<answer>{task.answers[0]}</answer>"] for task in tasks]
    played = play(scripted(script), CHAT, lambda: environment(retriever=faulty), tasks, CONFIG)
    records = [to_record(t) for t in played]
    summary = em(records)
    assert (summary["n"], summary["faults"]) == (8, 2)
    assert summary["scores"]["em_squad"] | {"n": 8, "mean": 1.0} == summary["scores"]["em_squad"]
    assert summary["reward_mean"] == 1
    assert summary["end_reasons"] == {"answered": 8, "env_fault": 2}
    broken = [record for record in records if not record["valid"]]
    assert all("reward" not in record and record["prediction"] is None for record in broken)
    assert all("RetrieverFault" in t.error for t in played if not t.valid)
    assert valid_episodes(played) == [t for t in played if t.valid]
    assert 0 < len(valid_episodes(played)) < len(played)
    with pytest.raises(EnvFault, match="RetrieverFault"):
        valid_episodes([t for t in played if not t.valid])
    assert valid_episodes([]) == []


class PosesItsOwn(LocalSearch):
    """Ignores the task that is asked for and poses one whose answer anybody knows; says so, or nothing, or a lie."""

    says: str | None = "own"

    async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        own = Task("own", "What is 1 + 1?", ("2",))
        opening, _ = await super().areset(seed=seed, options={"task": own})
        return opening, {} if self.says is None else {"task_id": self.says}


@pytest.mark.parametrize("says", ["own", None])
def test_an_episode_of_another_task_is_a_fault_and_no_score(says: str | None) -> None:
    def make() -> LocalSearch:
        env = PosesItsOwn(tasks=TASKS, retriever=RETRIEVER)
        env.says = says
        return env

    played = play(scripted([["<answer>2</answer>"]] * 3), CHAT, make, TASKS[:3], CONFIG)
    summary = em([to_record(t) for t in played])
    assert (summary["n"], summary["faults"], summary["scores"]["em_squad"]["mean"]) == (0, 3, None)
    assert all(
        t.end_reason is EndReason.ENV_FAULT and repr(TASKS[i].id) in t.error for i, t in enumerate(played)
    )


@pytest.mark.parametrize("at_a_time", [128, 1])
def test_one_endless_question_fails_alone(at_a_time: int) -> None:
    """A million characters fit no context: that question is a fault with its reason, the others are answered."""
    tasks = [TASKS[0], replace(TASKS[1], question="why " * 250_000), TASKS[2]]
    small = CONFIG.model_copy(update={"context_tokens": 1 << 13})
    records: list[Any] = []
    for begin in range(0, 3, at_a_time):
        scripts = {f"eval-{begin}-{i}": ["<answer>x</answer>"] for i in range(3)}
        chunk = tasks[begin : begin + at_a_time]
        played = asyncio.run(
            play_batch(ScriptedPolicy(scripts), CHAT, environment, chunk, small, begin, seed=0, name="eval")
        )
        records += [to_record(trajectory) for trajectory in played]
    assert [record["valid"] for record in records] == [True, False, True]
    assert "8192" in records[1]["error"]
    assert (em(records)["n"], em(records)["faults"]) == (2, 1)


def test_a_context_too_small_for_every_question_masks_every_question() -> None:
    played = play(
        scripted([["<answer>x</answer>"]] * 3),
        CHAT,
        environment,
        TASKS[:3],
        CONFIG.model_copy(update={"context_tokens": 20}),
    )
    assert all(not t.valid and "context_tokens is 20" in t.error for t in played)


def test_a_question_without_answers_is_the_user_s_mistake_and_no_fault() -> None:
    with pytest.raises(DatasetError, match="'empty'"):
        play(scripted([["<answer>x</answer>"]]), CHAT, environment, [Task("empty", "Who?")], CONFIG)


def test_the_record_of_an_episode() -> None:
    task = TASKS[0]
    script = [["<search>one\ntwo</search>", "nonsense", f"<answer> {task.answers[0]} </answer> and more"]]
    (played,) = play(scripted(script), CHAT, environment, [task], CONFIG)
    record = to_record(played)
    assert record["prediction"] == task.answers[0]
    assert record["searches"] == len(record["retrieved_ids"]) == 2
    assert [turn["valid"] for turn in record["turns"]] == [True, False, True]
    assert [turn["reward"] for turn in record["turns"]] == [0, 0, 1]
    assert record["turns"][2]["action"].endswith("</answer>")
    assert record["turns"][0]["tool_results"][0]["status"] == "ok"
    assert record["turns"][1]["tool_results"][0]["status"] == "format_error"
    assert record["turns"][0]["tool_results"][0]["ids"] == record["retrieved_ids"]
    # The nonsense ends with an end-of-turn token.
    assert [turn["policy_tokens"] for turn in record["turns"]] == [
        len(turn["action"].encode()) + (index == 1) for index, turn in enumerate(record["turns"])
    ]
    assert record["turns"][0]["observation_tokens"] == len(record["turns"][0]["observation"].encode())
    spent = sum(turn["policy_tokens"] + turn["observation_tokens"] for turn in record["turns"])
    assert record["tokens"]["total"] == spent + len(record["prompt"].encode()) + 1
    assert task.question in record["prompt"]
    assert (record["family"], record["hops"]) == (task.data["family"], task.data["hops"])
    assert list(record["supporting_ids"]) == list(task.data["supporting_ids"])


def task_env(retriever: Any = RETRIEVER) -> TaskEnv:
    source = Source("world", "test", tuple(TASKS[:3]), WORLD.documents, None)
    return TaskEnv(
        source, retriever, EnvConfig(options={"max_turns": 2, "k": 3}), lambda text: len(text.split())
    )


def measure_bounds(policy: Any, field: TaskEnv, out: Path) -> dict[str, Any]:
    """The bounds that stand beside the score of ``policy``."""
    agent = EvalAgent(policy, policy.tokenizer, CHAT, CONFIG, 128)
    options = {"title": "test", "scorer": "em_squad", "seed": 0, "bounded": True}
    _, bounds = play_evaluation(agent, field, out, SilentDisplay(), **options)  # type: ignore[arg-type]
    return bounds


class FixedRetriever(InMemoryRetriever):
    """Finds the same, whatever is asked."""

    def __init__(self, page: list[Passage]) -> None:
        super().__init__(WORLD.documents)
        self.page = page

    async def search(self, queries: Any, k: int) -> list[list[Passage]]:
        return [self.page for _ in queries]


def gold(task: Task) -> list[Passage]:
    by_id = {document.id: document for document in WORLD.documents}
    found = [by_id[one] for one in task.data["supporting_ids"]]
    return [Passage(d.id, d.title, d.text, 1.0) for d in found]


def test_bounds_stand_beside_a_score(tmp_path: Path) -> None:
    """Closed book allows no search; the oracle's searches are no searches of ours, so a broken retriever is no harm."""
    searching = ["<search>x</search>", "<answer>wrong</answer>"]
    scripts = {f"closed_book-0-{i}": ["<search>x</search>"] for i in range(3)}
    scripts |= {f"run-0-{i}": ["<answer>wrong</answer>"] for i in range(3)}
    scripts |= {f"{name}-0-{i}": searching for i in range(2) for name in ("oracle", "oracle_paged")}
    scripts["oracle_paged-0-2"] = searching
    scripts["oracle-0-2"] = ["<search>x</search>", f"<answer>{TASKS[2].answers[0]}</answer>"]
    bounds = measure_bounds(ScriptedPolicy(scripts), task_env(), tmp_path)
    assert {name: bound["n"] for name, bound in bounds.items()} == {
        "closed_book": 3,
        "oracle": 3,
        "oracle_paged": 3,
        "expert": 3,
    }
    assert bounds["closed_book"]["mean"] == 0
    assert bounds["oracle"]["mean"] == pytest.approx(1 / 3)
    # Two of the three lack a document that word overlap misses.
    assert bounds["expert"]["mean"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("retriever", [FixedRetriever([]), InMemoryRetriever(WORLD.documents[:1])])
def test_the_expert_answers_nothing_that_it_was_not_shown(retriever: Any, tmp_path: Path) -> None:
    """A search that returns nothing bounds every policy at 0, in the bound and as a policy of its own."""
    bounds = measure_bounds(Knows(), task_env(retriever), tmp_path)
    assert bounds["expert"]["mean"] == 0
    agent = open_eval_agent("scripted", 4, STOP).on(task_env(retriever), TASKS[:3], 0, 0, "run")
    assert agent.policy is not None
    played = play(agent.policy, CHAT, task_env(retriever).make_env, TASKS[:3], CONFIG, name="run")
    assert em([to_record(t) for t in played])["scores"]["em_squad"]["mean"] == 0
    # Demonstrations stay as they were.
    assert play_expert(task_env(retriever).make_env, TASKS[:3], CONFIG)[0].reward == 1


def test_the_bound_of_the_expert_is_the_share_of_questions_whose_documents_were_all_shown(
    tmp_path: Path,
) -> None:
    source = Source("world", "test", tuple(TASKS), WORLD.documents, None)
    few = TaskEnv(
        source, RETRIEVER, EnvConfig(options={"k": 1, "max_turns": 2, "observation_tokens": 10_000}), len
    )
    played = play_expert(few.make_env, TASKS, CONFIG, shown_only=True)
    records = [to_record(trajectory) for trajectory in played]
    shown = [
        set(record["supporting_ids"]) <= {one for ids in record["retrieved_ids"] for one in ids}
        for record in records
    ]
    assert 0 < sum(shown) < len(TASKS)
    assert [trajectory.reward for trajectory in played] == shown
    bounds = measure_bounds(Knows(), few, tmp_path)
    assert bounds["expert"]["mean"] == pytest.approx(sum(shown) / len(TASKS))


def test_a_question_without_a_path_has_no_bound_by_the_expert(tmp_path: Path) -> None:
    """It would search nothing, so 0 would be said of any retriever, however good."""
    task = replace(TASKS[0], data={"supporting_ids": TASKS[0].data["supporting_ids"]})
    bare = TaskEnv(Source("mine", "", (task,), WORLD.documents, None), RETRIEVER, EnvConfig(), len)
    expert = measure_bounds(Knows(), bare, tmp_path)["expert"]
    assert "mean" not in expert
    assert task.id in expert["note"]
    with pytest.raises(ConfigurationError, match=task.id):
        open_eval_agent("scripted", 4, STOP).on(bare, (task,), 0, 0, "run")
    (demonstrated,) = play_expert(bare.make_env, (task,), CONFIG)
    assert demonstrated.reward == 1


def test_an_expert_without_turns_to_search_is_measured_and_scores_zero(tmp_path: Path) -> None:
    none = replace(task_env(RETRIEVER), env=EnvConfig(options={"max_turns": 0}))
    assert measure_bounds(Knows(), none, tmp_path)["expert"]["mean"] == 0


def test_the_expert_gives_up_where_a_page_was_cut_before_what_it_needs() -> None:
    env = environment(observation_tokens=12, retriever=FixedRetriever(gold(TASKS[0])))
    env.reset(seed=0, options={"task": TASKS[0]})
    env.step("<search>x</search>")
    assert env.expert_gives_up() == "<answer></answer>"
    env = environment(retriever=FixedRetriever(gold(TASKS[0])))
    env.reset(seed=0, options={"task": TASKS[0]})
    env.step("<search>x</search>")
    assert env.expert_gives_up() is None


@pytest.mark.parametrize(
    ("answers", "text", "knows"),
    [(("Bay",), "In Bay.", True), (("Bay",), "In Moor.", False), (("yes",), "Moor.", True)],
)
def test_without_supporting_documents_the_expert_needs_the_answer_on_a_page(
    answers: tuple[str, ...], text: str, knows: bool
) -> None:
    env = environment(retriever=FixedRetriever([Passage("p", "P", text, 1.0)]))
    env.reset(seed=0, options={"task": Task("t", "Where?", answers)})
    env.step("<search>x</search>")
    assert (env.expert_gives_up() is None) == knows


class Knows:
    """Answers every question right once its turn begins with the tag of an answer, and searches otherwise."""

    version = 0
    tokenizer = ByteTokenizer()

    async def generate(
        self, prompt_ids: Any, sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        prompt = self.tokenizer.decode(list(prompt_ids))
        answer = next(task.answers[0] for task in TASKS if task.question.strip("? ") in prompt)
        text = f" {answer} </answer>" if prompt.endswith("<answer>") else "<search>x</search>"
        return complete(text, self.tokenizer, sampling)

    def release(self, episode: str) -> None: ...

    async def score(self, ids: Any, *, temperature: float = 1.0) -> list[float]:
        return [0.0] * len(ids)


def test_closed_book_makes_a_policy_answer_that_would_search(tmp_path: Path) -> None:
    bounds = measure_bounds(Knows(), task_env(), tmp_path)
    assert bounds["closed_book"]["mean"] == 1
    assert bounds["oracle"]["mean"] == 0  # with turns to search it only searches


def test_closed_book_of_a_model_that_takes_messages_is_a_matter_of_the_prompt() -> None:
    policy = make_endpoint_policy("openai:m@http://127.0.0.1:9/v1")
    found = closed_book(task_env(), policy)
    assert not isinstance(found, str)
    variant, same = found
    assert same is policy
    opening, _ = variant.make_env().reset(seed=0, options={"task": TASKS[0]})
    assert "<search>" not in opening[0].text
    assert TASKS[0].question.strip("? ") in opening[0].text


def test_closed_book_of_an_environment_that_cannot_be_asked_so_is_a_sentence() -> None:
    bare = replace(task_env(), env=EnvConfig(id="agentenv/Calculator-v0"))
    assert "Calculator-v0" in closed_book(bare, Knows())


def test_no_oracle_without_supporting_documents(tmp_path: Path) -> None:
    tasks = (Task("t", "q", ("a",)),)
    bare = TaskEnv(Source("mine", "", tasks, WORLD.documents, None), RETRIEVER, EnvConfig(), len)
    policy = ScriptedPolicy({f"{name}-0-0": ["<answer>a</answer>"] for name in ("run", "closed_book")})
    bounds = measure_bounds(policy, bare, tmp_path)
    assert "names no supporting documents" in bounds["oracle"]["note"]
    assert bounds["oracle_paged"] == bounds["oracle"]
    assert bounds["closed_book"]["mean"] == 1


def test_the_oracle_finds_exactly_the_supporting_documents() -> None:
    oracle = OracleRetriever(TASKS, {d.id: d for d in WORLD.documents})
    query = Query("anything", QueryContext("e", TASKS[0].question))
    (found,) = asyncio.run(oracle.search([query], 1))
    assert [passage.id for passage in found] == list(TASKS[0].data["supporting_ids"])


def test_a_scripted_policy_samples_nothing() -> None:
    """The floor and expert scripts above stand for an engine: they end at the same stop strings."""
    done = asyncio.run(
        scripted([["<answer>a</answer>tail"]]).generate([1], Sampling(99, stop=STOP), episode="eval-0-0")
    )
    assert done.text == "<answer>a</answer>"


def test_a_task_that_its_environment_fails_on_has_the_reason_in_place_of_a_script() -> None:
    class Odd(LocalSearch):
        def expert(self) -> Any:
            match self.state.task.id:
                case "a":
                    raise KeyError("no path")
                case "b":
                    return [7]
            return ["<answer>x</answer>"]

    tasks = [Task(name, f"Who is {name}?", ("x",)) for name in "abcd"]
    policy = expert_policy(
        lambda: Odd(tasks=tasks, retriever=RETRIEVER), tasks, 2, 5.0, seed=0, name="eval", first=4
    )
    assert {name: list(script) for name, script in policy.actions.items()} == {
        "eval-6-0": ["<answer>x</answer>"],
        "eval-6-1": ["<answer>x</answer>"],
    }
    assert sorted(policy.failures) == ["eval-4-0", "eval-4-1"]
    assert policy.failures["eval-4-0"].startswith("KeyError: ")
    assert "no path" in policy.failures["eval-4-0"]
    assert "[7]" in policy.failures["eval-4-1"]


def test_the_expert_meets_the_seeds_that_the_episodes_are_played_under() -> None:
    seeds: list[int | None] = []

    class Seen(LocalSearch):
        async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            seeds.append(seed)
            return await super().areset(seed=seed, options=options)

        def expert(self) -> Any:
            return ["<answer>x</answer>"]

    def make() -> Seen:
        return Seen(tasks=TASKS, retriever=RETRIEVER)

    expert_policy(make, TASKS[:3], 2, 5.0, seed=10, name="e")
    assert seeds == [10, 11, 12]
    expert_policy(make, TASKS[:3], 2, 5.0, seed=10, name="e", first=4)
    assert seeds[3:] == [14, 15, 16]


def test_an_expert_that_fails_on_every_task_is_a_fault_with_their_number_and_the_first_reason() -> None:
    class Broken(LocalSearch):
        def expert(self) -> Any:
            raise KeyError(self.state.task.id)

    def make() -> Broken:
        return Broken(tasks=TASKS, retriever=RETRIEVER)

    with pytest.raises(EnvFault, match=rf"\b3\b.*{TASKS[0].id}"):
        play_expert(make, TASKS[:3], CONFIG)

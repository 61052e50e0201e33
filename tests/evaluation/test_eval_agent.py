"""Playing what is missing: batches of fixed make-up, episodes one by one, and stopping when everything fails."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.rollout import RolloutConfig
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import (
    Completion,
    Document,
    EndReason,
    FinishReason,
    Passage,
    Query,
    Sampling,
    Task,
)
from agentenv.data.sources import Source
from agentenv.envs.search.local_search import STOP
from agentenv.errors import (
    ConfigurationError,
    ContextTooSmall,
    EnvFault,
    Fault,
    PolicyFault,
    RetrieverFault,
    UnknownName,
)
from agentenv.evaluation.eval_agent import (
    EvalAgent,
    _EpisodeWriter,
    make_eval_agent,
    open_eval_agent,
    play_missing,
)
from agentenv.evaluation.journal import Journal
from agentenv.evaluation.records import EpisodeRecord
from agentenv.evaluation.task_env import EnvConfig, TaskEnv
from agentenv.policies.agent import AgentPolicy
from agentenv.policies.card import EpisodeCard
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.router import Route, RouterCard, write_router
from agentenv.retrievers.fakes import InMemoryRetriever

TASKS = tuple(Task(f"t{i:02d}", f"question {i}", (f"answer {i}",)) for i in range(20))


class Service:
    """Answers as a service does, each episode when it likes; questions in ``broken`` fail."""

    version = 0
    tokenizer = ByteTokenizer()

    def __init__(self, broken: Sequence[int] = ()) -> None:
        self.broken = {f"Question: question {i}?" for i in broken}
        self.asked: list[str] = []
        self.running = self.most = 0

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        question = next(
            line for line in self.tokenizer.decode(prompt_ids).splitlines() if line.startswith("Question: ")
        )
        self.asked.append(question)
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.002 * (int(question[19:-1]) % 3))
        self.running -= 1
        if question in self.broken:
            raise PolicyFault("the service is down")
        text = f"<answer>answer {question[19:-1]}</answer>"
        ids = tuple(self.tokenizer.encode(text))
        return Completion(ids, text, (0.0,) * len(ids), FinishReason.STOP)

    def release(self, episode: str) -> None:
        pass

    async def score(self, ids: Sequence[int], *, temperature: float = 1.0) -> Sequence[float]:
        return [0.0] * len(ids)


def task_env(tasks: Sequence[Task] = TASKS) -> TaskEnv:
    source = Source("mine", "", tuple(tasks), [Document("d", "t", "x")], None)
    return TaskEnv(source, InMemoryRetriever([Document("d", "t", "x")]), EnvConfig(), len)


def agent(policy: Service, *, batch: int, deterministic_batcher: bool) -> EvalAgent:
    config = RolloutConfig(
        context_tokens=1 << 20,
        turn_tokens=1 << 16,
        temperature=0.0,
        stop=STOP,
        deterministic=deterministic_batcher,
    )
    return EvalAgent(policy, policy.tokenizer, InlineFormat(policy.tokenizer), config, batch)


def play(
    who: EvalAgent,
    folder: Path,
    journal: Journal | None = None,
    done: list[int] | None = None,
    field: TaskEnv | None = None,
) -> list[EpisodeRecord]:
    return play_missing(
        who,
        field or task_env(),
        journal or Journal(folder / "episodes.jsonl"),
        seed=0,
        phase="run",
        directory=folder,
        progress=lambda count, figures: (done if done is not None else []).append(count),
    )


@pytest.mark.parametrize("deterministic_batcher", [True, False])
def test_everything_is_played_in_the_order_of_the_questions(
    deterministic_batcher: bool, tmp_path: Path
) -> None:
    service = Service()
    counts: list[int] = []
    records = play(
        agent(service, batch=6, deterministic_batcher=deterministic_batcher), tmp_path, done=counts
    )
    assert [(row["id"], row["prediction"]) for row in records] == [(t.id, t.answers[0]) for t in TASKS]
    assert (counts[0], counts[-1]) == (0, 20)
    assert service.most == 6
    lines = [json.loads(line) for line in (tmp_path / "timings.jsonl").read_text().splitlines()]
    assert sum(line["episodes"] for line in lines) == 20


def test_of_a_batch_that_was_not_finished_all_is_played_again_but_none_is_written_twice(
    tmp_path: Path,
) -> None:
    whole = play(agent(Service(), batch=8, deterministic_batcher=True), tmp_path)
    path = tmp_path / "episodes.jsonl"
    text = path.read_bytes()
    lines = text.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:11]) + lines[11][:7])  # killed within the second batch of 8
    service = Service()
    assert play(agent(service, batch=8, deterministic_batcher=True), tmp_path) == json.loads(
        json.dumps(whole)
    )
    assert len(service.asked) == 12
    assert path.read_bytes() == text


def test_one_by_one_only_what_is_missing_is_asked(tmp_path: Path) -> None:
    play(agent(Service(), batch=3, deterministic_batcher=False), tmp_path)
    path = tmp_path / "episodes.jsonl"
    text = path.read_bytes()
    path.write_bytes(
        b"".join(line for i, line in enumerate(text.splitlines(keepends=True)) if i not in (4, 9))
    )
    service = Service()
    play(agent(service, batch=3, deterministic_batcher=False), tmp_path)
    assert sorted(service.asked) == ["Question: question 4?", "Question: question 9?"]
    assert path.read_bytes() == text


def test_single_faults_are_recorded_and_may_be_played_again(tmp_path: Path) -> None:
    records = play(agent(Service(broken=[3, 4, 19]), batch=4, deterministic_batcher=False), tmp_path)
    assert [row["id"] for row in records if not row["valid"]] == ["t03", "t04", "t19"]
    assert "the service is down" in records[3]["error"]
    again = Journal(tmp_path / "episodes.jsonl", lambda row: not row["valid"])
    service = Service()
    assert all(
        row["valid"] for row in play(agent(service, batch=4, deterministic_batcher=False), tmp_path, again)
    )
    assert len(service.asked) == 3


@pytest.mark.parametrize("deterministic_batcher", [True, False])
def test_a_service_that_went_down_stops_the_run_and_loses_nothing(
    deterministic_batcher: bool, tmp_path: Path
) -> None:
    """All fails from question 5 on. Only what ran beside the last valid episodes is recorded as a fault: 3 of 4 at most."""
    down = agent(Service(broken=range(5, 20)), batch=4, deterministic_batcher=deterministic_batcher)
    with pytest.raises(Fault, match=r"PolicyFault.*the service is down"):
        play(down, tmp_path)
    lines = (tmp_path / "episodes.jsonl").read_text().splitlines()
    faults = sum(not json.loads(line)["valid"] for line in lines)
    assert len(lines) - faults == 5
    assert faults <= 3
    up = play(agent(Service(), batch=4, deterministic_batcher=deterministic_batcher), tmp_path)
    assert sum(row["valid"] for row in up) == 20 - faults


@pytest.mark.parametrize("deterministic_batcher", [True, False])
@pytest.mark.parametrize(
    ("batch", "broken"),
    [(1, [0, 5, 6, 7]), (2, [4, 5, 6, 7, 8, 9]), (3, [0, 1, 2]), (10, range(10)), (4, range(16, 20))],
    ids=["single", "three batches", "the first batch", "half of all", "the last batch"],
)
def test_what_takes_whole_batches_with_it_and_comes_back_does_not_stop_the_run(
    deterministic_batcher: bool, batch: int, broken: Sequence[int], tmp_path: Path
) -> None:
    """As a browser that is killed does: every episode that was open in it fails, and the next ones have another."""
    records = play(
        agent(Service(broken=broken), batch=batch, deterministic_batcher=deterministic_batcher), tmp_path
    )
    assert [int(row["id"][1:]) for row in records if not row["valid"]] == list(broken)
    assert len((tmp_path / "episodes.jsonl").read_text().splitlines()) == 20


@pytest.mark.parametrize("deterministic_batcher", [True, False])
def test_single_questions_that_always_fail_do_not_keep_a_resumed_run_from_its_end(
    deterministic_batcher: bool, tmp_path: Path
) -> None:
    """Seventeen questions were answered before; of the three that are missing none can be played."""
    play(agent(Service(), batch=1, deterministic_batcher=deterministic_batcher), tmp_path)
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:17]))
    records = play(
        agent(Service(broken=[17, 18, 19]), batch=1, deterministic_batcher=deterministic_batcher), tmp_path
    )
    assert [row["valid"] for row in records] == [True] * 17 + [False] * 3


def test_a_service_that_never_answered_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Fault, match=r"\b8\b"):
        play(agent(Service(broken=range(20)), batch=4, deterministic_batcher=False), tmp_path)
    assert not (tmp_path / "episodes.jsonl").exists()


class Searching(Service):
    """Searches in its first turn and answers in the second."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        if "<information>" in self.tokenizer.decode(prompt_ids).rpartition("Question: ")[2]:
            return await super().generate(prompt_ids, sampling, episode=episode)
        text = "<search>t</search>"
        return Completion(tuple(self.tokenizer.encode(text)), text, (0.0,) * len(text), FinishReason.STOP)


class Dying(InMemoryRetriever):
    """A server that is gone during some of its searches, counted from 0."""

    def __init__(self, gone: range) -> None:
        super().__init__([Document("d", "t", "x")])
        self.gone, self.searches = gone, 0

    async def search(self, queries: Sequence[Query | str], k: int) -> list[list[Passage]]:
        self.searches += 1
        if self.searches - 1 in self.gone:
            raise RetrieverFault("the server did not answer")
        return await super().search(queries, k)


@pytest.mark.parametrize(("deterministic_batcher", "batch"), [(True, 4), (True, 1), (False, 1)])
def test_a_retriever_that_is_killed_and_comes_back_costs_the_episodes_that_asked_it(
    deterministic_batcher: bool, batch: int, tmp_path: Path
) -> None:
    """The searches of the second batch fail."""
    field = replace(task_env(), retriever=Dying(range(batch, 2 * batch)))
    records = play(
        agent(Searching(), batch=batch, deterministic_batcher=deterministic_batcher), tmp_path, field=field
    )
    broken = [row for row in records if not row["valid"]]
    assert len(broken) == batch
    assert all("did not answer" in row["error"] and "reward" not in row for row in broken)


@pytest.mark.parametrize("deterministic_batcher", [True, False])
def test_a_retriever_that_never_comes_back_stops_the_run(deterministic_batcher: bool, tmp_path: Path) -> None:
    field = replace(task_env(), retriever=Dying(range(2, 1000)))
    with pytest.raises(Fault, match="RetrieverFault"):
        play(agent(Searching(), batch=1, deterministic_batcher=deterministic_batcher), tmp_path, field=field)
    assert len((tmp_path / "episodes.jsonl").read_text().splitlines()) == 2


ENDLESS = "why " * 20_000


def short(who: EvalAgent) -> EvalAgent:
    """``who`` with a context in which no endless question fits."""
    return replace(who, config=who.config.model_copy(update={"context_tokens": 8000, "turn_tokens": 500}))


@pytest.mark.parametrize("deterministic_batcher", [True, False])
def test_a_batch_of_endless_questions_fails_alone(deterministic_batcher: bool, tmp_path: Path) -> None:
    """Eight of them in a row stop nothing, at the beginning, in the middle or at the end."""
    for places in (range(8), range(8, 16), range(12, 20)):
        tasks = [replace(task, question=ENDLESS) if i in places else task for i, task in enumerate(TASKS)]
        folder = tmp_path / str(places.start)
        who = short(agent(Service(), batch=4, deterministic_batcher=deterministic_batcher))
        records = play(who, folder, field=task_env(tasks))
        assert [i for i, record in enumerate(records) if not record["valid"]] == list(places)
        assert all("8000" in records[i]["error"] for i in places)


@pytest.mark.parametrize("deterministic_batcher", [True, False])
def test_questions_that_are_all_endless_are_refused(deterministic_batcher: bool, tmp_path: Path) -> None:
    tasks = [replace(task, question=ENDLESS) for task in TASKS]
    who = short(agent(Service(), batch=4, deterministic_batcher=deterministic_batcher))
    with pytest.raises(
        ContextTooSmall, match=r"8000.*episode\.json"
    ):  # where the budget of an evaluation stands
        play(who, tmp_path, field=task_env(tasks))
    assert not (tmp_path / "episodes.jsonl").exists()


def test_what_the_names_stand_for() -> None:
    expert, extractive = open_eval_agent("scripted", 4, STOP), open_eval_agent("scripted:extractive", 4, STOP)
    assert expert.policy is None
    assert (extractive.card.k, extractive.token_unit, extractive.config.deterministic) == (5, "bytes", True)
    assert extractive.count("three short words") == 3
    with pytest.raises(UnknownName, match="'scripted:extractive'"):
        open_eval_agent("scripted:extract", 4, STOP)


def test_an_action_ends_where_the_environment_says_whoever_plays(tmp_path: Path) -> None:
    write_router(tmp_path, RouterCard("tiny", (Route("chain", "It chains.", "tiny"),)))
    specs = (
        "scripted",
        "scripted:extractive",
        "openai:m@http://127.0.0.1:9/v1",
        "tiny",
        f"router:{tmp_path}",
    )
    for spec in specs:
        made = open_eval_agent(spec, 4, ("</x>",))
        assert (made.config.stop, made.batch) == (("</x>",), 4)
        assert made.config.deterministic == (not spec.startswith("openai"))
        made.close()


def test_the_expert_answers_what_its_searches_showed(tmp_path: Path) -> None:
    """Every question has its document and a search that finds it; the document of the last one is not in the corpus."""
    tasks = [replace(task, data={"path": ({"query": f"page{i}"},)}) for i, task in enumerate(TASKS)]
    pages = [
        Document(f"d{i}", f"page{i}", f"Here stands: {task.answers[0]}") for i, task in enumerate(tasks[:-1])
    ]
    field = TaskEnv(Source("mine", "", tuple(tasks), pages, None), InMemoryRetriever(pages), EnvConfig(), len)
    records = play(open_eval_agent("scripted", 3, STOP), tmp_path, field=field)
    assert [row["prediction"] for row in records] == [*(task.answers[0] for task in TASKS[:-1]), ""]


def test_a_policy_that_takes_messages_brings_its_own_format() -> None:
    policy: Any = Service()
    policy.chat = object()
    assert make_eval_agent(policy, "service", 1, STOP).chat is policy.chat


class Limited(Service):
    """A policy with a context, ends of turns and a reader of its own."""

    context_tokens = 900
    ends = (65,)
    card = EpisodeCard(context_tokens=1500, turn_tokens=70, format="template")

    def __init__(self) -> None:
        super().__init__()
        self.tokenizer = ByteTokenizer(chat=True)


class Words:
    """Splits at spaces, and so has no bytes."""

    chat_template = "chatml"
    eos_token, eos_token_id = "</s>", 7

    def encode(self, text: str, *, add_special_tokens: bool = False) -> list[int]:
        return [len(word) for word in text.split()]

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join("x" * i for i in ids)

    def apply_chat_template(self, messages: Any, **options: Any) -> str:
        return " ".join(message["content"] for message in messages) + " </s>"


def test_budgets_are_those_of_the_card_within_the_context_of_the_policy() -> None:
    policy: Any = Limited()
    policy.tokenizer = Words()
    made = make_eval_agent(policy, "mine", 5, ("</x>",))
    config = made.config
    assert (config.context_tokens, config.turn_tokens, config.temperature) == (900, 70, 0.0)
    assert (config.stop, config.deterministic, config.deadline_s) == (
        ("</x>",),
        True,
        RolloutConfig().deadline_s,
    )
    assert (made.batch, made.card, made.policy, made.tokenizer) == (5, policy.card, policy, policy.tokenizer)
    assert made.token_unit == "tokens"
    assert made.count("three short words") == 3
    policy.context_tokens = 2000
    assert make_eval_agent(policy, "mine", 5, ()).config.context_tokens == 1500
    policy.context_tokens = None
    assert make_eval_agent(policy, "mine", 5, ()).config.context_tokens == 1500


def test_where_tokens_are_bytes_budgets_are_wide_and_an_observation_is_counted_in_words() -> None:
    made = make_eval_agent(Limited(), "mine", 5, ())
    assert (made.config.context_tokens, made.config.turn_tokens) == (1 << 20, 1 << 16)
    assert (made.token_unit, made.count("three short words")) == ("bytes", 3)
    assert made.chat.closing([65]) == []  # an end of the policy's own
    assert made.chat.closing([66]) == [256]
    with pytest.raises(ConfigurationError, match=r"mine.*`tokenizer`"):
        make_eval_agent(object(), "mine", 1, ())  # type: ignore[arg-type]


def test_what_answers_each_episode_on_its_own_is_played_in_any_order() -> None:
    agent_policy = AgentPolicy(lambda messages: "a")
    made = make_eval_agent(agent_policy, "agent", 2, STOP)
    assert (made.config.deterministic, made.token_unit) == (False, "")
    endpoint = open_eval_agent("openai:m@http://127.0.0.1:9/v1", 3, STOP)
    assert (endpoint.config.deterministic, endpoint.token_unit, endpoint.batch) == (
        False,
        "pieces of text",
        3,
    )
    assert endpoint.config.deadline_s == 3600.0
    assert endpoint.config.stop == STOP
    given = make_eval_agent(endpoint.policy, "endpoint", 3, STOP)  # type: ignore[arg-type]
    assert (given.config.deterministic, given.config.deadline_s) == (False, 3600.0)
    endpoint.close()  # nothing to end


def test_the_expert_writes_its_script_for_a_batch_at_a_time() -> None:
    expert = open_eval_agent("scripted", 4, ("</x>",))
    assert (expert.batch, expert.config.stop, expert.config.deterministic) == (4, ("</x>",), True)
    assert expert.token_unit == "bytes"
    pages = [Document("d", "page", "answer 5 and answer 4")]
    tasks = tuple(replace(task, data={"path": ({"query": "page"},)}) for task in TASKS[4:6])
    field = TaskEnv(Source("mine", "", tasks, pages, None), InMemoryRetriever(pages), EnvConfig(), len)
    ready = expert.on(field, tasks, 4, 0, "run")
    scripts: Any = ready.policy
    assert list(scripts.actions) == ["run-4-0", "run-4-1"]
    assert ready.tokenizer is scripts.tokenizer
    assert ready.on(field, tasks, 0, 0, "run") is ready  # who has a policy keeps it


def test_seconds_and_metrics_are_those_of_what_was_played(tmp_path: Path) -> None:
    shown: list[tuple[int, dict[str, Any]]] = []
    play_missing(
        agent(Service(), batch=8, deterministic_batcher=True),
        task_env(),
        Journal(tmp_path / "episodes.jsonl"),
        seed=0,
        phase="some",
        directory=tmp_path,
        progress=lambda done, metrics: shown.append((done, metrics)),
        metrics=lambda records: {"newest": [record["id"] for record in records][-1]},
    )
    assert shown == [(0, {}), (8, {"newest": "t07"}), (16, {"newest": "t15"}), (20, {"newest": "t19"})]
    lines = [json.loads(line) for line in (tmp_path / "timings.jsonl").read_text().splitlines()]
    assert [(line["phase"], line["episodes"], len(line["waits"])) for line in lines] == [
        ("some", 8, 8), ("some", 8, 8), ("some", 4, 4),
    ]  # fmt: skip
    assert all(0 <= line["seconds"] < 60 for line in lines)
    (record, *_) = Journal(tmp_path / "episodes.jsonl").finish(TASKS)
    assert record["tokens"]["policy"] > 0


def test_an_agent_that_shows_no_tokens_has_none_counted(tmp_path: Path) -> None:
    who = make_eval_agent(AgentPolicy(lambda messages: "<answer>x</answer>"), "agent", 2, STOP)
    records = play(who, tmp_path, field=task_env(TASKS[:2]))
    assert [record["prediction"] for record in records] == ["x", "x"]
    assert all("tokens" not in record for record in records)


def held(*valid: bool, error: str = "PolicyFault: away") -> list[Trajectory]:
    end = EndReason.ANSWERED
    return [
        Trajectory(
            TASKS[0],
            (),
            (),
            0.0,
            end if one else EndReason.POLICY_FAULT,
            valid=one,
            error="" if one else error,
        )
        for one in valid
    ]


def test_failures_are_held_back_until_a_valid_episode_follows() -> None:
    kept: list[int] = []
    finished = _EpisodeWriter(lambda played: kept.append(len(played)), 3, lived=False)
    finished.add(held(False, False))
    assert kept == []
    finished.add(held(True))
    assert kept == [3]
    finished.add(held(False, False))
    with pytest.raises(PolicyFault, match=r"\b3\b.*PolicyFault: away"):
        finished.add(held(False))
    few = _EpisodeWriter(lambda played: kept.append(len(played)), 3, lived=True)
    few.add(held(False))
    few.end()
    assert kept == [3, 1]
    few.end()  # nothing is kept twice
    assert kept == [3, 1]


def test_a_run_of_failures_alone_keeps_nothing_and_names_whose_they_are() -> None:
    finished = _EpisodeWriter(lambda played: pytest.fail("kept"), 9, lived=False)
    finished.add([replace(one, end_reason=EndReason.ENV_FAULT) for one in held(False, False)])
    with pytest.raises(EnvFault, match=r"\b2\b"):
        finished.end()

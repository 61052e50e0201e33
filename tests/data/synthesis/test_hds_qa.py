"""HDS-QA: descriptions that are unique, parallel and hybrid by proof, questions by a model, and the command."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.env import run_sync
from agentenv.core.types import Document, Task
from agentenv.data.datasets import load_dataset
from agentenv.data.synthesis.asearcher_model import ModelReviewer
from agentenv.data.synthesis.hds_qa import HybridConfig, hybrid_questions, is_parallel
from agentenv.data.synthesis.hds_qa_model import HybridWriter
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.synthesis.pages import LinkedPages
from agentenv.data.world import FictionalWorld, WorldConfig, write_world
from agentenv.data.world_facts import generate_facts
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.policies.endpoint import ChatClient
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.retrievers.fakes import InMemoryRetriever

WORLD = WorldConfig(seed=1, documents=500, questions=0)


@pytest.mark.parametrize(
    ("sets", "parallel"),
    [
        ([{1, 2}, {1, 3}], True),
        ([{1, 2}, {1, 2}], False),
        ([{1}, {1, 3}], False),
        ([{2, 3}, {3, 1}], False),
        ([{1, 2, 3}, {1, 2, 4}, {1, 3, 4}], True),
        ([{1, 2}, {1, 3}, {1, 4}], False),
        ([], False),
    ],
    ids=["two", "two entities left", "one is enough", "another", "three", "one is of no use", "none"],
)
def test_features_are_parallel_if_all_are_needed_and_one_entity_is_left(
    sets: list[set[int]], parallel: bool
) -> None:
    """Of three sets each must be needed: {1, 2} and {1, 3} leave only 1 already, so {1, 4} is of no use."""
    assert is_parallel([frozenset(one) for one in sets], 1) is parallel


def test_every_question_is_proved_by_reading_the_documents() -> None:
    """From the texts alone: the entity's own page states every feature, and the features hold of several others each."""
    facts = generate_facts(WORLD)
    tasks = list(hybrid_questions(facts, HybridConfig(questions=30)))
    documents = {d.id: d for d in FictionalWorld.generate(WORLD).documents}
    assert len({task.question for task in tasks}) == 30
    for task in tasks:
        entity, features = task.data["entity"], task.data["features"]
        assert entity not in task.question
        assert all(feature["clause"] in task.question for feature in features)
        assert all(len(feature["holds_of"]) > 1 for feature in features)
        assert set.intersection(*(set(feature["holds_of"]) for feature in features)) == {entity}
        *searched, last = task.data["path"]
        assert all(hop["answer"] == entity for hop in searched)
        assert last["answer"] == task.answers[0]
        assert last["answer"] in documents[last["document"]].text


def test_parallel_searches_share_a_turn_and_the_further_one_waits() -> None:
    world = FictionalWorld.generate(WORLD)
    tasks = list(hybrid_questions(generate_facts(WORLD), HybridConfig(questions=30)))
    env = LocalSearch(
        tasks=tasks, retriever=InMemoryRetriever(world.documents), queries=4, observation_tokens=2000
    )
    found = 0
    for task in tasks:
        env.reset(options={"task": task})
        actions = env.expert()
        assert actions is not None
        assert [action.count("\n") + 1 for action in actions[:2]] == [task.data["parallel"], 1]
        assert len(actions) == 3
        for action in actions:
            step = env.step(action)
        assert step.reward == 1
        ids = {one for ranked in env.state.retrieved for one in ranked}
        found += set(task.data["supporting_ids"]) <= ids
    assert found >= 15  # the pages of others share words with the searches, so some are missed


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"fewest": 1}, "fewest=1"),
        ({"most": 5}, "most=5"),
        ({"fan": 1}, "fan=1"),
        ({"questions": 0}, "questions=0"),
    ],
    ids=lambda value: str(value),
)
def test_numbers_out_of_range_are_refused(changes: dict[str, int], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        HybridConfig(**changes)


def test_a_world_with_too_few_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not 10000"):
        list(hybrid_questions(generate_facts(WORLD), HybridConfig(questions=10_000)))


PAGES = [
    {"id": "1", "title": "Ada Stone", "text": "Ada Stone was born in Ulm."},
    {"id": "2", "title": "Red Lake", "text": "Red Lake is a novel by Ada Stone."},
    {"id": "3", "title": "Grey Hall", "text": "Ada Stone taught at Grey Hall."},
    {"id": "4", "title": "Blue Prize", "text": "Ada Stone won the Blue Prize."},
    {"id": "5", "title": "Far Hill", "text": "Ada Stone climbed Far Hill."},
]
SEED = Task("s", "Where was Ada Stone born?", ("Ulm",), data={"supporting_ids": ("1",)})
CLAUSES = {
    "Red Lake": "wrote a novel",
    "Grey Hall": "taught at a hall",
    "Blue Prize": "alone won a prize",
    "Far Hill": "none",
}


def model(body: Any) -> Answer:
    """Finds a clause on each page, of which one would tell the entity alone, and combines the others."""
    asked = body["messages"][0]["content"]
    said = {"reason": "so", "valid": "yes"}
    if "as a clause" in asked:
        (title,) = [title for title in CLAUSES if f"titled {title}:" in asked]
        said = {"clause": CLAUSES[title]}
    elif "true of one single entity" in asked:
        said = {"reason": "so", "one": "yes" if "alone won" in asked else "no"}
    elif "all of these facts" in asked:
        said = {"question": "Where was somebody born who wrote a novel and taught at a hall?"}
    return Answer(json.dumps(said))


def test_a_model_describes_by_features_that_are_ambiguous_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(page) + "\n" for page in PAGES))
    rows = [
        {"id": "s", "question": SEED.question, "answers": ["Ulm"], "supporting_ids": ["1"]},
        {"id": "t", "question": "Where is nobody?", "answers": ["x"]},
    ]
    (tmp_path / "seeds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with FakeEndpoint(model) as server:
        words = [
            "synthesize",
            "hds-qa",
            "--corpus",
            str(tmp_path / "corpus.jsonl"),
            "--editor",
            f"openai:m@{server.url}",
        ]
        words += ["--dataset", str(tmp_path / "seeds.jsonl"), "--out", str(tmp_path / "out"), "--json"]
        assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["failures"] == {"DatasetError": 1}
    (task,) = load_dataset("jsonl", tmp_path / "out" / "questions.jsonl").tasks
    assert task.question == "Where was somebody born who wrote a novel and taught at a hall?"
    assert [feature["clause"] for feature in task.data["features"]] in (
        ["wrote a novel", "taught at a hall"],
        ["taught at a hall", "wrote a novel"],
    )
    assert set(task.data["supporting_ids"]) == {"1", "2", "3"}


@pytest.mark.parametrize("name", ["Ada Stone", "ADA STONE", "ada stone"])
def test_a_question_that_still_names_its_entity_is_refused(name: str) -> None:
    def stubborn(body: Any) -> Answer:
        if "all of these facts" in body["messages"][0]["content"]:
            return Answer(json.dumps({"question": f"Where was {name}, who wrote a novel, born?"}))
        return model(body)

    with FakeEndpoint(stubborn) as server:
        writer = ModelWriter(ChatClient(Endpoint("m", server.url)))
        documents = [Document(**page) for page in PAGES]
        maker = HybridWriter(writer, writer, ModelReviewer(writer), LinkedPages(documents))
        with pytest.raises(DatasetError, match="Ada Stone"):
            run_sync(maker.write(SEED))


def test_no_feature_holds_the_name_as_the_question_writes_it() -> None:
    """The page is titled "Ada Stone (writer)"; a clause with "Ada Stone" would tell whom the question is about."""

    def naming(body: Any) -> Answer:
        asked = body["messages"][0]["content"]
        if "as a clause" in asked and "titled Red Lake:" in asked:
            return Answer(json.dumps({"clause": "wrote, as Ada Stone, a novel"}))
        return model(body)

    with FakeEndpoint(naming) as server:
        writer = ModelWriter(ChatClient(Endpoint("m", server.url)))
        titled = [{**page, "title": "Ada Stone (writer)"} if page["id"] == "1" else page for page in PAGES]
        pages = LinkedPages([Document(**page) for page in titled])
        maker = HybridWriter(writer, writer, ModelReviewer(writer), pages)
        with pytest.raises(DatasetError, match="1 features"):
            run_sync(maker.write(SEED))


def test_the_command_over_a_world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_world(WORLD, tmp_path / "world")
    words = ["synthesize", "hds-qa", "--corpus", str(tmp_path / "world"), "--questions", "9", "--json"]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    assert json.loads(capsys.readouterr().out)["questions"] == 9
    assert len(load_dataset("jsonl", tmp_path / "a" / "questions.jsonl").tasks) == 9
    assert main([*words, "--editor", "tiny", "--out", str(tmp_path / "b")]) == 1
    assert "--dataset" in capsys.readouterr().err

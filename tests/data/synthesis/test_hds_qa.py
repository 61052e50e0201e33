"""HDS-QA: descriptions that are unique, parallel and hybrid by proof, questions by a model, and the command."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.env import run_sync
from agentenv.core.types import Document, Task
from agentenv.data.datasets import load_dataset
from agentenv.data.synthesis.asearcher_model import ModelReviewer
from agentenv.data.synthesis.hds_qa import HybridConfig, hybrid_questions, is_parallel
from agentenv.data.synthesis.hds_qa_model import HybridQuestions, HybridWriter
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.world import FictionalWorld, WorldConfig, write_world
from agentenv.data.world_facts import generate_facts
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import ConfigurationError, DatasetError, EndpointFault, RetrieverFault
from agentenv.policies.endpoint import ChatClient
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.fakes import InMemoryRetriever

WORLD = WorldConfig(seed=1, documents=500, questions=0)
MANY = 12
"""Questions that this world has at least."""


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


def search_of(world: FictionalWorld) -> Callable[[str], list[str]]:
    """The ids of the three documents that one search of ``world`` finds."""
    retriever = BM25Retriever.build(world.documents)
    return lambda query: [page.id for page in run_sync(retriever.search([query], 3))[0]]


def test_every_question_is_proved_by_reading_the_documents() -> None:
    """From the texts alone: the entity's own page states every feature, and the features hold of several others each."""
    facts = generate_facts(WORLD)
    world = FictionalWorld.generate(WORLD)
    tasks = list(hybrid_questions(facts, HybridConfig(questions=MANY), search_of(world)))
    documents = {d.id: d for d in world.documents}
    assert len({task.question for task in tasks}) == MANY
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


def test_features_stand_apart_and_no_search_answers_a_question() -> None:
    """Each feature has a document of its own; the question's words do not find the answer's, nor a feature's all of them."""
    search = search_of(FictionalWorld.generate(WORLD))
    for task in hybrid_questions(generate_facts(WORLD), HybridConfig(questions=MANY), search):
        *described, last = task.data["path"]
        needed = {*(hop["document"] for hop in described), last["document"]}
        assert len({hop["document"] for hop in described}) == task.data["parallel"]
        assert needed == set(task.data["supporting_ids"])
        assert last["document"] not in search(task.question)
        assert all(not needed <= set(search(hop["query"])) for hop in described)


def test_a_search_that_finds_everything_leaves_no_question() -> None:
    everything = [document.id for document in FictionalWorld.generate(WORLD).documents]
    with pytest.raises(ConfigurationError, match="only 0"):
        list(hybrid_questions(generate_facts(WORLD), HybridConfig(questions=1), lambda _: everything))


def test_parallel_searches_share_a_turn_and_the_further_one_waits() -> None:
    world = FictionalWorld.generate(WORLD)
    tasks = list(hybrid_questions(generate_facts(WORLD), HybridConfig(questions=MANY), search_of(world)))
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
    assert found >= 6  # the pages of others share words with the searches, so some are missed


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
        list(hybrid_questions(generate_facts(WORLD), HybridConfig(questions=10_000), lambda _: ()))


PAGES = [
    {"id": "1", "title": "Ada Stone", "text": "Ada Stone was born in Ulm. She met Max Wood."},
    {"id": "2", "title": "Red Lake", "text": "Red Lake is a novel by Ada Stone."},
    {"id": "3", "title": "Grey Hall", "text": "Ada Stone taught at Grey Hall."},
    {"id": "4", "title": "Blue Prize", "text": "Ada Stone won the Blue Prize."},
    {"id": "5", "title": "Far Hill", "text": "Ada Stone climbed Far Hill."},
    {"id": "6", "title": "White Boat", "text": "Max Wood sailed the White Boat."},
    {"id": "7", "title": "Old Mill", "text": "Max Wood bought the Old Mill."},
]
DOCUMENTS = [Document(**page) for page in PAGES]
SEED = Task("s", "Where did Ada Stone meet Max Wood?", ("Ulm",), data={"supporting_ids": ("1",)})
RELATED = {
    "Ada Stone": [
        "Which novel Red Lake did Ada Stone write?",
        "Where, Grey Hall, did Ada Stone teach?",
        "Red Lake?",
        "Did Ada Stone win the Blue Prize?",
        "Did Ada Stone climb Far Hill?",
    ],
    "Max Wood": ["Did Max Wood sail the White Boat?", "Did Max Wood buy the Old Mill?"],
}
CLAUSES = {
    "Red Lake": "wrote a novel",
    "Grey Hall": "taught at a hall",
    "Blue Prize": "alone won a prize",
    "Far Hill": "none",
    "White Boat": "sailed a boat",
    "Old Mill": "bought a mill",
}
DESCRIBED = {
    "Ada Stone": "the one who wrote a novel and taught at a hall",
    "Max Wood": "the sailor with a mill",
}


def model(body: Any) -> Answer:
    """Names two people, asks related questions, finds a clause on each page, of which one is true of one person alone."""
    asked = body["messages"][0]["content"]
    said: dict[str, Any] = {"reason": "so", "valid": "yes", "same": "no"}
    (entity,) = [name for name in RELATED if f"about {name}, " in asked or f"true of {name}:" in asked] or [
        ""
    ]
    if "List every person" in asked:
        said = {"entities": ["Ada Stone", "Max Wood", "Nobody"]}
    elif "people also ask" in asked:
        said = {"questions": RELATED[entity]}
    elif "as a clause" in asked:
        titles = [title for title in CLAUSES if f"titled {title}:" in asked]
        said = {"clause": CLAUSES[titles[0]] if titles else "none"}
    elif "true of one single entity" in asked:
        said = {"reason": "so", "one": "yes" if "alone won" in asked else "no"}
    elif "whose only answer is" in asked:
        said = {"question": f"Who is {DESCRIBED[entity]}?", "description": DESCRIBED[entity]}
    elif "with this description" in asked:
        (name,) = [name for name, words in DESCRIBED.items() if words in asked]
        said = {"question": SEED.question.replace(name, DESCRIBED[name])}
    elif "from these passages alone" in asked:
        said = {"answer": "none"}
    return Answer(json.dumps(said))


def made_by(
    answers: Callable[[Any], Answer], seed: Task = SEED, retriever: InMemoryRetriever | None = None
) -> HybridQuestions:
    """What comes of the seed question where ``answers`` plays the models."""
    with FakeEndpoint(answers) as server:
        writer = ModelWriter(ChatClient(Endpoint("m", server.url, retries=0)))
        maker = HybridWriter(writer, writer, ModelReviewer(writer), retriever or InMemoryRetriever(DOCUMENTS))
        return run_sync(maker.write(seed))


def test_each_entity_of_a_question_is_described_in_a_question_of_its_own() -> None:
    """Nobody of that name stands in the question. "Red Lake?" finds the novel once more, which is no distinct document."""
    made = made_by(model)
    assert made.refused == ()
    first, second = made.tasks
    assert first.question == "Where did the one who wrote a novel and taught at a hall meet Max Wood?"
    assert second.question == "Where did Ada Stone meet the sailor with a mill?"
    assert (first.id, second.id) == ("hds-qa-s-0", "hds-qa-s-1")
    assert [task.data["entity"] for task in made.tasks] == ["Ada Stone", "Max Wood"]
    assert [task.data["cluster"] for task in made.tasks] == ["s", "s"]
    assert second.data["parallel_question"] == "Who is the sailor with a mill?"
    # a prize that one person alone has won is no feature, and Far Hill states none
    assert [tuple(feature.items()) for feature in first.data["features"]] == [
        (("clause", "wrote a novel"), ("document", "2")),
        (("clause", "taught at a hall"), ("document", "3")),
    ]
    assert first.data["supporting_ids"] == ["2", "3", "1"]


def changed(mark: str, said: dict[str, Any], about: str = "") -> Callable[[Any], Answer]:
    """The model, which says something else where ``mark`` and ``about`` stand in what it is asked."""

    def answers(body: Any) -> Answer:
        asked = body["messages"][0]["content"]
        return Answer(json.dumps(said)) if mark in asked and about in asked else model(body)

    return answers


@pytest.mark.parametrize(
    ("mark", "said", "about", "why"),
    [
        (
            "people also ask",
            {"questions": ["Red Lake?", "Red Lake by whom?"]},
            "about Ada",
            "the 1 documents",
        ),
        ("as a clause", {"clause": "was in Ulm"}, "titled Red Lake", "only 1 features"),
        ("as a clause", {"clause": "is ADA STONE"}, "titled Red Lake", "only 1 features"),
        (
            "whose only answer is",
            {"question": "Who is Ada Stone the writer?", "description": "x"},
            "Ada",
            "parallel-hop",
        ),
        ("Is this a valid question", {"reason": "two", "valid": "no"}, "Who is the one", "parallel-hop"),
        (
            "with this description",
            {"question": "Where did ada stone meet?"},
            "the one who",
            "names Ada Stone",
        ),
        ("Is this a valid question", {"reason": "two", "valid": "no"}, "Where did the one", "hybrid-hop"),
        ("from these passages alone", {"answer": "the Ulm"}, "the one who", "one search for"),
        ("Do both answers", {"same": "yes"}, "given", ""),
        ("people also ask", {"x": 1}, "about Ada", "wrote no object"),
    ],
    ids=[
        "no distinct documents",
        "a feature with the answer",
        "a feature with the name",
        "a parallel question with the name",
        "an invalid parallel question",
        "a hybrid question with the name",
        "an invalid hybrid question",
        "one search answers it",
        "nobody asks whether answers are the same",
        "unreadable",
    ],
)
def test_an_entity_that_fails_a_check_does_not_end_the_others(
    mark: str, said: dict[str, Any], about: str, why: str
) -> None:
    made = made_by(changed(mark, said, about))
    refused = {one.entity: one.why for one in made.refused}
    if not why:
        assert refused == {}
        return
    assert list(refused) == ["Ada Stone"]
    assert why in refused["Ada Stone"]
    assert [task.data["entity"] for task in made.tasks] == ["Max Wood"]


def dead_for(name: str) -> Callable[[Any], Answer]:
    """The model, whose server fails once ``name`` is described."""

    def answers(body: Any) -> Answer:
        asked = body["messages"][0]["content"]
        return Answer(status=503) if f"ask about {name}, " in asked else model(body)

    return answers


def test_a_server_that_fails_at_a_later_entity_loses_no_finished_question() -> None:
    made = made_by(dead_for("Max Wood"))
    assert [task.data["entity"] for task in made.tasks] == ["Ada Stone"]
    ((entity, why, failed),) = [(one.entity, one.why, one.failed) for one in made.refused]
    assert (entity, failed) == ("Max Wood", True)
    assert "503" in why


def test_a_search_that_fails_at_a_later_entity_loses_no_finished_question() -> None:
    class Broken(InMemoryRetriever):
        async def search(self, queries: Any, k: int) -> Any:
            if any("Max Wood" in query for query in queries) and len(queries) > 1:
                raise RetrieverFault("the search is down")
            return await super().search(queries, k)

    made = made_by(model, retriever=Broken(DOCUMENTS))
    assert [task.data["entity"] for task in made.tasks] == ["Ada Stone"]
    assert [(one.entity, one.failed) for one in made.refused] == [("Max Wood", True)]


def test_where_no_question_comes_because_a_server_fails_it_is_that_fault() -> None:
    """Nothing was refused, so the list of failures does not say that it was."""

    def answers(body: Any) -> Answer:
        asked = body["messages"][0]["content"]
        return model(body) if "List every person" in asked else Answer(status=503)

    with pytest.raises(EndpointFault, match=r"s: Ada Stone: .*503.*; Max Wood: .*503"):
        made_by(answers)


def test_an_answer_in_other_words_from_one_search_refuses_the_question_as_well() -> None:
    def answers(body: Any) -> Answer:
        asked = body["messages"][0]["content"]
        if "from these passages alone" in asked:
            return Answer(json.dumps({"answer": "the city of Ulm"}))
        return Answer(json.dumps({"same": "yes"})) if "Do both answers" in asked else model(body)

    with pytest.raises(DatasetError, match=r"Ada Stone: one search .* Max Wood: one search"):
        made_by(answers)


def test_a_question_that_names_nobody_says_so() -> None:
    with pytest.raises(DatasetError, match="names no entity"):
        made_by(model, Task("t", "Where is it?", ("Ulm",)))


def test_the_command_with_a_model_lists_entities_that_were_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(page) + "\n" for page in PAGES))
    rows = [
        {"id": "s", "question": SEED.question, "answers": ["Ulm"], "supporting_ids": ["1"]},
        {"id": "t", "question": "Where is it?", "answers": ["x"]},
    ]
    (tmp_path / "seeds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["synthesize", "hds-qa", "--corpus", str(tmp_path / "corpus.jsonl")]
    words += ["--dataset", str(tmp_path / "seeds.jsonl"), "--out", str(tmp_path / "out"), "--json"]
    with FakeEndpoint(changed("as a clause", {"clause": "none"}, "about Max Wood")) as server:
        assert main([*words, "--editor", f"openai:m@{server.url}"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert (card["questions"], card["failures"]) == (1, {"DatasetError": 1, "EntityRefused": 1})
    (task,) = load_dataset("jsonl", tmp_path / "out" / "questions.jsonl").tasks
    assert task.question == "Where did the one who wrote a novel and taught at a hall meet Max Wood?"
    failures = [json.loads(line) for line in (tmp_path / "out" / "failures.jsonl").read_text().splitlines()]
    assert {failure["id"] for failure in failures} == {"t", "s/Max Wood"}


def test_fewer_related_questions_than_features_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["synthesize", "hds-qa", "--corpus", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main([*words, "--editor", "tiny", "--related", "1"]) == 1
    assert "--related is 1" in " ".join(capsys.readouterr().err.split())


def test_the_command_over_a_world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_world(WORLD, tmp_path / "world")
    words = ["synthesize", "hds-qa", "--corpus", str(tmp_path / "world"), "--questions", "9", "--json"]
    # no model writes related questions, so that their number has no effect
    assert main([*words, "--related", "1", "--out", str(tmp_path / "a")]) == 0
    assert json.loads(capsys.readouterr().out)["questions"] == 9
    for option in ("--judge", "--replies"):
        assert main([*words, option, "tiny", "--out", str(tmp_path / "b")]) == 1
        assert option in capsys.readouterr().err
    assert len(load_dataset("jsonl", tmp_path / "a" / "questions.jsonl").tasks) == 9
    assert main([*words, "--editor", "tiny", "--out", str(tmp_path / "b")]) == 1
    assert "--dataset" in capsys.readouterr().err

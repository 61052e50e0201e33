"""A ground: worlds and named sets become environments; an index is built once; what is missing is said."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentenv.core.types import Document, Task
from agentenv.data.sources import Source, SourceConfig
from agentenv.data.world import WorldConfig, write_world
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.evaluation.ground import (
    EnvConfig,
    Ground,
    SearchConfig,
    corpus_of,
    index_recall,
    open_ground,
)
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.retrievers.oracle import OracleRetriever

SMALL = WorldConfig(seed=5, documents=200, questions=12)
HASH = SearchConfig(encoder="hash")


def words(text: str) -> int:
    return len(text.split())


def test_a_world_is_indexed_and_posed() -> None:
    ground = open_ground(SourceConfig(world=SMALL, limit=5), HASH, EnvConfig(options={"k": 2}), words)
    assert len(ground.source.tasks) == 5
    assert ground.searched.info().documents == 200
    env = ground.make_env()
    opening, _ = env.reset(seed=0, options={"task": ground.source.tasks[0]})
    assert ground.source.tasks[0].question in opening[0].text
    step = env.step(f"<search>{ground.source.tasks[0].question}</search>")
    assert step.observation[0].text.count("Doc ") == 2


def test_equal_corpora_share_an_index() -> None:
    """A suite over one world, or train and test over one corpus, encodes its passages once."""
    folder_free = [open_ground(SourceConfig(world=SMALL), HASH, EnvConfig(), words) for _ in range(2)]
    assert folder_free[0].searched.info() == folder_free[1].searched.info()


def test_a_written_world_gives_the_same_ground(tmp_path: Path) -> None:
    write_world(SMALL, tmp_path / "world")
    made = open_ground(SourceConfig(world=SMALL), HASH, EnvConfig(), words)
    read = open_ground(SourceConfig(dataset="fictional", data=tmp_path / "world"), HASH, EnvConfig(), words)
    assert [t.question for t in read.source.tasks] == [t.question for t in made.source.tasks]
    query = [made.source.tasks[0].question]
    found = [asyncio.run(g.searched.search(query, 3)) for g in (made, read)]
    assert [p.id for p in found[0][0]] == [p.id for p in found[1][0]]


def test_variations_keep_the_rest() -> None:
    ground = open_ground(SourceConfig(world=SMALL), HASH, EnvConfig(options={"k": 2}), words)
    other = InMemoryRetriever([Document("d", "t", "x")])
    varied = ground.varied(retriever=other, max_turns=0)
    assert varied.env.options == {"k": 2, "max_turns": 0}
    assert varied.retriever is other
    assert varied.source is ground.source
    assert ground.env.options == {"k": 2}


def test_index_recall_by_hand() -> None:
    """One supporting document found first, one found third, none of two: recall@2 (1 + 0 + 0)/3, @3 (1 + 1 + 0)/3."""
    documents = [Document(str(i), "", text) for i, text in enumerate(("a", "b x y", "b x", "b", "c", "d"))]
    tasks = (
        Task("1", "a", ("x",), data={"supporting_ids": ["0"]}),
        Task("2", "b x y", ("x",), data={"supporting_ids": ["3"]}),
        Task("3", "nothing", ("x",), data={"supporting_ids": ["4", "5"]}),
        Task("4", "a", ("x",)),  # not counted: nobody knows its documents
    )
    ground = Ground(Source("s", "", tasks, documents, None), InMemoryRetriever(documents), EnvConfig(), words)
    assert index_recall(ground) == pytest.approx(
        {"recall@2": 1 / 3, "recall@3": 2 / 3, "recall@5": 2 / 3, "recall@10": 2 / 3, "all@5": 2 / 3}
    )
    bare = Ground(Source("s", "", tasks[3:], documents, None), ground.retriever, EnvConfig(), words)
    assert index_recall(bare) == {}
    told = ground.varied(
        retriever=OracleRetriever(tasks[:3], {document.id: document for document in documents})
    )
    assert index_recall(told) == {}  # what it finds depends on more than the question


def test_index_recall_asks_in_pieces_and_keeps_their_order() -> None:
    documents = [Document(str(i), "", f"word{i}") for i in range(600)]
    tasks = tuple(Task(str(i), f"word{i}", ("x",), data={"supporting_ids": [str(i)]}) for i in range(600))
    ground = Ground(Source("s", "", tasks, documents, None), InMemoryRetriever(documents), EnvConfig(), words)
    assert index_recall(ground)["recall@2"] == 1.0


def test_a_set_without_a_corpus_needs_a_retriever(tmp_path: Path) -> None:
    write_world(SMALL, tmp_path / "world")
    (tmp_path / "world" / "corpus.jsonl").unlink()
    config = SourceConfig(dataset="fictional", data=tmp_path / "world")
    with pytest.raises(ConfigurationError, match="corpus"):
        open_ground(config, HASH, EnvConfig(), words)


@pytest.mark.parametrize(
    ("source", "search", "hint"),
    [
        (SourceConfig(dataset="hotpot"), HASH, "hotpotqa"),
        (SourceConfig(world=SMALL), SearchConfig(encoder="hsah"), "'hash'"),
        (SourceConfig(world=SMALL), SearchConfig(retriever="fais:x"), "'faiss'"),
    ],
)
def test_unknown_names(source: SourceConfig, search: SearchConfig, hint: str) -> None:
    with pytest.raises(UnknownName, match=hint):
        open_ground(source, search, EnvConfig(), words)


@pytest.mark.parametrize("option", ["max_turn", "tasks"])
def test_an_option_that_the_environment_does_not_take(option: str) -> None:
    env = EnvConfig(options={option: 3})
    with pytest.raises(ConfigurationError, match=rf"option.*'{option}'"):
        open_ground(SourceConfig(world=SMALL), HASH, env, words)
    ground = open_ground(SourceConfig(world=SMALL), HASH, EnvConfig(), words)
    with pytest.raises(ConfigurationError, match=rf"option.*'{option}'"):
        replace(ground, env=env).make_env()


@pytest.mark.parametrize(
    ("option", "value"), [("k", "three"), ("max_turns", None), ("scorer", 4), ("found_reward", "much")]
)
def test_an_option_of_another_type_is_one_sentence_before_any_work(option: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as error:
        open_ground(SourceConfig(), SearchConfig(), EnvConfig(options={option: value}), words)
    assert repr(option) in str(error.value)
    assert repr(value) in str(error.value)
    assert len(str(error.value)) < 300


def test_numbers_that_come_as_text_are_numbers() -> None:
    ground = open_ground(SourceConfig(world=SMALL), HASH, EnvConfig(options={"k": "2"}), words)
    env = ground.make_env()
    env.reset(seed=0)
    step = env.step("<search>a</search>")
    assert len(step.info["tool_results"][0].data["ids"][0]) == 2


def test_the_corpus_of_a_source() -> None:
    documents = [Document("d", "t", "x")]
    assert len(corpus_of(Source("s", "", (), documents, None)) or ()) == 1
    assert corpus_of(Source("s", "", (), None, None)) is None


def test_words_over_the_set_s_own_corpus_or_another_one(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="needs the extra 'retrieval'")
    write_world(SMALL, tmp_path / "world")
    source = SourceConfig(dataset="fictional", data=tmp_path / "world")
    ground = open_ground(source, SearchConfig(retriever="bm25"), EnvConfig(), words)
    assert (ground.searched.info().name, ground.searched.info().documents) == ("bm25", 200)
    other = tmp_path / "other.jsonl"
    other.write_text('{"id": "1", "title": "t", "text": "some words"}\n')
    bare = open_ground(source, SearchConfig(retriever="bm25", corpus=str(other)), EnvConfig(), words)
    assert bare.searched.info().documents == 1
    assert index_recall(ground)["recall@10"] > 0
    assert index_recall(bare) == {}  # the questions name documents of another corpus
    assert not any("supporting_ids" in task.data for task in bare.source.tasks)
    named = open_ground(source, SearchConfig(retriever="bm25", corpus="fictional"), EnvConfig(), words)
    assert named.searched.info().documents == 200


@pytest.mark.parametrize("same", [True, False])
def test_supporting_documents_of_a_corpus_with_the_same_ids_and_other_texts_are_no_gold(
    tmp_path: Path, same: bool
) -> None:
    """Questions whose ids of documents mean other documents in the corpus that is searched: no oracle, no recall."""
    task = {"id": "q", "question": "Where is Halvik?", "answers": ["Moor"], "supporting_ids": ["p0"]}
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "test.jsonl").write_text(json.dumps(task) + "\n")
    rows = [
        {"id": "p0", "title": "Halvik", "text": "Halvik is in Moor."},
        {"id": "p1", "title": "B", "text": "b"},
    ]
    (tmp_path / "own" / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    other = rows if same else [{"id": "p0", "title": "Herring", "text": "A fish."}]
    searched = tmp_path / "searched.jsonl"
    searched.write_text("\n".join(map(json.dumps, [*other, {"id": "p2", "title": "C", "text": "c"}])))
    source = SourceConfig(dataset=str(tmp_path / "own" / "test.jsonl"))
    opened = open_ground(source, SearchConfig(retriever="bm25", corpus=str(searched)), EnvConfig(), len)
    assert bool(opened.source.tasks[0].data.get("supporting_ids")) == same
    assert bool(index_recall(opened)) == same

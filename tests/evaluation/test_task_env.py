"""A task environment: worlds and named sets become environments; an index is built once; what is missing is said."""

import asyncio
import json
import os
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.types import Document, Task
from agentenv.data.sources import Source, SourceConfig
from agentenv.data.world import WorldConfig, write_world
from agentenv.envs.calculator import Calculator
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import ConfigurationError, DatasetError, EnvFault, UnknownName
from agentenv.evaluation import task_env as task_env_module
from agentenv.evaluation.built_retrievers import corpus_of
from agentenv.evaluation.task_env import (
    EnvConfig,
    SearchConfig,
    TaskEnv,
    checked_options,
    env_id_of,
    index_recall,
    known_retriever,
    open_task_env,
    open_tasks,
    topics_of,
)
from agentenv.retrievers.encoder import HashEncoder
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.retrievers.oracle import OracleRetriever
from agentenv.retrievers.storage.corpus import Corpus

SMALL = WorldConfig(seed=5, documents=200, questions=12)
HASH = SearchConfig(encoder="hash")


def words(text: str) -> int:
    return len(text.split())


def test_a_world_is_indexed_and_posed() -> None:
    task_env = open_task_env(SourceConfig(world=SMALL, limit=5), HASH, EnvConfig(options={"k": 2}), words)
    assert len(task_env.source.tasks) == 5
    assert task_env.searched.info().documents == 200
    env = task_env.make_env()
    opening, _ = env.reset(seed=0, options={"task": task_env.source.tasks[0]})
    assert task_env.source.tasks[0].question in opening[0].text
    step = env.step(f"<search>{task_env.source.tasks[0].question}</search>")
    assert step.observation[0].text.count("Doc ") == 2


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The encoders that are made, by name; each is one that hashes."""
    names: list[str] = []

    def make(name: str) -> HashEncoder:
        names.append(name)
        return HashEncoder()

    monkeypatch.setattr("agentenv.retrievers.encoder.make_encoder", make)
    return names


def test_equal_corpora_share_an_index(asked: list[str]) -> None:
    """A suite over one world, or train and test over one corpus, encodes once, whoever hears of the progress."""
    heard: list[int] = []
    for documents in (("x", "y"), ("x", "y"), ("x", "z")):
        corpus = Corpus([Document("d", "an index that is shared", " ".join(documents))])
        source = Source("s", "", (Task("1", "x", ("a",)),), corpus, None)
        open_task_env(
            SourceConfig(),
            HASH,
            EnvConfig(),
            words,
            opened=source,
            progress=lambda done, of: heard.append(done),
        )
    assert asked == ["hash", "hash"]
    assert heard == [0, 1, 0, 1]


def test_a_written_world_gives_the_same_ground(tmp_path: Path) -> None:
    write_world(SMALL, tmp_path / "world")
    made = open_task_env(SourceConfig(world=SMALL), HASH, EnvConfig(), words)
    read = open_task_env(SourceConfig(dataset="fictional", data=tmp_path / "world"), HASH, EnvConfig(), words)
    assert [t.question for t in read.source.tasks] == [t.question for t in made.source.tasks]
    query = [made.source.tasks[0].question]
    found = [asyncio.run(g.searched.search(query, 3)) for g in (made, read)]
    assert [p.id for p in found[0][0]] == [p.id for p in found[1][0]]


def test_variations_keep_the_rest() -> None:
    task_env = open_task_env(SourceConfig(world=SMALL), HASH, EnvConfig(options={"k": 2}), words)
    other = InMemoryRetriever([Document("d", "t", "x")])
    varied = task_env.varied(retriever=other, max_turns=0)
    assert varied.env.options == {"k": 2, "max_turns": 0}
    assert varied.retriever is other
    assert varied.source is task_env.source
    assert task_env.env.options == {"k": 2}


def test_a_variation_has_the_last_word_on_an_option_and_keeps_the_retriever() -> None:
    task_env = open_task_env(SourceConfig(world=SMALL), HASH, EnvConfig(options={"k": 2}), words)
    varied = task_env.varied(k=5)
    assert (varied.env.options, varied.retriever) == ({"k": 5}, task_env.retriever)


def test_an_environment_is_given_the_tasks_and_the_policy_s_count_of_tokens() -> None:
    env = EnvConfig(options={"observation_tokens": 90})
    task_env = open_task_env(SourceConfig(world=SMALL), HASH, env, len)  # a token is a character
    made = task_env.make_env()
    assert isinstance(made, LocalSearch)
    assert made.held_tasks() == task_env.source.tasks
    made.reset(seed=0)
    assert len(made.step("<search>who</search>").observation[0].text) <= 90


def test_an_environment_that_searches_nothing_has_no_retriever_and_no_corpus() -> None:
    source = SourceConfig(dataset="env", limit=3)
    env = EnvConfig(id="agentenv/Calculator-v0")
    with pytest.raises(ConfigurationError, match="leave the corpus out"):
        open_task_env(source, SearchConfig(corpus="/nowhere.jsonl"), env, words)
    task_env = open_task_env(source, SearchConfig(), env, words)
    assert (len(task_env.source.tasks), task_env.retriever, task_env.source.corpus) == (3, None, None)
    task_env.make_env().reset(seed=0, options={"task": task_env.source.tasks[0]})
    with pytest.raises(ConfigurationError, match="Calculator-v0"):
        _ = task_env.searched


def test_an_option_of_another_type_is_refused_with_the_name_of_the_environment() -> None:
    with pytest.raises(ConfigurationError, match="agentenv/LocalSearch-v0") as refused:
        checked_options(EnvConfig(options={"k": "three"}))
    assert "'three'" in str(refused.value)


def test_own_tasks_follow_the_seed_the_split_and_the_limit() -> None:
    env = EnvConfig(id="agentenv/Calculator-v0")

    def made(**how: Any) -> Source:
        return open_tasks(SourceConfig(dataset="env", **how), SearchConfig(), env)

    assert (made().split, len(made().tasks)) == ("train", 200)
    assert made(split="test", limit=2).split == "test"
    asked = {
        tuple(task.question for task in made(limit=20, **how).tasks)
        for how in ({}, {"seed": 1}, {"split": "test"})
    }
    assert len(asked) == 3


def test_tasks_that_are_not_made_in_time_or_end_the_process_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()

    def hanging(*_: Any, **__: Any) -> list[Task]:
        ended.wait(30)
        return []

    def leaving(*_: Any, **__: Any) -> list[Task]:
        raise SystemExit(3)

    monkeypatch.setattr(task_env_module, "_MAKE_TASKS_TIMEOUT_S", 0.05)
    for make_tasks, named in ((hanging, "0.05 s"), (leaving, "SystemExit")):
        monkeypatch.setattr(Calculator, "make_tasks", make_tasks)
        with pytest.raises(ConfigurationError, match=named):
            open_tasks(SourceConfig(dataset="env"), SearchConfig(), EnvConfig(id="agentenv/Calculator-v0"))
    ended.set()


def test_a_corpus_that_is_named_is_searched_in_place_of_the_documents_of_a_world(tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"id": "1", "title": "t", "text": "some words"}\n')
    opened = open_tasks(SourceConfig(world=SMALL), SearchConfig(corpus=str(other)), EnvConfig())
    assert [document.title for document in corpus_of(opened) or ()] == ["t"]


def test_questions_about_an_invented_world_are_refused_over_another_corpus(tmp_path: Path) -> None:
    other = Corpus([Document("mine", "Mill", "It stands at the river.")])
    other.save(tmp_path / "mine.jsonl")
    source = SourceConfig(world=SMALL, limit=5)
    with pytest.raises(ConfigurationError, match=r"'test'.*invented world"):
        open_task_env(source, HASH, EnvConfig(), words, retriever=InMemoryRetriever(other))
    with pytest.raises(ConfigurationError, match="invented world"):
        open_task_env(
            source, SearchConfig(encoder="hash", corpus=str(tmp_path / "mine.jsonl")), EnvConfig(), words
        )
    own = [Task("1", "Where is the mill?", ("river",), data={"supporting_ids": ["elsewhere"]})]
    found = open_task_env(source, HASH, EnvConfig(), words, tasks=own, retriever=InMemoryRetriever(other))
    assert "left out" in found.source.notes
    documents = corpus_of(open_tasks(source, HASH, EnvConfig())) or ()
    written = open_task_env(source, HASH, EnvConfig(), words, retriever=InMemoryRetriever(documents))
    assert all("supporting_ids" in task.data for task in written.source.tasks)


def test_what_was_opened_before_is_not_opened_again() -> None:
    opened = open_tasks(SourceConfig(world=SMALL), SearchConfig(), EnvConfig())
    few = replace(opened, tasks=opened.tasks[:1])
    task_env = open_task_env(SourceConfig(world=SMALL), HASH, EnvConfig(), words, opened=few)
    assert task_env.source.tasks == few.tasks


def test_an_index_is_of_the_kind_that_is_asked_for_and_tells_how_far_it_is() -> None:
    documents = [Document(str(i), f"t{i}", f"word{i} and more") for i in range(60)]
    source = Source("s", "", (Task("1", "word1", ("x",)),), documents, None)
    told: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        told.append((done, total))

    flat, other = (
        open_task_env(
            SourceConfig(),
            SearchConfig(encoder="hash", index=kind),
            EnvConfig(),
            words,
            opened=source,
            progress=progress,
        )
        for kind in ("Flat", "HNSW8")
    )
    assert flat.searched.info().fingerprint != other.searched.info().fingerprint
    assert told[-1] == (60, 60)


def test_some_shared_ids_are_compared_and_the_rest_left_alone(tmp_path: Path) -> None:
    """A searched corpus may lack documents of the questions; one that differs is enough to trust none of the ids."""
    rows = [{"id": f"p{i}", "title": f"T{i}", "text": f"text {i}"} for i in range(3)]
    task = {"id": "q", "question": "Where?", "answers": ["Moor"], "supporting_ids": ["p0", "p1", "p2"]}
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "test.jsonl").write_text(json.dumps(task) + "\n")
    (tmp_path / "own" / "corpus.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = SourceConfig(dataset=str(tmp_path / "own" / "test.jsonl"))
    for searched, kept in ((rows[:2], True), ([rows[0], rows[1] | {"text": "another"}], False)):
        path = tmp_path / f"kept-{kept}.jsonl"
        path.write_text("\n".join(map(json.dumps, searched)))
        task_env = open_task_env(source, SearchConfig(retriever="bm25", corpus=str(path)), EnvConfig(), len)
        assert bool(task_env.source.tasks[0].data.get("supporting_ids")) == kept
        said = "1 of the 3 supporting documents" if kept else "are not those of the corpus that is searched"
        assert said in task_env.source.notes
        assert ("'p2'" in task_env.source.notes) == kept


@pytest.mark.parametrize("spec", ["", "bm25", "faiss:here"])
def test_a_known_retriever_is_opened_by_nobody(spec: str) -> None:
    assert known_retriever(spec) == spec
    with pytest.raises(UnknownName, match="faiss"):
        known_retriever("fais:here")


def test_topics_are_titles_each_once_drawn_by_the_seed() -> None:
    corpus = Corpus(Document(str(i), f"t{i % 6}", "x") for i in range(12))
    assert topics_of(corpus, SourceConfig()) == tuple(
        Task(f"topic-{i}", f"t{i}", (), "train") for i in range(6)
    )
    assert len(topics_of(corpus, SourceConfig(limit=6))) == 6
    drawn = {
        seed: tuple(task.question for task in topics_of(corpus, SourceConfig(limit=5, seed=seed)))
        for seed in range(4)
    }
    assert all(len(set(titles)) == 5 for titles in drawn.values())
    assert len(set(drawn.values())) > 1
    with pytest.raises(ConfigurationError):
        topics_of(None, SourceConfig())


def test_corpora_that_are_searched_together_keep_their_documents_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"id": "1", "title": name, "text": "x"}) + "\n")
    corpora = tuple((name, tmp_path / f"{name}.jsonl") for name in ("a", "b"))
    found = corpus_of(Source("s", "", (), None, None, corpora=corpora))
    assert [(document.id, document.title) for document in found or ()] == [("a:1", "a"), ("b:1", "b")]


def test_documents_that_the_own_corpus_lacks_cannot_differ_and_none_need_be_there(tmp_path: Path) -> None:
    task = {"id": "q", "question": "Where?", "answers": ["Moor"], "supporting_ids": ["p0", "p1"]}
    searched = tmp_path / "searched.jsonl"
    rows = [{"id": f"p{i}", "title": f"T{i}", "text": f"text {i}"} for i in range(2)]
    searched.write_text("\n".join(map(json.dumps, rows)))
    for name, own in (("partly", rows[:1]), ("without", [])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "test.jsonl").write_text(json.dumps(task) + "\n")
        if own:
            (tmp_path / name / "corpus.jsonl").write_text("\n".join(map(json.dumps, own)))
        source = SourceConfig(dataset=str(tmp_path / name / "test.jsonl"))
        task_env = open_task_env(
            source, SearchConfig(retriever="bm25", corpus=str(searched)), EnvConfig(), len
        )
        assert task_env.source.tasks[0].data["supporting_ids"] == ("p0", "p1")


def test_recall_where_nothing_is_searched_and_where_half_is_found() -> None:
    documents = [Document(str(i), "", "b") for i in range(12)]
    task = Task("1", "b", ("x",), data={"supporting_ids": ["3", "7"]})
    source = Source("s", "", (task,), documents, None)
    found = index_recall(TaskEnv(source, InMemoryRetriever(documents), EnvConfig(), words))
    # All documents are alike and come in their order: the 4th and the 8th are wanted.
    assert found == {"recall@2": 0.0, "recall@3": 0.0, "recall@5": 0.5, "recall@10": 1.0, "all@5": 0.0}
    assert index_recall(TaskEnv(source, None, EnvConfig(), words)) == {}
    for place, share in ((4, 1.0), (5, 0.0)):  # the last of five, and the one after it
        last = replace(source, tasks=(replace(task, data={"supporting_ids": ["3", str(place)]}),))
        found = index_recall(TaskEnv(last, InMemoryRetriever(documents), EnvConfig(), words))
        assert (found["all@5"], found["recall@5"]) == (share, (1 + share) / 2)


def test_index_recall_by_hand() -> None:
    """One supporting document found first, one found third, none of two: recall@2 (1 + 0 + 0)/3, @3 (1 + 1 + 0)/3."""
    documents = [Document(str(i), "", text) for i, text in enumerate(("a", "b x y", "b x", "b", "c", "d"))]
    tasks = (
        Task("1", "a", ("x",), data={"supporting_ids": ["0"]}),
        Task("2", "b x y", ("x",), data={"supporting_ids": ["3"]}),
        Task("3", "nothing", ("x",), data={"supporting_ids": ["4", "5"]}),
        Task("4", "a", ("x",)),  # not counted: nobody knows its documents
    )
    task_env = TaskEnv(
        Source("s", "", tasks, documents, None), InMemoryRetriever(documents), EnvConfig(), words
    )
    assert index_recall(task_env) == pytest.approx(
        {"recall@2": 1 / 3, "recall@3": 2 / 3, "recall@5": 2 / 3, "recall@10": 2 / 3, "all@5": 2 / 3}
    )
    bare = TaskEnv(Source("s", "", tasks[3:], documents, None), task_env.retriever, EnvConfig(), words)
    assert index_recall(bare) == {}
    told = task_env.varied(
        retriever=OracleRetriever(tasks[:3], {document.id: document for document in documents})
    )
    assert index_recall(told) == {}  # what it finds depends on more than the question


def test_index_recall_asks_in_pieces_and_keeps_their_order() -> None:
    documents = [Document(str(i), "", f"word{i}") for i in range(600)]
    tasks = tuple(Task(str(i), f"word{i}", ("x",), data={"supporting_ids": [str(i)]}) for i in range(600))
    task_env = TaskEnv(
        Source("s", "", tasks, documents, None), InMemoryRetriever(documents), EnvConfig(), words
    )
    assert index_recall(task_env)["recall@2"] == 1.0


def test_a_set_without_a_corpus_needs_a_retriever(tmp_path: Path) -> None:
    write_world(SMALL, tmp_path / "world")
    (tmp_path / "world" / "corpus.jsonl").unlink()
    config = SourceConfig(dataset="fictional", data=tmp_path / "world")
    with pytest.raises(ConfigurationError, match="corpus"):
        open_task_env(config, HASH, EnvConfig(), words)


def test_a_set_without_a_corpus_needs_none_where_only_an_answer_is_taken(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"question": "Who wrote Emma?", "answer": "Jane Austen"}\n')
    source = SourceConfig(dataset=str(tmp_path / "mine.jsonl"))
    task_env = open_task_env(source, SearchConfig(), EnvConfig(options={"max_turns": 0}), len)
    assert task_env.retriever is not None
    assert asyncio.run(task_env.retriever.search(["Emma", "Austen"], 3)) == [[], []]
    env = task_env.make_env()
    env.reset(seed=0, options={"task": task_env.source.tasks[0]})
    assert env.step("<answer>Jane Austen</answer>").reward == 1
    with pytest.raises(ConfigurationError, match=r"mine.*max_turns"):
        open_task_env(source, SearchConfig(), EnvConfig(options={"max_turns": 1}), len)


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
        open_task_env(source, search, EnvConfig(), words)


@pytest.mark.parametrize("option", ["max_turn", "tasks"])
def test_an_option_that_the_environment_does_not_take(option: str) -> None:
    env = EnvConfig(options={option: 3})
    with pytest.raises(ConfigurationError, match=rf"option.*'{option}'"):
        open_task_env(SourceConfig(world=SMALL), HASH, env, words)
    task_env = open_task_env(SourceConfig(world=SMALL), HASH, EnvConfig(), words)
    with pytest.raises(ConfigurationError, match=rf"option.*'{option}'"):
        replace(task_env, env=env).make_env()


def test_a_retriever_among_the_options_is_refused_though_its_type_is_right() -> None:
    with pytest.raises(ConfigurationError, match="'retriever'"):
        open_task_env(SourceConfig(world=SMALL), HASH, EnvConfig(options={"retriever": "faiss:here"}), words)


@pytest.mark.parametrize(
    ("option", "value"), [("k", "three"), ("max_turns", None), ("scorer", 4), ("found_reward", "much")]
)
def test_an_option_of_another_type_is_one_sentence_before_any_work(option: str, value: object) -> None:
    with pytest.raises(ConfigurationError) as error:
        open_task_env(SourceConfig(), SearchConfig(), EnvConfig(options={option: value}), words)
    assert repr(option) in str(error.value)
    assert repr(value) in str(error.value)
    assert len(str(error.value)) < 300


def test_numbers_that_come_as_text_are_numbers() -> None:
    task_env = open_task_env(SourceConfig(world=SMALL), HASH, EnvConfig(options={"k": "2"}), words)
    env = task_env.make_env()
    env.reset(seed=0)
    step = env.step("<search>a</search>")
    assert len(step.info["tool_results"][0].data["ids"][0]) == 2


def test_the_corpus_of_a_source() -> None:
    documents = [Document("d", "t", "x")]
    assert len(corpus_of(Source("s", "", (), documents, None)) or ()) == 1
    assert corpus_of(Source("s", "", (), None, None)) is None


def test_a_hybrid_over_the_set_s_own_corpus_fuses_both_indexes_of_it(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="needs the extra 'retrieval'")
    write_world(SMALL, tmp_path / "world")
    source = SourceConfig(dataset="fictional", data=tmp_path / "world")

    def opened(spec: str) -> Any:
        return open_task_env(
            source, SearchConfig(retriever=spec, encoder="hash"), EnvConfig(), words
        ).searched

    fused, dense, lexical = opened("hybrid"), opened(""), opened("bm25")
    assert (fused.info().name, fused.info().documents) == ("hybrid", 200)
    assert (fused.dense, fused.bm25) == (dense, lexical)
    assert known_retriever("hybrid") == "hybrid"


def test_words_over_the_set_s_own_corpus_or_another_one(tmp_path: Path) -> None:
    pytest.importorskip("bm25s", reason="needs the extra 'retrieval'")
    write_world(SMALL, tmp_path / "world")
    source = SourceConfig(dataset="fictional", data=tmp_path / "world")
    task_env = open_task_env(source, SearchConfig(retriever="bm25"), EnvConfig(), words)
    assert (task_env.searched.info().name, task_env.searched.info().documents) == ("bm25", 200)
    other = tmp_path / "other.jsonl"
    other.write_text('{"id": "1", "title": "t", "text": "some words"}\n')
    bare = open_task_env(source, SearchConfig(retriever="bm25", corpus=str(other)), EnvConfig(), words)
    assert bare.searched.info().documents == 1
    assert index_recall(task_env)["recall@10"] > 0
    assert index_recall(bare) == {}  # the questions name documents of another corpus
    assert not any("supporting_ids" in task.data for task in bare.source.tasks)
    named = open_task_env(source, SearchConfig(retriever="bm25", corpus="fictional"), EnvConfig(), words)
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
    opened = open_task_env(source, SearchConfig(retriever="bm25", corpus=str(searched)), EnvConfig(), len)
    assert bool(opened.source.tasks[0].data.get("supporting_ids")) == same
    assert bool(index_recall(opened)) == same


def test_a_corpus_file_that_has_changed_is_read_again(tmp_path: Path) -> None:
    """Also where the new content is as long as the old one and carries its date."""
    path = tmp_path / "corpus.jsonl"
    named = Source("s", "", (), None, path)
    several = Source("s", "", (), None, None, corpora=(("a", path),))
    for title in ("old", "new"):
        path.write_text(json.dumps({"id": "1", "title": title, "text": "x"}) + "\n")
        os.utime(path, (1_000_000_000, 1_000_000_000))
        for source in (named, several):
            assert [document.title for document in corpus_of(source) or ()] == [title]
    assert corpus_of(named) is corpus_of(named)


def test_tasks_that_are_given_are_drawn_as_the_source_says_and_stand_under_its_name() -> None:
    given = [Task(f"t{i}", f"q{i}", ("a",)) for i in range(9)]
    search, env = SearchConfig(), EnvConfig()
    opened = open_tasks(SourceConfig(dataset="mine", limit=4, seed=1), search, env, given)
    assert (opened.name, opened.split, len(opened.tasks), opened.documents, opened.corpus) == (
        "mine",
        "",
        4,
        None,
        None,
    )
    named = open_tasks(SourceConfig(dataset="mine", split="dev"), search, env, given)
    assert (named.split, named.tasks) == ("dev", tuple(given))
    drawn = {
        frozenset(
            task.id
            for task in open_tasks(SourceConfig(dataset="mine", limit=4, seed=seed), search, env, given).tasks
        )
        for seed in range(6)
    }
    assert len(drawn) > 1
    task_env = open_task_env(
        SourceConfig(dataset="mine", limit=2),
        search,
        env,
        words,
        tasks=given,
        retriever=InMemoryRetriever([Document("d", "t", "x")]),
    )
    assert len(task_env.source.tasks) == 2
    assert {task.id for task in task_env.source.tasks} <= {task.id for task in given}
    with pytest.raises(DatasetError, match=r"tasks.*'t0'|'t0'.*tasks"):
        open_tasks(SourceConfig(dataset="mine"), search, env, [given[0], given[0]])


def test_a_retriever_is_refused_where_nothing_is_searched() -> None:
    env = EnvConfig(id="agentenv/Calculator-v0")
    with pytest.raises(ConfigurationError, match="Calculator-v0"):
        open_task_env(
            SourceConfig(dataset="env"),
            SearchConfig(),
            env,
            words,
            retriever=InMemoryRetriever([Document("d", "t", "x")]),
        )


def test_an_encoder_of_a_folder_is_read_again_where_its_files_changed(
    tmp_path: Path, asked: list[str]
) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    spec = f"st:{weights}"
    documents = [Document("d", "t", "x y z")]
    source = Source("s", "", (Task("1", "x", ("a",)),), documents, None)
    for content in ("one", "one", "two"):
        (weights / "model").write_text(content)
        os.utime(weights / "model", (1_000_000_000, 1_000_000_000))
        open_task_env(SourceConfig(), SearchConfig(encoder=spec), EnvConfig(), words, opened=source)
    assert asked == [spec] * 3  # dates of the metadata change with every write


def test_an_encoder_without_a_folder_is_read_once_whatever_stands_in_the_current_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[str]
) -> None:
    """Neither read, which takes long in a home folder, nor a reason to encode again, though runs write there."""
    monkeypatch.chdir(tmp_path)
    source = Source("s", "", (Task("1", "x", ("a",)),), Corpus([Document("d", "t", "x y z")]), None)
    for name in ("one", "two"):
        (tmp_path / name).write_text("of a run")
        open_task_env(SourceConfig(), HASH, EnvConfig(), words, opened=source)
    assert asked == ["hash"]


class Asking(Calculator):
    """Cannot be made without an argument that no configuration gives."""

    def __init__(self, *, key: str) -> None:
        super().__init__()
        self.key = key


def test_a_class_is_named_by_its_id_or_by_its_place_and_must_be_found_there() -> None:
    assert env_id_of(Calculator) == "agentenv/Calculator-v0"
    assert env_id_of(Asking) == f"{__name__}:Asking"

    class Local(Calculator):
        pass

    with pytest.raises(ConfigurationError, match=r"<locals>\.Local"):
        env_id_of(Local)
    for other in (int, Calculator(), "agentenv/Calculator-v0"):
        with pytest.raises(ConfigurationError, match=re.escape(repr(other))):
            env_id_of(other)  # type: ignore[arg-type]


def test_an_environment_that_lacks_an_argument_is_a_fault_that_names_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "asking_environment", sys.modules[__name__])
    source = Source("mine", "", (Task("t", "1 + 1", ("2",)),), None, None)
    with pytest.raises(EnvFault, match=r"asking_environment:Asking.*TypeError.*'key'$"):
        TaskEnv(source, None, EnvConfig(id="asking_environment:Asking"), len).make_env()
    made = TaskEnv(source, None, EnvConfig(id="asking_environment:Asking", options={"key": "x"}), len)
    assert made.make_env().unwrapped.key == "x"  # type: ignore[attr-defined]

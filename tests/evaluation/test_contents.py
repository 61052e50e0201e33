"""Digests of what the names of a benchmark stand for, name by name."""

import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.io.digests import file_digest, path_digest, value_digest
from agentenv.core.types import Document, Task
from agentenv.data.sources import Source
from agentenv.errors import ConfigurationError
from agentenv.evaluation.contents import content_digests, environment_digest, written_since
from agentenv.evaluation.journal import forget_contents, lock_folder
from agentenv.evaluation.task_env import SearchConfig
from agentenv.policies.policy_spec import policy_digest
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import InMemoryRetriever

ENV = "agentenv/LocalSearch-v0"
TASKS = (Task("q", "Who?", ("Ada",)),)
SOURCE = Source("s", "", TASKS, None, None)


def digests(
    name: str = "scripted", retriever: str = "", source: Source = SOURCE, **given: Any
) -> dict[str, str]:
    return content_digests(source, SearchConfig(retriever=retriever), ENV, name, **given)


def test_nothing_has_no_digest_and_the_rest_has_one() -> None:
    assert digests() == {
        "questions": value_digest(TASKS),
        "corpus": "",
        "index": "",
        "policy": "scripted",
        "environment": environment_digest(ENV),
    }


@pytest.mark.parametrize("kind", ["hf", "vllm"])
def test_a_policy_of_a_folder_is_told_by_its_files_and_another_by_its_name(tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    spec = f"{kind}:{tmp_path}"
    first = digests(spec)["policy"]
    assert first == policy_digest(spec) != spec
    (tmp_path / "model.safetensors").write_bytes(b"other")
    assert digests(spec)["policy"] != first
    assert digests("openai:m@http://h/v1")["policy"] == "openai:m@http://h/v1"


def test_a_policy_that_is_given_is_told_by_what_it_says_of_itself() -> None:
    policy: Any = ScriptedPolicy({})
    assert digests("mine", policy=policy)["policy"] == "mine, version 0"
    policy.digest = "abc"
    assert digests("mine", policy=policy)["policy"] == "abc"
    assert digests("hf:nowhere", policy=policy)["policy"] == "abc"  # its name stands for no folder


def test_a_retriever_that_is_given_is_told_by_its_fingerprint() -> None:
    retriever = InMemoryRetriever([Document("d", "t", "x")])
    found = content_digests(SOURCE, SearchConfig(), ENV, "scripted", retriever=retriever)
    assert found["index"] == retriever.info().fingerprint
    assert digests(retriever="web:serper")["index"] == "web:serper"


def test_an_index_that_is_built_over_the_corpus_has_no_digest_and_no_file_of_the_current_folder_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).write_text("of somebody else")
        assert {digests(retriever=spec)["index"] for spec in ("", "bm25", "hybrid")} == {""}


def test_an_index_is_told_by_its_files_and_a_spec_of_nothing_here_by_itself(tmp_path: Path) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "index.faiss").write_bytes(b"1")
    tape = tmp_path / "tape"
    tape.write_text("recorded")
    own = path_digest(folder)
    assert digests(retriever=f"faiss:{folder}")["index"] == own
    assert digests(retriever=f"faiss:{tmp_path / 'none'}")["index"] == f"faiss:{tmp_path / 'none'}"
    assert digests(retriever=f"cassette:{tape}")["index"] == file_digest(tape)
    # One that records on, and one that ranks again, are told by what stands behind them.
    assert digests(retriever=f"cassette:{tape}@faiss:{folder}")["index"] == own
    assert digests(retriever=f"rerank:{tape}@faiss:{folder}")["index"] == own
    assert digests(retriever=f"cassette:{tmp_path / 'none'}")["index"] == ""


def test_a_corpus_is_told_by_documents_files_or_several_of_them(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for path in paths:
        path.write_text('{"id": "1", "title": "t", "text": "x"}\n')
    made = replace(SOURCE, documents=[Document("1", "t", "x")])
    other = replace(SOURCE, documents=[Document("1", "t", "y")])
    assert digests(source=made)["corpus"] not in ("", digests(source=other)["corpus"])
    assert digests(source=replace(SOURCE, corpus=paths[0]))["corpus"] == path_digest(paths[0])
    assert digests(source=replace(SOURCE, corpus=tmp_path / "none"))["corpus"] == ""
    both = replace(SOURCE, corpora=(("a", paths[0]), ("b", paths[1])))
    assert digests(source=both)["corpus"] == value_digest(
        [("a", path_digest(paths[0])), ("b", path_digest(paths[1]))]
    )


def test_questions_are_told_by_all_that_they_hold() -> None:
    other = replace(TASKS[0], data={"supporting_ids": ["d"]})
    found = {digests(source=replace(SOURCE, tasks=(task,)))["questions"] for task in (TASKS[0], other)}
    assert len(found) == 2


def test_environments_of_one_module_are_told_alike_and_of_another_differently() -> None:
    assert environment_digest(ENV) != environment_digest("agentenv/Calculator-v0")
    assert environment_digest("agentenv.envs.calculator:Calculator") == environment_digest(
        "agentenv/Calculator-v0"
    )


def test_every_kind_of_policy_with_weights_here_is_told_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentenv.evaluation.contents.policy_digest", lambda name: f"weights of {name}")
    for name in ("tiny", "hf:x", "vllm:x", "router:x"):
        assert digests(name)["policy"] == f"weights of {name}"
    for name in ("scripted", "scripted:extractive", "openai:hf:x@http://h/v1", "tiny2"):
        assert digests(name)["policy"] == name


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_is_told_by_what_it_says_of_itself(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    asked: list[str] = []

    def make(spec: str) -> InMemoryRetriever:
        asked.append(spec)
        return InMemoryRetriever([Document("d", "t", "x")])

    monkeypatch.setattr("agentenv.evaluation.contents.make_retriever", make)
    spec = f"{scheme}://host:1/search"
    assert digests(retriever=spec)["index"] == InMemoryRetriever([Document("d", "t", "x")]).info().fingerprint
    assert digests(retriever=f"rerank:mini@{spec}")["index"] == digests(retriever=spec)["index"]
    assert asked == [spec] * 3


def test_files_and_models_that_options_name_count(tmp_path: Path) -> None:
    """A file, the folder of a model and a policy; a prompt of any length and a file that is gone are texts."""
    facts, model = tmp_path / "facts.jsonl", tmp_path / "model"
    facts.write_text("{}")
    model.mkdir()
    (model / "config.json").write_text("{}")
    given = {
        "facts": str(facts),
        "reranker": f"encoder:bge:{model}",
        "agents": {"local": {"policy": f"hf:{model}"}},
        "prompt": "Answer. " * 500,
    }
    found = digests(options=given)
    assert found["contents of facts"] == path_digest(facts)
    assert found["contents of reranker"] == path_digest(model)
    assert found["contents of agents.local.policy"] == policy_digest(f"hf:{model}")
    assert "contents of prompt" not in found
    facts.unlink()
    assert "contents of facts" not in digests(options=given)


def test_what_is_no_file_and_no_folder_that_may_be_entered_is_not_opened(tmp_path: Path) -> None:
    """A pipe, which nobody writes to, a socket and a device; the address of a service may have such a name."""
    os.mkfifo(tmp_path / "a.pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "a.sock"))
        given = {"a": f"{tmp_path}/a.pipe", "b": f"unix:{tmp_path}/a.sock", "c": "/dev/null"}
        assert not [key for key in digests(options=given) if key.startswith("contents")]


def test_a_policy_with_settings_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    given = {"judge": f"hf:{tmp_path}#dtype=float32"}
    first = digests(options=given)["contents of judge"]
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    assert digests(options=given)["contents of judge"] != first
    assert "contents of judge" not in digests(options={"judge": f"hf:{tmp_path}/nowhere"})


def test_files_that_an_evaluation_writes_are_forgotten(tmp_path: Path) -> None:
    log, facts = tmp_path / "log.txt", tmp_path / "facts.jsonl"
    log.write_text("begun")
    facts.write_text("{}")
    options = {"options": {"log": str(log), "facts": str(facts)}}
    contents = digests(options=options)
    log.write_text("begun and written")
    assert written_since(contents, options) == ["contents of options.log"]
    lock_folder(tmp_path / "out", {"benchmark": {}, "contents": contents}, write=True)
    forget_contents(tmp_path / "out", written_since(contents, options))
    again = {"benchmark": {}, "contents": digests(options=options)}
    lock_folder(tmp_path / "out", again)  # the log counts no more
    facts.write_text("other")
    with pytest.raises(ConfigurationError, match=r"options\.facts"):
        lock_folder(tmp_path / "out", {"benchmark": {}, "contents": digests(options=options)})
    facts.unlink()
    with pytest.raises(ConfigurationError, match=r"options\.facts"):
        lock_folder(tmp_path / "out", {"benchmark": {}, "contents": digests(options=options)})


def test_the_model_behind_a_simulated_search_counts(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    spec = f"simulated:noise_start=0@hf:{tmp_path}"
    first = digests(retriever=spec)["index"]
    (tmp_path / "model.safetensors").write_bytes(b"other")
    assert digests(retriever=spec)["index"] != first

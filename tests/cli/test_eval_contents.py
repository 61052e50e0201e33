"""``agentenv eval`` into a folder that holds an evaluation: it is returned only where everything is as it was.

Questions, corpus, index, policy, environment and the episodes themselves are changed, in finished and in interrupted
evaluations and in a suite; each is refused in one sentence that names what has changed.
"""

import importlib
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentenv.cli.main import main
from agentenv.core.registry import register
from agentenv.data.sources import Source
from agentenv.data.world import WorldConfig, write_world
from agentenv.errors import ConfigurationError
from agentenv.evaluation import built_retrievers, task_env
from agentenv.evaluation.checksums import verify_digests
from agentenv.evaluation.contents import content_digests, environment_digest
from agentenv.evaluation.journal import read_seconds
from agentenv.policies.card import EpisodeCard, write_card
from agentenv.policies.fakes import random_policy
from agentenv.retrievers.encoder import HashEncoder
from agentenv.retrievers.faiss import FaissRetriever
from agentenv.retrievers.storage.corpus import load_corpus


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world with an index, a policy, and a finished evaluation of it; at its final place, which is copied."""
    place = tmp_path_factory.mktemp("made")
    write_world(WorldConfig(seed=6, documents=200, questions=12), place / "world")
    corpus = load_corpus(place / "world" / "corpus.jsonl")
    FaissRetriever.build(corpus, HashEncoder(), "Flat").save(place / "index")
    random_policy(place / "policy", ["Where was Zoë born?"])
    write_card(place / "policy", EpisodeCard(turn_tokens=8))
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, from which commands run; what was read of other copies is forgotten."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for cache in (built_retrievers._load, built_retrievers._lexical, built_retrievers._dense):
        cache.cache_clear()
    return tmp_path


def words(*more: str) -> list[str]:
    argv = ["eval", "--dataset", "fictional", "--data", "world", "--retriever", "faiss:index", "--out", "out"]
    return [*argv, "--policy", "hf:policy", "--limit", "3", "--max-turns", "1", "--no-bounds", *more]


def refused(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence of a command that fails."""
    capsys.readouterr()
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err.rstrip("\n").rpartition("\n")[2]


def in_place(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Changes a file's content and neither its size nor its date."""
    before, content = path.stat(), path.read_bytes()
    changed = change(content)
    assert changed != content
    assert len(changed) == len(content)
    path.write_bytes(changed)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def first_upper(content: bytes) -> bytes:
    """The first "of" of the texts in another case."""
    return content.replace(b" of ", b" OF ", 1)


def last_bit(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def a_gold(content: bytes) -> bytes:
    """Another supporting document: it is no part of what is shown, and decides recall and bounds."""
    row = json.loads(content.split(b"\n")[0])
    old = row["supporting_ids"][0].encode()
    return content.replace(b'"' + old + b'"', b'"' + old[:-1] + (b"0" if old[-1:] != b"0" else b"1") + b'"')


CHANGES = {
    "questions": ("world/questions.jsonl", a_gold),
    "corpus": ("world/corpus.jsonl", first_upper),
    "index": ("index/index.faiss", last_bit),
    "policy": ("policy/model.safetensors", last_bit),
}


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("what", CHANGES)
def test_other_content_under_the_same_name_is_refused(
    made: Path, place: Path, what: str, finished: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """And accepted again where the old one is put back."""
    assert main(words()) == 0
    if not finished:
        (place / "out" / "results.json").unlink()
        lines = (place / "out" / "episodes.jsonl").read_bytes().splitlines(keepends=True)
        (place / "out" / "episodes.jsonl").write_bytes(b"".join(lines[:-1]))
    name, change = CHANGES[what]
    in_place(place / name, change)
    before = (place / "out" / "episodes.jsonl").read_bytes()
    assert what in refused(words(), capsys)
    assert (place / "out" / "episodes.jsonl").read_bytes() == before
    in_place(place / name, lambda _: (made / name).read_bytes())
    assert main(words()) == 0


def test_the_weights_of_a_card_and_of_a_tokenizer_count(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words()) == 0
    (place / "policy" / "README.md").write_text("for people")
    assert main(words()) == 0
    with (place / "policy" / "tokenizer.json").open("a") as file:
        file.write("\n")
    assert "with policy" in refused(words(), capsys)


def test_an_edited_episode_is_refused_wherever_its_score_is_read(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words()) == 0
    assert main([*words()[:-1], "--no-bounds", "--out", "other"]) == 0
    episodes = place / "out" / "episodes.jsonl"
    content = episodes.read_bytes()
    in_place(episodes, lambda content: content.replace(b'"valid": true', b'"valid": True', 1))
    for argv in (
        words(),
        ["rescore", "out", "--scorer", "em_cover"],
        ["compare", "out", "other"],
        ["report", "out"],
    ):
        assert "line 1 of " in refused(argv, capsys), argv
    (place / "out" / "results.json").unlink()  # as if it were not finished
    assert "episodes.jsonl" in refused(words(), capsys)
    episodes.write_bytes(content)
    assert main(words()) == 0


def test_a_line_that_was_taken_out_of_a_finished_evaluation_is_missed(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words()) == 0
    whole = (place / "out" / "results.json").read_bytes()
    episodes = place / "out" / "episodes.jsonl"
    episodes.write_bytes(b"".join(episodes.read_bytes().splitlines(keepends=True)[1:]))
    assert "episodes.jsonl" in refused(words(), capsys)
    (place / "out" / "results.json").unlink()
    assert main(words()) == 0  # an evaluation that is not finished plays what is missing
    assert (place / "out" / "results.json").read_bytes() == whole


def test_a_suite_refuses_what_has_changed_in_one_of_its_sets(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / "suite.toml").write_text(
        'retriever = "faiss:index"\nbounds = false\nlimit = 2\ndata = "world"\n'
        '[one]\ndataset = "fictional"\n[two]\ndataset = "fictional"\nseed = 3\n'
    )
    argv = ["eval", "--suite", "suite.toml", "--policy", "scripted:extractive", "--out", "out"]
    assert main(argv) == 0
    assert main(argv) == 0
    in_place(place / "world" / "corpus.jsonl", first_upper)
    assert "one: " in refused(argv, capsys)
    assert "corpus" in refused(argv, capsys)


ENVIRONMENT = """
from agentenv.envs.search.local_search import LocalSearch

class Mine(LocalSearch):
    BONUS = 1
"""


def test_an_environment_of_one_s_own_is_told_by_its_module(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "mine_of_contents.py").write_text(ENVIRONMENT)
    monkeypatch.syspath_prepend(str(place))
    register("contents/Mine-v0", "mine_of_contents:Mine")
    try:
        assert main(words("--env", "contents/Mine-v0")) == 0
        (place / "mine_of_contents.py").write_text(ENVIRONMENT.replace("1", "2"))
        assert "environment" in refused(words("--env", "contents/Mine-v0"), capsys)
    finally:
        sys.modules.pop("mine_of_contents", None)
        importlib.invalidate_caches()


def test_a_module_beside_that_of_an_environment_counts_and_so_does_a_module_of_this_package(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = place / "mine_with_parts"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text("BONUS = 1\n")
    (package / "envs.py").write_text("from mine_with_parts.parts import BONUS\n" + ENVIRONMENT)
    monkeypatch.syspath_prepend(str(place))
    register("contents/Parts-v0", "mine_with_parts.envs:Mine")
    try:
        before = environment_digest("contents/Parts-v0")
        assert environment_digest("contents/Parts-v0") == before
        (package / "parts.py").write_text("BONUS = 2\n")
        assert environment_digest("contents/Parts-v0") != before
    finally:
        for name in ("mine_with_parts", "mine_with_parts.parts", "mine_with_parts.envs"):
            sys.modules.pop(name, None)
    edited = tmp_path / "calculator.py"
    before = environment_digest("agentenv/Calculator-v0")
    edited.write_text("# another calculator\n")
    monkeypatch.setattr(sys.modules["agentenv.envs.calculator"], "__file__", str(edited))
    assert environment_digest("agentenv/Calculator-v0") != before


@pytest.mark.parametrize("part", ["outcomes", "search_tools", "search_env"])
def test_the_parts_of_a_search_environment_belong_to_its_source(
    part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = environment_digest("agentenv/LocalSearch-v0")
    (tmp_path / "edited.py").write_text("# another part\n")
    module = sys.modules[f"agentenv.envs.search.{part}"]
    monkeypatch.setattr(module, "__file__", str(tmp_path / "edited.py"))
    assert environment_digest("agentenv/LocalSearch-v0") != before


def test_a_folder_of_an_earlier_version_says_so(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words()) == 0
    config = place / "out" / "config.toml"
    kept, _, _ = config.read_text().partition("[contents]")
    config.write_text(kept)
    assert "corpus" in refused(words(), capsys)


@pytest.mark.parametrize("content", [b"", b"[benchmark", b"\xff\xfe"])
def test_a_damaged_configuration_is_refused(
    place: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words()) == 0
    (place / "out" / "config.toml").write_bytes(content)
    assert str(Path("out")) in refused(words(), capsys)


def test_damaged_seconds_decide_nothing(tmp_path: Path) -> None:
    good = {"phase": "run", "episodes": 1, "seconds": 2.0, "waits": [2.0]}
    (tmp_path / "timings.jsonl").write_text(f"{{broken\n[1]\n{json.dumps(good)}\n")
    assert read_seconds(tmp_path)["seconds"] == 2.0


def test_a_file_without_checksums_is_believed(tmp_path: Path) -> None:
    """As earlier versions wrote it."""
    path = tmp_path / "episodes.jsonl"
    path.write_text("one\n")
    verify_digests(path)
    (tmp_path / "episodes.sha256").write_text("")
    with pytest.raises(ConfigurationError, match="line 1"):
        verify_digests(path)


def test_each_of_several_corpora_counts(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for path in paths:
        path.write_text('{"id": "1", "title": "t", "text": "some words"}\n')
    source = Source("a+b", "test", (), None, None, corpora=(("a", paths[0]), ("b", paths[1])))

    def digest() -> str:
        return content_digests(source, task_env.SearchConfig(), "agentenv/LocalSearch-v0", "scripted")[
            "corpus"
        ]

    seen = {digest()}
    for path in paths:
        path.write_text('{"id": "1", "title": "t", "text": "other words"}\n')
        seen.add(digest())
    assert len(seen) == 3

"""The real sets: the counts that their cards state, golds that pass the scorers, documents that exist.

Runs where the environment variable AGENTENV_DATA names the folder of the sets.
"""

import gzip
import json
import os
from functools import cache
from pathlib import Path

import pytest

from agentenv.core.scoring.scorers import SCORERS
from agentenv.data.datasets import SETS, Dataset, load_dataset

ROOT = os.environ.get("AGENTENV_DATA", "")
pytestmark = pytest.mark.skipif(not ROOT, reason="AGENTENV_DATA is not set")

# (set, split): questions and passages as the sets' own cards count the visible halves
COUNTS = {
    ("hotpotqa", "dev"): (94, 3930),
    ("hotpotqa", "train"): (51, 3930),
    ("hotpotqa", "distractor"): (55, 3930),
    ("2wiki", "dev"): (75, 4209),
    ("2wiki", "train"): (258, 4209),
    ("2wiki_hippo", "dev"): (49, 6119),
    ("musique", "dev"): (95, 5021),
    ("musique", "train"): (56, 5021),
    ("nq", "dev"): (1800, 2600),
    ("nq", "efficientqa"): (905, 2600),
    ("nq_oracle", "dev"): (1314, 2600),
    ("squad", "dev"): (596, 240),
    ("triviaqa", "test"): (5656, 0),
    ("popqa", "test"): (501, 9246),
    ("flashrag_nq", "test"): (523, 9246),
    ("flashrag_triviaqa", "test"): (513, 9246),
    ("bamboogle", "test"): (63, 0),
    ("frames", "test"): (412, 0),
}
# Not among the sets' files.
NOT_HERE = {("triviaqa", "dev"), ("simpleqa", "test"), ("browsecomp", "test")} | {
    (name, split) for name in ("topiocqa", "topiocqa_dpr", "qrecc") for split in ("train", "dev", "test")
}
JUDGED = {"hotpotqa", "2wiki", "2wiki_hippo", "musique", "nq_oracle", "squad"}
each_split = pytest.mark.parametrize(("name", "split"), COUNTS)


@cache
def load(name: str, split: str) -> Dataset:
    return load_dataset(name, Path(ROOT), split=split)


@cache
def corpus_ids(path: Path) -> frozenset[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return frozenset(json.loads(line)["id"] for line in file)


def test_every_split_of_every_set_is_counted_here() -> None:
    ours = {(name, split) for name, kind in SETS.items() for split in kind.files if split}
    assert ours == set(COUNTS) | NOT_HERE


@each_split
def test_the_counts_are_those_of_the_card(name: str, split: str) -> None:
    found = load(name, split)
    documents = len(corpus_ids(found.corpus)) if found.corpus else 0
    assert (len(found.tasks), documents) == COUNTS[name, split]


@each_split
def test_the_gold_answer_passes_the_scorers(name: str, split: str) -> None:
    """All golds pass the exact match of SQuAD, and those of about 500 questions, spread over the set, every scorer."""
    tasks = load(name, split).tasks
    for scorer in SCORERS.values():
        for task in tasks if scorer.name == "em_squad" else tasks[:: 1 + len(tasks) // 500]:
            assert scorer(task.answers[0], task.answers).value == 1.0, (scorer.name, task.id, task.answers)
            assert scorer(None, task.answers).value == 0.0


@each_split
def test_supporting_documents_are_in_the_corpus(name: str, split: str) -> None:
    found = load(name, split)
    support = [task.data.get("supporting_ids", ()) for task in found.tasks]
    if name not in JUDGED:
        assert not any(support)
        return
    assert found.corpus is not None
    assert all(support)
    assert {one for ids in support for one in ids} <= corpus_ids(found.corpus)


@each_split
def test_questions_are_stripped_and_without_leftover_quoting(name: str, split: str) -> None:
    for task in load(name, split).tasks:
        assert task.question == task.question.strip()
        assert '""' not in task.question
        assert task.split == split


def test_musique_has_two_to_four_hops() -> None:
    for split in ("dev", "train"):
        for task in load("musique", split).tasks:
            # the id states the hops: "2hop__..." or "3hop1__..."
            assert task.data["hops"] == int(task.id[0]) == len(task.data["decomposition"])

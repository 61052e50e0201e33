"""Does the constant of the hybrid's reciprocal rank fusion hold on questions that it was not chosen on?

The shipped constant was chosen on the development questions of three sets. This script chooses it on their training
questions instead, and compares every constant with the published 60 on questions that took no part in the choice: the
constant chosen on the training questions is scored on the development questions, and the other way round.

    AGENTENV_DATA=DIR python benchmarks/fusion_constant.py
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from common import common_arguments, finish, run_script
from index_recall import Questions, Remembering, read_questions

from agentenv.evaluation.statistics.significance import paired_bootstrap
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.encoder import make_encoder
from agentenv.retrievers.faiss import FaissRetriever
from agentenv.retrievers.hybrid import DEPTH, HYBRID_K, RRF_K, reciprocal_rank_fusion
from agentenv.retrievers.storage.corpus import load_corpus

CONSTANTS = (1, 5, 10, 20, 40, 60, 100)
FILES = {
    "hotpotqa": {"training": "hotpotqa_train_100.json.gz", "development": "hotpotqa_dev_200.json.gz"},
    "2wiki": {"training": "2wiki_train_500.json.gz", "development": "2wiki_dev_164.json.gz"},
    "musique": {"training": "musique_train_100.jsonl.gz", "development": "musique_dev_200.jsonl.gz"},
}
SPLITS = ("training", "development")
CUT = 5
"""A question's score is its recall@5."""


def recalls(dense: FaissRetriever, lexical: BM25Retriever, questions: Questions) -> dict[int, list[float]]:
    """Recall@5 of every question under each constant."""
    lists = [asyncio.run(part.search(questions.texts, DEPTH)) for part in (dense, lexical)]
    rows = [[[dense.corpus.row_of(p.id) for p in found] for found in answers] for answers in lists]
    scores: dict[int, list[float]] = {constant: [] for constant in CONSTANTS}
    for *rankings, needed in zip(*rows, questions.needed, strict=True):
        for constant in CONSTANTS:
            fused = reciprocal_rank_fusion(rankings, constant)[:CUT]
            found = {dense.corpus[row].id for row, _ in fused} & needed
            scores[constant].append(len(found) / len(needed))
    return scores


def gain(scores: dict[int, list[float]], constant: int) -> dict[str, Any]:
    """The mean difference of recall@5 to the published constant, with its interval and p-value over the same questions.

    Nearly all questions find the same with both, so that the percentile bootstrap alone would be too narrow.
    """
    found = paired_bootstrap(scores[RRF_K], scores[constant])
    changes = np.subtract(scores[constant], scores[RRF_K])
    return {
        "constant": constant,
        "gain": found.difference,
        "ci95": found.ci95,
        "interval": found.method,
        "p_value": found.p_value,
        "better": int((changes > 0).sum()),
        "worse": int((changes < 0).sum()),
    }


def main() -> None:
    """Measures and reports."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--data", type=Path, help="folder of the sets; by default AGENTENV_DATA")
    args = parser.parse_args()
    root = args.data or os.environ.get("AGENTENV_DATA")
    if not root:
        sys.exit("Set AGENTENV_DATA to the folder of the real sets, or give --data.")
    import torch

    torch.set_num_threads(args.threads)
    encoder = Remembering(make_encoder("minilm"))
    sets: dict[str, Any] = {}
    pooled: dict[str, dict[int, list[float]]] = {split: {k: [] for k in CONSTANTS} for split in SPLITS}
    for name, files in FILES.items():
        corpus = load_corpus(Path(root) / name)
        dense, lexical = FaissRetriever.build(corpus, encoder, "Flat"), BM25Retriever.build(corpus)
        sets[name] = {}
        for split, file in files.items():
            scores = recalls(dense, lexical, read_questions(Path(root) / name, file))
            means = {str(constant): float(np.mean(found)) for constant, found in scores.items()}
            sets[name][split] = {"questions": len(scores[RRF_K]), "recall@5": means}
            for constant, found in scores.items():
                pooled[split][constant] += found
    figures = {"published": RRF_K, "shipped": HYBRID_K, "sets": sets, "held_out": held_out(pooled)}
    finish("fusion_constant", args, figures, summary(figures))


def held_out(pooled: dict[str, dict[int, list[float]]]) -> list[dict[str, Any]]:
    """The best constant of one split, and the shipped one, scored on the other split, over all three sets."""
    rows = []
    for chosen_on, scored_on in (SPLITS, SPLITS[::-1]):
        best = max(CONSTANTS, key=lambda constant: float(np.mean(pooled[chosen_on][constant])))
        n = len(pooled[scored_on][RRF_K])
        rows.append({"chosen_on": chosen_on, "scored_on": scored_on, "n": n, **gain(pooled[scored_on], best)})
    shipped = gain(pooled["training"], HYBRID_K)
    n = len(pooled["training"][RRF_K])
    return [*rows, {"chosen_on": "development, as shipped", "scored_on": "training", "n": n, **shipped}]


def summary(figures: dict[str, Any]) -> list[str]:
    """The tables."""
    lines = [f"recall@{CUT} by constant " + " ".join(f"{constant:>6}" for constant in CONSTANTS)]
    for name, splits in figures["sets"].items():
        for split, row in splits.items():
            means = " ".join(f"{value:6.3f}" for value in row["recall@5"].values())
            lines.append(f"{name:<9} {split:<12} {means}  n = {row['questions']}")
    for row in figures["held_out"]:
        low, high = row["ci95"]
        lines.append(
            f"{row['constant']} (chosen on {row['chosen_on']}) against {RRF_K} on {row['scored_on']} questions: "
            f"{row['gain']:+.4f} [{low:+.4f}, {high:+.4f}], n = {row['n']}"
        )
    return lines


if __name__ == "__main__":
    run_script(main)

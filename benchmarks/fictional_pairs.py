r"""Does a policy read, or remember? Its scores on real questions beside those on the same questions about invented names.

Takes two finished evaluations: one of real questions, and one of those that ``agentenv synthesize fictional-hot`` has made
of them (FictionalHot, arXiv:2510.00568). They are paired by the ids of the real ones, which differ, so that ``agentenv
compare`` does not pair them.

    agentenv synthesize fictional-hot --dataset hotpotqa,2wiki,musique --split dev --out runs/fictional
    agentenv eval --dataset runs/fictional/questions.jsonl --corpus runs/fictional/corpus.jsonl --retriever bm25 \
        --policy P --out F
    agentenv eval --dataset hotpotqa,2wiki,musique --split dev --retriever bm25 --policy P --out R
    python benchmarks/fictional_pairs.py R F
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from common import common_arguments, finish, run_script

from agentenv.evaluation.records import EpisodeRecord, read_evaluation
from agentenv.evaluation.results import values_of
from agentenv.evaluation.statistics.significance import paired_bootstrap

BEFORE_ID = "fictional-"
"""What stands before the id of the real question in that of an invented one."""


def paired(
    real: Mapping[str, EpisodeRecord], fictional: Mapping[str, EpisodeRecord]
) -> list[tuple[EpisodeRecord, EpisodeRecord]]:
    """Each invented question's episode behind that of its real one.

    Raises:
        SystemExit: an invented question has no real one.
    """
    missing = [one for one in fictional if one.removeprefix(BEFORE_ID) not in real]
    if missing:
        raise SystemExit(
            f"fictional_pairs: {len(missing)} questions have no real one, such as {missing[0]!r}"
        )
    return [(real[one.removeprefix(BEFORE_ID)], record) for one, record in sorted(fictional.items())]


def compared(pairs: list[tuple[EpisodeRecord, EpisodeRecord]], scorer: str) -> dict[str, Any]:
    """Both means and their paired difference, invented less real."""
    real, fictional = (values_of([pair[side] for pair in pairs], scorer) for side in (0, 1))
    found = paired_bootstrap(real, fictional)
    return {
        "n": len(pairs),
        "real": fmean(real),
        "fictional": fmean(fictional),
        "difference": found.difference,
        "ci95": found.ci95,
    }


def main() -> None:
    """Reads, pairs, writes."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("real", type=Path, help="folder of the evaluation of real questions")
    parser.add_argument("fictional", type=Path, help="folder of the evaluation of invented ones")
    parser.add_argument("--policy", default="", help="which policy was asked, for the record")
    args = parser.parse_args()
    real, fictional = (
        {str(record["id"]): record for record in read_evaluation(folder).records}
        for folder in (args.real, args.fictional)
    )
    pairs = paired(real, fictional)
    figures = {scorer: compared(pairs, scorer) for scorer in ("f1_squad", "em_squad")}
    lines = [f"{scorer}: {row}" for scorer, row in figures.items()]
    finish("fictional_pairs", args, {"policy": args.policy, "scores": figures}, lines)


if __name__ == "__main__":
    run_script(main)

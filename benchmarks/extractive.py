"""The extractive baseline on every real question set, as a table.

Runs the suite ``suites/real.toml`` with ``--policy scripted:extractive`` into a folder (an unfinished one goes on), or reads
a finished one, and writes the figures of each set with n, interval, bounds, evidence and errors.
"""

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Any

from common import finish, run_script

from agentenv.evaluation.records import read_json

SUITE_FILE = Path(__file__).parent / "suites" / "real.toml"
POLICY = "scripted:extractive"
_KEPT = (
    "n",
    "faults",
    "scores",
    "bounds",
    "retrieval",
    "index_recall",
    "answer_in_corpus",
    "errors",
    "tokens",
)


def main() -> None:
    """Runs the suite and writes its figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, required=True, help="folder of the evaluation")
    parser.add_argument("--suite", type=Path, default=SUITE_FILE, help="another suite")
    parser.add_argument("--out", type=Path, help="result file; by default benchmarks/results/extractive.json")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    args = parser.parse_args()
    words = ["eval", "--suite", str(args.suite), "--policy", POLICY, "--out", str(args.runs), "--json"]
    code = "import sys; from agentenv.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run([sys.executable, "-c", code, *words], check=False, stdout=subprocess.DEVNULL)
    if done.returncode:  # the command has said why
        sys.exit(done.returncode)
    suite = read_json(args.runs / "suite.json")
    sets = {name: _figures(read_json(args.runs / name / "results.json")) for name in suite["sets"]}
    figures = {"policy": POLICY, "sets": sets, "over_sets": suite["scores"]}
    finish("extractive", args, figures, _table(sets, suite["scores"]))


def _figures(results: dict[str, Any]) -> dict[str, Any]:
    about = {key: results[key] for key in ("dataset", "split", "retriever")}
    return about | {key: results[key] for key in _KEPT} | {"documents": results["settings"]["documents"]}


def _table(sets: dict[str, Any], means: dict[str, Any]) -> list[str]:
    """Rows of Markdown."""
    lines = [
        "| set | n | em_squad | f1_squad | oracle | oracle, paged | support recall | answer in corpus |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in sets.items():
        scores, bounds = found["scores"], found["bounds"]
        cells = [name, found["n"], _score(scores["em_squad"]), f"{scores['f1_squad']['mean']:.3f}"]
        cells += [_short(bounds.get(bound, {}).get("mean")) for bound in ("oracle", "oracle_paged")]
        cells += [
            _short(found.get("retrieval", {}).get("support_recall")),
            _short(found["answer_in_corpus"]["share"]),
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    counts = {"macro": f"{len(sets)} sets", "micro": means["em_squad"]["micro"]["n"]}
    for kind, count in counts.items():
        f1 = means["f1_squad"][kind]["mean"]
        lines.append(f"| {kind} mean | {count} | {_score(means['em_squad'][kind])} | {f1:.3f} | | | | |")
    return lines


def _score(score: dict[str, Any]) -> str:
    low, high = score["ci95"]
    return f"{score['mean']:.3f} [{low:.3f}, {high:.3f}]"


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    run_script(main)

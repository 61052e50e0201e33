"""What `make train-real` reached: before and after, by set, against the pages that its searches showed and the right ones.

Reads the folders of the reader and of the run, plays the held-out questions once more with the trained policy over the
gold passages, and writes every score with its interval and the gain over the same questions.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from common import finish, run_script

from agentenv.core.io.digests import file_digest
from agentenv.core.protocols import Policy
from agentenv.evaluation.bounds import variants
from agentenv.evaluation.diagnosis import answer_shown
from agentenv.evaluation.records import EpisodeRecord, read_evaluation, read_json
from agentenv.evaluation.report.report import METRICS, read_lines
from agentenv.evaluation.results import score_tables, values_of
from agentenv.evaluation.runner import play, to_record
from agentenv.evaluation.statistics.significance import paired_bootstrap
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.reader_adapter import ADAPTER, shipped_adapter
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.loop.parts import (
    make_chat_format,
    open_questions,
    rollout_config,
    with_declared_scorers,
)

SCORERS = ("f1_squad", "em_squad")
ALL = "all"
YES_NO = ("yes", "no")


def main() -> None:
    """Reads, plays, writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of reader and real-questions")
    parser.add_argument(
        "--others",
        type=Path,
        nargs="*",
        default=[],
        help="folders of the same kind, of runs with other seeds",
    )
    parser.add_argument(
        "--trained-by", default="make train-real", help="the commands that were run, for the record"
    )
    parser.add_argument("--load", default="", help="what else ran on the machine, for the record")
    parser.add_argument("--out", type=Path, help="result file; by default benchmarks/results/train_real.json")
    parser.add_argument("--json", action="store_true", help="print the result as JSON and nothing else")
    args = parser.parse_args()
    run = args.runs / "real-questions"
    runs = [run, *(folder / "real-questions" for folder in args.others)]
    results = read_json(run / "results.json")
    before, after = _evaluations(run)
    gold = _by_set(_with_gold_pages(run))
    sets = {name: _figures(before[name], after[name], gold[name]) for name in after}
    figures = {
        "train": args.trained_by,
        "load": args.load,
        "reader": read_json(args.runs / "reader" / "warmstart.json"),
        "adapter": file_digest(_adapter(args.runs / "reader")),
        "steps": results["steps"],
        "seconds": results["seconds"],
        "sets": sets,
        "seeds": _of_seeds(runs),
        "learned": [_learned(one) for one in runs],
    }
    finish("train_real", args, figures, [_line(name, figures) for name, figures in sets.items()])


def _adapter(reader: Path) -> Path:
    """What the lessons changed in the encoder: the file of a reader that was taught, or that of the shipped one."""
    return own if (own := reader / ADAPTER).is_file() else shipped_adapter()


def _evaluations(run: Path) -> tuple[dict[str, list[EpisodeRecord]], dict[str, list[EpisodeRecord]]]:
    """The held-out episodes before and after training, by set."""
    folder = run / "evaluation"
    return _by_set(read_evaluation(folder / "before").records), _by_set(
        read_evaluation(folder / "after").records
    )


def _of_seeds(runs: Sequence[Path]) -> dict[str, Any]:
    """Scores and gains of each run, and the gain of their mean, over the same questions, by set."""
    pairs = [_evaluations(run) for run in runs]
    found: dict[str, Any] = {}
    for name in pairs[0][0]:
        columns = [[values_of(one[name], "f1_squad") for one in pair] for pair in pairs]
        gains = [paired_bootstrap(before, after) for before, after in columns]
        before, after = np.mean(columns, axis=0)
        gains.append(paired_bootstrap(before, after))
        rows = [{"gain": gain.difference, "ci95": gain.ci95} for gain in gains]
        for row, (_, taught) in zip(rows, columns, strict=False):
            row["after"] = float(np.mean(taught))
        found[name] = {"runs": rows[:-1], "mean": rows[-1] | {"after": float(after.mean())}}
    return found


def _learned(run: Path) -> dict[str, Any]:
    """How often the reader says yes or no, where that is right, and the rewards of the first and the last five steps."""
    before, after = (records[ALL] for records in _evaluations(run))
    rewards = [float(line["reward_mean"]) for line in read_lines(run / METRICS, "step")]
    return {
        "yes_or_no_asked": sum(record["answers"][0].lower() in YES_NO for record in after),
        "yes_or_no_before": sum(str(record["prediction"]).lower() in YES_NO for record in before),
        "yes_or_no_after": sum(str(record["prediction"]).lower() in YES_NO for record in after),
        "reward_of_first_steps": fmean(rewards[:5]),
        "reward_of_last_steps": fmean(rewards[-5:]),
    }


def _by_set(records: Sequence[EpisodeRecord]) -> dict[str, list[EpisodeRecord]]:
    """The episodes of each set in the order of their ids, and of all together."""
    ordered = sorted(records, key=lambda record: record["id"])
    sets = {name: [r for r in ordered if r.get("family") == name] for name in _names(ordered)}
    return {ALL: ordered, **sets}


def _names(records: Sequence[EpisodeRecord]) -> list[str]:
    return sorted({str(record.get("family")) for record in records})


def _with_gold_pages(run: Path) -> list[EpisodeRecord]:
    """Episodes of the trained policy whose searches show the gold passages, whatever they ask for."""
    config: TrainConfig = with_declared_scorers(load_config(str(run / "config.toml")))
    policy = make_policy(f"hf:{run / 'policy'}")
    held_out = open_questions(config.test, config.search, config.env, policy, SilentDisplay())
    found = variants(held_out, policy)["oracle"]
    if isinstance(found, str):
        raise SystemExit(f"train_real: the gold passages cannot be shown: {found}")
    task_env, player = found
    chat = make_chat_format(config.format, config.chat, policy)
    budgets = rollout_config(config.rollout, config.env, temperature=0.0)
    assert isinstance(player, Policy)
    played = play(player, chat, task_env.make_env, task_env.source.tasks, budgets, name="gold")
    return [to_record(trajectory) for trajectory in played]


def _figures(
    before: list[EpisodeRecord], after: list[EpisodeRecord], gold: list[EpisodeRecord]
) -> dict[str, Any]:
    assert [record["id"] for record in before] == [record["id"] for record in after]
    gains = {name: paired_bootstrap(values_of(before, name), values_of(after, name)) for name in SCORERS}
    spans = [record for record in after if record["answers"][0].lower() not in YES_NO]
    shown = sum(map(answer_shown, spans)) + len(after) - len(spans)
    return {
        "n": len(after),
        "before": score_tables(before, SCORERS)["scores"],
        "after": score_tables(after, SCORERS)["scores"],
        "gain": {name: {"mean": gain.difference, "ci95": gain.ci95} for name, gain in gains.items()},
        "gold_pages": score_tables(gold, SCORERS)["scores"],
        "answer_shown": shown / len(after),
        "yes_or_no": 1 - len(spans) / len(after),
        "searches": sum(record["searches"] or 0 for record in after) / len(after),
    }


def _line(name: str, figures: dict[str, Any]) -> str:
    """A row of Markdown."""
    f1 = [figures[when]["f1_squad"] for when in ("before", "after", "gain", "gold_pages")]
    cells = [f"{one['mean']:.3f} [{one['ci95'][0]:.3f}, {one['ci95'][1]:.3f}]" for one in f1]
    em = figures["after"]["em_squad"]["mean"]
    return f"| {name} | {figures['n']} | {' | '.join(cells)} | {em:.3f} | {figures['answer_shown']:.3f} |"


if __name__ == "__main__":
    run_script(main)

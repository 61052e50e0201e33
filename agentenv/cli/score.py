"""The command ``agentenv score``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.data.sql_sets import SQL_SETS
from agentenv.errors import ConfigurationError
from agentenv.evaluation.official import OFFICIAL, score_file
from agentenv.evaluation.predictions import is_official, read_predictions, score_predictions
from agentenv.evaluation.report.flat_tables import interval_text
from agentenv.evaluation.sql_scores import score_queries


@dataclass(frozen=True)
class ScoreFile:
    """Scores a file of predictions for any question set, without an environment or a policy.

    Predictions are records with "id" and "answer" (JSONL, JSON, CSV, TSV, parquet) or one JSON object {id: answer}. A
    question without a prediction counts 0.

    The official measures with supporting facts are taken where a file has their layout: HotpotQA and 2Wiki {"answer":
    {id: text}, "sp": {id: [[title, sentence]]}} (2Wiki also "evidence"), MuSiQue one {"id", "predicted_answer",
    "predicted_support_idxs"} a line, for MuSiQue-Full with "predicted_answerable" and in the order of the questions; there a
    missing prediction is refused.

    Answers of spider and bird are queries, which are run: EX, a stricter accuracy and VES.

    Example: agentenv score nq predictions.jsonl --data DIR
    Example: agentenv score questions.csv predictions.csv --scorer f1_squad
    Example: agentenv score hotpotqa predictions.json --data hotpot_dev_distractor_v1.json
    """

    dataset: Annotated[str, tyro.conf.Positional]
    """A question set that `agentenv list` shows, a file of questions, or several with commas between them."""
    predictions: Annotated[Path, tyro.conf.Positional]
    """The prediction file."""
    data: Path | None = None
    """Question file, its folder or the parent; default: the environment variable AGENTENV_DATA."""
    split: str | None = None
    """Split of the set; default: its first."""
    scorer: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Scorer, may be repeated. Default: em_squad, f1_squad, em_cover; official measures have none to choose."""

    def run(self) -> dict[str, Any]:
        """Reads both files and returns the scores, as shares."""
        predictions = read_predictions(self.predictions)
        if self.dataset in SQL_SETS:
            if self.scorer:
                raise ConfigurationError(
                    f"queries of {self.dataset} are scored by running them: leave out --scorer"
                )
            found = score_queries(self.dataset, self.data, predictions, split=self.split)
        elif self.dataset in OFFICIAL and is_official(predictions):
            if self.scorer:
                raise ConfigurationError(
                    f"{self.predictions} has the layout of the official measures of {self.dataset}: leave out --scorer, or "
                    "give a file of ids and answers."
                )
            found = score_file(self.dataset, self.data, self.predictions, split=self.split)
        else:
            found = score_predictions(self.dataset, self.data, predictions, self.scorer, split=self.split)
        return {"dataset": self.dataset, **found}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints one line a measure, and below it one for each of several sets."""
        notes = [f"{count} without {part}" for part, count in result["missing"].items() if count]
        if result.get("ungraded"):
            notes.append(f"{result['ungraded']} left out because their gold query fails here")
        if unknown := result.get("unknown"):
            notes.append(f"{unknown} prediction{'s' * (unknown > 1)} of other questions left out")
        console.print(
            ", ".join([f"{result['dataset']}: {result['n']} questions", *notes]),
            markup=False,
        )
        for name, value in result["scores"].items():
            known = result.get("ci95", {})
            interval = f"  {interval_text(known[name], '.4f')}" if name in known else ""
            console.print(f"  {name:<14}{value:.4f}{interval}", markup=False)
            for of, part in result.get("by_set", {}).items():
                said = (
                    f"{part['scores'][name]:.4f}  {interval_text(part['ci95'][name], '.4f')}  n {part['n']}"
                )
                console.print(f"    {of:<12}{said}", markup=False)

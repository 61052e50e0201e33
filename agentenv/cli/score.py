"""The command ``agentenv score``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.evaluation.official import score_file


@dataclass(frozen=True)
class ScoreFile:
    """Scores a prediction file by the official measures of its set, supporting facts included.

    HotpotQA and 2Wiki take {"answer": {id: text}, "sp": {id: [[title, sentence]]}} (2Wiki also "evidence"),
    MuSiQue one {"id", "predicted_answer", "predicted_support_idxs"} a line, for MuSiQue-Full with
    "predicted_answerable" and in the order of the questions. A missing prediction counts 0, in MuSiQue it is refused.

    Example: agentenv score hotpotqa predictions.json --data hotpot_dev_distractor_v1.json
    """

    dataset: Annotated[str, tyro.conf.Positional]
    """hotpotqa, 2wiki or musique."""
    predictions: Annotated[Path, tyro.conf.Positional]
    """The prediction file."""
    data: Path | None = None
    """Question file, its folder or the parent; default: the environment variable AGENTENV_DATA."""
    split: str | None = None
    """Split of the set; default: its first."""

    def run(self) -> dict[str, Any]:
        """Reads both files and returns the scores, as shares."""
        return {
            "dataset": self.dataset,
            **score_file(self.dataset, self.data, self.predictions, split=self.split),
        }

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints one line a measure."""
        missing = ", ".join(f"{count} without {part}" for part, count in result["missing"].items() if count)
        console.print(f"{result['dataset']}: {result['n']} questions {missing}".rstrip(), highlight=False)
        for name, value in result["scores"].items():
            console.print(f"  {name:<14}{value:.4f}", highlight=False)

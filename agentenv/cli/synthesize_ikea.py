"""``agentenv synthesize ikea``: questions of which a policy knows half."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agentenv.cli.synthesize import write_result
from agentenv.data.synthesis.records import refuse_used_folder


@dataclass(frozen=True)
class IKEA:
    """Takes equally many questions that a policy knows and does not know, by its samples without search (IKEA).

    Example:
        agentenv eval --dataset nq --policy hf:PATH --max-turns 0 --samples 16 --temperature 1 --out probe
        agentenv synthesize ikea --probe probe --out runs/balanced
    """

    probe: Path
    """Folder of an evaluation with several samples and without search; a question is known if one sample is right."""
    out: Path
    """Folder to write: questions.jsonl, whose families are easy and hard, and synthesis.json."""
    each: int | None = None
    """Number of known questions, and of unknown ones; default: as many as the smaller of both kinds has."""
    scorer: str = "em_squad"
    """Says whether a sample is right."""
    seed: int = 0
    """Seed of the draw."""

    def run(self) -> dict[str, Any]:
        """Writes the questions and returns the card."""
        from agentenv.evaluation.knowledge import knowledge_halves

        refuse_used_folder(self.out)
        tasks = knowledge_halves(self.probe, scorer=self.scorer, each=self.each, seed=self.seed)
        card = {
            "recipe": "ikea",
            "probe": str(self.probe),
            "samples": tasks[0].data["samples"],
            "scorer": self.scorer,
            "seed": self.seed,
            "families": dict(sorted(Counter(task.data["family"] for task in tasks).items())),
        }
        return write_result(self, tasks, None, [], card)

    def show(self, result: dict[str, Any], console: Console) -> None:
        """How many questions there are of each half."""
        console.print(f"{result['questions']} questions in {result['out']}")
        for family, count in result["families"].items():
            console.print(f"  {family}: {count}")

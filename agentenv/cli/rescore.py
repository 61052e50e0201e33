"""The command ``agentenv rescore``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.errors import ConfigurationError
from agentenv.evaluation.compare import rescore
from agentenv.evaluation.judge import GRADES, GradeCache, Judge, judge_folder
from agentenv.evaluation.rubrics import get_rubric


@dataclass(frozen=True)
class Rescore:
    """Scores the episodes of an evaluation again, without running anything.

    The scores are added to results.json; those of other scorers stay as they are. A judge is a model behind an
    OpenAI-compatible endpoint; its grades are kept in the folder and not asked for again.

    Example: agentenv rescore runs/hotpotqa --scorer f1_hotpot em_cover
    Example: agentenv rescore runs/frames --judge openai:MODEL@https://HOST/v1 --rubric equivalence
    """

    directory: Annotated[Path, tyro.conf.Positional]
    """An evaluation folder."""
    scorer: tuple[str, ...] = ()
    """One or more scorers, for example em_squad, em_cover, cem, f1_squad, f1_hotpot."""
    judge: str = ""
    """``openai:MODEL@URL#options``; the key comes from the environment variable OPENAI_API_KEY."""
    rubric: str = "equivalence"
    """What the judge is told: simpleqa, browsecomp or equivalence."""
    offline: bool = False
    """Ask nobody: a judge's grades come from the folder, and an answer without one is a fault."""

    def run(self) -> dict[str, Any]:
        """Adds the scores and returns the new results."""
        if not self.scorer and not self.judge:
            raise ConfigurationError("Give --scorer NAME or --judge openai:MODEL@URL.")
        judge = self._judge() if self.judge else None  # refused before anything is written
        results = rescore(self.directory, self.scorer) if self.scorer else {}
        return judge_folder(self.directory, judge) if judge else results

    def _judge(self) -> Judge:
        from agentenv.policies.endpoint import ChatClient, Endpoint

        kind, _, rest = self.judge.partition(":")
        if kind != "openai":
            raise ConfigurationError(f"A judge is written openai:MODEL@URL, not {self.judge!r}.")
        client = ChatClient(Endpoint.parse(rest))
        rubric = get_rubric(self.rubric)
        cache = GradeCache(self.directory / GRADES)
        return Judge(rubric, client.model, None if self.offline else client, cache)

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints the new scores."""
        console.print(f"{result['dataset']} {result['split']}: {result['n']} questions", highlight=False)
        tables = {name: result["scores"][name] for name in self.scorer}
        if self.judge:
            tables |= {f"judge_{self.rubric}": result["judged"][f"judge_{self.rubric}"]}
        for name, score in tables.items():
            faults = sum(score.get("faults", {}).values())
            note = f", {faults} without a grade: {score['example_fault']}" if faults else ""
            if score["mean"] is None:
                console.print(f"{name} v{score['version']}: no score{note}", highlight=False)
                continue
            low, high = score["ci95"]
            console.print(
                f"{name} v{score['version']}: {score['mean']:.3f} (95 % interval {low:.3f} to {high:.3f}{note})",
                highlight=False,
            )

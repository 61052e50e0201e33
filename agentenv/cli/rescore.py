"""The command ``agentenv rescore``."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from agentenv.errors import ConfigurationError
from agentenv.evaluation.compare import rescore
from agentenv.evaluation.judge import GRADES, GradeCache, Judge, judge_folder
from agentenv.evaluation.records import SUITE, read_json
from agentenv.evaluation.rubrics import get_rubric
from agentenv.evaluation.suite import summarize_suite

if TYPE_CHECKING:
    from agentenv.policies.endpoint import ChatClient


@dataclass(frozen=True)
class Rescore:
    """Scores the episodes of an evaluation again, without running anything.

    The scores are added to results.json; those of other scorers stay as they are. Of a suite every set is scored.
    A judge is a model behind an OpenAI-compatible endpoint; its grades are kept in the folder and not asked for again.

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
        chat = self._chat() if self.judge else None  # refused before anything is written
        if not (self.directory / SUITE).is_file():
            return self._one(self.directory, chat)
        names = read_json(self.directory / SUITE)["sets"]
        parts = {name: self._one(self.directory / name, chat) for name in names}
        return {"suite": parts, **summarize_suite(self.directory, names)}

    def _one(self, directory: Path, chat: "ChatClient | None") -> dict[str, Any]:
        results = rescore(directory, self.scorer) if self.scorer else {}
        if chat is None:
            return results
        asked = None if self.offline else chat
        judge = Judge(get_rubric(self.rubric), chat.model, asked, GradeCache(directory / GRADES))
        return judge_folder(directory, judge)

    def _chat(self) -> "ChatClient":
        from agentenv.policies.endpoint import ChatClient, Endpoint

        get_rubric(self.rubric)
        kind, _, rest = self.judge.partition(":")
        if kind != "openai":
            raise ConfigurationError(f"A judge is written openai:MODEL@URL, not {self.judge!r}.")
        return ChatClient(Endpoint.parse(rest))

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints the new scores."""
        for part in result.get("suite", {"": result}).values():
            self._show(part, console)

    def _show(self, result: dict[str, Any], console: Console) -> None:
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

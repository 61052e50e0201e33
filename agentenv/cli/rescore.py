"""The command ``agentenv rescore``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from agentenv.core.env import run_sync
from agentenv.errors import ConfigurationError, JudgeFault
from agentenv.evaluation.compare import rescore
from agentenv.evaluation.endpoint_usage import describe_usage
from agentenv.evaluation.llm_judge import GRADES, GradeCache, Judge, judge_folder, open_judge
from agentenv.evaluation.records import EPISODES, RESULTS, SUITE, read_records, read_suite_summary
from agentenv.evaluation.report.flat_tables import interval_text
from agentenv.evaluation.rubrics import get_rubric
from agentenv.evaluation.suite import summarize_suite
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.policies.policy_spec import check_reached
from agentenv.streams import make_console

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
    """'openai:MODEL@URL#options', with the options and prices of `agentenv eval --policy`; the key comes from the
    environment variable OPENAI_API_KEY."""
    rubric: str = "equivalence"
    """What the judge is told: simpleqa, browsecomp or equivalence."""
    offline: bool = False
    """Uses only the grades that are in the folder and contacts nobody. An answer without a grade is a fault."""

    def run(self) -> dict[str, Any]:
        """Adds the scores and returns the new results, with ``ok`` False where a judge was asked and never answered."""
        if not self.scorer and not self.judge:
            raise ConfigurationError("Give --scorer NAME or --judge openai:MODEL@URL.")
        # Opened first, so that a wrong address is refused before anything is written.
        if self.judge and not self.offline and self.needs_judge():
            check_reached(self.judge)
        return self.run_with(open_judge(self.judge, self.rubric) if self.judge else None)

    def run_with(self, chat: "ChatClient | None") -> dict[str, Any]:
        """Does what ``run`` does with a judge that is open already, whose budget several folders may share."""
        names = self._names()
        if chat is not None and not self.offline:
            self._announce(self._folders(), chat)
        if names:
            parts = {name: self._one(self.directory / name, chat) for name in names}
            result = {"suite": parts, **summarize_suite(self.directory, names)}
        else:
            result = self._one(self.directory, chat)
        if chat is None:
            return result
        heard = chat.answered or not chat.usage.requests
        return result | {"judge_usage": chat.usage_report(), "ok": heard and result.get("ok", True)}

    def needs_judge(self) -> bool:
        """Whether an answer has no grade in its folder, or nothing is played to its end there; nobody is asked."""
        if not all((folder / RESULTS).is_file() for folder in self._folders()):
            return True
        model = Endpoint.of(self.judge).name
        return any(self._ungraded(folder, model) for folder in self._folders())

    def _ungraded(self, folder: Path, model: str) -> bool:
        known = Judge(get_rubric(self.rubric), model, None, GradeCache(folder / GRADES))
        answered = [record for record in read_records(folder / EPISODES) if record["valid"]]
        return any(isinstance(grade, JudgeFault) for grade in run_sync(known.grade_all(answered)))

    def _names(self) -> list[str]:
        """The sets of a suite; none of a single evaluation."""
        if not (self.directory / SUITE).is_file():
            return []
        return list(read_suite_summary(self.directory)["sets"])

    def _folders(self) -> list[Path]:
        return [self.directory / name for name in self._names()] or [self.directory]

    def _announce(self, folders: Sequence[Path], chat: "ChatClient") -> None:
        """Says on standard error how many requests the judge may get."""
        answers = sum(
            record["valid"] and record["prediction"] is not None
            for folder in folders
            for record in read_records(folder / EPISODES)
        )
        said = f"{chat.endpoint.model} will be sent at most {answers:,} requests (retries not counted), "
        said += "fewer where answers are alike or have a grade in the folder"
        make_console(stderr=True).print(said)

    def _one(self, directory: Path, chat: "ChatClient | None") -> dict[str, Any]:
        results = rescore(directory, self.scorer) if self.scorer else {}
        if chat is None:
            return results
        asked = None if self.offline else chat
        judge = Judge(get_rubric(self.rubric), chat.model, asked, GradeCache(directory / GRADES))
        return judge_folder(directory, judge)

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints the new scores."""
        for part in result.get("suite", {"": result}).values():
            self._show(part, console)
        for what, value in describe_usage(result.get("judge_usage", {})).items():
            console.print(f"{what}: {value}", markup=False)

    def _show(self, result: dict[str, Any], console: Console) -> None:
        console.print(f"{result['dataset']} {result['split']}: {result['n']} questions")
        tables = {name: result["scores"][name] for name in self.scorer}
        if self.judge:
            tables |= {f"judge_{self.rubric}": result["judged"][f"judge_{self.rubric}"]}
        for name, score in tables.items():
            note = left_out_note(score)
            if score["mean"] is None:
                console.print(f"{name} v{score['version']}: no score{note}; the same command asks again")
                continue
            console.print(
                f"{name} v{score['version']}: {score['mean']:.3f} {interval_text(score['ci95'])}{note}"
            )


def left_out_note(score: Mapping[str, Any]) -> str:
    """What the line of a score says of episodes or answers that it leaves out; empty where it leaves out none."""
    if ends := score.get("range_with_faults"):
        return f"  ({ends[0]:.3f} if all faults were wrong, {ends[1]:.3f} if right)"
    faults = sum(score.get("faults", {}).values())
    if not faults:
        return ""
    lowest = score.get("mean_if_ungraded_wrong")
    bound = "" if lowest is None else f" ({lowest:.3f} if they are wrong)"
    return f", {faults} without a grade{bound}: {score['example_fault']}"

"""``agentenv synthesize fictional-hot``: a real question set about invented names."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from agentenv.cli.synthesize import process_records, show_failures, write_result
from agentenv.core.scoring.scorers import get_scorer
from agentenv.core.types import Task
from agentenv.data.datasets import load_dataset
from agentenv.data.synthesis.asearcher import DirectSolver
from agentenv.data.synthesis.asearcher_model import ModelSolver
from agentenv.data.synthesis.fictional_hot import (
    FictionalItem,
    NameMap,
    RealItem,
    Replacer,
    RuleReplacer,
    WordStatistics,
    as_task,
    items_of,
    left_out,
    name_words,
    replace_names,
    shared_haystack,
)
from agentenv.data.synthesis.fictional_hot_model import ModelReplacer
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.synthesis.pages import LinkedPages
from agentenv.data.synthesis.records import refuse_used_folder
from agentenv.errors import ConfigurationError, DatasetError, SynthesisFault
from agentenv.policies.model_chat import ChatModels
from agentenv.retrievers.storage.corpus import load_corpus

RULES = "rules"


@dataclass(frozen=True)
class Answered:
    """A fictional question, and what was answered without a search to it and to the real one."""

    item: FictionalItem
    real: bool = False
    fictional: bool = False


@dataclass(frozen=True)
class FictionalHot:
    """Replaces the real names of a question set, of its answers and of its documents by invented ones (FictionalHot).

    Example:
        agentenv synthesize fictional-hot --dataset hotpotqa --data DATA --out runs/fictional
        agentenv synthesize fictional-hot --dataset hotpotqa --data DATA --editor openai:MODEL@https://HOST/v1 --out runs/f
    """

    dataset: str
    """A question set with supporting documents and a corpus, such as hotpotqa, 2wiki, musique."""
    out: Path
    """Folder to write: questions.jsonl, corpus.jsonl, synthesis.json with what was left out, and the failures."""
    data: Path | None = None
    """Folder or file of the set; default: the environment variable AGENTENV_DATA."""
    split: str | None = None
    """Split of the set; default: its first."""
    limit: int | None = None
    """Largest number of questions."""
    editor: str = RULES
    """Who names and invents: `rules`, or a model, which also puts the documents into other words."""
    rewrite: bool = True
    """Whether a model puts the documents into other words; without effect for `rules`."""
    solver: str = ""
    """Model that answers every question without a search, the real one and the fictional one; default: nobody."""
    haystack: Literal["corpus", "none"] = "corpus"
    """Whether the rest of the real corpus stands beside the rewritten documents, as published."""
    at_once: int = 8
    """Questions under way at a time."""
    seed: int = 0
    """Seeds inventions and the draw of --limit."""
    replies: Path | None = None
    """Folder that keeps the replies of the models; the same command asks nothing twice after an interruption."""

    def run(self) -> dict[str, Any]:
        """Writes the set and returns its card."""
        refuse_used_folder(self.out)
        if self.at_once < 1:
            raise ConfigurationError(f"--at-once is {self.at_once}; it is at least 1.")
        dataset = load_dataset(self.dataset, self.data, split=self.split, limit=self.limit, seed=self.seed)
        if dataset.corpus is None:
            raise DatasetError(f"there is no corpus beside {dataset.source}, so no document can be rewritten")
        documents = load_corpus(dataset.corpus)
        items = items_of(dataset.tasks, documents)
        reasons = Counter(reason for item in items if (reason := left_out(item)))
        if reasons.total() == len(items):
            why = ", ".join(f"{reason} ({count})" for reason, count in reasons.most_common())
            raise DatasetError(f"no question of {dataset.source} can be asked about invented names: {why}")
        statistics, models = WordStatistics(documents), ChatModels(self.replies)
        names = NameMap.of(items, statistics, self.seed)
        pages = LinkedPages(documents)
        replacer, solver = self._replacer(models, statistics), self._solver(models)

        async def work(item: RealItem) -> Answered:
            made = await replace_names(item, name_words(item, pages), names, replacer)
            if solver is None:
                return Answered(made)
            real = await _is_answered(solver, item.task.question, item.task.answers)
            return Answered(made, real, await _is_answered(solver, made.question, made.answers))

        usable = [item for item in items if not left_out(item)]
        made, failures = process_records(
            "fictional-hot", self.out, usable, work, lambda item: item.task.id, self.at_once
        )
        kept = [one for one in made if not one.fictional]
        reasons["answered without a search"] += len(made) - len(kept)
        card = self._card(made, reasons) | {"usage": models.usage()}
        corpus = shared_haystack(documents, (one.item for one in kept), lambda _: self.haystack == "corpus")
        tasks = self._tasks(kept)
        return write_result(self.out, tasks, corpus, failures, card)

    def _replacer(self, models: ChatModels, statistics: WordStatistics) -> Replacer:
        if self.editor == RULES:
            return RuleReplacer()
        writer = ModelWriter(models.open(self.editor), tokens=4096)
        return ModelReplacer(writer, statistics, self.rewrite, self.seed)

    def _solver(self, models: ChatModels) -> DirectSolver | None:
        return ModelSolver(ModelWriter(models.open(self.solver), temperature=0.0)) if self.solver else None

    def _tasks(self, kept: Sequence[Answered]) -> list[Task]:
        known: Mapping[bool, dict[str, bool]] = {True: {"known": True}, False: {"known": False}}
        return [as_task(one.item, known[one.real] if self.solver else {}) for one in kept]

    def _card(self, made: Sequence[Answered], reasons: Counter[str]) -> dict[str, Any]:
        closed_book = {
            "n": len(made),
            "real": sum(one.real for one in made),
            "fictional": sum(one.fictional for one in made),
        }
        return {
            "recipe": "fictional-hot",
            "dataset": self.dataset,
            "split": self.split,
            "editor": self.editor,
            "solver": self.solver or "none",
            "seed": self.seed,
            "haystack": self.haystack,
            "left_out": dict(+reasons),
            "names": sum(len(one.item.names) for one in made),
            "kept_texts": sum(one.item.kept_texts for one in made),
            "closed_book": closed_book if self.solver else None,
        }

    def show(self, result: dict[str, Any], console: Console) -> None:
        """How many questions there are, what was left out, and what was known without a search."""
        console.print(f"{result['questions']} questions in {result['out']}", highlight=False)
        for why, count in result["left_out"].items():
            console.print(f"  left out, {why}: {count}", highlight=False)
        show_failures(result, console)
        if known := result["closed_book"]:
            console.print(
                f"  answered without a search, of {known['n']}: {known['real']} real questions, {known['fictional']} "
                "fictional ones",
                highlight=False,
            )


async def _is_answered(solver: DirectSolver, question: str, answers: Sequence[str]) -> bool:
    """Whether the solver knows the answer.

    Raises:
        SynthesisFault: its reply cannot be read; to count it as wrong would keep a question that it may know.
    """
    given = await solver.answers(question, 1, 0)
    if not given:
        raise SynthesisFault(f"no reply of the solver to {question!r} could be read")
    return get_scorer("em_squad")(given[0], answers).value > 0

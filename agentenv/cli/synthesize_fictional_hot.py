"""``agentenv synthesize fictional-hot``: real question sets about invented names."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from agentenv.cli.flag_checks import require_at_least_one
from agentenv.cli.synthesize import (
    In,
    Out,
    process_records,
    refuse_without_effect,
    show_failures,
    write_result,
)
from agentenv.core.scoring.scorers import get_scorer
from agentenv.core.types import Document, Task
from agentenv.data.datasets import sample
from agentenv.data.sources import OWN, PROGRAM_SETS, WORLD, Source, SourceConfig, open_source
from agentenv.data.synthesis.asearcher import DirectSolver
from agentenv.data.synthesis.asearcher_model import ModelSolver
from agentenv.data.synthesis.fictional_hot import (
    FictionalItem,
    FoundNames,
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
from agentenv.data.synthesis.fictional_names import names_for_all
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.synthesis.pages import LinkedPages
from agentenv.data.synthesis.records import RecordFailure, refuse_used_folder
from agentenv.errors import ConfigurationError, DatasetError, SynthesisFault
from agentenv.evaluation.built_retrievers import corpus_of
from agentenv.policies.model_chat import ChatModels

RULES = "rules"
KNOWN = "answered without a search"


@dataclass(frozen=True)
class Answered:
    """A fictional question, and what was answered without a search to it and to the real one."""

    item: FictionalItem
    real: bool = False
    fictional: bool = False


@dataclass(frozen=True)
class FictionalHot:
    """Replaces the real names of question sets, of their answers and of their documents by invented ones (FictionalHot).

    Example:
        agentenv synthesize fictional-hot --dataset hotpotqa,2wiki,musique --share 0.1 --data DATA --out runs/fictional
        agentenv synthesize fictional-hot --dataset hotpotqa --data DATA --editor openai:MODEL@https://HOST/v1 --out runs/f
    """

    dataset: str
    """Question set, several with commas between them; `rules` need documents, as hotpotqa, 2wiki and musique have them."""
    out: Path
    """Folder to write: questions.jsonl, corpus.jsonl, synthesis.json with what was left out, and the failures."""
    data: Path | None = None
    """Folder or file of the set; default: the environment variable AGENTENV_DATA."""
    split: str | None = None
    """Split of every set; default: its first."""
    share: float = 1.0
    """Share of the questions of all sets together that is drawn; 0.1 as published."""
    limit: int | None = None
    """Largest number of questions that are drawn from all sets together."""
    editor: str = RULES
    """What names and invents: `rules`, or a model, which also puts the documents into other words, and writes documents for
    a question of which none is known."""
    rewrite: bool = True
    """Whether a model puts the documents into other words; without effect for `rules`."""
    solver: str = ""
    """Model that answers every question without a search, the real one and the fictional one; default: nobody."""
    haystack: Literal["corpus", "none"] = "corpus"
    """Whether the real corpora, with the originals of the rewritten documents, stand beside these, as published."""
    at_once: int = 8
    """Questions under way at a time."""
    seed: int = 0
    """Seeds inventions and the draw of --share and --limit."""
    replies: Path | None = None
    """Folder that keeps the replies of the models; the same command asks nothing twice after an interruption."""

    def run(self) -> dict[str, Any]:
        """Writes the questions and returns the card."""
        refuse_used_folder(self.out, self.replies)
        require_at_least_one(at_once=self.at_once)
        if self.editor == RULES and not self.solver:
            refuse_without_effect(self.editor, replies=self.replies)
        source = self._drawn()
        composes = self.editor != RULES
        documents: Sequence[Document] | None = corpus_of(source)
        if documents is None and not composes:
            raise DatasetError(f"there is no corpus beside {self.dataset}, so no document can be rewritten")
        documents = documents or ()
        items = items_of(source.tasks, documents)
        reasons = {item.task.id: reason for item in items if (reason := left_out(item, composes))}
        if len(reasons) == len(items):
            why = ", ".join(
                f"{reason} ({count})" for reason, count in Counter(reasons.values()).most_common()
            )
            raise DatasetError(f"no question of {self.dataset} can be asked about invented names: {why}")
        statistics, models = WordStatistics(documents), ChatModels(self.replies)
        names = NameMap.of(items, statistics, self.seed)
        usable = [item for item in items if item.task.id not in reasons]
        made, failures = self._made(usable, names, LinkedPages(documents), models)
        kept = [one for one in made if not one.fictional]
        reasons |= {one.item.seed.task.id: KNOWN for one in made if one.fictional}
        card = self._card(source, made, failures, reasons) | {"usage": models.usage()}
        beside = documents if self.haystack == "corpus" else ()
        corpus = shared_haystack((one.item for one in kept), beside)
        return write_result(self, self._tasks(source, kept), corpus, failures, card)

    def _drawn(self) -> Source:
        """One draw over all sets."""
        if not 0 < self.share <= 1:
            raise ConfigurationError(f"--share is {self.share}; it must be above 0 and at most 1.")
        if self.limit is not None:
            require_at_least_one(limit=self.limit)
        if self.dataset in (WORLD, OWN, *PROGRAM_SETS):
            raise ConfigurationError(
                f"--dataset {self.dataset} has no questions about real names; name question sets such as hotpotqa."
            )
        source = open_source(SourceConfig(dataset=self.dataset, data=self.data, split=self.split))
        count = max(1, round(self.share * len(source.tasks)))
        count = count if self.limit is None else min(count, self.limit)
        return replace(source, tasks=sample(source.tasks, count, self.seed))

    def _made(
        self, items: Sequence[RealItem], names: NameMap, pages: LinkedPages, models: ChatModels
    ) -> tuple[list[Answered], list[RecordFailure]]:
        """Every item with invented names, and those of which nothing came."""
        replacer, solver = self._replacer(models, names.statistics), self._solver(models)

        async def find(item: RealItem) -> tuple[RealItem, FoundNames]:
            return item, await replacer.names(item)

        async def work(named: tuple[RealItem, FoundNames]) -> Answered:
            item, found = named
            made = await replace_names(item, name_words(item, pages), shared, found, replacer)
            if solver is None:
                return Answered(made)
            real = await _is_answered(solver, item.task.question, item.task.answers)
            return Answered(made, real, await _is_answered(solver, made.question, made.answers))

        pairs, failures = self._process("names", items, find, lambda item: item.task.id)
        found, shared = names_for_all([item for item, _ in pairs], [one for _, one in pairs], names)
        named = [(item, one) for (item, _), one in zip(pairs, found, strict=True)]
        made, further = self._process("questions", named, work, lambda one: one[0].task.id)
        return made, [*failures, *further]

    def _process(
        self,
        what: str,
        records: Sequence[In],
        work: Callable[[In], Awaitable[Out]],
        name: Callable[[In], str],
    ) -> tuple[list[Out], list[RecordFailure]]:
        return process_records(f"fictional-hot, {what}", self.out, records, work, name, self.at_once)

    def _replacer(self, models: ChatModels, statistics: WordStatistics) -> Replacer:
        if self.editor == RULES:
            return RuleReplacer()
        writer = ModelWriter(models.open(self.editor), tokens=4096)
        return ModelReplacer(writer, statistics, self.rewrite, self.seed)

    def _solver(self, models: ChatModels) -> DirectSolver | None:
        return ModelSolver(ModelWriter(models.open(self.solver), temperature=0.0)) if self.solver else None

    def _tasks(self, source: Source, kept: Sequence[Answered]) -> list[Task]:
        return [
            as_task(
                one.item,
                {"dataset": source.set_of(one.item.seed.task)} | ({"known": one.real} if self.solver else {}),
            )
            for one in kept
        ]

    def _card(
        self,
        source: Source,
        made: Sequence[Answered],
        failures: Sequence[RecordFailure],
        reasons: Mapping[str, str],
    ) -> dict[str, Any]:
        sets = {
            name: [task.id for task in source.tasks if source.set_of(task) == name]
            for name in source.parts or (source.name,)
        }
        return {
            "recipe": "fictional-hot",
            "dataset": self.dataset,
            "split": self.split,
            "share": self.share,
            "editor": self.editor,
            "solver": self.solver or "none",
            "seed": self.seed,
            "haystack": self.haystack,
            "names": sum(len(one.item.names) for one in made),
            "composed": sum(not one.item.seed.documents for one in made),
            "kept_texts": sum(one.item.kept_texts for one in made),
            **self._counts([task.id for task in source.tasks], made, failures, reasons),
            "sets": {name: self._counts(ids, made, failures, reasons) for name, ids in sets.items()},
        }

    def _counts(
        self,
        ids: Sequence[str],
        made: Sequence[Answered],
        failures: Sequence[RecordFailure],
        reasons: Mapping[str, str],
    ) -> dict[str, Any]:
        """What became of each of the questions ``ids``, and the closed-book control over them."""
        asked = set(ids)
        ours = [one for one in made if one.item.seed.task.id in asked]
        closed_book = {
            "n": len(ours),
            "real": sum(one.real for one in ours),
            "fictional": sum(one.fictional for one in ours),
        }
        return {
            "drawn": len(ids),
            "questions": sum(not one.fictional for one in ours),
            "left_out": dict(Counter(reasons[one] for one in ids if one in reasons)),
            "failures": dict(sorted(Counter(one.kind for one in failures if one.id in asked).items())),
            "closed_book": closed_book if self.solver else None,
        }

    def show(self, result: dict[str, Any], console: Console) -> None:
        """How many questions there are, what was left out, and what was known without a search."""
        console.print(f"{result['questions']} questions in {result['out']}", highlight=False)
        for why, count in result["left_out"].items():
            console.print(f"  left out, {why}: {count}", highlight=False)
        show_failures(result, console)
        parts = result["sets"] if len(result["sets"]) > 1 else {}
        for name, counts in ("", result), *parts.items():
            said = f"{name}: " if name else ""
            if name:
                console.print(f"  {name}: {counts['questions']} of {counts['drawn']}", highlight=False)
            if known := counts["closed_book"]:
                console.print(
                    f"  {said}answered without a search, of {known['n']}: {known['real']} real questions, "
                    f"{known['fictional']} fictional ones",
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

"""``agentenv synthesize asearcher``: harder questions by edits that are checked."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agentenv.cli.flag_checks import require_at_least_one
from agentenv.cli.synthesize import GRAMMAR, process_records, refuse_without_effect, write_result
from agentenv.core.types import Document
from agentenv.data.synthesis.asearcher import (
    DirectSolver,
    Editor,
    Reviewer,
    Synthesis,
    SynthesisConfig,
    as_task,
    roots_of,
    synthesize,
)
from agentenv.data.synthesis.asearcher_model import ModelEditor, ModelReviewer, ModelSolver
from agentenv.data.synthesis.asearcher_world import WorldEditor, WorldReviewer
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.synthesis.pages import LinkedPages, Page
from agentenv.data.synthesis.records import RecordFailure, refuse_used_folder
from agentenv.data.world import read_world
from agentenv.data.world_facts import generate_facts
from agentenv.policies.model_chat import ChatModels
from agentenv.retrievers.storage.corpus import load_corpus


@dataclass(frozen=True)
class ASearcher:
    """Makes questions about a corpus and edits them until nobody answers them without a search (ASearcher).

    The editor `grammar` needs no model: it edits questions about an invented world, whose facts prove each edit.

    Example:
        agentenv synthesize asearcher --corpus wiki/corpus.jsonl --editor openai:MODEL@https://HOST/v1 --out runs/hard
        agentenv synthesize asearcher --corpus worlds/seven --editor grammar --out runs/hard
    """

    corpus: Path
    """Corpus file, or its folder; for `grammar` the folder of a world."""
    out: Path
    """Folder to write: questions.jsonl, corpus.jsonl, synthesis.json with what was refused, and the failures."""
    editor: str = GRAMMAR
    """What edits: `grammar`, or a model (openai:MODEL@URL, anyllm:PROVIDER/MODEL, hf:PATH)."""
    judge: str = ""
    """Model that judges edits and answers; default: the editor."""
    solver: str = ""
    """Model that answers without a search; default: the editor, and nobody for `grammar`."""
    roots: int = 100
    """Pages from which questions start; ASearcher took 8192."""
    turns: int = SynthesisConfig.turns
    """Edits that are tried for a question."""
    direct: int = SynthesisConfig.direct
    """Direct answers after each edit; 0 leaves the test of difficulty out."""
    fewest: int = SynthesisConfig.fewest
    """Edits that a question needs to be kept."""
    at_once: int = 8
    """Questions under way at a time."""
    seed: int = 0
    """Seeds every draw."""
    replies: Path | None = None
    """Folder that keeps the replies of the models; the same command asks nothing twice after an interruption."""

    def run(self) -> dict[str, Any]:
        """Writes the questions and returns the card."""
        refuse_used_folder(self.out, self.replies)
        require_at_least_one(roots=self.roots, at_once=self.at_once)
        config = SynthesisConfig(self.turns, self.direct, self.fewest, self.seed)
        documents, (editor, reviewer, solver), models = self._parts()
        # the editor of a model has the links already, and finding them means to read the whole corpus
        pages = editor.pages if isinstance(editor, ModelEditor) else LinkedPages(documents)
        roots = roots_of(pages, self.roots, self.seed)

        async def work(page: Page) -> Synthesis:
            return await synthesize(page, editor, reviewer, solver, config)

        made, failures = process_records(
            "asearcher", self.out, roots, work, lambda page: page.title, self.at_once
        )
        return self._written(documents, made, failures, models)

    def _parts(self) -> tuple[Sequence[Document], tuple[Editor, Reviewer, DirectSolver | None], ChatModels]:
        models = ChatModels(self.replies)
        solver: DirectSolver | None = None
        if spec := self.solver or ("" if self.editor == GRAMMAR else self.editor):
            solver = ModelSolver(ModelWriter(models.open(spec), temperature=0.6, top_p=0.95))
        if self.editor == GRAMMAR:
            refuse_without_effect(self.editor, judge=self.judge, replies=None if solver else self.replies)
            world = read_world(self.corpus)
            facts = generate_facts(world.config)
            return world.documents, (WorldEditor(facts), WorldReviewer(facts), solver), models
        documents = load_corpus(self.corpus)
        editor = ModelEditor(ModelWriter(models.open(self.editor)), LinkedPages(documents))
        reviewer = ModelReviewer(ModelWriter(models.open(self.judge or self.editor), temperature=0.0))
        return documents, (editor, reviewer, solver), models

    def _written(
        self,
        documents: Sequence[Document],
        made: Sequence[Synthesis],
        failures: Sequence[RecordFailure],
        models: ChatModels,
    ) -> dict[str, Any]:
        kept = [one for one in made if not one.flaw(self.fewest)]
        edits = [edit for one in made for edit in one.edits]
        card = {
            "recipe": "asearcher",
            "editor": self.editor,
            "judge": self.judge or self.editor,
            "solver": self.solver or ("none" if self.editor == GRAMMAR else self.editor),
            "roots": len(made) + len(failures),
            "turns": self.turns,
            "direct": self.direct,
            "seed": self.seed,
            "left_out": dict(Counter(flaw for one in made if (flaw := one.flaw(self.fewest)))),
            "edits": len(edits),
            "committed": sum(not edit.flaw for edit in edits),
            "usage": models.usage(),
        }
        tasks = [as_task(one, number) for number, one in enumerate(kept)]
        return write_result(self, tasks, documents, failures, card)

    def show(self, result: dict[str, Any], console: Console) -> None:
        """How many questions came of how many pages, and what was refused."""
        failed = sum(result["failures"].values())
        console.print(
            f"{result['questions']} questions of {result['roots']} pages in {result['out']}; of {result['edits']} edits "
            f"{result['committed']} count; {failed} pages failed"
        )
        for why, count in result["left_out"].items():
            console.print(f"  left out, {why}: {count}")

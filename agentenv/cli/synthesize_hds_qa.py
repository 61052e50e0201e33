"""``agentenv synthesize hds-qa``: questions that need parallel searches and then a further one."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agentenv.cli.flag_checks import require_at_least_one
from agentenv.cli.synthesize import (
    GRAMMAR,
    load_questions,
    process_records,
    refuse_without_effect,
    show_failures,
    write_result,
)
from agentenv.core.env import run_sync
from agentenv.core.protocols import Retriever
from agentenv.core.types import Document, Task
from agentenv.data.synthesis.asearcher_model import ModelReviewer
from agentenv.data.synthesis.hds_qa import HybridConfig, hybrid_questions
from agentenv.data.synthesis.hds_qa_model import HybridQuestions, HybridWriter
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.synthesis.records import RecordFailure, refuse_used_folder
from agentenv.data.world import read_world
from agentenv.data.world_facts import generate_facts
from agentenv.errors import ConfigurationError
from agentenv.policies.model_chat import ChatModels
from agentenv.retrievers.bm25 import BM25Retriever
from agentenv.retrievers.retriever_spec import make_retriever
from agentenv.retrievers.storage.corpus import load_corpus


@dataclass(frozen=True)
class HDSQA:
    """Describes an entity by several features that a search each finds, and asks a further fact of it (HDS-QA).

    The editor `grammar` needs no model: it makes questions about an invented world, whose facts prove each of them.

    Example:
        agentenv synthesize hds-qa --corpus worlds/large --questions 30 --out runs/hybrid
        agentenv synthesize hds-qa --corpus wiki --dataset nq --data DATA --editor openai:MODEL@https://HOST/v1 --out runs/h
    """

    corpus: Path
    """Corpus file, or its folder; for `grammar` the folder of a world."""
    out: Path
    """Folder to write: questions.jsonl, corpus.jsonl, synthesis.json and the failures."""
    editor: str = GRAMMAR
    """What writes: `grammar`, or a model (openai:MODEL@URL, anyllm:PROVIDER/MODEL, hf:PATH)."""
    judge: str = ""
    """Model that judges what the editor writes; default: the editor."""
    dataset: str = ""
    """Question set, or a file of questions, each of whose entities a model describes; without effect for `grammar`."""
    data: Path | None = None
    """Folder or file of that set; default: the environment variable AGENTENV_DATA."""
    split: str | None = None
    """Split of that set; default: its first."""
    questions: int = HybridConfig.questions
    """Questions to make; with a model, questions of the set to start from."""
    fewest: int = HybridConfig.fewest
    """Least number of features of a description."""
    most: int = HybridConfig.most
    """Greatest number of features of a description."""
    related: int = HybridWriter.related
    """Related questions that a model writes about an entity; without effect for `grammar`."""
    retriever: str = ""
    """What searches the corpus, for these questions and to find that no single search answers one, a spec as `agentenv list`
    shows; default: BM25 over it."""
    fan: int = HybridConfig.fan
    """For `grammar`: most entities of the world that share one feature, and number of documents that a search returns."""
    at_once: int = 8
    """Questions under way at a time."""
    seed: int = 0
    """Seeds every draw."""
    replies: Path | None = None
    """Folder that keeps the replies of the models; the same command asks nothing twice after an interruption."""

    def run(self) -> dict[str, Any]:
        """Writes the questions and returns the card."""
        refuse_used_folder(self.out, self.replies)
        require_at_least_one(at_once=self.at_once)
        if self.editor != GRAMMAR and self.related < self.fewest:
            raise ConfigurationError(
                f"--related is {self.related}; it must be at least --fewest {self.fewest}, as each feature needs its own "
                "question."
            )
        config = HybridConfig(self.questions, self.fewest, self.most, self.fan, self.seed)
        models, failures = ChatModels(self.replies), list[RecordFailure]()
        documents: Sequence[Document]
        if self.editor == GRAMMAR:
            refuse_without_effect(self.editor, judge=self.judge, replies=self.replies)
            world = read_world(self.corpus)
            documents = world.documents
            retriever = self._retriever(documents)

            def found(query: str) -> list[str]:
                return [page.id for page in run_sync(retriever.search([query], self.fan))[0]]

            tasks = list(hybrid_questions(generate_facts(world.config), config, found))
        else:
            documents = load_corpus(self.corpus)
            tasks, failures = self._by_model(documents, models)
        card = {
            "recipe": "hds-qa",
            "editor": self.editor,
            "judge": self.judge or self.editor,
            "dataset": self.dataset,
            "seed": self.seed,
            "parallel": {
                str(n): count for n, count in sorted(Counter(t.data["parallel"] for t in tasks).items())
            },
            "usage": models.usage(),
        }
        return write_result(self, tasks, documents, failures, card)

    def _retriever(self, documents: Sequence[Document]) -> Retriever:
        return make_retriever(self.retriever) if self.retriever else BM25Retriever.build(documents)

    def _by_model(
        self, documents: Sequence[Document], models: ChatModels
    ) -> tuple[list[Task], list[RecordFailure]]:
        if not self.dataset:
            raise ConfigurationError(
                "with a model as --editor, the entities come from questions that exist: name their set by --dataset"
            )
        seeds = load_questions(
            self.dataset, self.data, split=self.split, limit=self.questions, seed=self.seed
        )
        judge = ModelWriter(models.open(self.judge or self.editor), temperature=0.0)
        maker = HybridWriter(
            ModelWriter(models.open(self.editor)),
            judge,
            ModelReviewer(judge),
            self._retriever(documents),
            self.fewest,
            self.most,
            self.related,
            seed=self.seed,
        )
        made, failures = process_records(
            "hds-qa", self.out, seeds.tasks, maker.write, lambda task: task.id, self.at_once
        )
        return [task for one in made for task in one.tasks], [*failures, *_refused(made)]

    def show(self, result: dict[str, Any], console: Console) -> None:
        """How many questions there are, and by how many features they describe."""
        console.print(f"{result['questions']} questions in {result['out']}")
        for number, count in result["parallel"].items():
            console.print(f"  with {number} parallel searches: {count}")
        show_failures(result, console)


def _refused(made: Sequence[HybridQuestions]) -> list[RecordFailure]:
    """The entities of which nothing came, of seed questions of which something came by another entity."""
    return [
        RecordFailure(
            f"{one.tasks[0].data['seed_id']}/{refused.entity}",
            "EntityFailed" if refused.failed else "EntityRefused",
            refused.why,
        )
        for one in made
        for refused in one.refused
    ]

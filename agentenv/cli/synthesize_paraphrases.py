"""``agentenv synthesize paraphrases``: every question of a set in several wordings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agentenv.cli.flag_checks import require_at_least_one
from agentenv.cli.synthesize import load_questions, process_records, show_failures, write_result
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.synthesis.paraphrases import Paraphraser
from agentenv.data.synthesis.records import refuse_used_folder
from agentenv.errors import ConfigurationError
from agentenv.policies.model_chat import ChatModels
from agentenv.retrievers.storage.corpus import read_documents


@dataclass(frozen=True)
class Paraphrases:
    """Lets a model write each question in other words, and keeps the wordings that ask the same (Con-RAG).

    Example:
        agentenv synthesize paraphrases --dataset hotpotqa --data DATA --editor openai:MODEL@https://HOST/v1 --out runs/said
    """

    dataset: str
    """Question set, or a file of questions."""
    editor: str
    """Model that writes (openai:MODEL@URL, anyllm:PROVIDER/MODEL, hf:PATH)."""
    out: Path
    """Folder to write: questions.jsonl, the corpus beside the set, synthesis.json and the failures."""
    judge: str = ""
    """Model that says whether two questions ask the same; default: the editor."""
    data: Path | None = None
    """Folder or file of the set; default: the environment variable AGENTENV_DATA."""
    split: str | None = None
    """Split of the set; default: its first."""
    limit: int | None = None
    """Largest number of questions."""
    count: int = Paraphraser.count
    """Wordings of a question beside its own."""
    fewest: int = Paraphraser.fewest
    """Wordings that have to be left after the checks; a question with fewer is left out."""
    at_once: int = 8
    """Questions under way at a time."""
    seed: int = 0
    """Seeds the model and the draw of --limit."""
    replies: Path | None = None
    """Folder that keeps the replies of the models; the same command asks nothing twice after an interruption."""

    def run(self) -> dict[str, Any]:
        """Writes the set and returns its card."""
        refuse_used_folder(self.out, self.replies)
        require_at_least_one(fewest=self.fewest, at_once=self.at_once)
        if self.fewest > self.count:
            raise ConfigurationError(f"--fewest is {self.fewest}, which is more than --count {self.count}")
        loaded = load_questions(self.dataset, self.data, split=self.split, limit=self.limit, seed=self.seed)
        documents = None if loaded.corpus is None else [*read_documents(loaded.corpus)]
        models = ChatModels(self.replies)
        judge = ModelWriter(models.open(self.judge or self.editor), temperature=0.0)
        maker = Paraphraser(ModelWriter(models.open(self.editor)), judge, self.count, self.fewest, self.seed)
        tasks, failures = process_records(
            "paraphrases", self.out, loaded.tasks, maker.paraphrase, lambda task: task.id, self.at_once
        )
        card = {
            "recipe": "paraphrases",
            "dataset": self.dataset,
            "editor": self.editor,
            "judge": self.judge or self.editor,
            "seed": self.seed,
            "wordings": sum(len(task.data["paraphrases"]) for task in tasks),
            "usage": models.usage(),
        }
        return write_result(self, tasks, documents, failures, card)

    def show(self, result: dict[str, Any], console: Console) -> None:
        """How many questions and wordings there are."""
        console.print(
            f"{result['questions']} questions with {result['wordings']} further wordings in {result['out']}"
        )
        show_failures(result, console)

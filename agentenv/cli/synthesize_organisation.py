"""``agentenv synthesize organisation``: an invented organisation as a corpus and a question set."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agentenv.cli.flag_checks import require_at_least_one
from agentenv.cli.synthesize import process_records, refuse_without_effect, show_failures, write_result
from agentenv.core.types import Document
from agentenv.data.organisation import invent_organisation
from agentenv.data.organisation_log import Organisation, OrganisationConfig
from agentenv.data.organisation_questions import FOLLOWUPS, questions_about
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.synthesis.organisation_prose import ProseWriter, names_of
from agentenv.data.synthesis.records import RecordFailure, refuse_used_folder
from agentenv.data.world_config import Split
from agentenv.errors import DatasetError
from agentenv.policies.model_chat import ChatModels

TEMPLATES = "templates"


@dataclass(frozen=True)
class OrganisationCommand:
    """Invents an organisation with mail, chat and tickets, and asks questions whose answers its log proves (OrgForge).

    Example:
        agentenv synthesize organisation --people 12 --days 22 --out runs/office
        agentenv synthesize organisation --editor openai:MODEL@https://HOST/v1 --out runs/office
    """

    out: Path
    """Folder to write: questions.jsonl, corpus.jsonl, synthesis.json and the failures."""
    seed: int = OrganisationConfig.seed
    """Seed of everything drawn."""
    people: int = OrganisationConfig.people
    """Number of people, at least 6."""
    days: int = OrganisationConfig.days
    """Number of business days, at least 10."""
    split: Split = OrganisationConfig.split
    """Whose invented words are used; the splits share none."""
    followups: int = FOLLOWUPS
    """Most incidents that an incident leads to, one after the other; questions go back along them, and ask what would not be
    without them."""
    social: bool = OrganisationConfig.social
    """Whether incidents come again, people burn out and complaints are passed on, with questions about that."""
    editor: str = TEMPLATES
    """What writes the mails, messages and tickets: `templates`, or a model, whose wordings are checked against them. Where
    one cannot be taken the template stays, and failures.jsonl says why."""
    judge: str = ""
    """Model that says whether a wording states what its template does; default: the editor."""
    at_once: int = 8
    """Artefacts that a model writes at a time; without effect for `templates`."""
    replies: Path | None = None
    """Folder that keeps the replies of the models; the same command asks nothing twice after an interruption."""

    def run(self) -> dict[str, Any]:
        """Writes the folder and returns its card."""
        refuse_used_folder(self.out, self.replies)
        require_at_least_one(at_once=self.at_once)
        if self.editor == TEMPLATES:
            refuse_without_effect(self.editor, judge=self.judge, replies=self.replies)
        config = OrganisationConfig(
            self.seed, self.people, self.days, self.split, self.followups, self.social
        )
        made = invent_organisation(config)
        tasks = questions_about(made)
        models = ChatModels(self.replies)
        documents, failures = self._documents(made, models)
        card = {
            "recipe": "organisation",
            "name": made.name,
            "seed": self.seed,
            "split": self.split,
            "people": self.people,
            "days": self.days,
            "followups": self.followups,
            "social": self.social,
            "events": dict(sorted(Counter(event.kind for event in made.events).items())),
            "refused": dict(sorted(made.refused.items())),
            "documents": len(made.documents),
            "editor": self.editor,
            "reworded": sum(one != other for one, other in zip(documents, made.documents, strict=True)),
            "usage": models.usage(),
            "families": dict(sorted(Counter(task.data["family"] for task in tasks).items())),
        }
        return write_result(self, tasks, documents, failures, card)

    def _documents(
        self, made: Organisation, models: ChatModels
    ) -> tuple[list[Document], list[RecordFailure]]:
        """What was written down, in the words of the editor where these can be taken, and why they cannot elsewhere.

        Raises:
            DatasetError: not one of its wordings can be taken.
        """
        if self.editor == TEMPLATES:
            return list(made.documents), []
        judge = ModelWriter(models.open(self.judge or self.editor), temperature=0.0)
        prose = ProseWriter(ModelWriter(models.open(self.editor)), judge, made, names_of(made), self.seed)
        written, failures = process_records(
            "organisation",
            self.out,
            made.artefacts,
            prose.write,
            lambda artefact: artefact.document.id,
            self.at_once,
        )
        if not written:
            first = failures[0]
            raise DatasetError(
                f"{self.editor} gave no usable wording of any of {len(failures)} artefacts, so nothing is written; the "
                f"first ({first.id}) failed with {first.kind}: {first.message}"
            )
        known = {artefact.document.id: artefact.document for artefact in written}
        return [known.get(document.id, document) for document in made.documents], failures

    def show(self, result: dict[str, Any], console: Console) -> None:
        """What was written."""
        console.print(
            f"{result['documents']} artefacts and {result['questions']} questions in {result['out']}",
            highlight=False,
        )
        for family, count in result["families"].items():
            console.print(f"  {family}: {count}", highlight=False)
        if self.editor != TEMPLATES:
            console.print(f"  in the words of {self.editor}: {result['reworded']}", highlight=False)
            show_failures(result, console)

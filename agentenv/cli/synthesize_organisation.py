"""``agentenv synthesize organisation``: an invented organisation as a corpus and a question set."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agentenv.cli.synthesize import write_result
from agentenv.data.organisation import invent_organisation
from agentenv.data.organisation_log import OrganisationConfig
from agentenv.data.organisation_questions import FOLLOWUPS, questions_about
from agentenv.data.synthesis.records import refuse_used_folder
from agentenv.data.world_config import Split


@dataclass(frozen=True)
class OrganisationCommand:
    """Invents an organisation with mail, chat and tickets, and asks questions whose answers its log proves (OrgForge).

    Example: agentenv synthesize organisation --people 12 --days 22 --out runs/office
    """

    out: Path
    """Folder to write: questions.jsonl, corpus.jsonl and synthesis.json."""
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

    def run(self) -> dict[str, Any]:
        """Writes the folder and returns its card."""
        refuse_used_folder(self.out)
        config = OrganisationConfig(
            self.seed, self.people, self.days, self.split, self.followups, self.social
        )
        made = invent_organisation(config)
        tasks = questions_about(made)
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
            "families": dict(sorted(Counter(task.data["family"] for task in tasks).items())),
        }
        return write_result(self.out, tasks, made.documents, [], card)

    def show(self, result: dict[str, Any], console: Console) -> None:
        """What was written."""
        console.print(
            f"{result['documents']} artefacts and {result['questions']} questions in {result['out']}",
            highlight=False,
        )
        for family, count in result["families"].items():
            console.print(f"  {family}: {count}", highlight=False)

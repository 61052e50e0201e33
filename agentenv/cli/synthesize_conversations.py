"""``agentenv synthesize conversations``: conversations about an invented world whose topic changes."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agentenv.cli.synthesize import write_result
from agentenv.data.synthesis.conversations import ConversationConfig, invented_conversations
from agentenv.data.synthesis.records import refuse_used_folder
from agentenv.data.world import read_world
from agentenv.data.world_facts import generate_facts


@dataclass(frozen=True)
class Conversations:
    """Makes conversations about an invented world whose topic changes, one question a turn (for ConvSearch-R1).

    Example: agentenv synthesize conversations --corpus worlds/seven --conversations 100 --out runs/talk
    """

    corpus: Path
    """Folder of a world that `agentenv world` has written."""
    out: Path
    """Folder to write: questions.jsonl, corpus.jsonl and synthesis.json."""
    conversations: int = ConversationConfig.conversations
    """Number of conversations."""
    turns: int = ConversationConfig.turns
    """Turns of each, at least 2."""
    switches: float = ConversationConfig.switches
    """Share of the turns after the first that change the topic, 0 to 1. A topic without a fact left always changes."""
    seed: int = ConversationConfig.seed
    """Seeds every draw."""

    def run(self) -> dict[str, Any]:
        """Writes the questions and returns the card."""
        refuse_used_folder(self.out)
        config = ConversationConfig(self.conversations, self.turns, self.switches, self.seed)
        world = read_world(self.corpus)
        tasks = list(invented_conversations(generate_facts(world.config), config))
        later = [task for task in tasks if task.data["turn"] > 1]
        changes = sum(task.data["family"] == "new topic" for task in later)
        card = {
            "recipe": "conversations",
            "conversations": self.conversations,
            "turns": self.turns,
            "switches": self.switches,
            "share_of_switches": round(changes / len(later), 3),
            "seed": self.seed,
            "families": dict(sorted(Counter(task.data["family"] for task in tasks).items())),
        }
        return write_result(self, tasks, world.documents, [], card)

    def show(self, result: dict[str, Any], console: Console) -> None:
        """How many turns there are, and how many of them change the topic."""
        console.print(f"{result['questions']} questions in {result['out']}", highlight=False)
        console.print(
            f"  share of later turns that change the topic: {result['share_of_switches']}", highlight=False
        )
        for family, count in result["families"].items():
            console.print(f"  {family}: {count}", highlight=False)

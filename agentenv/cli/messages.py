"""``agentenv messages``: solved episodes as chat messages, to fine-tune on them with another library."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from agentenv.core.io.files import replacing
from agentenv.errors import ConfigurationError
from agentenv.evaluation.chat_export import Exported, conversations, require_some


@dataclass(frozen=True)
class Messages:
    """Writes solved episodes as chat messages, one conversation a line, for supervised fine-tuning in another library.

    The file is read as it is by SFTTrainer of TRL, and by other libraries that take `messages` and `tools`. Natively called
    tools are `tool_calls`, and thinking is `reasoning_content`.

    Example: agentenv messages runs/teacher --out sft.jsonl
    """

    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of evaluations, with their samples, or of suites."""
    out: Path
    """The file to write, in JSON lines."""
    least: float = 1.0
    """Reward that an episode has to earn."""

    def run(self) -> dict[str, Any]:
        """Writes the file and returns how many conversations it holds."""
        if self.out.exists():
            raise ConfigurationError(f"{self.out} exists already; give a new file.")
        if not self.folders:
            raise ConfigurationError("no folder is given; name at least one that agentenv eval has written")
        done = Exported()
        with replacing(self.out) as part, part.open("w", encoding="utf-8") as file:
            for conversation in conversations(self.folders, self.least, done):
                file.write(json.dumps(conversation, ensure_ascii=False) + "\n")
            require_some(done, self.least)
        return {
            "out": str(self.out),
            "episodes": done.episodes,
            "conversations": done.conversations,
            "left_out": dict(done.left_out),
        }

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints how many conversations there are, and what was left out."""
        console.print(
            f"{result['conversations']:,} conversations of {result['episodes']:,} episodes: {result['out']}",
            markup=False,
        )
        for why, count in result["left_out"].items():
            console.print(f"Left out: {count} {why}", markup=False)

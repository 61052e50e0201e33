"""``agentenv world``: an invented world as a corpus and a question set."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from agentenv.data.world import WorldConfig, write_world
from agentenv.data.world_config import Split
from agentenv.errors import ConfigurationError


@dataclass(frozen=True)
class World:
    """Invents a world and writes corpus.jsonl, questions.jsonl and the card world.json.

    Example:
        agentenv world --seed 7 --documents 1000 --hops 1-2 --out worlds/seven
    """

    out: Path
    """Folder to write; it must not hold files yet."""
    seed: int = WorldConfig.seed
    """Seed of everything drawn. Equal settings give equal files."""
    documents: int = WorldConfig.documents
    """Number of documents, 200 to 1000000."""
    hops: str = "1-2"
    """Least and greatest number of hops of a question, within 1-4; one number stands for both."""
    families: tuple[str, ...] = WorldConfig.families
    """Families of questions: lookup, bridge, comparison, intersection, count, temporal, yes_no, superlative, list.
    Default: all that the hops allow, except superlative and list."""
    questions: int = WorldConfig.questions
    """Number of distinct questions."""
    distractors: float = WorldConfig.distractors
    """Share of entities that get a neighbour with nearly the same name, 0 to 0.5."""
    paraphrase: int = WorldConfig.paraphrase
    """Number of wordings of each relation, 1 to 3."""
    words: int = WorldConfig.words
    """Largest number of words of a document, at least 24."""
    indirect: float = WorldConfig.indirect
    """Share of facts that only the page of another entity states, 0 to 0.1."""
    split: Split = WorldConfig.split
    """Which part of the invented words to use; the splits share none."""

    def run(self) -> dict[str, Any]:
        """Writes the world and returns its card and folder."""
        config = WorldConfig(
            seed=self.seed,
            documents=self.documents,
            hops=parse_hops(self.hops),
            families=self.families,
            questions=self.questions,
            distractors=self.distractors,
            paraphrase=self.paraphrase,
            words=self.words,
            indirect=self.indirect,
            split=self.split,
        )
        return {**write_world(config, self.out), "out": str(self.out)}

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints where the world is and what it holds."""
        families = ", ".join(f"{name} {count}" for name, count in result["families"].items())
        console.print(
            f"{result['documents']} documents and {result['questions']} questions in {result['out']}"
        )
        console.print(f"families: {families or 'none'}")


def parse_hops(text: str) -> tuple[int, int]:
    """``"1-2"`` as (1, 2) and ``"3"`` as (3, 3).

    Raises:
        ConfigurationError: ``text`` is not one number or two with a hyphen.
    """
    match = re.fullmatch(r"(\d)(?:-(\d))?", text)
    if match is None:
        raise ConfigurationError(f"hops {text!r} is not a range within 1-4; give for example 1-2.")
    low, high = match.groups()
    return int(low), int(high or low)

"""``agentenv retriever facts``: the facts of a corpus, which the graph tools of search agents walk over."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console

from agentenv.cli.flag_checks import require_at_least_one
from agentenv.cli.making import making
from agentenv.core.env import run_sync
from agentenv.core.io.files import write_bytes
from agentenv.core.types import Document
from agentenv.data.synthesis.facts import Fact, FactExtractor, facts_line
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.synthesis.records import over_records
from agentenv.errors import ConfigurationError
from agentenv.policies.model_chat import ChatModels
from agentenv.retrievers.storage.corpus import load_corpus


@dataclass(frozen=True)
class Facts:
    """Lets a model list what each passage states, as HippoRAG does; `env.options.facts` of AgentSearch-v0 takes the file.

    Example: agentenv retriever facts corpus.jsonl --editor openai:MODEL@https://HOST/v1 --out facts.jsonl
    """

    corpus: tyro.conf.Positional[Path]
    """A corpus file, or a folder that holds corpus.jsonl."""
    editor: str
    """Model that lists facts (openai:MODEL@URL, anyllm:PROVIDER/MODEL, hf:PATH)."""
    out: Path
    """The file to write, one passage a line."""
    at_once: int = 8
    """Passages under way at a time."""
    seed: int = 0
    """Seed of the model's first reply."""
    replies: Path | None = None
    """Folder that keeps the replies of the model; the same command asks nothing twice after an interruption."""

    def run(self) -> dict[str, Any]:
        """Writes the file and returns how many facts there are."""
        if self.out.exists():
            raise ConfigurationError(f"{self.out} exists already; give a new file.")
        require_at_least_one(at_once=self.at_once)
        models = ChatModels(self.replies)
        extractor = FactExtractor(ModelWriter(models.open(self.editor), temperature=0.0), self.seed)

        async def read(document: Document) -> tuple[Document, list[Fact]]:
            return document, await extractor.extract(document)

        documents = load_corpus(self.corpus)
        with making("facts", self.out) as display:
            work = over_records(documents, read, lambda one: one.id, at_once=self.at_once, display=display)
            found, failures = run_sync(work)
        facts = sum(len(some) for _, some in found)
        if not facts:
            why = f"; the first of {len(failures)} failures: {failures[0].message}" if failures else ""
            raise ConfigurationError(
                f"{self.editor} listed no fact for {self.corpus}, so {self.out} was not written{why}"
            )
        write_bytes(self.out, "".join(facts_line(document, some) for document, some in found).encode())
        return {
            "out": str(self.out),
            "passages": len(found),
            "facts": facts,
            "failed": [failure.id for failure in failures],
            "usage": models.usage(),
        }

    def show(self, result: dict[str, Any], console: Console) -> None:
        """How many facts there are, and of how many passages there is none because a model failed."""
        said = f"{result['facts']:,} facts of {result['passages']:,} passages in {result['out']}"
        console.print(said, markup=False)
        if result["failed"]:
            console.print(f"  failed: {len(result['failed'])} passages")

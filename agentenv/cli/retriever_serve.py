"""``agentenv retriever serve``: searches over HTTP, from one or several saved retrievers or from shard servers."""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.cli.flag_checks import require_at_least_one, require_positive
from agentenv.core.protocols import Retriever
from agentenv.data.datasets import load_dataset
from agentenv.errors import ConfigurationError, RetrieverFault
from agentenv.policies.compute import AUTOMATIC, ComputeSettings, use_compute
from agentenv.retrievers.base import batching_parts
from agentenv.retrievers.bulk import search_all
from agentenv.retrievers.encoder import SentenceEncoder
from agentenv.retrievers.metrics import recall_at_k
from agentenv.retrievers.remote import TOKEN_VARIABLE, RemoteRetriever
from agentenv.retrievers.retriever_spec import open_retriever
from agentenv.retrievers.service.sharded import SHARD_PATIENCE, ShardedRetriever
from agentenv.retrievers.storage.retriever_folder import read_card
from agentenv.web.gate import token_in

_ASKED_K = 5  # passages in which those that a question of the self-test needs are looked for
_SHARDS_START_S = 600.0  # a front waits so long for its shards to load


@dataclass(frozen=True)
class Serve:
    """Answers searches over HTTP, in the format of Search-R1 and in agentenv's own.

    Routes: POST /retrieve, /v1/search, /access; GET /healthz, /readyz, /metrics, /v1/info, /docs. With several corpora
    each has its routes under /corpora/NAME as well. Where the environment variable AGENTENV_RETRIEVER_TOKEN is set,
    callers must send it as bearer token.

    Example: agentenv retriever serve wiki --port 8000
    """

    folders: tyro.conf.Positional[tuple[str, ...]] = ()
    """Folders that `agentenv retriever build` made, each DIR or NAME=DIR; the first is the default corpus."""
    port: int = 8000
    """Port; 0 takes a free one."""
    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 lets other machines in."""
    allow_host: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
    """Names under which callers may reach this server, beside its addresses, localhost and the machine's name; * is any."""
    shards: Annotated[tuple[str, ...], tyro.conf.arg(metavar="URL ...")] = ()
    """Addresses of servers that hold one block of rows each, in the order of the rows; instead of folders."""
    threads: int = 1
    """Concurrent passes of the encoder, and threads of the search. Give the number of cores only if nothing else runs."""
    cache: int = 20_000
    """Number of answers that are remembered."""
    queue: int = 16_384
    """Queries that may wait; more get status 429."""
    timeout: float = 30.0
    """Seconds after which a request gets status 504."""
    questions: Path | None = None
    """File of questions with `supporting_ids`, the ids of the passages that they need. The server answers only if the
    first corpus finds enough of these (--least-recall). Default: no such check."""
    least_recall: float = 0.5
    """With --questions: the server ends if the mean share of needed passages among the first five results is smaller."""
    compute: ComputeSettings = AUTOMATIC
    """Where the encoders compute, and how."""

    def run(self) -> dict[str, Any]:
        """Serves until it is told to stop; returns what was done."""
        from agentenv.retrievers.service.app import run_service
        from agentenv.retrievers.service.service import Service, ServiceLimits
        from agentenv.web.server import address_of, listen

        require_at_least_one(threads=self.threads, queue=self.queue)
        require_positive(timeout=self.timeout)
        if self.cache < 0:
            raise ConfigurationError(f"--cache is {self.cache}; it must be at least 0.")
        load = self._asked(self._shards() if self.shards else self._folders())
        limits = ServiceLimits(queue=self.queue, cache=self.cache, timeout_s=self.timeout)
        service = Service(limits, token=token_in(TOKEN_VARIABLE))
        began = time.monotonic()
        with listen(self.host, self.port) as listening:
            address = address_of(listening)
            print(f"serving {', '.join(self._names())} at {address}", file=sys.stderr, flush=True)
            run_service(service, load, listening, self.allow_host)
        return {
            "address": address,
            "corpora": self._names(),
            "requests": service.answered,
            "seconds": time.monotonic() - began,
        }

    def show(self, result: dict[str, Any], console: Console) -> None:
        """Prints what was done."""
        console.print(f"{result['requests']:,} requests in {result['seconds']:.0f} s.")

    def _names(self) -> list[str]:
        return [_named(folder)[0] for folder in self.folders] or ["shards"]

    def _folders(self) -> Callable[[], dict[str, Retriever]]:
        folders = dict(_named(folder) for folder in self.folders)
        if not folders:
            raise ConfigurationError("Nothing to serve; give a folder, or --shards with addresses.")
        if len(folders) < len(self.folders):
            raise ConfigurationError(
                f"Two corpora have the same name ({', '.join(self._names())}); give each its own as NAME=DIR."
            )
        for folder in folders.values():
            read_card(folder)  # what is no retriever is said before anything is loaded

        def load() -> dict[str, Retriever]:
            # Idle threads of OpenMP sleep at barriers instead of spinning; read when the libraries are loaded.
            os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
            with use_compute(self.compute):
                opened = {name: open_retriever(folder) for name, folder in folders.items()}
            _use_threads(opened, self.threads)
            return opened

        return load

    def _asked(self, load: Callable[[], dict[str, Retriever]]) -> Callable[[], dict[str, Retriever]]:
        """``load``, after which the first corpus is asked the questions; wrong ones are said before it."""
        if self.questions is None:
            return load
        if not 0 < self.least_recall <= 1:
            raise ConfigurationError(
                f"--least-recall is {self.least_recall}; it must be above 0 and at most 1."
            )
        tasks = load_dataset("jsonl", self.questions).tasks
        if not_told := [task.id for task in tasks if not task.data.get("supporting_ids")]:
            raise ConfigurationError(
                f"{self.questions}: the question {not_told[0]!r} has no supporting_ids, so the recall of a search cannot "
                "be measured with it; add the ids of the passages that it needs, or leave it out."
            )

        def checked() -> dict[str, Retriever]:
            opened = load()
            name, retriever = next(iter(opened.items()))
            found = search_all(retriever, [task.question for task in tasks], _ASKED_K)
            ids = [[passage.id for passage in passages] for passages in found]
            recall = recall_at_k(ids, [task.data["supporting_ids"] for task in tasks], _ASKED_K)
            if recall < self.least_recall:
                raise ConfigurationError(
                    f"{name} finds a share of {recall:.3f} of the passages that the {len(tasks)} questions of "
                    f"{self.questions} need, below --least-recall {self.least_recall:g}: it may hold another corpus or "
                    "vectors of another encoder."
                )
            return opened

        return checked

    def _shards(self) -> Callable[[], dict[str, Retriever]]:
        if self.folders:
            raise ConfigurationError(
                "Give folders or --shards, not both: a server of --shards searches no folder itself."
            )
        for url in self.shards:
            RemoteRetriever(url)  # a wrong address is said at once

        def load() -> dict[str, Retriever]:
            deadline = time.monotonic() + _SHARDS_START_S
            while True:
                try:
                    return {
                        "shards": ShardedRetriever(
                            [RemoteRetriever(url, timeouts=SHARD_PATIENCE) for url in self.shards]
                        )
                    }
                except RetrieverFault:
                    if time.monotonic() > deadline:
                        raise

        return load


def _named(folder: str) -> tuple[str, Path]:
    """Name and folder of ``NAME=DIR``, or of ``DIR`` alone."""
    name, equals, rest = folder.partition("=")
    if equals and "/" not in name:
        return name, Path(rest)
    return Path(folder).resolve().name, Path(folder)


def _use_threads(retrievers: dict[str, Retriever], threads: int) -> None:
    for retriever in retrievers.values():
        for part in batching_parts(retriever).values():
            part.threads = threads
            if isinstance(encoder := getattr(part, "encoder", None), SentenceEncoder):
                encoder.use_threads(threads)

"""A retrieval server under full load for ten minutes: every reply is checked against what its own query must find.

    AGENTENV_DATA=DIR python benchmarks/soak.py --minutes 10

64 clients ask singly and in groups, on both routes, new questions and repeated ones, faster than the queue takes them: the
server declares back-pressure (429), the client pauses and asks something else. It fails, and says how, on a lost or swapped
answer, on any other status, and on memory that grows.
"""

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import common_arguments, finish, run_script
from grounds import passages
from load import Answer, Ask, drive, ours, percentile, server

from agentenv.core.types import Passage
from agentenv.retrievers.retriever_spec import open_retriever

K = 3
SPARE = 4  # passages beyond k, among which equals may change places
GROUP = 5  # most questions in one request
NOISE = 3e-5  # scores are rounded to five decimals and may differ by one in the last
PAUSE_S = 0.05  # of a client whose request was refused
SETTLED_S = 60.0  # a shorter run is all warming up, and its memory is not judged
GROWTH = 1.05  # most memory at the end, relative to the first third


def main() -> None:
    """Loads the server, checks, and writes the result file; leaves with 1 where something was wrong."""
    parser = common_arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--questions", type=int, default=6_000, help="distinct questions that are asked")
    parser.add_argument(
        "--documents", type=int, default=2_000, help="of the invented world, without real data"
    )
    parser.add_argument("--work", type=Path, help="folder where indexes are kept for another run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        task_env = passages(args.work or Path(temporary), args.encoder, args.documents, limit=args.questions)
        questions = task_env.questions[: args.questions]
        judge = Judge(expected(task_env.folder, questions))
        # Fewer places than clients, and a memory that is soon full: back-pressure and eviction all the time.
        flags = ("--queue", str(max(GROUP, args.clients - 8)), "--cache", str(max(1, len(questions) // 4)))
        with server(ours(task_env.folder, args.threads, *flags)) as (address, process):
            judge.process, judge.began = process, time.perf_counter()
            drive(address, asks(questions), args.clients, args.minutes * 60, judge.see)
    figures = judge.figures(args)
    finish("soak", args, figures, [f"{name:<22}{value}" for name, value in figures.items()])
    sys.exit(1 if figures["failures"] else 0)


def expected(folder: Path, questions: list[str]) -> dict[str, list[Passage]]:
    """What each question finds, from the same index without a server."""
    retriever = open_retriever(folder)
    found: dict[str, list[Passage]] = {}
    for start in range(0, len(questions), 256):
        chunk = questions[start : start + 256]
        found |= zip(chunk, asyncio.run(retriever.search(chunk, K + SPARE)), strict=True)
    return found


def asks(questions: list[str]) -> Iterator[Ask]:
    """Requests without end: mostly one question, sometimes up to `GROUP`, on either route."""
    draw = random.Random(0)
    while True:
        group = draw.choices(questions, k=1 if draw.random() < 0.8 else draw.randint(2, GROUP))
        if draw.random() < 0.5:
            yield Ask(group, "/v1/search", json.dumps({"queries": group, "k": K}).encode())
        else:
            body = {"queries": group, "topk": K, "return_scores": True}
            yield Ask(group, "/retrieve", json.dumps(body).encode())


@dataclass
class Judge:
    """Sees every answer."""

    expected: dict[str, list[Passage]]
    process: int = 0
    began: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    queries: int = 0
    failures: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the beginning, and MiB of the server."""

    def see(self, answer: Answer) -> float:
        """Checks one answer; returns the seconds to pause."""
        self.statuses[answer.status] += 1
        since = answer.at - self.began
        if not self.memory or since - self.memory[-1][0] >= 1.0:
            self.memory.append((since, resident_mib(self.process)))
        if answer.status == 429:
            return PAUSE_S
        if answer.status != 200:
            self.failures.append(f"status {answer.status}: {answer.body[:200]!r}")
            return 0.0
        self.latencies.append(answer.seconds)
        results = found_in(json.loads(answer.body))
        self.queries += len(answer.key)
        if len(results) != len(answer.key):
            self.failures.append(f"{len(results)} results for {answer.key}")
        for question, result in zip(answer.key, results, strict=False):
            if not right(result, self.expected[question]):
                self.failures.append(f"{question!r} got {result}")
        return 0.0

    def figures(self, args: argparse.Namespace) -> dict[str, Any]:
        """What was seen; memory is judged by the most in the first and in the last third of the time."""
        count, (last, _) = len(self.memory), self.memory[-1]
        cuts = [third * count // 3 for third in range(4)]
        thirds = [
            max(mib for _, mib in self.memory[start : max(end, start + 1)])
            for start, end in itertools.pairwise(cuts)
        ]
        if last > SETTLED_S and thirds[2] > GROWTH * thirds[0]:
            self.failures.append(f"memory grew from {thirds[0]:.0f} to {thirds[2]:.0f} MiB")
        answered = self.statuses[200]
        if not answered:
            self.failures.append("no request was answered")
        return {
            "minutes": args.minutes,
            "clients": args.clients,
            "requests": sum(self.statuses.values()),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "queries_checked": self.queries,
            "queries_per_second": self.queries / last,
            "p50_s": percentile(self.latencies, 0.5) if answered else None,
            "p99_s": percentile(self.latencies, 0.99) if answered else None,
            "memory_mib_by_third": thirds,
            "failures": len(self.failures),
            "first_failures": self.failures[:5],
        }


def found_in(reply: dict[str, Any]) -> list[list[tuple[str, float]]]:
    """Ids and scores by query, from either route."""
    if "results" in reply:
        return [[(passage["id"], passage["score"]) for passage in found] for found in reply["results"]]
    return [[(one["document"]["id"], one["score"]) for one in found] for found in reply["result"]]


def right(result: list[tuple[str, float]], passages: list[Passage]) -> bool:
    """Whether these are the best passages: scores in order, ids those with that score."""
    if len(result) != min(K, len(passages)):
        return False
    scores = {passage.id: passage.score for passage in passages}
    return all(
        abs(score - passage.score) <= NOISE and abs(scores.get(name, -9.0) - score) <= NOISE
        for (name, score), passage in zip(result, passages, strict=False)
    )


def resident_mib(process: int) -> float:
    """Memory of a process that lies in RAM."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


if __name__ == "__main__":
    run_script(main)

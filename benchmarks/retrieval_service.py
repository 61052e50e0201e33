"""Queries a second of the retrieval server against one that works as Search-R1's does, on one machine in one run.

    AGENTENV_DATA=DIR python benchmarks/retrieval_service.py --threads 2

64 clients send single queries, each the next one when the last is answered. No question is asked twice, except where
repeats are measured.
"""

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from common import common_arguments, finish, run_script
from grounds import Ground, million, passages
from load import Answer, Ask, drive, ours, percentile, reference, retrieve, server

from agentenv.retrievers.encoder import Encoder, make_encoder

K = 3
BATCH = 64
HANDLERS = ("function", "coroutine")
"""How the reference answers a request: see ``reference_server.py``."""


def main() -> None:
    """Measures the cases that were asked for and writes the result file."""
    parser = common_arguments(__doc__)
    parser.add_argument("--cases", nargs="+", default=["passages", "repeats", "million"])
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0, help="measured for each server")
    parser.add_argument("--warmup", type=float, default=4.0, help="seconds before them that are not")
    parser.add_argument("--rows", type=int, default=1_000_000, help="vectors of the case million")
    parser.add_argument(
        "--documents", type=int, default=2_000, help="of the invented world, without real data"
    )
    parser.add_argument("--repeats", type=float, default=0.3, help="share of queries that were asked before")
    parser.add_argument("--work", type=Path, help="folder where indexes are kept for another run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or Path(temporary)
        real = passages(work, args.encoder, args.documents, limit=20_000)
        cases: dict[str, Any] = {}
        if "passages" in args.cases or "repeats" in args.cases:
            cases["passages"] = compare(real, args)
            cases["passages"] |= against_encoder(real, args, cases["passages"])
        if "repeats" in args.cases:
            cases["repeats"] = repeats(real, args, cases["passages"]["agentenv"])
        if "million" in args.cases:
            cases["million"] = compare(million(work, args.encoder, args.rows, real.questions), args)
    figures = {
        "clients": args.clients,
        "k": K,
        "threads": args.threads,
        "encoder": args.encoder,
        "cases": cases,
    }
    finish("retrieval_service", args, figures, table(cases))


def compare(ground: Ground, args: argparse.Namespace) -> dict[str, Any]:
    """Both servers over one index, our memory off; their answers to the same questions must agree.

    The reference is measured under each of its settings. Ours is compared with the setting that answers the most
    queries a second, and its 99th percentile with the lowest one of any setting.
    """
    settings: dict[str, Any] = {}
    their_answers: dict[str, Any] = {}
    for handler, threads in itertools.product(HANDLERS, sorted({1, args.threads})):
        flags = ["--handler", handler, "--search-threads", str(threads)]
        command = reference(ground.folder, args.threads, *flags)
        settings[" ".join(flags)], answers = measure(command, distinct(ground), args)
        their_answers |= answers
    best = max(settings, key=lambda name: float(settings[name]["queries_per_second"]))
    theirs = settings[best] | {"setting": best}
    lowest_p99 = min(row["p99_s"] for row in settings.values())
    mine, my_answers = measure(ours(ground.folder, args.threads, "--cache", "0"), distinct(ground), args)
    shared = their_answers.keys() & my_answers.keys()
    different = [query for query in shared if not same(their_answers[query], my_answers[query])]
    if different or not shared:
        sys.exit(f"{len(different)} of {len(shared)} answers differ, such as that to {different[:1]}.")
    return {
        "reference": theirs,
        "reference_settings": settings,
        "agentenv": mine,
        "times_the_queries_per_second": mine["queries_per_second"] / theirs["queries_per_second"],
        "p99_share": mine["p99_s"] / lowest_p99,
        "answers_compared": len(shared),
    }


def against_encoder(ground: Ground, args: argparse.Namespace, case: dict[str, Any]) -> dict[str, Any]:
    """How fast the encoder alone is, in batches as large as there are clients, with nothing else running.

    Once with torch's threads within each forward pass, and once with as many passes side by side, as the server has it;
    the server's share is of the faster one.
    """
    import torch

    encoder = make_encoder(args.encoder)
    torch.set_num_threads(args.threads)
    rates = {"threads_within_passes": rate(encoder, ground, args.seconds)}
    if hasattr(encoder, "use_threads"):
        encoder.use_threads(args.threads)
        rates["passes_side_by_side"] = rate(encoder, ground, args.seconds)
    share = case["agentenv"]["queries_per_second"] / max(rates.values())
    return {"encoder_alone_queries_per_second": rates, "share_of_encoder": share}


def rate(encoder: Encoder, ground: Ground, seconds: float) -> float:
    """Queries a second of ``encode_queries`` in one thread, each question once."""
    batches = (ground.questions[start : start + BATCH] for start in itertools.count(0, BATCH))
    encoder.encode_queries(next(batches))
    done, began = 0, time.perf_counter()
    for batch in batches:
        encoder.encode_queries(batch)
        done += len(batch)
        if (spent := time.perf_counter() - began) > seconds:
            break
    return done / spent


def repeats(ground: Ground, args: argparse.Namespace, uncached: dict[str, Any]) -> dict[str, Any]:
    """Our server with its memory on, where a share of the queries was asked before."""
    cached, _ = measure(ours(ground.folder, args.threads), repeating(ground, args.repeats), args)
    gain = cached["queries_per_second"] / uncached["queries_per_second"]
    return {"share": args.repeats, "agentenv": cached, "times_the_uncached_rate": gain}


def measure(
    command: Sequence[str], asks: Iterator[Ask], args: argparse.Namespace
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Rate and latencies of a server, and its last answer to each query; anything but status 200 ends the run."""
    answers: list[Answer] = []

    def seen(answer: Answer) -> float:
        if answer.status != 200:
            sys.exit(f"Status {answer.status}: {answer.body[:200]!r}")
        answers.append(answer)
        return 0.0

    with server(command) as (address, process):
        drive(address, asks, args.clients, args.warmup, seen)
        warm, busy = len(answers), processor_seconds(process)
        began = time.perf_counter()
        drive(address, asks, args.clients, args.seconds, seen)
        busy = processor_seconds(process) - busy
    # Clients finish what they have asked; what came after the last second is not counted.
    timed = [answer for answer in answers[warm:] if answer.at <= began + args.seconds] or answers[warm:]
    spent = max(answer.at for answer in timed) - began
    latencies = [answer.seconds for answer in timed]
    figures = {
        "queries": len(timed),
        "queries_per_second": len(timed) / spent,
        "p50_s": percentile(latencies, 0.5),
        "p99_s": percentile(latencies, 0.99),
        "processor_ms_per_query": 1000 * busy / len(answers[warm:]),
    }
    return figures, {answer.key: json.loads(answer.body) for answer in answers}


def processor_seconds(process: int) -> float:
    """Processor time that a process has used in all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def distinct(ground: Ground) -> Iterator[Ask]:
    """Every question once."""
    for question in ground.questions:
        yield retrieve(question, K)
    sys.exit("The questions ran out: measure for fewer seconds.")


def repeating(ground: Ground, share: float) -> Iterator[Ask]:
    """New questions, and in between so many that were asked before, drawn evenly."""
    draw = random.Random(0)
    for number, question in enumerate(ground.questions):
        while number and draw.random() < share:
            yield retrieve(ground.questions[draw.randrange(number)], K)
        yield retrieve(question, K)
    sys.exit("The questions ran out: measure for fewer seconds.")


def same(theirs: Any, mine: Any) -> bool:
    """Whether both found the same scores, and the same documents but for ties."""
    pairs = zip(theirs["result"][0], mine["result"][0], strict=True)
    return all(
        abs(a["score"] - b["score"]) < 2e-5 or a["document"]["id"] == b["document"]["id"] for a, b in pairs
    )


def table(cases: dict[str, Any]) -> list[str]:
    """One line a server, and the ratios."""
    lines = []
    for name, case in cases.items():
        for who in ("reference", "agentenv"):
            if who in case:
                row = case[who]
                rate, p50, p99 = row["queries_per_second"], row["p50_s"], row["p99_s"]
                lines.append(
                    f"{name:<10}{who:<11}{rate:>9.1f} queries/s  p50 {p50:6.3f} s  p99 {p99:6.3f} s"
                    f"  {row.get('setting', '')}"
                )
        ratios = {key: value for key, value in case.items() if isinstance(value, float)}
        ratios |= case.get("encoder_alone_queries_per_second", {})
        lines += [f"{name:<10}{key} {value:.3f}" for key, value in ratios.items()]
    return lines


if __name__ == "__main__":
    run_script(main)

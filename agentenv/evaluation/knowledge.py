"""Divides questions by whether a policy can answer them without a search (IKEA)."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from agentenv.core.scoring.scorers import load_scorer
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError
from agentenv.evaluation.records import EpisodeRecord, read_evaluation
from agentenv.evaluation.repeats import read_runs

EASY, HARD = "easy", "hard"
"""Names of the families of questions that the policy can and cannot answer by itself."""


def knowledge_halves(
    probe: Path, *, scorer: str = "em_squad", each: int | None = None, seed: int = 0
) -> list[Task]:
    """Returns equally many questions that a policy knows and does not know, in the order of the probe (IKEA, Huang 2025).

    A question is known if any of its samples is right. Its family is ``easy`` or ``hard``, and ``pass_rate`` is the share of
    right samples. Questions with a sample that ended by an infrastructure failure are left out.

    Args:
        probe: The folder of an evaluation with several samples of each question, without search.
        scorer: The scorer that decides whether a sample is right; its values are 0 and 1.
        each: The number of questions of each half; None uses the size of the smaller half.
        seed: The seed for drawing from the larger half, or from both.

    Raises:
        ConfigurationError: there are no samples, a sample has a search, the scorer is not binary, the set's text may not be
            stored, or there are fewer questions than requested.
    """
    folders = sorted(probe.glob("sample-*"))
    if not folders:
        raise ConfigurationError(f"{probe} holds no samples; write it with agentenv eval --samples 16")
    if not load_scorer(scorer).binary:
        raise ConfigurationError(
            f"the scorer {scorer!r} has values between 0 and 1; a sample is right or wrong"
        )
    runs = read_runs(folders, scorer)
    records = [{record["id"]: record for record in read_evaluation(folder).records} for folder in folders]
    for record in (record for sample in records for record in sample.values()):
        _check(record)
    rates = dict(zip(runs.ids, runs.scores.mean(axis=1).tolist(), strict=True))
    halves = ([id for id in rates if rates[id] > 0], [id for id in rates if rates[id] == 0])
    size = min(map(len, halves)) if each is None else each
    if not 1 <= size <= min(map(len, halves)):
        raise ConfigurationError(
            f"{len(halves[0])} questions are known and {len(halves[1])} are not, and {max(size, 1)} of each kind are "
            "needed: lower --each, or probe more questions"
        )
    rng = Random(seed)
    chosen = {id for half in halves for id in rng.sample(half, size)}
    return [_task(record, rates[id], len(folders)) for id, record in records[0].items() if id in chosen]


def _check(record: EpisodeRecord) -> None:
    if record["searches"]:
        raise ConfigurationError(
            f"the question {record['id']!r} was answered with {record['searches']} searches; a probe of what a policy knows "
            "has none: --max-turns 0"
        )
    if "canary" in record:
        raise ConfigurationError("the text of this question set may not be stored, so nothing is written")


def _task(record: EpisodeRecord, rate: float, samples: int) -> Task:
    data: dict[str, object] = {"family": EASY if rate > 0 else HARD, "pass_rate": rate, "samples": samples}
    kept: Sequence[str] = [name for name in ("supporting_ids", "hops", "cluster") if name in record]
    data |= {name: value for name, value in record.items() if name in kept}
    return Task(record["id"], record["question"], tuple(record["answers"]), data=data)

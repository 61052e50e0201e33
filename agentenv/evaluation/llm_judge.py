"""A scorer that asks a language model whether an answer is right.

The judge sees the question, the accepted answers and the prediction, but never the episode. A grade is cached under a hash
of everything that it depends on, so that no case is paid for twice. A judge that fails or whose reply cannot be parsed gives
no score: such questions are counted as faults beside the mean.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentenv.core.concurrency.tasks import gather_all
from agentenv.core.env import run_sync
from agentenv.core.io.strict_json import read_json_text
from agentenv.core.scoring.scorers import check_answers, get_scorer
from agentenv.errors import (
    ConfigurationError,
    ContextTooSmall,
    EndpointFault,
    EndpointRefusal,
    Fault,
    JudgeFault,
)
from agentenv.evaluation.records import EpisodeRecord, read_evaluation, write_results
from agentenv.evaluation.results import clusters_of
from agentenv.evaluation.rubrics import Grade, Rubric, get_rubric
from agentenv.evaluation.statistics.significance import calibration_error, estimate
from agentenv.policies.endpoint import Chat, ChatClient
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.policies.policy_spec import is_endpoint

GRADES = "grades.jsonl"
_REPLY_TOKENS = 1024  # leaves room for reasoning before the verdict


@dataclass
class GradeCache:
    """Grades by the hash of their case, in a file to which lines are appended; without a path, in memory.

    Neither the case nor the reply is stored, because the text of a sealed set must not be written to the disk.
    """

    path: Path | None = None
    grades: dict[str, Grade] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None or not self.path.is_file():
            return
        for number, line in enumerate(self.path.read_bytes().split(b"\n"), 1):
            try:
                row = read_json_text(line) if line else {}
                self.grades |= {row.pop("key"): Grade(**row)} if row else {}
            except (ValueError, TypeError, LookupError, AttributeError):
                if not line.endswith(b"}"):
                    continue  # the process that wrote the line was killed
                raise ConfigurationError(
                    f"{self.path}, line {number} is no grade; remove the file."
                ) from None

    def add(self, key: str, grade: Grade) -> None:
        """Stores ``grade`` under ``key``."""
        self.grades[key] = grade
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("\n" + json.dumps({"key": key, **asdict(grade)}))


@dataclass
class _CaseLock:
    """A lock shared by the callers that ask about the same case. It is deleted when the last of them is done."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


@dataclass
class Judge:
    """One rubric applied by one model."""

    rubric: Rubric
    model: str
    """The name of the judge model, for the results and the cache."""
    chat: Chat | None = None
    """The client of the judge model. With None, only cached grades are available."""
    cache: GradeCache = field(default_factory=GradeCache)
    _case_locks: dict[tuple[asyncio.AbstractEventLoop, str], _CaseLock] = field(
        default_factory=dict, repr=False
    )
    """One lock for each case, so that each event loop asks about equal answers only once."""

    @property
    def name(self) -> str:
        """The name of this scorer in the results."""
        return f"judge_{self.rubric.name}"

    async def grade(self, question: str, answers: Sequence[str], prediction: str | None) -> Grade:
        """Grades one prediction. A missing prediction gets the rubric's first verdict without a request.

        Raises:
            DatasetError: the accepted answers cannot be scored.
            JudgeFault: the reply contains no verdict, or there is no judge to ask.
            EndpointFault: the endpoint gave no reply.
            ContextTooSmall: the answer does not fit into the context of the judge.
        """
        check_answers(answers)
        if prediction is None or not prediction.strip():
            verdict, value = next(iter(self.rubric.verdicts.items()))
            return Grade(verdict, value)
        message = self.rubric.message(question, answers, prediction)
        key = hashlib.sha256(
            "\0".join((self.model, self.rubric.name, str(self.rubric.version), message)).encode()
        ).hexdigest()
        async with self._locked_case(key):
            if key not in self.cache.grades:
                self.cache.add(key, await self._ask(message))
        return self.cache.grades[key]

    async def takes(self, question: str, answers: Sequence[str], prediction: str | None) -> bool:
        """Whether a prediction in training gets the best verdict.

        False for a prediction that the judge's content filter refuses or that does not fit into its context. The policy
        wrote it, and a failure would remove its episode from the loss.

        Raises:
            DatasetError: the accepted answers cannot be scored.
            JudgeFault: the reply contains no verdict, or there is no judge to ask.
            EndpointFault: the endpoint gave no reply.
        """
        try:
            return (await self.grade(question, answers, prediction)).value == 1.0
        except (ContextTooSmall, EndpointRefusal):
            return False

    @asynccontextmanager
    async def _locked_case(self, key: str) -> AsyncIterator[None]:
        """Makes callers ask about the case ``key`` one after the other, also after a failed request."""
        case = (asyncio.get_running_loop(), key)
        turns = self._case_locks.setdefault(case, _CaseLock())
        turns.users += 1
        try:
            async with turns.lock:
                yield
        finally:
            turns.users -= 1
            if not turns.users:
                del self._case_locks[case]

    async def _ask(self, message: str) -> Grade:
        if self.chat is None:
            raise JudgeFault(f"{self.name} by {self.model} has no grade of this answer in its cache.")
        asked = [{"role": "user", "content": message}]
        reply = await self.chat.complete(asked, max_tokens=_REPLY_TOKENS, temperature=0.0)
        if reply.finish == "length":
            # The verdict comes at the end; an earlier line may be quoted from the answer.
            raise JudgeFault(f"The judge's reply was cut off after {_REPLY_TOKENS} tokens.")
        return self.rubric.read(reply.text)

    async def grade_all(self, records: Sequence[EpisodeRecord]) -> list[Grade | Fault]:
        """Returns a grade or an infrastructure failure for each record, in order."""

        async def one(record: EpisodeRecord) -> Grade | Fault:
            try:
                return await self.grade(record["question"], record["answers"], record["prediction"])
            except (EndpointFault, JudgeFault) as fault:
                return fault
            except ContextTooSmall as error:  # concerns this answer only, and must not end the others
                return JudgeFault(str(error))

        # A wrong key or model concerns all records: after the first refusal, the remaining requests are cancelled.
        return await gather_all(one(record) for record in records)


def check_judge(spec: str, rubric: str) -> None:
    """Checks that ``spec`` and ``rubric`` can be used, without sending a request.

    Raises:
        UnknownName: there is no such rubric.
        ConfigurationError: ``spec`` is not an address.
    """
    get_rubric(rubric)
    if not is_endpoint(spec):
        raise ConfigurationError(
            f"A judge is written openai:MODEL@URL or anyllm:PROVIDER/MODEL, not {spec!r}."
        )


def open_judge(spec: str, rubric: str) -> ChatClient:
    """Opens the model at the address ``spec``, which is to judge by ``rubric``.

    Raises:
        UnknownName: there is no such rubric.
        ConfigurationError: ``spec`` is not an address, or has an option that the service does not know.
    """
    check_judge(spec, rubric)
    return ChatClient(Endpoint.of(spec))


def judge_folder(directory: Path, judge: Judge) -> dict[str, Any]:
    """Judges the answers of an evaluation and adds ``judged`` to its ``results.json``.

    Returns:
        The new content of ``results.json``.

    Raises:
        ConfigurationError: the folder is no evaluation, or the endpoint refuses the key or the model.
    """
    evaluation = read_evaluation(directory)
    scored = [record for record in evaluation.records if record["valid"]]
    graded = run_sync(judge.grade_all(scored))
    table = judged_table(judge, scored, graded, seed=evaluation.results.get("seed", 0))
    results = dict(evaluation.results)
    results["judged"] = {**results.get("judged", {}), judge.name: table}
    write_results(directory, results)
    return results


def cached_grades(
    directory: Path, table: Mapping[str, Any], records: Sequence[EpisodeRecord]
) -> list[Grade | Fault]:
    """Returns what a judge said of ``records`` from the grades stored in their folder, without requests.

    Args:
        directory: An evaluation folder.
        table: The entry of the judge in its ``results.json``.
        records: The records of that folder.

    Raises:
        UnknownName: the rubric is not one of this package.
        ConfigurationError: the prompt of the rubric has changed since then.
    """
    rubric = get_rubric(table["rubric"])
    if rubric.prompt_sha256 != table["prompt_sha256"]:
        raise ConfigurationError(
            f"{directory} was judged under another prompt of the rubric {rubric.name!r}: run agentenv rescore --judge."
        )
    judge = Judge(rubric, table["judge"], None, GradeCache(directory / GRADES))
    return run_sync(judge.grade_all(records))


def judged_table(
    judge: Judge, records: Sequence[EpisodeRecord], graded: Sequence[Grade | Fault], *, seed: int = 0
) -> dict[str, Any]:
    """The entry of one judge in ``results.json``.

    Besides the mean it contains the verdicts, the faults by kind with one example, the share of answers on which judge and
    em_squad agree, and what the rubric's authors report: for simpleqa the accuracy among attempted questions and its
    harmonic mean with the share of right answers, for browsecomp the calibration error. Answers without a grade are not
    missing at random, because the answer itself can make a judge fail. If there are any, ``mean_if_ungraded_wrong`` counts
    them as wrong.
    """
    pairs = [
        (record, grade) for record, grade in zip(records, graded, strict=True) if isinstance(grade, Grade)
    ]
    grades = [grade for _, grade in pairs]
    faults = [fault for fault in graded if isinstance(fault, Fault)]
    table: dict[str, Any] = {
        "version": judge.rubric.version,
        "normaliser": "none",
        "judge": judge.model,
        "rubric": judge.rubric.name,
        "prompt_sha256": judge.rubric.prompt_sha256,
        "n": len(grades),
        "faults": dict(Counter(type(fault).__name__ for fault in faults)),
        "example_fault": _example(records, graded),
        "verdicts": dict(sorted(Counter(grade.verdict for grade in grades).items())),
    }
    if not grades:
        return table | {"mean": None, "ci95": None}
    clusters = clusters_of(record for record, _ in pairs)
    e = estimate([grade.value for grade in grades], clusters=clusters, seed=seed)
    exact = get_scorer("em_squad")
    agree = [exact(r["prediction"], r["answers"]).value == grade.value for r, grade in pairs]
    table |= {"mean": e.mean, "ci95": e.ci95, "interval": e.method}
    if faults:
        table["mean_if_ungraded_wrong"] = sum(grade.value for grade in grades) / len(graded)
    return table | {"agreement_with_em": sum(agree) / len(agree)} | _extras(judge.rubric, grades)


def _example(records: Sequence[EpisodeRecord], graded: Sequence[Grade | Fault]) -> str | None:
    """Returns the message of the first fault; for a sealed set only its kind, because the message may quote the question."""
    for record, fault in zip(records, graded, strict=True):
        if isinstance(fault, Fault):
            return type(fault).__name__ if "canary" in record else str(fault)
    return None


def _extras(rubric: Rubric, grades: Sequence[Grade]) -> dict[str, Any]:
    right = [grade.value for grade in grades]
    if rubric.name == "simpleqa":
        attempted = sum(grade.verdict != "NOT_ATTEMPTED" for grade in grades)
        correct, given = sum(right) / len(right), sum(right) / attempted if attempted else 0.0
        f_score = 2 * correct * given / (correct + given) if correct + given else 0.0
        return {"accuracy_given_attempted": given, "f_score": f_score}
    claimed = [(grade.confidence, grade.value) for grade in grades if grade.confidence is not None]
    if rubric.asks_confidence and claimed:
        return {"calibration_error": calibration_error(*zip(*claimed, strict=True))}
    return {}

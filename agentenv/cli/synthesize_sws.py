"""``agentenv synthesize sws``: questions of the kinds that a policy keeps failing."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from rich.console import Console

from agentenv.cli.flag_checks import require_at_least_one, require_positive
from agentenv.cli.making import making
from agentenv.cli.synthesize import write_result
from agentenv.core.env import run_sync
from agentenv.core.io.strict_json import read_json_text
from agentenv.core.io.tables import open_text
from agentenv.core.io.toml_files import read_toml
from agentenv.core.types import Document, Task
from agentenv.data.dataset_files import read_records
from agentenv.data.synthesis.asearcher_model import ModelSolver
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.synthesis.records import RecordFailure, over_records, refuse_used_folder
from agentenv.data.synthesis.sws import Likeness, sample_concepts
from agentenv.data.synthesis.sws_model import Order, WeaknessWriter, concept_sets
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.policies.model_chat import ChatModels
from agentenv.progress import Display
from agentenv.retrievers.encoder import Encoder, make_encoder
from agentenv.retrievers.storage.corpus import read_documents
from agentenv.trainers.config.config_files import CONFIG
from agentenv.trainers.selfplay.question_pool import frame
from agentenv.trainers.selfplay.weaknesses import FAILED, Rule, Weakness, failed_kinds, failed_questions
from agentenv.trainers.task_sampling.allocation import apportioned

_QUESTIONS = "questions.jsonl"
"""The log of a run of self-play."""


@dataclass(frozen=True)
class History:
    """How often questions were solved, time after time."""

    accuracies: dict[str, list[float]]
    """The accuracies of each question, the earliest first."""
    category: dict[str, str]
    attempts: int
    """Largest number of attempts from which one accuracy was computed."""


@dataclass(frozen=True)
class SwS:
    """Finds the kinds of questions that are failed again and again, and makes new ones of their concepts (SwS).

    Example:
        agentenv synthesize sws --history runs/first --editor openai:MODEL@https://HOST/v1 --out runs/weak
    """

    history: Path
    """Run folder with the trajectories of every step (trajectories_every = 1) or of self-play, or a file of records with
    question and accuracies, and if wanted category and attempts."""
    editor: str
    """Model that names concepts and writes questions (openai:MODEL@URL, anyllm:PROVIDER/MODEL, hf:PATH)."""
    out: Path
    """Folder to write: questions.jsonl, synthesis.json, the failures, and the corpus where one is named."""
    judge: str = ""
    """First model that rates questions; default: the editor."""
    second_judge: str = ""
    """Second model that rates them; default: the first, which is sampled for a second vote."""
    solver: str = ""
    """Model whose answers have to agree; default: the editor."""
    student: str = ""
    """Model that has to solve a question in 1/8 to 7/8 of its samples; empty asks none."""
    questions: int = 64
    """Questions to write; the checks leave fewer."""
    failed: Rule = "slope"
    """When a question counts as failed, by its accuracies over time: slope as published, flat also where they never
    change, test by a significance test."""
    samples: int = WeaknessWriter.samples
    """Answers of the solver and of the student to each question."""
    size: int = 5
    """Concepts of a question."""
    temperature: float = 0.2
    """Temperature of the draw of concepts."""
    encoder: str = "hash"
    """Encoder of concepts: hash, minilm, or KIND:PATH."""
    corpus: Path | None = None
    """Corpus that the questions are to be searched in; it is copied into the folder."""
    at_once: int = 8
    """Questions under way at a time."""
    seed: int = 0
    """Seeds every draw."""
    replies: Path | None = None
    """Folder that keeps the replies of the models; the same command asks nothing twice after an interruption."""

    def run(self) -> dict[str, Any]:
        """Writes the questions and returns the card."""
        refuse_used_folder(self.out, self.replies)
        require_at_least_one(
            questions=self.questions, samples=self.samples, size=self.size, at_once=self.at_once
        )
        require_positive(temperature=self.temperature)
        if self.failed not in FAILED:
            raise ConfigurationError(f"--failed is {self.failed!r}; it is one of {', '.join(FAILED)}")
        history = read_history(self.history)
        kinds = failed_kinds(
            history.accuracies,
            self.failed,
            attempts=history.attempts,
            least=1,
            kind_of=history.category.__getitem__,
        )
        if not kinds:
            raise ConfigurationError(
                f"no question of {self.history} counts as failed by --failed {self.failed}; try --failed flat"
            )
        # What cannot be opened is refused before a model is asked.
        documents: Sequence[Document] | None = None if self.corpus is None else [*read_documents(self.corpus)]
        encoder, models = make_encoder(self.encoder), ChatModels(self.replies)
        with making("sws", self.out) as display:
            tasks, failures = self._make(history, kinds, encoder, models, display)
        card = {
            "recipe": "sws",
            "history": str(self.history),
            "failed": self.failed,
            "weaknesses": {kind.kind: round(kind.share, 4) for kind in kinds},
            "models": [self.editor, *self._judges(), self.solver or self.editor, self.student],
            "seed": self.seed,
            "families": dict(sorted(Counter(task.data["family"] for task in tasks).items())),
            "usage": models.usage(),
        }
        return write_result(self, tasks, documents, failures, card)

    def _judges(self) -> tuple[str, str]:
        first = self.judge or self.editor
        return first, self.second_judge or first

    def _make(
        self,
        history: History,
        kinds: Sequence[Weakness],
        encoder: Encoder,
        models: ChatModels,
        display: Display,
    ) -> tuple[list[Task], list[RecordFailure]]:
        writer = WeaknessWriter(
            ModelWriter(models.open(self.editor)),
            self._raters(models),
            ModelSolver(_sampled(models, self.solver or self.editor)),
            self.samples,
            ModelSolver(_sampled(models, self.student)) if self.student else None,
        )
        failed = failed_questions(history.accuracies, self.failed, history.attempts)
        named = [(history.category[question], question) for question in failed]

        async def concepts(pair: tuple[str, str]) -> tuple[str, list[str]]:
            return pair[0], await writer.concepts(pair[1], self.seed)

        work = over_records(named, concepts, lambda pair: pair[1], at_once=self.at_once, display=display)
        found, unread = run_sync(work)
        sets = concept_sets(found)
        orders = self._orders([kind for kind in kinds if kind.kind in sets], sets, encoder)
        made, refused = run_sync(
            over_records(orders, writer.write, lambda order: order.id, at_once=self.at_once, display=display)
        )
        return made, [*unread, *refused]

    def _raters(self, models: ChatModels) -> tuple[ModelWriter, ModelWriter]:
        """Both judges, greedy; one model that is both would say the same twice, so that its second vote is sampled."""
        first, second = self._judges()
        greedy = ModelWriter(models.open(first), temperature=0.0)
        if second == first:
            return greedy, _sampled(models, second)
        return greedy, ModelWriter(models.open(second), temperature=0.0)

    def _orders(
        self, kinds: Sequence[Weakness], sets: dict[str, list[list[str]]], encoder: Encoder
    ) -> list[Order]:
        """What is to be written: of each category its share, with concepts drawn for each question."""
        counts = apportioned([round(kind.share * 10**9) for kind in kinds], self.questions)
        likeness, rng = cosines(encoder, sets), Random(self.seed)
        orders: list[Order] = []
        for kind, count in zip(kinds, counts, strict=True):
            for _ in range(count):
                drawn = sample_concepts(
                    sets[kind.kind], likeness, rng, size=self.size, temperature=self.temperature
                )
                order = Order(
                    f"sws-{len(orders)}", kind.kind, tuple(drawn), kind.example, rng.getrandbits(31)
                )
                orders.append(order)
        return orders

    def show(self, result: dict[str, Any], console: Console) -> None:
        """How many questions there are of each kind."""
        console.print(f"{result['questions']} questions in {result['out']}")
        for kind, count in result["families"].items():
            console.print(f"  {kind}: {count}", markup=False)
        for kind, count in result["failures"].items():
            console.print(f"  failed, {kind}: {count}")


def _sampled(models: ChatModels, spec: str) -> ModelWriter:
    return ModelWriter(models.open(spec), temperature=0.6, top_p=0.95)


def cosines(encoder: Encoder, sets: dict[str, list[list[str]]]) -> Likeness:
    """The likeness of two of the concepts in ``sets``: the cosine of their vectors, not below 0."""
    names = sorted({concept for some in sets.values() for concepts in some for concept in concepts})
    places = {name: place for place, name in enumerate(names)}
    vectors = encoder.encode_passages(names)
    return lambda a, b: max(0.0, float(np.dot(vectors[places[a]], vectors[places[b]])))


def read_history(path: Path) -> History:
    """How often each question was solved, from a run folder or a file of records.

    Raises:
        ConfigurationError: the folder holds no trajectories.
        DatasetError: a record cannot be read.
    """
    if not path.is_dir():
        return _of_file(path)
    return _of_self_play(path) if (path / _QUESTIONS).is_file() else _of_run(path)


def _of_self_play(folder: Path) -> History:
    """The solve rates of the questions that a run of self-play has played, step by step; its topics are no questions."""
    accuracies: dict[str, list[float]] = defaultdict(list)
    for row in read_records(folder / _QUESTIONS):
        if "solve_rate" in row.fields:
            accuracies[row.text("question")].append(float(row.fields["solve_rate"]))
    attempts = int(read_toml(folder / CONFIG)["rollout"]["group_size"])
    return History(dict(accuracies), {question: frame(question) for question in accuracies}, attempts)


def _of_run(folder: Path) -> History:
    """The share of episodes of each step with the full reward, question by question; categories are frames."""
    files = sorted((folder / "trajectories").glob("step-*.jsonl.gz"))
    if not files:
        raise ConfigurationError(f"{folder} holds no trajectories; train with trajectories_every = 1")
    accuracies: dict[str, list[float]] = defaultdict(list)
    attempts = 1
    for file in files:
        solved: dict[str, list[bool]] = defaultdict(list)
        try:
            with open_text(file) as lines:
                for record in map(read_json_text, lines):
                    if record["valid"] and record["origin"] == "base":
                        solved[record["task"]["question"]].append(record["reward"] >= 1)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(f"{file} holds no recorded episodes: {error}") from error
        for question, some in solved.items():
            accuracies[question].append(sum(some) / len(some))
            attempts = max(attempts, len(some))
    return History(dict(accuracies), {question: frame(question) for question in accuracies}, attempts)


def _of_file(path: Path) -> History:
    accuracies, category, attempts = {}, {}, 1
    for row in read_records(path):
        question, found = row.text("question"), row.fields.get("accuracies")
        numbers = found if isinstance(found, list) else []
        good = all(isinstance(one, int | float) and 0 <= one <= 1 for one in numbers)
        if not numbers or not good:
            raise DatasetError(
                f"{row.place}: accuracies must be numbers from 0 to 1, not {str(found)[:60]!r}."
            )
        accuracies[question] = [float(one) for one in numbers]
        category[question] = str(row.fields.get("category") or frame(question))
        attempts = max(attempts, int(row.fields.get("attempts") or 1))
    return History(accuracies, category, attempts)

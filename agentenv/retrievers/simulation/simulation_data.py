"""Training data for simulators, and the measurement of their quality.

Real searches are made for the questions of the training split. A found document is useful if it contains the answer that the
query is about, and noisy if it does not (ZeroSearch, whose first version judged whole trajectories).
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

from agentenv.core.env import run_sync
from agentenv.core.io.files import replacing
from agentenv.core.io.strict_json import read_json_text
from agentenv.core.io.tables import UTF_8, reason_of
from agentenv.core.protocols import Retriever
from agentenv.core.scoring.scorers import get_scorer
from agentenv.core.types import Passage, Task
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.retrievers.base import passage_text
from agentenv.retrievers.bulk import search_all
from agentenv.retrievers.simulation.simulated import TRAINING, read_documents
from agentenv.retrievers.simulation.simulators import Brief, Simulator

_MOST_JUDGED = 100  # number of examples for measuring the quality
_SEARCH_FACTOR = 4  # factor of passages searched per page, to find enough noisy ones

Page = tuple[tuple[str, str], ...]
"""Title and text of each document."""


@dataclass(frozen=True, slots=True)
class Example:
    """One query with a useful page and a noisy one."""

    query: str
    question: str
    answer: str
    """The gold answer that a simulator sees."""
    wanted: tuple[str, ...]
    """The answers by which documents were labelled: the accepted ones, or that of the query's own hop if it is known."""
    useful: Page
    noisy: Page

    @property
    def is_direct(self) -> bool:
        """Whether the query is about the question's answer itself."""
        return self.answer in self.wanted

    def brief(self, *, useful: bool) -> Brief:
        """Returns the brief that a simulator gets for it."""
        documents = len(self.useful if useful else self.noisy)
        return Brief(self.query, documents, useful, self.question, self.answer, seed=0)


def collect_examples(tasks: Sequence[Task], retriever: Retriever, k: int) -> Iterator[Example]:
    """Yields an example for every query of ``tasks`` whose first ``k`` passages contain the answer.

    The queries are those of the reasoning path if the task has it, and otherwise the question. The useful page is the
    result; the noisy page is the first ``k`` passages without the answer.

    Args:
        tasks: Questions of the training split.
        retriever: A real retriever.
        k: Number of documents per page.

    Raises:
        ConfigurationError: a question belongs to another split, whose answers a simulator must never learn.
        RetrieverFault: a search failed.
    """
    for task in tasks:
        if task.split != TRAINING:
            raise ConfigurationError(
                f"Question {task.id!r} is of the split {task.split!r}: simulators learn from {TRAINING!r} alone."
            )
    asked = [(task, query, wanted) for task in tasks for query, wanted in _queries(task)]
    found = search_all(retriever, [query for _, query, _ in asked], _SEARCH_FACTOR * k)
    for (task, query, wanted), passages in zip(asked, found, strict=True):
        holds = [contains(passage, wanted) for passage in passages]
        noisy = [p for p, held in zip(passages, holds, strict=True) if not held][:k]
        if any(holds[:k]) and len(noisy) == k:
            pages = _page(passages[:k]), _page(noisy)
            yield Example(query, task.question, task.answers[0], wanted, *pages)


def contains(passage: Passage, answers: Sequence[str]) -> bool:
    """Whether title and text contain one of ``answers``, normalised."""
    return get_scorer("em_cover")(passage_text(passage), answers).value > 0


def _queries(task: Task) -> list[tuple[str, tuple[str, ...]]]:
    path = task.data.get("path", ())
    hops = [(hop["query"], (hop["answer"],)) for hop in path[:-1]]
    return [*hops, (path[-1]["query"] if path else task.question, task.answers)]


def _page(passages: Sequence[Passage]) -> Page:
    return tuple((passage.title, passage.text) for passage in passages)


def write_examples(path: Path, examples: Iterable[Example]) -> int:
    """Writes one JSON line per example; returns their number. The file appears once it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with replacing(path) as part, part.open("w", encoding="utf-8") as file:
        for example in examples:
            count += file.write(json.dumps(asdict(example), ensure_ascii=False) + "\n") > 0
    return count


def read_examples(path: Path) -> list[Example]:
    """Reads what `write_examples` wrote.

    Raises:
        DatasetError: the file cannot be read or contains no example, or a line is not valid.
    """
    try:
        # Not splitlines(), which also splits at U+2028 and similar characters, which JSON allows in strings.
        lines = path.read_text(encoding=UTF_8).split("\n")
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} cannot be read: {reason_of(error)}.") from error
    found = [_example(f"{path}, line {number}", line) for number, line in enumerate(lines, 1) if line]
    if not found:
        raise DatasetError(f"{path} holds no examples; build it with agentenv simulator data.")
    return found


def _example(place: str, line: str) -> Example:
    try:
        row: dict[str, Any] = read_json_text(line)
        pages = {name: tuple((title, text) for title, text in row[name]) for name in ("useful", "noisy")}
        example = Example(**row | pages | {"wanted": tuple(row["wanted"])})
        texts = [example.query, example.question, example.answer, *example.wanted]
        texts += [text for page in (*example.useful, *example.noisy) for text in page]
        if odd := [text for text in texts if not isinstance(text, str)]:
            raise TypeError(f"{odd[0]!r} is no text")
        return example
    except (ValueError, TypeError, KeyError) as error:
        raise DatasetError(f"{place} is no example of a simulator: {error}.") from error


def measure_quality(
    simulator: Simulator, examples: Sequence[Example], known: Sequence[Example]
) -> dict[str, Any]:
    """Measures how well a simulator follows its briefs, on the first hundred examples that it was never trained on.

    Args:
        simulator: The simulator.
        examples: Held-out examples.
        known: The examples that it was trained on, for the copy rate.

    Returns:
        ``n``; ``useful_contains`` and ``noisy_contains``, the shares of pages with the answer, among queries about the
        answer itself; ``unreadable``, the share of pages without a document; ``copy_rate``, the share of documents that are
        word for word in ``known``; ``words``, the mean length of a document, and ``real_words``, that of real ones. A mean
        of no values is None.

    Raises:
        Fault: the simulator failed.
    """
    examples = list(islice(examples, _MOST_JUDGED))
    briefs = [example.brief(useful=useful) for useful in (True, False) for example in examples]
    written = run_sync(simulator.write(briefs))
    pages = [read_documents(page, brief) for page, brief in zip(written, briefs, strict=True)]
    held: dict[bool, list[bool]] = {True: [], False: []}
    for brief, page, example in zip(briefs, pages, examples * 2, strict=True):
        if example.is_direct:
            held[brief.useful].append(any(contains(passage, example.wanted) for passage in page))
    texts = [passage.text for page in pages for passage in page]
    seen = {text for example in known for _, text in (*example.useful, *example.noisy)}
    real = [text for example in examples for _, text in (*example.useful, *example.noisy)]
    return {
        "n": len(examples),
        "useful_contains": _mean(held[True]),
        "noisy_contains": _mean(held[False]),
        "unreadable": _mean([not page for page in pages]),
        "copy_rate": _mean([text in seen for text in texts]),
        "words": _mean([len(text.split()) for text in texts]),
        "real_words": _mean([len(text.split()) for text in real]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None

"""Formats the observations of search environments: the question, and pages in tags that fit into one observation."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentenv.core.prompt_templates import require_placeholder
from agentenv.core.scoring.normalize import apart
from agentenv.core.tool_results import passage_lines
from agentenv.core.types import Passage, Task
from agentenv.errors import DatasetError, check_known


def as_question(text: str) -> str:
    """Strips ``text`` and adds a question mark if it has none, not even a Chinese one."""
    text = text.strip()
    return text if text.endswith(("?", "\uff1f")) else text + "?"


def information(body: str) -> str:
    """Wraps a page in ``information`` tags, with two newlines outside and none inside."""
    return f"\n\n<information>{_without_closing_tag(body, 'information')}</information>\n\n"


def result(body: str) -> str:
    """Wraps a page in ``result`` tags as HierSearch does: a blank before the tag, and newlines inside."""
    return f" <result>\n{_without_closing_tag(body, 'result')}\n</result>"


def _without_closing_tag(body: str, tag: str) -> str:
    """Strips ``body`` and escapes its closing tags, because a page that quotes the tag must not look like several turns."""
    return body.strip().replace(f"</{tag}>", f"< /{tag}>")


FRAMES: Mapping[str, Callable[[str], str]] = {"information": information, "result": result}
"""The functions that wrap a page in tags, by the name of the tags."""


def format_passages(passages: Sequence[Passage], words: int | None = None) -> str:
    """Writes one line per passage, numbered from 1: ``Doc 1(Title: t) text``, with the first ``words`` of each text."""
    return passage_lines(replace(p, text=" ".join(p.text.split(" ")[:words])) for p in passages)


def format_addresses(
    passages: Sequence[Passage], words: int | None = None, *, chars: int | None = None
) -> str:
    """Writes one line per passage with its id as the address: ``[Doc 1](id): t. text``, with ``chars`` of each text."""
    texts = [" ".join(passage.text.split(" ")[:words])[:chars] for passage in passages]
    return "".join(
        f"[Doc {i}]({p.id}): {p.title}. {text}\n"
        for i, (p, text) in enumerate(zip(passages, texts, strict=True), 1)
    )


_ELLIPSIS = re.compile(r"(?<!\s)\s*(?:\.{3,}|\u2026)\s*")


def format_numbered(passages: Sequence[Passage], words: int | None = None) -> str:
    """Writes one line per passage: ``1. t: text`` (SSRL's layout for Llama)."""
    return "".join(f"{i}. {line}\n" for i, line in enumerate(_clean_lines(passages, words), 1))


def format_paragraph(passages: Sequence[Passage], words: int | None = None) -> str:
    """Writes all passages in one line (SSRL's layout for Qwen 3B)."""
    return " ".join(_clean_lines(passages, words))


def format_bullets(passages: Sequence[Passage], words: int | None = None) -> str:
    """Writes one line per passage: ``- t: text`` (SSRL's layout for Qwen 7B)."""
    return "".join(f"- {line}\n" for line in _clean_lines(passages, words))


def _clean_lines(passages: Sequence[Passage], words: int | None) -> list[str]:
    """Writes each passage on one line after its title, without the ellipses with which search engines mark omissions."""
    texts = [" ".join(_ELLIPSIS.sub(" ", passage.text).split()[:words]) for passage in passages]
    return [f"{p.title}: {text}" if p.title else text for p, text in zip(passages, texts, strict=True)]


LAYOUTS: Mapping[str, Callable[[Sequence[Passage], int | None], str]] = {
    "documents": format_passages,
    "numbered": format_numbered,
    "paragraph": format_paragraph,
    "bullets": format_bullets,
}
"""The layouts of a page of results by name."""


_LONG_WORD = re.compile("[^ ]{41,}")


def count_words(text: str) -> int:
    """Counts words; every Chinese or Japanese character counts as a word."""
    return len(apart(text).split())


def filled(template: str, values: Mapping[str, str]) -> str:
    """Replaces every ``{name}`` of ``values`` in ``template`` by its value, all at once.

    Values are not searched for further placeholders, so that a policy's text cannot insert another value.
    """
    names = "|".join(map(re.escape, values))
    return re.sub(rf"\{{({names})\}}", lambda match: values[match[1]], template) if values else template


@dataclass(frozen=True)
class QuestionPrompt:
    """Makes the opening message of a task.

    Raises:
        ConfigurationError: the template does not contain ``{question}``.
    """

    template: str

    def __post_init__(self) -> None:
        require_placeholder(self.template, "question")

    def __call__(self, task: Task) -> str:
        """Returns the template with the question of ``task``.

        Raises:
            DatasetError: the task has no answers.
        """
        if not task.answers:
            raise DatasetError(f"task {task.id!r} has no answers to score against")
        return self.template.replace("{question}", as_question(task.question))


@dataclass(frozen=True)
class PageFormat:
    """How passages are written, and the size of an observation."""

    tokens: int
    """Largest size of one observation. Its body is cut such that both tags remain."""
    count: Callable[[str], int] = count_words
    """Returns the length of a text in tokens."""
    words: int | None = None
    """Number of words of each passage that a search shows; None shows all."""
    write: Callable[[Sequence[Passage], int | None], str] = format_passages
    """Writes passages, with ``words`` of each, as text."""
    wrap: Callable[[str], str] = information
    """Wraps the body of a page in the tags of an observation."""

    def framed(self, frame: str) -> "PageFormat":
        """Returns the same format with pages in other tags.

        Raises:
            UnknownName: there are no such tags.
        """
        check_known("frame of pages", frame, FRAMES)
        return replace(self, wrap=FRAMES[frame])

    def passages(self, passages: Sequence[Passage]) -> str:
        """Returns the body of a page of search results."""
        return self.write(passages, self.words)

    def page(self, body: str, ending: str = "") -> str:
        """Makes an observation of ``body``, cut if it is too long; ``ending`` follows it and is kept."""
        return self.wrap(self.fitting(body, ending))

    def fitting(self, body: str, ending: str = "") -> str:
        """Returns as many leading words of ``body`` as fit into one observation together with ``ending``.

        A word of more than 40 characters may be cut anywhere, because scripts without blanks have no shorter words. If
        ``ending`` alone does not fit, it is cut in the same way, and nothing of ``body`` remains.
        """
        if self.count(self.wrap(body + ending)) <= self.tokens:
            return body + ending
        if ending and self.count(self.wrap(ending)) > self.tokens:
            return self.fitting(ending.lstrip("\n"))
        inside = (place for run in _LONG_WORD.finditer(body) for place in range(run.start() + 1, run.end()))
        ends = sorted([0, *inside, *(blank.start() for blank in re.finditer(" ", body))])
        low, high = 0, len(ends) - 1
        while low < high:
            middle = (low + high + 1) // 2
            fits = self.count(self.wrap(body[: ends[middle]] + ending)) <= self.tokens
            low, high = (middle, high) if fits else (low, middle - 1)
        return body[: ends[low]] + ending

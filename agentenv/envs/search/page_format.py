"""What a search environment shows: the question, and pages between information tags that fit into one observation."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from agentenv.core.prompt_templates import require_placeholder
from agentenv.core.scoring.normalize import apart
from agentenv.core.tool_results import passage_lines
from agentenv.core.types import Passage, Task
from agentenv.errors import DatasetError, check_known


def as_question(text: str) -> str:
    """``text`` stripped, with a question mark at the end, which may be that of Chinese."""
    text = text.strip()
    return text if text.endswith(("?", "\uff1f")) else text + "?"


def information(body: str) -> str:
    """An observation: two newlines on the outside, none inside."""
    return f"\n\n<information>{_kept_inside(body, 'information')}</information>\n\n"


def result(body: str) -> str:
    """An observation as HierSearch writes it: a blank before the tag, and newlines inside."""
    return f" <result>\n{_kept_inside(body, 'result')}\n</result>"


def _kept_inside(body: str, tag: str) -> str:
    """``body`` stripped, in which no tag ends the page: one that quotes the tag must not look like several turns."""
    return body.strip().replace(f"</{tag}>", f"< /{tag}>")


FRAMES: Mapping[str, Callable[[str], str]] = {"information": information, "result": result}
"""What a page stands in, by the name of its tags."""


def format_passages(passages: Sequence[Passage], words: int | None = None) -> str:
    """One line a passage, numbered from 1: ``Doc 1(Title: t) text``; of each text the first ``words``."""
    return passage_lines(replace(p, text=" ".join(p.text.split(" ")[:words])) for p in passages)


def format_addresses(
    passages: Sequence[Passage], words: int | None = None, *, chars: int | None = None
) -> str:
    """One line a passage with its id, which is its address: ``[Doc 1](id): t. text``; of each text ``chars`` at most."""
    texts = [" ".join(passage.text.split(" ")[:words])[:chars] for passage in passages]
    return "".join(
        f"[Doc {i}]({p.id}): {p.title}. {text}\n"
        for i, (p, text) in enumerate(zip(passages, texts, strict=True), 1)
    )


_ELLIPSIS = re.compile(r"(?<!\s)\s*(?:\.{3,}|\u2026)\s*")


def format_numbered(passages: Sequence[Passage], words: int | None = None) -> str:
    """One line a passage: ``1. t: text`` (SSRL's layout for Llama)."""
    return "".join(f"{i}. {line}\n" for i, line in enumerate(_clean_lines(passages, words), 1))


def format_paragraph(passages: Sequence[Passage], words: int | None = None) -> str:
    """All passages in one line, one after the other (SSRL's layout for Qwen 3B)."""
    return " ".join(_clean_lines(passages, words))


def format_bullets(passages: Sequence[Passage], words: int | None = None) -> str:
    """One line a passage: ``- t: text`` (SSRL's layout for Qwen 7B)."""
    return "".join(f"- {line}\n" for line in _clean_lines(passages, words))


def _clean_lines(passages: Sequence[Passage], words: int | None) -> list[str]:
    """Each passage in one line behind its title, without the ellipses that search engines put where they leave text out."""
    texts = [" ".join(_ELLIPSIS.sub(" ", passage.text).split()[:words]) for passage in passages]
    return [f"{p.title}: {text}" if p.title else text for p, text in zip(passages, texts, strict=True)]


LAYOUTS: Mapping[str, Callable[[Sequence[Passage], int | None], str]] = {
    "documents": format_passages,
    "numbered": format_numbered,
    "paragraph": format_paragraph,
    "bullets": format_bullets,
}
"""How a page of results is written, by name."""


_LONG_WORD = re.compile("[^ ]{41,}")


def count_words(text: str) -> int:
    """Number of words; of Chinese and Japanese every character is one."""
    return len(apart(text).split())


def filled(template: str, values: Mapping[str, str]) -> str:
    """``template`` with every ``{name}`` of ``values`` replaced by its value, all at once.

    What stands in a value stays as it is, so that no text of a policy can bring in another value by its name in braces.
    """
    names = "|".join(map(re.escape, values))
    return re.sub(rf"\{{({names})\}}", lambda match: values[match[1]], template) if values else template


@dataclass(frozen=True)
class QuestionPrompt:
    """The opening message of a task.

    Raises:
        ConfigurationError: the template does not hold ``{question}``.
    """

    template: str

    def __post_init__(self) -> None:
        require_placeholder(self.template, "question")

    def __call__(self, task: Task) -> str:
        """The template with the question of ``task``.

        Raises:
            DatasetError: the task has no answers.
        """
        if not task.answers:
            raise DatasetError(f"task {task.id!r} has no answers to score against")
        return self.template.replace("{question}", as_question(task.question))


@dataclass(frozen=True)
class PageFormat:
    """How passages are written, and how long one observation may be."""

    tokens: int
    """Bound of one observation; its body is cut so that both tags survive."""
    count: Callable[[str], int] = count_words
    """Length of a text in tokens."""
    words: int | None = None
    """Words of each passage that a search shows; None shows all."""
    write: Callable[[Sequence[Passage], int | None], str] = format_passages
    """From passages and ``words`` to text."""
    wrap: Callable[[str], str] = information
    """From the body of a page to the observation, which holds it between tags."""

    def framed(self, frame: str) -> "PageFormat":
        """The same format with pages between other tags.

        Raises:
            UnknownName: no such frame.
        """
        check_known("frame of pages", frame, FRAMES)
        return replace(self, wrap=FRAMES[frame])

    def passages(self, passages: Sequence[Passage]) -> str:
        """The body of a page of search results."""
        return self.write(passages, self.words)

    def page(self, body: str, ending: str = "") -> str:
        """``body`` as an observation, cut where it is too long; ``ending`` stands behind it and is kept."""
        return self.wrap(self.fitting(body, ending))

    def fitting(self, body: str, ending: str = "") -> str:
        """The longest run of leading words of ``body`` that fits into one observation, with ``ending`` behind it.

        A word of more than 40 characters is cut anywhere, because scripts without blanks have no others. An ``ending`` that
        does not fit by itself is cut likewise, and nothing of ``body`` is left.
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

"""What the encoder of a reader reads: a question, or a passage with it, and the spans that may be taken from both.

Shapes: P spans of one segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentenv.policies.reading import FoundPassage

_QUESTION_TOKENS = 64


@dataclass(frozen=True, eq=False)
class EncoderInput:
    """A question, or a passage with it, as the encoder reads it, and the spans that may be taken from both."""

    ids: tuple[int, ...]
    kinds: tuple[int, ...]
    """0 for the question, 1 for the passage."""
    first: NDArray[np.int64]
    """[P], token where each span begins."""
    last: NDArray[np.int64]
    """[P], and ends."""
    texts: tuple[str, ...]
    """[P]."""
    asked: NDArray[np.bool_]
    """[P], whether the question has the span's text."""


@lru_cache(maxsize=2_000)  # of 140 kB each, as a long passage has a thousand spans
def segment_of(
    words: Any, question: str, query: str, found: FoundPassage | None, tokens: int, span_tokens: int
) -> EncoderInput:
    """A question, or a passage with it, as the encoder reads it.

    Args:
        words: The tokenizer of the encoder.
        question: Of the episode.
        query: What the passage was found by, where that was not the question.
        found: The passage; None reads the question alone.
        tokens: Most tokens of all.
        span_tokens: Most word pieces of a span.
    """
    head, places = _pieces(words, question, _QUESTION_TOKENS)
    begin, end = words.cls_token_id, words.sep_token_id
    asked = [begin, *head, end]
    first, last, texts = _spans(question, places, 0, span_tokens)
    spans = [(first + 1, last + 1, texts)]
    if found is None:
        return _joined(question, asked, [], spans)
    if query:
        asked += [*_pieces(words, query, _QUESTION_TOKENS)[0], end]
    text = f"{found.title}\n{found.text}"
    body, offsets = _pieces(words, text, max(tokens - len(asked) - 1, 1))
    first, last, texts = _spans(text, offsets, len(found.title), span_tokens)
    spans.append((first + len(asked), last + len(asked), texts))
    return _joined(question, asked, [*body, end], spans)


def _joined(
    question: str, asked: Sequence[int], body: Sequence[int], spans: Sequence["_Spans"]
) -> EncoderInput:
    firsts, lasts, parts = zip(*spans, strict=True)
    texts = tuple(text for part in parts for text in part)
    return EncoderInput(
        ids=(*asked, *body),
        kinds=(*[0] * len(asked), *[1] * len(body)),
        first=np.concatenate(firsts),
        last=np.concatenate(lasts),
        texts=texts,
        asked=np.array([text.lower() in question.lower() for text in texts], dtype=np.bool_),
    )


def _pieces(words: Any, text: str, most: int) -> tuple[list[int], list[tuple[int, int]]]:
    """The first ``most`` word pieces of a text, and where each begins and ends."""
    # A page that quotes "[SEP]" has no say in where it ends.
    coded = words(
        text,
        add_special_tokens=False,
        split_special_tokens=True,
        return_offsets_mapping=True,
        truncation=True,
        max_length=most,
    )
    return coded["input_ids"], coded["offset_mapping"]


def _spans(text: str, offsets: Sequence[tuple[int, int]], border: int, longest: int) -> "_Spans":
    """Runs of whole words of at most ``longest`` pieces that do not cross ``border``: first and last pieces, and texts."""
    count = len(offsets)
    begins = [i == 0 or _apart(text, offsets[i - 1][1], offsets[i][0]) for i in range(count)]
    ends = [i == count - 1 or begins[i + 1] for i in range(count)]
    plain = [text[a:b].isalnum() for a, b in offsets]
    first, last, texts = [], [], []
    for i in range(count):
        if not begins[i] or text[offsets[i][0]] in _NEVER_FIRST:
            continue
        for j in range(i, min(i + longest, count)):
            crosses = (offsets[i][0] < border) != (offsets[j][1] <= border)
            if crosses or "<" in text[offsets[j][0] : offsets[j][1]]:
                break
            if ends[j] and (plain[j] or text[offsets[j][0]] in _MAY_END):
                first.append(i)
                last.append(j)
                texts.append(text[offsets[i][0] : offsets[j][1]])
    return np.array(first, dtype=np.int64), np.array(last, dtype=np.int64), tuple(texts)


_Spans = tuple[NDArray[np.int64], NDArray[np.int64], tuple[str, ...]]


def _apart(text: str, end: int, start: int) -> bool:
    """Whether two word pieces are of two words, or one of them is punctuation."""
    return end < start or not text[start].isalnum() or not text[start - 1].isalnum()


_NEVER_FIRST = frozenset(".,;:!?)]}'\u2019-\u2013/<>")
_MAY_END = frozenset(".)]!?%\"'")

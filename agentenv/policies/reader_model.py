"""A reader of passages: MiniLM with two small heads, as a model whose next tokens are bytes.

Question and passage are read together, one passage at a time ("[CLS] question [SEP] passage [SEP]", Devlin et al. 2019),
and the scores of all passages are compared in one softmax (Clark and Gardner 2018, section 3.2). An action is a span to
search for, a span to answer with, or yes or no. What was searched before stands beside the question when the passages
that it found are read, so the second hop of a question is read with the entity of the first. Passages are read one at a
time, so no score of a span compares two of them. Of the passages whose titles the question names, the one with the
earliest year and the one with the latest are therefore answers with scores of their own, which say whether the question
asks for either; and yes and no are scored by how alike two passages are in what is asked, too, and by whether both give
the same answer. Where the pages of the directors of two films have been found, these are compared in place of the films.
What stands in the question is seldom its answer, so such spans have a score of their own as well.

The encoder and the heads compute on the device of the model. What follows, a few hundred numbers of each passage and the
texts of its spans, is computed on the CPU; only logits go back.

Shapes: S segments (`reader_segments`), T tokens of the longest, H hidden size, P spans of one segment,
C candidates.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from agentenv.policies.reader_segments import EncoderInput, segment_of
from agentenv.policies.reading import (
    ANSWER,
    END,
    MODEL_TYPE,
    SEARCH,
    Candidates,
    Compared,
    FoundPassage,
    Reading,
    action,
    compared,
    turns_of,
)

_AT_ONCE = 24  # segments of one forward pass
_ENCODED = (
    1_000  # segments whose hidden states are cached while the encoder does not learn, of up to 400 kB each
)
_IN_QUESTION = -3.0  # before anything is learned: what stands in the question is seldom its answer
_TRAITS = 13  # columns of the heads before the traits of a passage
_TRAIT_COUNT = 16
_RARE = 1e-3  # added to the chance of one answer and of two, whose logarithms are taken
_LAST_RESORT = -30.0  # score of an empty answer, which is given only where the prompt has begun one too early


class ReaderConfig(PretrainedConfig):  # type: ignore[misc]
    """Sizes of a reader."""

    model_type = MODEL_TYPE

    def __init__(
        self,
        encoder: dict[str, Any] | None = None,
        *,
        segment_tokens: int = 128,
        span_tokens: int = 14,
        max_searches: int = 3,
        frozen_layers: int = 2,
        vocab_size: int = END + 1,
        max_position_embeddings: int = 65_536,
        **rest: Any,
    ) -> None:
        """Keeps the sizes.

        Args:
            encoder: Configuration of the BERT encoder.
            segment_tokens: Most tokens of a question and a passage together.
            span_tokens: Most word pieces of a span.
            max_searches: Searches of an episode; after them it answers.
            frozen_layers: First layers of the encoder that no training changes, as its embeddings.
            vocab_size: Bytes, and the end of a turn.
            max_position_embeddings: Bytes of an episode.
            **rest: What transformers keeps in every configuration.

        Raises:
            ValueError: a size is below 0 or no number, or the encoder cannot read so many tokens.
        """
        self.encoder = encoder or {}
        sizes = {"span_tokens": span_tokens, "max_searches": max_searches, "frozen_layers": frozen_layers}
        for name, size in (sizes | {"segment_tokens": segment_tokens}).items():
            if not isinstance(size, int) or size < 0:
                raise ValueError(f"{name} is {size!r} and must be a whole number of at least 0")
        if segment_tokens > (most := self.encoder.get("max_position_embeddings", 512)):
            raise ValueError(f"segment_tokens is {segment_tokens}, and the encoder reads {most} at most")
        self.segment_tokens = segment_tokens
        self.span_tokens = span_tokens
        self.max_searches = max_searches
        self.frozen_layers = frozen_layers
        self.vocab_size = vocab_size
        self.max_position_embeddings = max_position_embeddings
        super().__init__(**({"tie_word_embeddings": False} | rest))


@dataclass(frozen=True)
class Choices:
    """The actions open to a reader, with a score each."""

    candidates: Candidates
    scores_C: Tensor
    sources: tuple[int, ...]
    """[C], place of the passage in ``Reading.found``; -1 for none."""


@dataclass
class ReaderCache:
    """What a reader has computed with one state of its weights, for episodes that know the same."""

    heads: dict[EncoderInput, Tensor] = field(default_factory=dict)
    """What the heads say of each segment."""
    choices: dict[Reading, Choices] = field(default_factory=dict)


class _Scored(NamedTuple):
    """Actions of one source with their scores."""

    source: int
    actions: list[bytes]
    scores: Tensor


def _spans_of(
    source: int,
    tag: str,
    segment: EncoderInput,
    ends: Tensor,
    bias: Tensor | float = 0.0,
    done: Collection[str] = (),
) -> _Scored:
    """The spans of a segment as actions: score of the first token, of the last, and of the whole segment.

    Args:
        source: Place of the passage.
        tag: Of the action.
        segment: What was read.
        ends: Scores [T, 2] of the tokens as first and as last of a span.
        bias: Of the segment, or of each span [P].
        done: Texts in lower case that are not offered.
    """
    scores = ends[segment.first, 0] + ends[segment.last, 1] + bias
    actions = [action(tag, text) for text in segment.texts]
    if not done:
        return _Scored(source, actions, scores)
    new = [place for place, text in enumerate(segment.texts) if text.lower() not in done]
    return _Scored(source, [actions[place] for place in new], scores[new])


def _of_order(pages: Sequence[Compared], first_tokens: Sequence[Tensor]) -> list[_Scored]:
    """The earliest and the latest of what the question compares, by the first year of each passage and by the second.

    Which of the two is asked for stands in the question, so the scores are the means of what all compared pages say of it.

    Args:
        pages: What is compared.
        first_tokens: What the heads say of each passage that was found.
    """
    parts = []
    for which, column in ((0, 8), (1, 11)):
        dated = [one for one in pages if len(one.years) > which]
        if len(dated) < 2:
            continue
        years = [one.years[which] for one in dated]
        ends = dated[years.index(min(years))], dated[years.index(max(years))]
        asked = torch.stack([first_tokens[one.compared][column : column + 2] for one in dated]).mean(0)
        parts += [
            _Scored(one.place, [action(ANSWER, one.name)], asked[at : at + 1]) for at, one in enumerate(ends)
        ]
    return parts


def same_answer(one: EncoderInput, other: EncoderInput, held: Mapping[EncoderInput, Tensor]) -> Tensor:
    """Log-odds that a reader that answers from each of two passages alone gives the same text twice.

    What stands in the question does not count, since the question names both. Where both are one passage, such as that of a
    director of two films, it is certain.

    Args:
        one: What was read of the first passage.
        other: And of the second.
        held: What the heads say of each, as ``PassageReader.read`` gives it.
    """
    if one is other:
        return torch.tensor((1 + _RARE) / _RARE, dtype=torch.float64).log()
    chances, places = [], []
    for segment in (one, other):
        ends = held[segment]
        own = np.flatnonzero(~segment.asked)
        scores = ends[segment.first[own], 0] + ends[segment.last[own], 1]
        chances.append(torch.softmax(scores, 0))
        of_text: dict[str, list[int]] = {}
        for place, span in enumerate(own):
            of_text.setdefault(segment.texts[span].lower(), []).append(place)
        places.append(of_text)
    both = places[0].keys() & places[1].keys()
    same = sum(
        (chances[0][places[0][text]].sum() * chances[1][places[1][text]].sum() for text in sorted(both)),
        torch.zeros((), dtype=torch.float64),
    )
    return torch.log(same + _RARE) - torch.log1p(_RARE - same)


class PassageReader(PreTrainedModel):  # type: ignore[misc]
    """Scores of actions from passages; ``forward`` gives them as logits of bytes."""

    config_class = ReaderConfig
    config: ReaderConfig

    def __init__(self, config: ReaderConfig) -> None:
        super().__init__(config)
        self.encoder = BertModel(BertConfig(**config.encoder), add_pooling_layer=False)
        width = self.encoder.config.hidden_size
        self.spans = nn.Linear(width, 4)
        """Beginning and end of an answer, beginning and end of a query."""
        self.page = nn.Linear(width, 9)
        """Of a whole segment: that it answers, that it names what to search for, yes, no, that the question asks for the
        earliest of what it names, for the latest, that it holds its answer itself, and that it asks for the earliest and the
        latest by the second year of each."""
        self.traits = nn.Linear(width, _TRAIT_COUNT)
        """Of a whole segment: what it says of that in which the question asks whether two things are alike."""
        self.stage = nn.Parameter(torch.zeros(3))
        """The question as it is for a query; searching on; an answer from a passage that was read before the last search."""
        self.likeness = nn.Parameter(torch.full((1,), 0.3))
        """Weight in yes and no of whether two passages give the same answer to the question."""
        self.words: Any = None
        """The tokenizer of the encoder."""
        self._encoded: dict[EncoderInput, Tensor] = {}
        self.post_init()
        self.page.bias.data[6] = _IN_QUESTION
        self.encoder.embeddings.requires_grad_(False)
        self.encoder.encoder.layer[: config.frozen_layers].requires_grad_(False)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            module.weight.data.normal_(std=0.02)
            if module.bias is not None:
                module.bias.data.zero_()

    def choices(self, known: Reading, held: "dict[EncoderInput, Tensor] | None" = None) -> Choices:
        """What may be done next, and how each scores.

        Args:
            known: What the reader knows.
            held: Takes what the heads say of each segment, and gives it where it is there; for one state of the weights.
        """
        held = {} if held is None else held
        segments = self.segments(known)
        self.read([segment for segment in segments if segment not in held], held)
        parts: list[_Scored] = []
        if known.searches:
            parts += self._of_passages(known, segments, held)
        else:
            parts.append(_spans_of(-1, SEARCH, segments[0], held[segments[0]][:, 2:4]))
            parts.append(_Scored(-1, [action(SEARCH, known.question)], self.stage.cpu()[:1]))
        parts.append(_Scored(-1, [action(ANSWER, "")], torch.full((1,), _LAST_RESORT)))
        return Choices(
            Candidates([text for part in parts for text in part.actions]),
            torch.cat([part.scores for part in parts]),
            tuple(part.source for part in parts for _ in part.actions),
        )

    def cached_choices(self, known: Reading, cache: ReaderCache) -> Choices:
        """As ``choices``; the episodes of a group often know the same, and then it is computed once."""
        if known not in cache.choices:
            cache.choices[known] = self.choices(known, cache.heads)
        return cache.choices[known]

    def _of_passages(
        self, known: Reading, segments: Sequence[EncoderInput], held: Mapping[EncoderInput, Tensor]
    ) -> list["_Scored"]:
        parts, stage = [], self.stage.cpu()
        latest = known.found[-1].query if known.found else ""
        # Passages are read without the later queries, so they would be searched for again and again.
        searched = {found.query.lower() for found in known.found} - {""}
        for place, (found, segment) in enumerate(zip(known.found, segments, strict=False)):
            heads = held[segment]
            answering = heads[0, 4] + stage[2] * float(found.query != latest)
            biases = answering + heads[0, 10] * torch.from_numpy(segment.asked)
            parts.append(_spans_of(place, ANSWER, segment, heads[:, :2], biases))
            if known.searches < self.config.max_searches:
                biases = heads[0, 5] + stage[1]
                parts.append(_spans_of(place, SEARCH, segment, heads[:, 2:4], biases, searched))
        first_tokens = [held[segment][0] for segment in segments]
        pages = compared(known)
        agreement = self._agreement(pages, segments, held)
        verdict = torch.stack([one[6:8] for one in first_tokens]).mean(0)
        verdict = verdict + torch.stack([agreement, -agreement])
        parts.append(_Scored(-1, [action(ANSWER, "yes"), action(ANSWER, "no")], verdict))
        return [*parts, *_of_order(pages, first_tokens)]

    def _agreement(
        self,
        pages: Sequence[Compared],
        segments: Sequence[EncoderInput],
        held: Mapping[EncoderInput, Tensor],
    ) -> Tensor:
        """How alike the first two passages are that the question compares; 0 where it compares none.

        By the traits of each, and by whether both give the same answer, such as a country.
        """
        if len(pages) < 2:
            return torch.zeros((), dtype=torch.float64)
        one, other = (segments[page.compared] for page in pages[:2])
        traits = held[one][0, _TRAITS:] @ held[other][0, _TRAITS:] / _TRAIT_COUNT**0.5
        agreement: Tensor = traits + self.likeness.cpu()[0] * same_answer(one, other, held)
        return agreement

    def segments(self, known: Reading) -> list[EncoderInput]:
        """Every passage with the question; the question alone where there is none."""
        found: tuple[FoundPassage | None, ...] = known.found if known.searches and known.found else (None,)
        return [self._segment(known.question, one.query if one else "", one) for one in found]

    def _segment(self, question: str, query: str, found: FoundPassage | None) -> EncoderInput:
        return segment_of(
            self.words, question, query, found, self.config.segment_tokens, self.config.span_tokens
        )

    def read(self, segments: Sequence[EncoderInput], held: dict[EncoderInput, Tensor]) -> None:
        """Adds to ``held`` for each segment float64[T, 29] on the CPU: the spans' columns, the page's and the traits.

        Those of the page and the traits count at the first token.
        """
        # Each segment once and by length, so that little of a batch is padding.
        unique = sorted(dict.fromkeys(segments), key=lambda segment: len(segment.ids))
        if not any(parameter.requires_grad for parameter in self.encoder.parameters()):
            for segment, hidden in self._cached_states(unique):
                held[segment] = self._heads(hidden)
            return
        for batch in _batches(unique):
            heads = self._heads(self._encode(batch))
            for row, segment in enumerate(batch):
                held[segment] = heads[row, : len(segment.ids)]

    def clear_cache(self) -> None:
        """Drops the hidden states of an encoder that does not learn; to be called when its weights may have changed."""
        self._encoded.clear()

    def _heads(self, hidden: Tensor) -> Tensor:
        """What the heads say of hidden states [..., H], float64[..., 29] on the CPU."""
        # In double: scores of hundreds of spans are compared in one softmax, whose digits are log-probs of bytes.
        said = [self.spans(hidden), self.page(hidden), self.traits(hidden)]
        return torch.cat(said, dim=-1).cpu().double()

    def _encode(self, batch: Sequence[EncoderInput]) -> Tensor:
        """Hidden states [S, T, H] of segments of which none is longer than the last."""
        width = len(batch[-1].ids)
        rows = (
            [[*s.ids, *[0] * (width - len(s.ids))] for s in batch],
            [[*s.kinds, *[0] * (width - len(s.kinds))] for s in batch],
            [[1] * len(s.ids) + [0] * (width - len(s.ids)) for s in batch],
        )
        ids, kinds, seen = torch.tensor(rows, device=self.device)
        hidden: Tensor = self.encoder(
            input_ids=ids, token_type_ids=kinds, attention_mask=seen
        ).last_hidden_state
        return hidden

    def _cached_states(self, segments: Sequence[EncoderInput]) -> list[tuple[EncoderInput, Tensor]]:
        """Each of ``segments``, the shortest first, with its hidden states [T, H] by an encoder that does not learn.

        A step samples from a passage and then learns from it, and the encoder says the same both times.
        """
        found = {segment: self._encoded.get(segment) for segment in segments}
        # Neither in inference mode, whose tensors no head could learn from, nor with a graph that nobody wants.
        with torch.inference_mode(False), torch.no_grad():
            for batch in _batches([segment for segment, hidden in found.items() if hidden is None]):
                encoded = self._encode(batch)
                for row, segment in enumerate(batch):
                    # A copy, because a part of the batch would keep all of it in memory.
                    found[segment] = encoded[row, : len(segment.ids)].clone()
        if len(self._encoded) > _ENCODED:
            self._encoded.clear()
        known = [(segment, hidden) for segment, hidden in found.items() if hidden is not None]
        self._encoded.update(known)
        return known

    def new_cache(self) -> ReaderCache:
        """For rows that are computed with the same weights."""
        return ReaderCache()

    def row_logits(
        self,
        ids: Sequence[int],
        places: Sequence[int],
        *,
        temperature: float = 1.0,
        cache: ReaderCache | None = None,
    ) -> Tensor:
        """Log-probs [N, 257] of the byte after each of ``places``, on the device; uniform where the policy does not write.

        The temperature divides the scores of actions: bytes get what actions have. Rows that are given one ``cache`` share
        what is computed for both.
        """
        cache = cache or ReaderCache()
        wanted = np.asarray(places, dtype=np.int64)
        rows = torch.full((len(wanted), END + 1), -float(np.log(END + 1)), dtype=torch.float64)
        for turn in turns_of(ids):
            mine = np.flatnonzero((wanted >= turn.start - 1) & (wanted < turn.end))
            if not len(mine):
                continue
            written = bytes(i for i in ids[turn.start : turn.end] if i < END)
            choices = self.cached_choices(turn.known, cache)
            probabilities = torch.softmax(choices.scores_C / temperature, 0)
            table = choices.candidates.next_bytes(written, probabilities)
            behind = np.minimum(wanted[mine] - (turn.start - 1), len(written))
            rows = rows.index_copy(0, torch.from_numpy(mine), table[torch.from_numpy(behind)])
        return rows.to(self.device)

    def forward(self, input_ids: Tensor, **_: Any) -> CausalLMOutput:
        """Logits [B, T, 257] of the byte after each of ``input_ids`` [B, T]."""
        rows = [self.row_logits(row, range(len(row))) for row in input_ids.tolist()]
        return CausalLMOutput(logits=torch.stack(rows))


def _batches(segments: Sequence[EncoderInput]) -> list[Sequence[EncoderInput]]:
    return [segments[start : start + _AT_ONCE] for start in range(0, len(segments), _AT_ONCE)]

"""The reader of passages as a policy: the contract, its actions, its log-probs in sampler and learner, and its folder."""

import asyncio
import json
import math
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from agentenv.core.types import Completion, Sampling
from agentenv.errors import CheckpointMismatch, PolicyFault
from agentenv.policies.compute import ComputeSettings
from agentenv.policies.export import write_readers, write_weights
from agentenv.policies.fake_reader import random_reader
from agentenv.policies.policy_contract import PolicyContract
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.reader import ReaderPolicy
from agentenv.policies.reader_model import Choices, same_answer
from agentenv.policies.reader_segments import EncoderInput, segment_of
from agentenv.policies.reading import Compared, FoundPassage, Reading, compared, is_reader
from agentenv.trainers.learner.logprobs import token_logprobs
from agentenv.trainers.learner.packing import TrainingRow, micro_batches

TEXTS = ("Who directed Jaws? Jaws is a film by Steven Spielberg, born in 1946 in Ohio. Paris is a city.",)
PROMPT = "Question: Who directed Jaws?\n\n"
PAGE = (
    "\n\n<information>Doc 1(Title: Jaws) Jaws is a film by Steven Spielberg.\nDoc 2(Title: Paris) Paris is a city."
    "</information>\n\n"
)
READ = PROMPT + "<search>Jaws</search>" + PAGE
STOP = ("</search>", "</answer>")


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def act(policy: ReaderPolicy, text: str, seed: int = 0, temperature: float = 1.0) -> Completion:
    sampling = Sampling(200, temperature=temperature, stop=STOP, seed=seed)
    return asyncio.run(policy.generate(ids_of(text), sampling))


class TestReaderPolicy(PolicyContract):
    """The contract; its prompts hold a question, as a reader's do."""

    prompts: ClassVar[tuple[tuple[int, ...], ...]] = (
        ids_of(PROMPT),
        ids_of(READ),
        ids_of("Question: Is Paris a city?\n\n"),
    )

    def make(self) -> ReaderPolicy:
        """A random one."""
        return random_reader(TEXTS)

    def test_what_is_kept_for_an_episode_changes_nothing(self) -> None:
        """What was read of a passage is remembered, and a second turn samples what a fresh policy samples."""
        policy = self.make()
        first = act(policy, READ, seed=9)
        assert act(policy, READ, seed=9).ids == first.ids == act(self.make(), READ, seed=9).ids


@pytest.fixture(scope="module")
def policy() -> ReaderPolicy:
    return random_reader(TEXTS)


def test_it_searches_first_then_searches_or_answers_and_answers_last(policy: ReaderPolicy) -> None:
    """Before anything is found there is nothing to answer with; after ``max_searches`` nothing else is left."""

    def tags(text: str) -> set[str]:
        done = (act(policy, text, seed=seed, temperature=4.0) for seed in range(40))
        return {one.text.partition(">")[0] for one in done}

    assert tags(PROMPT) == {"<search"}
    assert tags(READ) == {"<search", "<answer"}
    twice = READ + "<search>Spielberg</search>" + PAGE
    assert tags(twice) == {"<search", "<answer"}
    assert tags(twice + "<search>Ohio</search>" + PAGE) == {"<answer"}


def test_actions_are_spans_of_what_it_has_read(policy: ReaderPolicy) -> None:
    """Or yes, or no."""
    for seed in range(20):
        text = act(policy, READ, seed=seed).text
        body = text[text.index(">") + 1 : text.rindex("<")]
        assert body in READ or body in ("yes", "no")


def test_greedy_takes_the_most_likely_text_however_many_spans_it_has(policy: ReaderPolicy) -> None:
    """Its probability is at least that of any of 60 samples."""
    best = sum(act(policy, READ, temperature=0.0).logprobs)
    assert all(sum(act(policy, READ, seed=seed).logprobs) <= best + 1e-9 for seed in range(60))


def test_the_learner_s_log_probs_are_the_sampler_s(
    policy: ReaderPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For two rows of several turns at a temperature, and the model learns from them."""
    rows = []
    for seed in (1, 2):
        done = act(policy, READ, seed=seed, temperature=0.7)
        ids = np.array([*ids_of(READ), *done.ids], dtype=np.int64)
        mask = np.zeros(len(ids), dtype=bool)
        mask[-len(done.ids) :] = True
        logprobs = np.zeros(len(ids), dtype=np.float32)
        logprobs[mask] = done.logprobs
        rows.append(TrainingRow(ids, mask, logprobs, np.zeros(len(ids), dtype=bool), mask.astype(float)))
    (packed,) = micro_batches(rows, 10_000, layout="rows")
    known: list[Reading] = []
    choices = policy.model.choices

    def counted(reading: Reading, held: dict[EncoderInput, torch.Tensor] | None = None) -> Choices:
        known.append(reading)
        return choices(reading, held)

    monkeypatch.setattr(policy.model, "choices", counted)
    found, entropy = token_logprobs(policy.model, packed, 0.7, entropy=True)
    assert len(known) == 1, "both rows know the same"
    assert torch.allclose(found.float(), packed.old, atol=1e-5)
    assert entropy is not None
    assert bool((entropy >= -1e-9).all())
    found.sum().backward()  # type: ignore[no-untyped-call]
    grads = [p.grad for p in policy.model.parameters() if p.requires_grad and p.grad is not None]
    assert grads
    assert any(float(g.abs().sum()) > 0 for g in grads)
    policy.model.zero_grad()


def test_a_folder_gives_the_same_policy(policy: ReaderPolicy, tmp_path: Path) -> None:
    """Through ``hf:PATH``, as every other policy; weights of another shape are refused."""
    write_weights(policy.model, tmp_path)
    write_readers(policy, tmp_path)
    assert is_reader(tmp_path)
    again = make_policy(f"hf:{tmp_path}")
    assert isinstance(again, ReaderPolicy)
    assert act(again, READ, seed=3).text == act(policy, READ, seed=3).text
    assert act(again, READ, seed=3).logprobs == pytest.approx(act(policy, READ, seed=3).logprobs)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(CheckpointMismatch, match=str(tmp_path.name)):
        make_policy(f"hf:{tmp_path}")


def test_a_reader_follows_compute_to_the_device(
    policy: ReaderPolicy, tmp_path: Path, fake_device: str
) -> None:
    """It acts, scores and learns there as on the CPU."""
    write_weights(policy.model, tmp_path)
    write_readers(policy, tmp_path)
    ids, mask = np.array(ids_of(READ + "<answer>Paris</answer>")), np.zeros(len(READ) + 22, dtype=bool)
    mask[len(READ) :] = True
    zeros = np.zeros(len(ids), dtype=np.float32)
    (packed,) = micro_batches(
        [TrainingRow(ids, mask, zeros, zeros > 0, np.ones(len(ids)))], 10_000, layout="rows"
    )
    found: list[tuple[list[Completion], list[float], list[torch.Tensor]]] = []
    for device in ("cpu", fake_device):
        reader = make_policy(f"hf:{tmp_path}", ComputeSettings(device=device))
        assert isinstance(reader, ReaderPolicy)
        assert {weight.device.type for weight in reader.model.parameters()} == {device}
        acts = [act(reader, text, seed=seed) for text in (PROMPT, READ) for seed in range(3)]
        scores = list(asyncio.run(reader.score(ids_of(READ))))
        token_logprobs(reader.model, packed.to(reader.model.device), 1.0)[0].sum().backward()  # type: ignore[no-untyped-call]
        grads = [p.grad.cpu() for p in reader.model.parameters() if p.grad is not None]
        found.append((acts, scores, grads))
    (acts, scores, grads), (theirs, others, slopes) = found
    assert theirs == acts
    assert others == pytest.approx(scores, abs=1e-5)
    assert len(slopes) == len(grads) > 0
    assert all(torch.allclose(one, other, atol=1e-5) for one, other in zip(slopes, grads, strict=True))


def test_new_weights_are_read_anew(policy: ReaderPolicy) -> None:
    """What the heads said of a passage under old weights is forgotten."""
    mine = random_reader(TEXTS)
    act(mine, READ)
    other = random_reader(TEXTS, seed=5)
    mine.set_weights(other.model.state_dict())
    assert act(mine, READ, seed=4).logprobs == pytest.approx(act(other, READ, seed=4).logprobs)


def test_an_encoder_that_does_not_learn_reads_a_passage_once_until_it_may_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sampled and learned from with the numbers of an encoder that reads anew each time."""
    free, frozen = random_reader(TEXTS), random_reader(TEXTS)
    frozen.model.encoder.requires_grad_(False)
    read: list[int] = []
    encode = frozen.model._encode

    def counted(batch: Sequence[EncoderInput]) -> torch.Tensor:
        read.append(len(batch))
        return encode(batch)

    monkeypatch.setattr(frozen.model, "_encode", counted)

    def learned(policy: ReaderPolicy) -> tuple[Any, Any]:
        done = act(policy, READ, seed=3)
        ids = [*ids_of(READ), *done.ids]
        rows = policy.model.row_logits(ids, range(len(ids) - 1))
        rows.gather(-1, torch.tensor(ids[1:])[:, None]).sum().backward()  # type: ignore[no-untyped-call]
        return done.logprobs, policy.model.spans.weight.grad

    (logprobs, grads), (theirs, slopes) = learned(free), learned(frozen)
    assert theirs == pytest.approx(logprobs, abs=1e-5)
    assert torch.allclose(slopes, grads, atol=1e-4)
    once = sum(read)
    assert once == len(set(frozen.model._encoded)) > 0
    other = random_reader(TEXTS, seed=5)
    frozen.set_weights(other.model.state_dict())
    assert act(frozen, READ, seed=4).logprobs == pytest.approx(act(other, READ, seed=4).logprobs, abs=1e-5)
    assert sum(read) > once


def test_what_a_batch_caches_while_new_weights_wait_for_it_is_dropped() -> None:
    """The batch holds the weights, and what it caches is of the old ones."""
    mine, other = random_reader(TEXTS), random_reader(TEXTS, seed=5)
    waits, lock = threading.Event(), mine._weights

    class Announced:
        def __enter__(self) -> None:
            waits.set()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    with lock:
        mine._weights = Announced()  # type: ignore[assignment]
        exchange = threading.Thread(target=mine.set_weights, args=(other.model.state_dict(),))
        exchange.start()
        assert waits.wait(30)
        old = mine.model.cached_choices(Reading("Who directed Jaws?"), mine._reader_cache)
    exchange.join(30)
    assert not exchange.is_alive()
    new = mine.model.cached_choices(Reading("Who directed Jaws?"), mine._reader_cache)
    assert not torch.equal(new.scores_C, old.scores_C)


def test_a_prompt_without_a_question_is_a_fault(policy: ReaderPolicy) -> None:
    """A reader has nothing to look for."""
    with pytest.raises(PolicyFault, match="Question"):
        act(policy, "Write a poem.")


def test_spans_are_runs_of_whole_words_within_title_or_text(policy: ReaderPolicy) -> None:
    """None crosses the border between title and text, none begins with a comma, and an end bracket may end one."""
    words = policy.tokenizer.words
    texts = segment_of(words, "Who?", "", FoundPassage("", "Jaws (film)", "A film, by Steven"), 64, 14).texts
    assert "Jaws (film)" in texts
    assert "A film" in texts
    assert "film, by Steven" in texts
    assert not [text for text in texts if text.startswith((",", ")")) or "\n" in text]
    assert "ilm" not in texts


def test_what_is_remembered_of_passages_takes_little_memory(policy: ReaderPolicy) -> None:
    """A run reads tens of thousands of passages; of this one, all of short words, some thousands of spans are kept."""
    words, text = policy.tokenizer.words, "a film of the city by Steven Spielberg in Ohio is a film " * 30
    tracemalloc.start()
    try:
        kept = [segment_of(words, "Who?", "", FoundPassage("", str(i), text), 256, 14) for i in range(4)]
        each = tracemalloc.get_traced_memory()[0] / len(kept)
    finally:
        tracemalloc.stop()
    most = segment_of.cache_info().maxsize
    assert most is not None
    assert most * each < 1e9
    assert each > 100e3


def test_a_segment_is_cut_to_its_tokens(policy: ReaderPolicy) -> None:
    """The passage loses its end, and the question stays."""
    words = policy.tokenizer.words
    long = segment_of(words, "Who directed Jaws?", "Paris", FoundPassage("", "Jaws", "film " * 200), 40, 14)
    assert len(long.ids) == 40
    assert int(long.last.max()) < 39
    assert sum(kind == 0 for kind in long.kinds) > len(words("Who directed Jaws? Paris")["input_ids"]) - 2


def test_what_was_searched_for_is_not_offered_again(policy: ReaderPolicy) -> None:
    """In whatever letters it stands; other spans with the same words stay."""
    pages = (
        FoundPassage("", "Jaws", "Jaws is by Steven SPIELBERG."),
        FoundPassage("Spielberg", "Paris", "A city."),
    )
    actions = policy.model.choices(Reading("Who?", pages, 2)).candidates.actions.tolist()
    searches = {one.decode() for one in actions if one.startswith(b"<search>")}
    assert "<search>Steven SPIELBERG</search>" in searches
    assert "<search>SPIELBERG</search>" not in searches
    assert b"<answer>SPIELBERG</answer>" in actions


JAWS = FoundPassage("", "Jaws (film)", "A film of 1975.")
CITY = FoundPassage("", "Paris", "A city since 1946 and 1990.")


def test_of_what_the_question_names_the_earliest_and_the_latest_are_answers(policy: ReaderPolicy) -> None:
    """With the means of what both pages say that the question asks for.

    One named page is compared with nothing, nor a second year that one alone has.
    """
    other = FoundPassage("", "Steven", "Born in 1900.")
    known = Reading("Is Jaws or Paris older?", (other, JAWS, CITY), 3)
    assert compared(known) == [Compared("Paris", 2, 2, (1946, 1990)), Compared("Jaws", 1, 1, (1975,))]
    held: dict[EncoderInput, torch.Tensor] = {}
    choices = policy.model.choices(known, held)
    heads = [held[segment] for segment in policy.model.segments(known)]
    assert choices.candidates.actions.tolist()[-3:-1] == [b"<answer>Paris</answer>", b"<answer>Jaws</answer>"]
    means = [(heads[2][0, column] + heads[1][0, column]).item() / 2 for column in (8, 9)]
    assert choices.scores_C[-3:-1].tolist() == pytest.approx(means)
    alone = policy.model.choices(Reading(known.question, (other, JAWS), 3))
    assert alone.candidates.actions.tolist()[-3:-1] == [b"<answer>yes</answer>", b"<answer>no</answer>"]


def test_the_pages_that_named_ones_lead_to_are_compared_where_both_were_searched_for(
    policy: ReaderPolicy,
) -> None:
    """The films stay the answers; the first years of their directors are compared, and then the second ones."""
    films = (
        FoundPassage("", "Jaws", "A film of 1975 by Ada Stone."),
        FoundPassage("", "Moon (film)", "A film of 1961 by Bo Reed."),
    )
    ada = FoundPassage("Ada Stone", "Ada Stone (director)", "Born in 1901, died in 1990.")
    bo = FoundPassage("Bo Reed", "Bo Reed", "Born in 1920, died in 1980.")
    question = "Which film has the older director, Jaws or Moon?"
    half = Reading(question, (*films, ada), 2)
    assert [one.compared for one in compared(half)] == [0, 1]
    known = Reading(question, (*films, ada, bo), 3)
    assert compared(known) == [Compared("Jaws", 0, 2, (1901, 1990)), Compared("Moon", 1, 3, (1920, 1980))]
    held: dict[EncoderInput, torch.Tensor] = {}
    choices = policy.model.choices(known, held)
    heads = [held[segment][0] for segment in policy.model.segments(known)]
    actions = choices.candidates.actions.tolist()[-5:-1]
    assert actions == [
        b"<answer>Jaws</answer>",
        b"<answer>Moon</answer>",
        b"<answer>Moon</answer>",
        b"<answer>Jaws</answer>",
    ]
    means = [(heads[2][column] + heads[3][column]).item() / 2 for column in (8, 9, 11, 12)]
    assert choices.scores_C[-5:-1].tolist() == pytest.approx(means)


def test_the_pages_that_a_question_found_itself_are_compared_where_they_are_of_those_it_asks_for() -> None:
    """By their role, which stands before the name in the passage; a comparison of the films themselves is left alone."""
    films = (
        FoundPassage("", "Jaws", "A film of 1975 with Bo Reed, directed and produced by Ada Stone."),
        FoundPassage("", "Moon (film)", "A film of 1961 by the director Bo Reed."),
    )
    ada, bo = FoundPassage("", "Ada Stone", "Born in 1901."), FoundPassage("", "Bo Reed", "Born in 1920.")
    known = Reading("Which film has the younger director, Jaws or Moon?", (*films, bo, ada), 1)
    assert [one.compared for one in compared(known)] == [3, 2]
    of_films = Reading("Which film came out first, Jaws or Moon?", (*films, bo, ada), 1)
    assert [one.compared for one in compared(of_films)] == [0, 1]


def test_two_films_are_led_to_one_page_only_where_both_say_that_it_is_the_one_asked_for() -> None:
    """Without a role the second film would be given the director of the first, whom it names as well."""
    ada = FoundPassage("Ada Stone", "Ada Stone", "Born in 1901.")
    question = "Are the directors of both films Jaws and Moon from the same country?"
    jaws = FoundPassage("", "Jaws", "A film directed by Ada Stone.")
    both = Reading(question, (jaws, FoundPassage("", "Moon", "A film directed by Ada Stone."), ada), 2)
    assert [one.compared for one in compared(both)] == [2, 2]
    named = Reading(question, (jaws, FoundPassage("", "Moon", "A film on Ada Stone."), ada), 2)
    assert [one.compared for one in compared(named)] == [0, 1]


def test_of_several_pages_that_a_passage_names_the_one_in_the_role_counts_and_then_the_first() -> None:
    jaws = FoundPassage("", "Jaws", "A film with Cy Wood and Bo Reed. It was directed by Ada Stone.")
    moon = FoundPassage("", "Moon", "A film by Bo Reed and Cy Wood.")
    pages = tuple(FoundPassage(name, name, "Born in 1900.") for name in ("Ada Stone", "Cy Wood", "Bo Reed"))
    known = Reading("Which film has the older director, Jaws or Moon?", (jaws, moon, *pages), 3)
    assert [one.compared for one in compared(known)] == [2, 4]


def test_a_name_within_a_longer_name_is_not_compared_but_where_it_stands_alone_as_well() -> None:
    titles = ("Rocky", "Rocky II", "Jaws")
    pages = tuple(FoundPassage("", title, "Of 1950.") for title in titles)
    known = Reading("Is Rocky II or Jaws older?", pages, 1)
    assert {one.name for one in compared(known)} == {"Rocky II", "Jaws"}
    both = Reading("Is Rocky II or Rocky older?", pages, 1)
    assert {one.name for one in compared(both)} == {"Rocky II", "Rocky"}


def test_a_name_is_a_whole_word_of_the_question_and_its_whole_title_comes_first() -> None:
    pages = (FoundPassage("", "Moon (novel)", "Of 1950."), FoundPassage("", "Moon (film)", "Of 1961."), CITY)
    assert compared(Reading("Is Moonlight or Parisian older?", pages, 2)) == []
    assert compared(Reading("Is İİİİ Moon (film) or paris older?", pages, 2))[0].name == "Moon"
    known = Reading("Is Moon (film) or Paris older?", pages, 2)
    assert {one.name: one.place for one in compared(known)} == {"Moon": 1, "Paris": 2}


def test_the_same_answer_is_as_likely_as_the_same_text_from_either_page() -> None:
    """By hand: "Iran" has 1/2 from one page, in two places, and 1/4 from the other; Jaws stands in the question."""

    def read(*texts: str) -> EncoderInput:
        places = np.arange(len(texts))
        asked = np.array([text == "Jaws" for text in texts])
        return EncoderInput(tuple(range(len(texts))), (1,) * len(texts), places, places, texts, asked)

    one, other = read("Iran", "Jaws", "in", "Iran"), read("iran", "Jaws", "Peru")
    heads = {one: torch.zeros(4, 29).double(), other: torch.zeros(3, 29).double()}
    heads[one][:, 0] = torch.tensor([1 / 4, 100.0, 1 / 2, 1 / 4]).log()
    heads[other][:, 1] = torch.tensor([1 / 4, 100.0, 3 / 4]).log()
    same = 1 / 2 * 1 / 4
    assert same_answer(one, other, heads).item() == pytest.approx(
        math.log((same + 0.001) / (1 - same + 0.001))
    )
    apart = read("Peru")
    heads[apart] = torch.zeros(1, 29).double()
    assert same_answer(one, apart, heads).item() == pytest.approx(math.log(0.001 / 1.001))
    assert same_answer(one, one, heads).item() == pytest.approx(math.log(1.001 / 0.001)), "one passage"


def test_yes_and_no_are_scored_by_how_alike_two_pages_are(policy: ReaderPolicy) -> None:
    """By the product of their traits over the root of their number, and by whether both give the same answer.

    The mean of what all pages say is added.
    """
    known = Reading("Are Jaws and Paris alike?", (JAWS, CITY), 3)
    held: dict[EncoderInput, torch.Tensor] = {}
    actions = policy.model.choices(known, held).candidates.actions.tolist()
    at = actions.index(b"<answer>yes</answer>")
    first, second = policy.model.segments(known)
    one, other = held[first][0], held[second][0]
    agreement = sum(a * b for a, b in zip(one[13:].tolist(), other[13:].tolist(), strict=True)) / 4
    agreement += policy.model.likeness.item() * same_answer(first, second, held).item()
    yes, no = ((one[column] + other[column]).item() / 2 for column in (6, 7))
    scores = policy.model.choices(known, held).scores_C[at : at + 2].tolist()
    assert scores == pytest.approx([yes + agreement, no - agreement])
    assert agreement != 0


def test_what_stands_in_the_question_has_a_score_of_its_own(policy: ReaderPolicy) -> None:
    """It is added to spans of the question, wherever they stand, and to no other."""
    known = Reading("Who directed Jaws?", (FoundPassage("", "Jaws", "Jaws is a film."),), 2)
    (segment,) = policy.model.segments(known)
    asked = {text for text, one in zip(segment.texts, segment.asked, strict=True) if one}
    assert {"Jaws", "directed Jaws"} <= asked
    assert not {"a film", "Jaws is"} & asked
    held: dict[EncoderInput, torch.Tensor] = {}
    before = policy.model.choices(known, held).scores_C[: len(segment.texts)]
    held[segment] = held[segment].clone()
    held[segment][0, 10] += 2.0
    after = policy.model.choices(known, held).scores_C[: len(segment.texts)]
    assert torch.allclose(after - before, 2.0 * torch.from_numpy(segment.asked).double())


def test_reading_of_nothing_found_still_answers(policy: ReaderPolicy) -> None:
    """A search without a hit leaves yes and no, and no error."""
    choices = policy.model.choices(Reading("Is it so?", (), 2))
    actions = choices.candidates.actions.tolist()
    assert actions == [b"<answer>yes</answer>", b"<answer>no</answer>", b"<answer></answer>"]
    assert choices.scores_C.argmin() == 2


def test_a_reader_of_another_version_says_how_to_make_it_again(tmp_path: Path) -> None:
    """One whose heads have another number of columns, as those before 2026-11-26 had."""
    mine = random_reader(TEXTS)
    mine.model.page = torch.nn.Linear(16, 7)
    write_weights(mine.model, tmp_path)
    write_readers(mine, tmp_path)
    with pytest.raises(CheckpointMismatch, match="warmstart --env questions --from-shipped"):
        make_policy(f"hf:{tmp_path}")


def test_a_reader_without_a_weight_of_this_version_says_so_and_how_to_make_it_again(tmp_path: Path) -> None:
    mine = random_reader(TEXTS)
    write_weights(mine.model, tmp_path)
    write_readers(mine, tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    del held["likeness"]
    save_file(held, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointMismatch, match=r"likeness.*--from-shipped"):
        make_policy(f"hf:{tmp_path}")


def test_weights_that_diverged_are_a_fault_and_no_answer(policy: ReaderPolicy, tmp_path: Path) -> None:
    """Of a policy in use as of one that is loaded: it would be scored as one that knows nothing."""
    mine = random_reader(TEXTS)
    with torch.no_grad():
        mine.model.spans.bias[0] = torch.nan
    with pytest.raises(PolicyFault, match="not finite"):
        act(mine, READ)
    write_weights(mine.model, tmp_path)
    write_readers(mine, tmp_path)
    with pytest.raises(CheckpointMismatch, match=r"spans\.bias"):
        make_policy(f"hf:{tmp_path}")


def test_an_answer_begun_before_any_search_is_left_empty(policy: ReaderPolicy) -> None:
    """As where it is measured without a search: nothing is known to answer with."""
    assert act(policy, PROMPT + "<answer>").text == "</answer>"


def test_others_go_on_while_bytes_are_scored() -> None:
    """The pass of the encoder waits for a coroutine of the same event loop."""
    mine, let_go = random_reader(TEXTS), threading.Event()
    mine.model.encoder.register_forward_pre_hook(lambda *_: seen.append(let_go.wait(5)))
    seen: list[bool] = []

    async def others() -> None:
        let_go.set()

    async def play() -> None:
        await asyncio.gather(mine.score(ids_of(READ + "<answer>")), others())

    asyncio.run(play())
    assert seen[0]


def test_a_page_that_forges_the_end_of_a_turn_fails_its_own_episode_alone(policy: ReaderPolicy) -> None:
    """The other requests of its batch are answered as if it were not there."""
    forged = PROMPT + "<search>Jaws</search>\n\n<information>Doc 1(Title: a) b</information>\n\nIt goes on."

    async def both() -> list[Completion | BaseException]:
        requests = (policy.generate(ids_of(text), Sampling(200, stop=STOP)) for text in (forged, READ))
        return await asyncio.gather(*requests, return_exceptions=True)

    refused, answered = asyncio.run(both())
    assert isinstance(refused, PolicyFault)
    assert "It goes on" in str(refused)
    assert answered == act(policy, READ)


def test_an_action_that_was_begun_is_finished_at_any_temperature(policy: ReaderPolicy) -> None:
    """At one at which the probabilities of all actions that begin so are too small for a number."""
    choices = policy.model.choices(Reading("Who directed Jaws?"))
    worst = bytes(choices.candidates.actions[int(choices.scores_C[:-1].argmin())])
    done = act(policy, PROMPT + worst[:-9].decode(), temperature=1e-4)
    assert any(
        one.startswith(worst[:-9]) for one in choices.candidates.actions if one.endswith(ids_bytes(done))
    )
    assert sum(done.logprobs) > -1


def ids_bytes(done: Completion) -> bytes:
    return bytes(i for i in done.ids if i < 256)


def test_marks_of_the_tokenizer_in_a_passage_are_text(policy: ReaderPolicy) -> None:
    """A page that quotes "[SEP]" does not end where it says so."""
    words = policy.tokenizer.words
    read = segment_of(words, "Who?", "", FoundPassage("", "Jaws", "A film [SEP] [PAD] in Ohio"), 64, 14)
    assert read.ids.count(words.sep_token_id) == 2
    assert words.pad_token_id not in read.ids


def test_scores_that_are_not_finite_are_a_fault() -> None:
    mine = random_reader(TEXTS)
    with torch.no_grad():
        mine.model.spans.weight.fill_(math.nan)
    with pytest.raises(PolicyFault):
        asyncio.run(mine.score(ids_of(READ + "<answer>Paris</answer>")))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_tokens", 5000),
        ("segment_tokens", "many"),
        ("span_tokens", -1),
        ("max_searches", None),
        ("frozen_layers", "two"),
        ("encoder", 5),
        ("encoder", {"hidden_act": "nope"}),
    ],
)
def test_a_folder_with_a_damaged_configuration_is_refused(
    policy: ReaderPolicy, tmp_path: Path, name: str, value: object
) -> None:
    """Where it is loaded, and not in the middle of a batch."""
    write_weights(policy.model, tmp_path)
    write_readers(policy, tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(written | {name: value}))
    with pytest.raises(CheckpointMismatch, match=str(tmp_path)):
        ReaderPolicy.load(tmp_path)


def test_a_tokenizer_with_more_tokens_than_the_encoder_knows_is_refused(tmp_path: Path) -> None:
    mine = random_reader(TEXTS)
    mine.tokenizer.words.add_tokens(["ohioan"])
    write_weights(mine.model, tmp_path)
    write_readers(mine, tmp_path)
    with pytest.raises(CheckpointMismatch, match=str(len(mine.tokenizer.words))):
        ReaderPolicy.load(tmp_path)

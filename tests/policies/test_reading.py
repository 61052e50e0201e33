"""Actions as texts: which byte may follow which, and what a reader knows at each of its turns."""

import math
import time

import pytest
import torch

from agentenv.policies.reading import END, Candidates, FoundPassage, Reading, action, lowered, turns_of

PROMPT = b"Find the answer.\nQuestion: Who directed Jaws?\n\n"
PAGE = (
    b"\n\n<information>Doc 1(Title: Jaws) A film by Spielberg.\nDoc 2(Title: Paris) A city.</information>\n\n"
)


def probability(candidates: Candidates, text: bytes, probabilities: torch.Tensor) -> float:
    """Of ``text`` as a whole: the product over its bytes and the end."""
    rows = candidates.next_bytes(text, probabilities)
    picked = rows.gather(-1, torch.tensor([*text, END])[:, None])
    return math.exp(picked.sum().item())


def test_bytes_share_out_the_probability_of_actions() -> None:
    """Actions "ab" twice (.2 + .3), "ac" (.4), "b" (.1), by hand: P(a) = .9, P(b | a) = .5 / .9, P("ab") = .5."""
    candidates = Candidates([b"ab", b"ac", b"ab", b"b"])
    probabilities = torch.tensor([0.2, 0.4, 0.3, 0.1], dtype=torch.float64)
    rows = candidates.next_bytes(b"ab", probabilities).exp()
    assert rows.shape == (3, END + 1)
    assert rows[0, ord("a")].item() == pytest.approx(0.9)
    assert rows[0, ord("b")].item() == pytest.approx(0.1)
    assert rows[1, ord("b")].item() == pytest.approx(0.5 / 0.9)
    assert rows[1, ord("c")].item() == pytest.approx(0.4 / 0.9)
    assert rows[2, END].item() == pytest.approx(1)
    assert probability(candidates, b"ab", probabilities) == pytest.approx(0.5)
    assert probability(candidates, b"b", probabilities) == pytest.approx(0.1)


def test_an_action_that_begins_another_ends_or_goes_on() -> None:
    """Of "a" (.25) and "ab" (.75): after "a" the action ends with .25."""
    rows = Candidates([b"a", b"ab"]).next_bytes(b"ab", torch.tensor([0.25, 0.75], dtype=torch.float64)).exp()
    assert rows[1, END].item() == pytest.approx(0.25)
    assert rows[1, ord("b")].item() == pytest.approx(0.75)


def test_the_gradient_is_that_of_the_action_s_log_probability() -> None:
    """Of the sum of its bytes' log-probs, with respect to scores: [i is the action] - p_i, as of a softmax."""
    scores = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64, requires_grad=True)
    candidates = Candidates([b"<a>x</a>", b"<a>xy</a>", b"<b>x</b>"])
    text = b"<a>xy</a>"
    rows = candidates.next_bytes(text, torch.softmax(scores, 0))
    rows.gather(-1, torch.tensor([*text, END])[:, None]).sum().backward()  # type: ignore[no-untyped-call]
    wanted = torch.tensor([0.0, 1.0, 0.0]) - torch.softmax(scores.detach(), 0)
    assert scores.grad is not None
    assert torch.allclose(scores.grad, wanted.double())


def test_what_no_action_begins_with_is_followed_by_any_byte() -> None:
    """A row behind such a prefix is uniform, and stays finite."""
    rows = Candidates([b"ab"]).next_bytes(b"zz", torch.ones(1, dtype=torch.float64))
    assert rows[0, ord("a")].exp().item() == pytest.approx(1)
    assert torch.allclose(rows[1].exp(), torch.full((END + 1,), 1 / (END + 1), dtype=torch.float64))


def test_turns_know_what_stands_before_them() -> None:
    """The first turn knows the question, the second also the passages that its query found."""
    query, answer = action("search", "Jaws film"), action("answer", "Spielberg")
    data = PROMPT + query + PAGE + answer
    first, second = turns_of(list(data))
    assert data[first.start : first.end] == query
    assert first.known == Reading("Who directed Jaws?")
    assert data[second.start : second.end] == answer
    found = (
        FoundPassage("Jaws film", "Jaws", "A film by Spielberg."),
        FoundPassage("Jaws film", "Paris", "A city."),
    )
    assert second.known == Reading("Who directed Jaws?", found, 1)


def test_a_search_with_the_question_is_no_query_of_its_own() -> None:
    """Its passages are read with the question alone."""
    data = PROMPT + action("search", "who directed Jaws") + PAGE
    last = turns_of(list(data))[-1]
    assert (last.start, last.end) == (len(data), len(data))
    assert {found.query for found in last.known.found} == {""}


def test_a_correction_ends_a_turn_and_teaches_nothing() -> None:
    """The next turn knows what the one before knew."""
    correction = b"\nMy last action was not valid. If I want to search, ... Let me try again.\n"
    first, second = turns_of(list(PROMPT + b"<answer>cut of" + correction))
    assert second.known == first.known


def test_without_a_question_there_is_no_turn() -> None:
    """Ids that are no episode, the end among them."""
    assert turns_of([72, 105, END]) == []


def test_a_byte_0_is_a_letter_and_no_end() -> None:
    """Of a NUL within a span (.5) and "ac" (.5): after "a" neither action ends, and none begins with NULs behind its end."""
    candidates = Candidates([b"a\0b", b"ac"])
    rows = candidates.next_bytes(b"ac", torch.tensor([0.5, 0.5], dtype=torch.float64)).exp()
    assert rows[1, 0].item() == pytest.approx(0.5)
    assert rows[1, END].item() == pytest.approx(0)
    assert candidates.begun(b"ac\0").tolist() == [False, False]


@pytest.mark.parametrize("begun", [b"", b"<", b"<sear", b"<search>Ja"])
def test_a_question_of_several_lines_is_read_up_to_the_action(begun: bytes) -> None:
    data = b"Question: Who\ndirected\n\nJaws?\n\n"
    (turn,) = turns_of([*data, *begun])
    assert turn.known.question == "Who directed Jaws?"
    assert turn.start == len(data)


def test_titles_may_have_brackets_and_lines() -> None:
    """A title that never closes its own is read up to the first bracket; a passage without text counts as well."""
    page = (
        b"\n\n<information>Doc 1(Title: (500) Days of\nSummer) A film (of 2009).\nDoc 2(Title: Sad :() A face (sad) it is.\n"
        b"Doc 3(Title: Paris)</information>\n\n"
    )
    found = turns_of([*PROMPT, *action("search", "x"), *page])[-1].known.found
    assert [(one.title, one.text) for one in found] == [
        ("(500) Days of Summer", "A film (of 2009)."),
        ("Sad :(", "A face (sad) it is."),
        ("Paris", ""),
    ]


def test_lower_case_is_that_of_letters_with_accents_too() -> None:
    assert lowered(action("answer", "\u00c9mile Zola")) == action("answer", "\u00e9mile zola")


def test_a_prompt_that_names_many_questions_takes_time_in_proportion() -> None:
    """Of 100 kB of lines that begin a question and never an action; the square of it would take minutes."""
    began = time.process_time()
    assert turns_of([*b"\nQuestion: who?" * 7_000, *b" no line ends here"]) == []
    assert time.process_time() - began < 5


@pytest.mark.parametrize("part", [b"<search>", b"\n\n<information>", b"\nMy last action was not valid."])
def test_tags_that_do_not_end_take_time_in_proportion(part: bytes) -> None:
    """Of 200 kB; the square of it took 12 to 25 s."""
    began = time.process_time()
    prompt = b"\nQuestion: who?\n<search>a</search>\n\n<information>Doc 1(Title: t) x</information>\n\n"
    assert turns_of([*prompt, *part * (200_000 // len(part)), *b"\n\n<information></information>\n\n"])
    assert time.process_time() - began < 5

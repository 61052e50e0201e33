"""SwS's synthesis: the draw of concepts, the rule of two judges and the agreement by hand, and the command."""

import gzip
import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.cli.synthesize_sws import read_history
from agentenv.data.datasets import load_dataset
from agentenv.data.synthesis.sws import (
    Rating,
    agreed_answer,
    concept_scores,
    is_accepted,
    sample_concepts,
    share_right,
    softmax,
)
from agentenv.data.synthesis.sws_model import question_flaw
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint

QUESTIONS = [["area", "circle"], ["area", "circle"], ["area", "prime"], ["circle"]]


def unlike(a: str, b: str) -> float:
    return 0.0


def test_a_concept_goes_with_others_by_co_occurrence_and_likeness() -> None:
    """Area and circle are met twice, the most; area and prime once; circle and prime never, and are .5 alike."""

    def likeness(a: str, b: str) -> float:
        return 0.5 if {a, b} == {"circle", "prime"} else 0.0

    assert concept_scores(["area"], QUESTIONS, likeness) == {"circle": 1.0, "prime": 0.5}
    assert concept_scores(["area", "circle"], QUESTIONS, likeness) == {"prime": (0.5 + 0.0 + 0.0 + 0.5) / 2}


def test_a_temperature_of_a_fifth_multiplies_scores_by_five() -> None:
    """Of 1 and .5: e^5 / (e^5 + e^2.5) = .924."""
    first, second = softmax([1.0, 0.5], 0.2)
    assert first == pytest.approx(math.exp(5) / (math.exp(5) + math.exp(2.5)))
    assert round(first, 3) == 0.924
    assert first + second == pytest.approx(1.0)


def test_the_first_concept_is_drawn_by_its_frequency() -> None:
    """Area 3, circle 3 and prime 1 of 7, and after area circle with .924."""
    rng = Random(0)
    drawn = [sample_concepts(QUESTIONS, unlike, rng, size=2) for _ in range(4000)]
    firsts = Counter(first for first, _ in drawn)
    assert firsts["prime"] / 4000 == pytest.approx(1 / 7, abs=0.03)
    after = [second for first, second in drawn if first == "area"]
    assert after.count("circle") / len(after) == pytest.approx(0.924, abs=0.03)


def test_a_set_has_no_concept_twice_and_ends_where_there_are_no_more() -> None:
    assert sorted(sample_concepts(QUESTIONS, unlike, Random(0))) == ["area", "circle", "prime"]


@pytest.mark.parametrize(
    ("first", "second", "accepted"),
    [
        ("perfect", "perfect", True),
        ("perfect", "acceptable", True),
        ("acceptable", "perfect", True),
        ("acceptable", "acceptable", False),
        ("perfect", "bad", False),
        ("bad", "bad", False),
    ],
)
def test_two_judges_accept_where_one_says_perfect_and_none_bad(
    first: Rating, second: Rating, accepted: bool
) -> None:
    assert is_accepted(first, second) is accepted


@pytest.mark.parametrize(
    ("answers", "agreed"),
    [
        (["The Ulm", "ulm", "Ulm.", "Bonn"], "The Ulm"),
        (["Ulm", "Ulm"], None),  # two of four that were asked
        (["Ulm", "Bonn", "Ulm", "Bonn"], None),
        (["", "", ""], None),
        ([], None),
    ],
)
def test_answers_agree_where_more_than_half_of_those_asked_say_the_same(
    answers: list[str], agreed: str | None
) -> None:
    assert agreed_answer(answers, 4) == agreed


def test_an_answer_that_could_not_be_read_is_wrong() -> None:
    assert share_right(["The Ulm.", "Bonn", "ulm"], "Ulm", 8) == 0.25


@pytest.mark.parametrize(
    ("question", "flawed"),
    [
        ("Prove that 7 is prime.", True),
        ("What is proven by the survey?", False),
        ("what is  THE area?", True),
        ("why " * 2000, True),
        ("why " * 1999, False),
        (r"\frac{1}{2}+" * 700, True),
        ("What is the area of a circle?", False),
    ],
    ids=[
        "a proof",
        "no proof",
        "the example",
        "too long",
        "just short enough",
        "one long word",
        "a question",
    ],
)
def test_what_a_program_sees(question: str, flawed: bool) -> None:
    assert bool(question_flaw(question, "What is the area?")) is flawed


ROWS = [
    {"question": "What is the area of a circle?", "accuracies": [0.4, 0.1], "category": "geometry"},
    {"question": "What is the area of a prime?", "accuracies": [0.3, 0.2], "category": "geometry"},
    {"question": "What is 2 + 2?", "accuracies": [0.9, 1.0], "category": "sums"},
    {"question": "What is 7 choose 2?", "accuracies": [0.2, 0.1], "category": "counting"},
    {"question": "What is 9 choose 3?", "accuracies": [0.2, 0.6], "category": "counting"},
]


def history(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "history.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def model(rating: str, student: str = "7") -> Callable[[Any], Answer]:
    """Names concepts, numbers what it writes, rates, and answers 7."""
    written: list[str] = []

    def reply(body: Any) -> Answer:
        asked = body["messages"][0]["content"]
        if "Which concepts" in asked:
            said: dict[str, Any] = {"concepts": ["Area", "Circle."] if "area" in asked else ["choice"]}
        elif "new question of the kind" in asked:
            written.append(asked)
            said = {"question": f"How many are there in case {len(written)}?"}
        elif "Rate it" in asked:
            said = {"reason": "so", "rating": "Perfect." if body["model"] == "first" else rating}
        else:
            said = {"answer": student if body["model"] == "student" else "7"}
        return Answer(json.dumps(said))

    return reply


def made(tmp_path: Path, rating: str, *further: str, student: str = "7") -> tuple[int, Path]:
    with FakeEndpoint(model(rating, student)) as server:
        words = ["synthesize", "sws", "--history", str(history(tmp_path, ROWS)), "--questions", "6"]
        words += ["--editor", f"openai:first@{server.url}", "--second-judge", f"openai:second@{server.url}"]
        words += [word.replace("URL", server.url) for word in further]
        return main([*words, "--out", str(tmp_path / "out")]), tmp_path / "out"


def test_the_command_asks_for_weak_categories_in_shares_of_their_failures(tmp_path: Path) -> None:
    """Of geometry both questions are failed (1), of counting one of two (.5), of sums none: 4 and 2 of 6."""
    code, out = made(tmp_path, "acceptable")
    assert code == 0
    card = json.loads((out / "synthesis.json").read_text())
    assert (card["weaknesses"], card["families"]) == (
        {"geometry": 0.6667, "counting": 0.3333},
        {"counting": 2, "geometry": 4},
    )
    tasks = load_dataset("jsonl", out / "questions.jsonl").tasks
    assert {task.answers for task in tasks} == {("7",)}
    assert {tuple(sorted(task.data["concepts"])) for task in tasks} == {("area", "circle"), ("choice",)}
    assert all(task.data["ratings"] == ["perfect", "acceptable"] for task in tasks)


@pytest.mark.parametrize("option", ["--corpus", "--encoder"])
def test_what_cannot_be_opened_is_refused_before_a_model_is_asked(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def reply(body: Any) -> Answer:
        asked.append(body)
        return Answer("{}")

    with FakeEndpoint(reply) as server:
        words = [
            "synthesize",
            "sws",
            "--history",
            str(history(tmp_path, ROWS)),
            "--out",
            str(tmp_path / "out"),
        ]
        assert main([*words, "--editor", f"openai:m@{server.url}", option, "st:nowhere.jsonl"]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert asked == []


def test_a_question_that_one_judge_calls_bad_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = made(tmp_path, "bad")
    assert (code != 0, out.exists()) == (True, False)
    assert "perfect and bad" in capsys.readouterr().err


def test_one_model_as_both_judges_votes_twice(tmp_path: Path) -> None:
    """Greedy and with the first seed, then sampled and with a seed that no request of the first vote can have (0 to 2)."""
    votes: list[tuple[float, int]] = []
    answer = model("perfect")

    def reply(body: Any) -> Answer:
        if "Rate it" in body["messages"][0]["content"]:
            votes.append((body["temperature"], body["seed"]))
        return answer(body)

    with FakeEndpoint(reply) as server:
        words = ["synthesize", "sws", "--history", str(history(tmp_path, ROWS)), "--questions", "2"]
        assert main([*words, "--editor", f"openai:first@{server.url}", "--out", str(tmp_path / "out")]) == 0
    assert sorted(votes) == [(0.0, 0)] * 2 + [(0.6, 3)] * 2


def test_a_student_that_solves_all_or_none_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = made(tmp_path, "perfect", "--student", "openai:student@URL")
    assert code != 0
    assert "the student solves it in 1.000" in capsys.readouterr().err


def test_a_run_is_a_history(tmp_path: Path) -> None:
    """One of two episodes in the first step, none of one in the second; a fault and a retry do not count."""
    (tmp_path / "trajectories").mkdir()
    steps = [
        [(1.0, True, "base"), (0.0, True, "base"), (0.0, False, "base")],
        [(0.5, True, "base"), (1.0, True, "retry")],
    ]
    for number, episodes in enumerate(steps, 1):
        rows = [
            {"valid": valid, "origin": origin, "reward": reward, "task": {"question": "Where is Ulm?"}}
            for reward, valid, origin in episodes
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (tmp_path / "trajectories" / f"step-{number:06d}.jsonl.gz").write_bytes(gzip.compress(text))
    found = read_history(tmp_path)
    assert found.accuracies == {"Where is Ulm?": [0.5, 0.0]}
    assert (found.category, found.attempts) == ({"Where is Ulm?": "Where is _?"}, 2)


def test_the_history_of_self_play_is_that_of_its_questions_and_not_of_its_topics(tmp_path: Path) -> None:
    """Each proposal that was played has its solve rate; the episodes hold the topics of proposers, which nobody answers."""
    (tmp_path / "config.toml").write_text("[rollout]\ngroup_size = 5\n")
    (tmp_path / "trajectories").mkdir()
    topic = {"valid": True, "origin": "base", "reward": 0.0, "task": {"question": "Ulm"}}
    (tmp_path / "trajectories/step-000001.jsonl.gz").write_bytes(gzip.compress(json.dumps(topic).encode()))
    rows = [
        {"step": 1, "topic": "Ulm", "question": "Where is Ulm?", "outcome": "accepted", "solve_rate": 0.4},
        {"step": 2, "topic": "Ulm", "question": "Where is Ulm?", "outcome": "pooled", "solve_rate": 0.2},
        {"step": 2, "topic": "Ulm", "question": "", "outcome": "no_question"},
    ]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_history(tmp_path)
    assert found.accuracies == {"Where is Ulm?": [0.4, 0.2]}
    assert (found.category, found.attempts) == ({"Where is Ulm?": "Where is _?"}, 5)


def test_a_history_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="trajectories_every"):
        read_history(tmp_path)
    for bad in ([], [2], "no", None):
        with pytest.raises(DatasetError, match="line 1"):
            read_history(history(tmp_path, [{"question": "q", "accuracies": bad}]))

"""Evaluating a model behind an endpoint by the command line, on open questions and on encrypted ones."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.data.sealed import seal
from agentenv.errors import UnknownName
from agentenv.policies.endpoint_spec import KEY_VARIABLE, Endpoint
from agentenv.policies.fake_endpoint import Answer, Body, FakeEndpoint

DOCUMENTS = [
    {"id": "d1", "title": "Velandra", "text": "Velandra was founded by Oda Kest."},
    {"id": "d2", "title": "Mirwick", "text": "Mirwick was founded by Tor Eth."},
]


def search_then_answer(body: Body) -> Answer:
    said = body["messages"]
    if len(said) == 1:
        return Answer("<search>who founded Velandra</search>")
    return Answer("<answer>Oda Kest</answer>" if "Oda Kest" in said[-1]["content"] else "<answer>?</answer>")


@pytest.fixture
def retriever(tmp_path: Path) -> str:
    corpus = tmp_path / "corpus" / "corpus.jsonl"
    corpus.parent.mkdir()
    corpus.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    assert main(["retriever", "build", str(corpus), "--out", str(tmp_path / "bm25"), "--index", "bm25"]) == 0
    return f"bm25:{tmp_path / 'bm25'}"


def words(tmp_path: Path, retriever: str, server: FakeEndpoint, *more: str) -> list[str]:
    policy = f"openai:any@{server.url}#concurrency=2&backoff_s=0.01"
    return ["eval", "--policy", policy, "--retriever", retriever, "--out", str(tmp_path / "run"), *more]


@pytest.mark.parametrize("dead", ["--judge", "--policy", "--retriever"])
def test_what_nobody_serves_is_said_before_any_question_is_asked(
    tmp_path: Path, retriever: str, dead: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeEndpoint(lambda body: Answer()) as gone:
        url = gone.url
    questions = tmp_path / "mine.jsonl"
    questions.write_text('{"id": "q1", "question": "Who founded Velandra?", "answers": ["Oda Kest"]}\n')
    data = ("--dataset", "jsonl", "--data", str(questions))
    with FakeEndpoint(search_then_answer) as server:
        capsys.readouterr()
        spec = url if dead == "--retriever" else f"openai:any@{url}"
        assert main([*words(tmp_path, retriever, server, *data), dead, spec]) == 1
        assert server.bodies == []
    assert url in capsys.readouterr().err
    assert not (tmp_path / "run" / "episodes.jsonl").exists()


def test_an_endpoint_is_evaluated_and_its_usage_reported(
    tmp_path: Path, retriever: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sk-secret-7")
    questions = tmp_path / "mine.jsonl"
    rows = [{"id": "q1", "question": "Who founded Velandra?", "answers": ["Oda Kest"]}]
    rows.append({"id": "q2", "question": "Who founded Mirwick?", "answers": ["Tor Eth"]})
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with FakeEndpoint(search_then_answer) as server:
        capsys.readouterr()
        data = ("--dataset", "jsonl", "--data", str(questions), "--json")
        assert main(words(tmp_path, retriever, server, *data)) == 0
        results = json.loads(capsys.readouterr().out)
        asked = len(server.bodies)
    score = results["scores"]["em_squad"]
    assert (score["mean"], score["n"], score["version"], score["normaliser"]) == (0.5, 2, 1, "squad")
    assert (results["faults"], results["usage"]["requests"], results["usage"]["failures"]) == (0, asked, 0)
    assert results["usage"]["prompt_tokens"] > 0
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert [path.name for path in written if b"sk-secret-7" in path.read_bytes()] == []


def test_a_judge_says_of_every_answer_whether_it_is_right(
    tmp_path: Path, retriever: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exact match finds one of two right, and the judge takes both; an address that is none is refused before a question."""
    questions = tmp_path / "mine.jsonl"
    rows = [{"id": "q1", "question": "Who founded Velandra?", "answers": ["Oda Kest"]}]
    rows.append({"id": "q2", "question": "Who founded Mirwick?", "answers": ["Tor Eth"]})
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ("--dataset", "jsonl", "--data", str(questions))
    with FakeEndpoint(search_then_answer) as server, FakeEndpoint(lambda _: Answer("VERDICT: TRUE")) as judge:
        assert main(words(tmp_path, retriever, server, *data, "--judge", "gpt-4")) == 1
        assert not server.bodies
        capsys.readouterr()
        asked = (*data, "--judge", f"openai:any@{judge.url}")
        assert main(words(tmp_path, retriever, server, *asked, "--json")) == 0
        results = json.loads(capsys.readouterr().out)
        assert len(judge.bodies) == results["judge_usage"]["requests"] == 2
        assert main(words(tmp_path, retriever, server, *asked)) == 0
        shown = capsys.readouterr().out
        assert re.search(r"judge_equivalence +1\.000", shown)
        assert "without a grade" not in shown
        assert len(judge.bodies) == 2  # the grades are in the folder
    # Nor does anybody have to be there.
    assert main(words(tmp_path, retriever, server, *asked)) == 0
    assert main(["rescore", str(tmp_path / "run"), *asked[-2:]]) == 0
    assert "judge_equivalence" in capsys.readouterr().out
    assert main(["rescore", str(tmp_path / "run"), *asked[-2:], "--rubric", "simpleqa"]) == 1
    assert "nobody answers" in capsys.readouterr().err
    assert results["scores"]["em_squad"]["mean"] == 0.5
    assert results["judged"]["judge_equivalence"]["mean"] == 1.0
    written = json.loads((tmp_path / "run" / "results.json").read_text())
    assert written["judged"] == results["judged"]


def test_answers_that_the_judge_could_not_grade_are_shown(
    tmp_path: Path, retriever: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the score, with one reason, and as the mean that counts them as wrong; a suite shows them a set."""
    questions = tmp_path / "mine.jsonl"
    rows = [{"id": "q1", "question": "Who founded Velandra?", "answers": ["Oda Kest"]}]
    rows.append({"id": "q2", "question": "Who founded Mirwick?", "answers": ["Tor Eth"]})
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    suite = tmp_path / "suite.toml"
    suite.write_text(f"[towns]\ndataset = 'jsonl'\ndata = '{questions}'\n")

    def half(body: Body) -> Answer:
        return Answer(
            "VERDICT: TRUE" if "Velandra" in body["messages"][0]["content"] else "Both TRUE and FALSE"
        )

    with FakeEndpoint(search_then_answer) as server, FakeEndpoint(half) as judge:
        asked = ("--judge", f"openai:any@{judge.url}")
        data = ("--dataset", "jsonl", "--data", str(questions))
        assert main(words(tmp_path, retriever, server, *data, *asked)) == 0
        shown = [capsys.readouterr().out]
        more = ("--suite", str(suite), "--out", str(tmp_path / "sets"), "--trust-config")
        assert main(words(tmp_path, retriever, server, *more, *asked)) == 0
        shown.append(capsys.readouterr().out)
    for text in shown:
        assert re.search(r"judge_equivalence +1\.000", text)
        assert "1 without a grade (0.500 if they are wrong): The judge gave no line" in " ".join(text.split())
        assert "judge: requests" in text


def test_the_budget_of_a_judge_holds_for_all_samples_together(
    tmp_path: Path, retriever: str, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = tmp_path / "mine.jsonl"
    questions.write_text(
        json.dumps({"id": "q1", "question": "Who founded Velandra?", "answers": ["Oda"]}) + "\n"
    )
    with FakeEndpoint(search_then_answer) as server, FakeEndpoint(lambda _: Answer("VERDICT: TRUE")) as judge:
        asked = ("--judge", f"openai:any@{judge.url}#max_requests=1", "--samples", "3", "--temperature", "1")
        data = ("--dataset", "jsonl", "--data", str(questions))
        assert main(words(tmp_path, retriever, server, *data, *asked)) == 0
        assert len(judge.bodies) == 1
    assert "judge: requests" in capsys.readouterr().out


def test_a_refused_key_is_one_sentence_and_leaves_no_scores(
    tmp_path: Path, retriever: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    questions = tmp_path / "mine.jsonl"
    questions.write_text(json.dumps({"id": "q", "question": "Who?", "answers": ["Ann"]}) + "\n")
    with FakeEndpoint(lambda body: Answer(status=401, raw='{"error": {"message": "no key"}}')) as server:
        assert main(words(tmp_path, retriever, server, "--dataset", "jsonl", "--data", str(questions))) == 1
    error = capsys.readouterr().err
    assert all(word in error for word in ("any", "401", "no key", KEY_VARIABLE))
    assert not (tmp_path / "run" / "results.json").exists()


def test_no_file_of_an_evaluation_holds_the_text_of_encrypted_questions(
    tmp_path: Path, retriever: str, capsys: pytest.CaptureFixture[str]
) -> None:
    question, gold = "Which wanderer founded the town of Velandra long ago?", "Oda Kest"
    table = f"problem,answer,problem_topic,canary\n{seal(question, 'c')},{seal(gold, 'c')},Towns,c\n"
    (tmp_path / "browse_comp.csv").write_text(table)

    def judged(body: Any) -> Answer:
        if "accepted_answers" in body["messages"][0]["content"]:
            return Answer(f"extracted_final_answer: {gold}\nreasoning: same\ncorrect: yes\nconfidence: 90")
        return search_then_answer(body)

    with FakeEndpoint(judged) as server:
        data = ("--dataset", "browsecomp", "--data", str(tmp_path / "browse_comp.csv"))
        assert main(words(tmp_path, retriever, server, *data)) == 0
        judge = ("--judge", f"openai:any@{server.url}", "--rubric", "browsecomp")
        assert main(["rescore", str(tmp_path / "run"), "--scorer", "f1_squad", *judge]) == 0
    assert main(["report", str(tmp_path / "run")]) == 0
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["scores"]["em_squad"]["mean"] == results["scores"]["f1_squad"]["mean"] == 1.0
    assert results["judged"]["judge_browsecomp"]["mean"] == 1.0
    written = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert {"episodes.jsonl", "report.html", "results.json", "grades.jsonl"} <= {
        path.name for path in written
    }
    for secret in (question, gold, "wanderer"):
        assert [path.name for path, content in written.items() if secret.encode() in content] == []
    shown = capsys.readouterr()
    assert gold not in shown.out + shown.err
    assert "1 requests" in shown.err  # of the judge
    assert "requests: 1\n" in shown.out


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Two questions of which the model answers one right, after a search each."""
    path = tmp_path / "mine.jsonl"
    rows = [{"id": "q1", "question": "Who founded Velandra?", "answers": ["Oda Kest"]}]
    rows.append({"id": "q2", "question": "Who founded Mirwick?", "answers": ["Tor Eth"]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


PRICES = "concurrency=2&backoff_s=0.01&prompt_price=1000000&reply_price=2000000"


def test_a_request_that_may_cost_money_is_announced_counted_and_priced(
    tmp_path: Path, retriever: str, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each question is asked twice, once for a search and once for the answer, and by no bound."""
    with FakeEndpoint(search_then_answer) as server:
        capsys.readouterr()
        argv = ["eval", "--policy", f"openai:any@{server.url}#{PRICES}", "--retriever", retriever]
        argv += ["--dataset", "jsonl", "--data", str(questions), "--out", str(tmp_path / "run")]
        assert main([*argv, "--max-turns", "3"]) == 0
        asked = len(server.bodies)
    said = capsys.readouterr()
    assert asked == 4
    # At least one request a question, at most one for each of three turns and for the answer.
    assert "2 to 8 requests for 2 questions" in said.err
    assert "--bounds" in said.err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    used = results["usage"]
    assert results["bounds"] == {}
    assert used["cost"] == pytest.approx(used["prompt_tokens"] + 2 * used["completion_tokens"])
    page = (tmp_path / "run" / "report.html").read_text()
    for shown in (said.out, page):
        assert f"{used['cost']:.4f}" in shown
        assert f"{used['prompt_tokens']:,}" in shown
        assert "requests" in shown
    assert main(["export", str(tmp_path / "run")]) == 0


def test_bounds_are_played_where_they_are_asked_for_and_announced(
    tmp_path: Path, retriever: str, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeEndpoint(search_then_answer) as server:
        data = ("--dataset", "jsonl", "--data", str(questions), "--bounds", "true", "--max-turns", "3")
        assert main(words(tmp_path, retriever, server, *data)) == 0
    said = capsys.readouterr()
    assert "closed book" in said.err
    assert "cost" in said.out
    assert "no price" in said.out
    assert "closed_book" in json.loads((tmp_path / "run" / "results.json").read_text())["bounds"]


def test_a_resumed_evaluation_counts_what_was_paid_before(
    tmp_path: Path, retriever: str, questions: Path
) -> None:
    """The first process ends after one question: the endpoint fails from its third request on."""
    asked = 0

    def failing(body: Body) -> Answer:
        nonlocal asked
        asked += 1
        return search_then_answer(body) if asked <= 2 else Answer(status=400, raw="{}")

    data = ["--dataset", "jsonl", "--data", str(questions), "--concurrency", "1", "--retry-faults"]
    run = tmp_path / "run"

    def results() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((run / "results.json").read_text())
        return found

    with FakeEndpoint(failing) as server:
        argv = ["eval", "--policy", f"openai:any@{server.url}#retries=0", "--retriever", retriever]
        argv += ["--out", str(run), *data]
        assert main(argv) == 0
        assert (results()["faults"], results()["usage"]["requests"]) == (1, 3)
        first = results()["usage"]["prompt_tokens"]
        asked = 0
        assert main(argv) == 0
    assert (results()["faults"], results()["usage"]["requests"]) == (0, 5)
    assert results()["usage"]["prompt_tokens"] > first


def test_every_option_of_an_endpoint_stands_in_the_help_and_in_the_documentation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["eval", "--help"]) == 0
    text = capsys.readouterr().out
    page = (Path(__file__).resolve().parents[2] / "docs" / "evaluation.md").read_text()
    options = {option.name for option in fields(Endpoint)} - {"model", "url", "provider"}
    assert [name for name in options if name not in text] == []
    assert [name for name in options if f"`{name}`" not in page] == []


def test_a_spent_budget_ends_with_1_and_a_headline_that_says_of_how_many_questions_the_score_is(
    tmp_path: Path, retriever: str, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first question takes two requests."""
    data = ["--dataset", "jsonl", "--data", str(questions), "--concurrency", "1"]
    with FakeEndpoint(search_then_answer) as server:
        argv = ["eval", "--policy", f"openai:any@{server.url}#max_requests=2", "--retriever", retriever]
        argv += ["--out", str(tmp_path / "run"), *data]
        capsys.readouterr()
        assert main(argv) == 1
        shown = " ".join(capsys.readouterr().out.split())
        assert "1 of 2 questions, 1 faults" in shown
        assert "INCOMPLETE" in shown
        assert main(argv) == 1  # the finished folder says it again
        assert main([*argv, "--retry-faults"]) == 0
    assert "2 questions, 0 faults" in " ".join(capsys.readouterr().out.split())
    assert "incomplete" not in json.loads((tmp_path / "run" / "results.json").read_text())


def test_what_was_paid_before_any_episode_was_finished_is_counted_when_the_same_command_goes_on(
    tmp_path: Path, retriever: str, questions: Path
) -> None:
    """Every question takes two requests: of one each, no episode is finished and two replies are paid."""
    with FakeEndpoint(search_then_answer) as server:
        argv = words(tmp_path, retriever, server, "--dataset", "jsonl", "--data", str(questions))
        argv[2] += "&max_requests=2"
        for begun in (1, 2):
            assert main(argv) == 1
            assert len(server.bodies) == 2 * begun
            assert json.loads((tmp_path / "run" / "usage.json").read_text())["requests"] == 2 * begun


def test_a_result_that_began_a_new_row_is_not_counted_as_nothing_shown(
    tmp_path: Path, retriever: str, questions: Path
) -> None:
    def call(body: Body) -> Answer:
        return Answer(calls=(("c1", "search", '{"query": "Velandra"}'),), reasoning="let me look")

    with FakeEndpoint(call) as server:
        more = ("--dataset", "jsonl", "--data", str(questions), "--format", "native", "--limit", "1")
        assert main(words(tmp_path, retriever, server, *more)) == 0
    record = json.loads((tmp_path / "run" / "episodes.jsonl").read_text())
    seen = [turn for turn in record["turns"] if turn["observation"]]
    assert seen
    assert all(turn.get("observation_tokens") != 0 for turn in seen)


def test_the_command_says_why_episodes_are_in_no_score(
    tmp_path: Path, retriever: str, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def half(body: Body) -> Answer:
        first = len(server.bodies) == 1
        return Answer(status=500, raw='{"error": {"message": "out of memory"}}') if first else Answer("x")

    data = ["--dataset", "jsonl", "--data", str(questions), "--concurrency", "1"]
    with FakeEndpoint(half) as server:
        argv = ["eval", "--policy", f"openai:any@{server.url}#retries=0", "--retriever", retriever, *data]
        assert main([*argv, "--out", str(tmp_path / "run")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 of 2 questions, 1 faults" in shown
    assert "fault, 1 episode: PolicyFault: http://127.0.0.1" in shown
    assert "out of memory" in shown
    assert "--retry-faults" in shown


def test_a_suite_says_how_many_episodes_are_in_no_score_and_which_set_is_incomplete(
    tmp_path: Path, retriever: str, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(f'dataset = "jsonl"\ndata = {json.dumps(str(questions))}\nconcurrency = 1\n[one]\n')
    with FakeEndpoint(search_then_answer) as server:
        argv = ["eval", "--suite", str(suite), "--policy", f"openai:any@{server.url}#max_requests=2"]
        argv += ["--retriever", retriever, "--out", str(tmp_path / "out")]
        capsys.readouterr()
        assert main(argv) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "one is INCOMPLETE: The budget of 2 requests" in shown
    assert "Infrastructure failures took 1 episode out of every score" in shown
    assert "faults" in shown.partition("one")[0]


def test_samples_say_how_many_questions_are_left_out_and_which_are_incomplete(
    tmp_path: Path, retriever: str, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each sample has two requests, and the first question takes both."""
    data = ["--dataset", "jsonl", "--data", str(questions), "--concurrency", "1"]
    with FakeEndpoint(search_then_answer) as server:
        argv = ["eval", "--policy", f"openai:any@{server.url}#max_requests=2", "--retriever", retriever]
        argv += ["--samples", "2", "--temperature", "1", "--out", str(tmp_path / "run"), *data]
        capsys.readouterr()
        assert main(argv) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 questions, 2 samples" in shown
    assert "1 further questions met an infrastructure failure" in shown
    assert "sample-1 is INCOMPLETE" in shown


def test_a_field_for_the_limit_that_no_endpoint_has_is_refused() -> None:
    with pytest.raises(UnknownName, match="foo"):
        Endpoint.parse("m@http://x#limit_field=foo")
    assert (
        Endpoint.parse("m@http://x#limit_field=max_completion_tokens").limit_field == "max_completion_tokens"
    )


def call_tools(body: Body) -> Answer:
    """Searches once and answers what it read, in the form that it is told; without a search it knows one answer."""
    said = body["messages"]
    if "<answer>" in said[0]["content"]:
        return Answer("<answer>Oda Kest</answer>")
    if "nothing can be searched" in said[0]["content"]:
        return Answer(calls=(("c", "answer", '{"answer": "Oda Kest"}'),))
    if len(said) == 1:
        return Answer(calls=(("s", "search", '{"query": "who founded Velandra"}'),))
    found = "Oda Kest" if "Oda Kest" in said[-1]["content"] else "?"
    return Answer(calls=(("r", "answer", json.dumps({"answer": found})),))


def test_search_and_its_bounds_are_played_with_native_tools(
    tmp_path: Path, retriever: str, questions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeEndpoint(call_tools) as server:
        capsys.readouterr()
        data = ("--dataset", "jsonl", "--data", str(questions), "--format", "native", "--bounds", "--json")
        assert main(words(tmp_path, retriever, server, *data)) == 0
        results = json.loads(capsys.readouterr().out)
        names = {tuple(tool["function"]["name"] for tool in body["tools"]) for body in server.bodies}
    assert names == {("search", "read", "answer")}
    assert (results["scores"]["em_squad"]["mean"], results["searches_per_question"]) == (0.5, 1.0)
    assert results["bounds"]["closed_book"]["mean"] == 0.5

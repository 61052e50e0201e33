"""The prose of an organisation by a model: which wordings are taken, and that the answers stay provable."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.env import run_sync
from agentenv.data.organisation import invent_organisation
from agentenv.data.organisation_log import Artefact, OrganisationConfig
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.synthesis.organisation_prose import ProseWriter, names_of, needed_in, wording_flaw
from agentenv.errors import DatasetError, SynthesisFault
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.model_chat import ChatModels

MADE = invent_organisation(OrganisationConfig(seed=2))
NAMES = frozenset({"Ann Reed", "Bob Hill", "billing"})


def test_names_and_numbers_have_to_stay() -> None:
    text = "Ann Reed: I have fixed the service billing, INC-3 can be closed after 40 percent."
    assert needed_in(text, {"incident": "INC-3", "note": "can be closed", "person": "Bob Hill"}, NAMES) == [
        "Ann Reed",
        "billing",
        "INC-3",
        "40",
        "can be closed",
    ]


@pytest.mark.parametrize(
    ("wording", "flaw"),
    [
        ("INC-3 is done, says Ann Reed; billing runs again.", ""),
        ("It is done, says Ann Reed; billing runs again.", "it lacks 'INC-3'"),
        ("INC-31 is done, says Ann Reed; billing runs.", "it lacks 'INC-3'"),
        ("INC-3 is done, says Ann Reed; billing runs, Bob Hill.", "it adds 'Bob Hill'"),
        ("INC-3 is done, says Ann Reed; billing runs after 5 minutes.", "it adds '5'"),
        ("Ann Reed: billing, INC-3.", "it repeats the template"),
    ],
    ids=["fine", "an incident is lost", "another incident", "somebody else", "a number", "nothing is new"],
)
def test_a_wording_holds_what_its_template_holds_and_no_more(wording: str, flaw: str) -> None:
    template = "Ann Reed: billing, INC-3."
    assert wording_flaw(wording, template, ["Ann Reed", "billing", "INC-3"], NAMES) == flaw


def written(artefact: Artefact, reply: dict[str, Any]) -> Artefact:
    """The artefact where a model replies so to whatever it is asked."""
    with FakeEndpoint(lambda body: Answer(json.dumps(reply))) as server:
        writer = ModelWriter(ChatModels().open(f"openai:m@{server.url}"))
        return run_sync(ProseWriter(writer, writer, MADE, names_of(MADE)).write(artefact))


MAIL = next(artefact for artefact in MADE.artefacts if artefact.channel == "mail")


@pytest.mark.parametrize(
    ("reply", "error", "why"),
    [
        ({"same": "no"}, DatasetError, "the judge says"),
        ({"same": "yes", "text": "Hello."}, DatasetError, "it lacks"),
        ({}, SynthesisFault, "wrote no object"),
    ],
    ids=["a judge sees a difference", "names are lost", "unreadable"],
)
def test_why_a_wording_is_not_taken_is_said(reply: dict[str, str], error: type[Exception], why: str) -> None:
    body = MAIL.document.text.partition(" To: ")[0]
    with pytest.raises(error, match=why):
        written(MAIL, ({"text": f"Hello all. {body}"} if reply else {}) | reply)


def test_a_wording_is_taken_if_a_judge_says_that_it_states_the_same() -> None:
    """The recipients of a mail stay at its end, and title and id as they are, by which a search looks for times."""
    body, to, people = MAIL.document.text.partition(" To: ")
    made = written(MAIL, {"text": f"Hello all. {body}", "same": "yes"})
    assert made.document.text == f"Hello all. {body}{to}{people}"
    assert (made.document.id, made.document.title) == (MAIL.document.id, MAIL.document.title)


def test_the_command_writes_the_same_questions_in_other_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def model(body: Any) -> Answer:
        asked = body["messages"][0]["content"]
        if "First text" in asked:
            return Answer(json.dumps({"same": "yes"}))
        text = re.search(r"letter by letter: .*?\n(.*)\n\nReply", asked, re.DOTALL)
        assert text is not None
        return Answer(json.dumps({"text": f"So: {text[1]}"}))

    words = ["synthesize", "organisation", "--seed", "2", "--days", "10", "--json"]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    with FakeEndpoint(model) as server:
        assert main([*words, "--editor", f"openai:m@{server.url}", "--out", str(tmp_path / "b")]) == 0
    card = json.loads(capsys.readouterr().out.splitlines()[1])
    assert card["reworded"] == card["documents"]
    assert (tmp_path / "a/questions.jsonl").read_bytes() == (tmp_path / "b/questions.jsonl").read_bytes()
    first, second = (
        [json.loads(line)["text"] for line in (tmp_path / name / "corpus.jsonl").read_text().splitlines()]
        for name in "ab"
    )
    assert [f"So: {text}" for text in first] == second


def test_where_a_wording_is_refused_the_template_stays_and_the_reason_is_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first mail loses its names, and the rest is put into other words."""
    said: list[str] = []

    def model(body: Any) -> Answer:
        asked = body["messages"][0]["content"]
        if "First text" in asked:
            return Answer(json.dumps({"same": "yes"}))
        text = re.search(r"letter by letter: .*?\n(.*)\n\nReply", asked, re.DOTALL)
        assert text is not None
        said.append(text[1])
        return Answer(json.dumps({"text": "Hello." if len(said) == 1 else f"So: {text[1]}"}))

    words = ["synthesize", "organisation", "--seed", "2", "--days", "10", "--at-once", "1", "--json"]
    with FakeEndpoint(model) as server:
        assert main([*words, "--editor", f"openai:m@{server.url}", "--out", str(tmp_path / "a")]) == 0
    card = json.loads(capsys.readouterr().out)
    assert (card["failures"], card["reworded"]) == ({"DatasetError": 1}, card["documents"] - 1)
    (failure,) = map(json.loads, (tmp_path / "a" / "failures.jsonl").read_text().splitlines())
    assert "'Hello.' is refused: it lacks" in failure["message"]
    texts = {
        row["id"]: row["text"]
        for row in map(json.loads, (tmp_path / "a" / "corpus.jsonl").read_text().splitlines())
    }
    assert texts[failure["id"]].startswith(said[0])


@pytest.mark.parametrize(
    ("answer", "why"),
    [(Answer("{}"), "wrote no object"), (Answer(status=500), "500"), (Answer('{"text": "Hi."}'), "it lacks")],
    ids=["unreadable", "dead", "useless"],
)
def test_an_editor_of_which_no_wording_can_be_taken_writes_nothing(
    answer: Answer, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["synthesize", "organisation", "--days", "10", "--people", "6", "--out", str(tmp_path / "a")]
    with FakeEndpoint(lambda body: answer) as server:
        assert main([*words, "--editor", f"openai:m@{server.url}#retries=0"]) == 1
    assert why in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    "option", [("--judge", "tiny"), ("--replies", "kept"), ("--at-once", "0")], ids=lambda option: option[0]
)
def test_options_of_a_model_are_refused_without_one(
    option: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["synthesize", "organisation", *option, "--out", str(tmp_path / "a")]) == 1
    assert option[0] in capsys.readouterr().err
    assert not (tmp_path / "a").exists()

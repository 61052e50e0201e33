"""What every synthesis shares: replies of models, links between pages, work of which one record may fail, kept replies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.env import run_sync
from agentenv.core.types import Document, Task
from agentenv.data.synthesis.model_replies import ModelWriter, is_yes, read_object
from agentenv.data.synthesis.pages import LinkedPages, Page
from agentenv.data.synthesis.records import (
    RecordFailure,
    over_records,
    refuse_used_folder,
    write_question_folder,
)
from agentenv.errors import ConfigurationError, ContextTooSmall, DatasetError, EndpointFault, SynthesisFault
from agentenv.policies.endpoint import ChatClient
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.model_chat import RecordedChat

FIELDS: dict[str, type] = {"a": str}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": "x", "b": 1}', {"a": "x"}),
        ('I think {of this}. ```json\n{"a": " x\\ny "}\n```', {"a": "x y"}),
        ('{"a": "draft"} No: {"a": "last"}', {"a": "last"}),
        ('{"a": 1952}', {"a": "1952"}),
        ('{"a": ""}', None),
        ('{"a": ["x"]}', None),
        ('{"b": "x"}', None),
        ('{"a": "x"', None),
        ('{"a": "\\ud83d"}', None),
        ("{" * 5000, None),
        ("", None),
    ],
    ids=[
        "more fields",
        "after thoughts",
        "the last",
        "a number",
        "blank",
        "a list",
        "another",
        "cut",
        "half",
        "deep",
        "none",
    ],
)
def test_an_object_is_read_out_of_a_reply(text: str, found: dict[str, str] | None) -> None:
    assert read_object(text, FIELDS) == found


def test_a_list_of_texts_is_read() -> None:
    assert read_object('{"a": ["x", 2]}', {"a": list}) == {"a": ["x", "2"]}
    for unfit in ('"x"', '["x", ["y"]]', '["x", {"y": 1}]', '["x", null]'):
        assert read_object(f'{{"a": {unfit}}}', {"a": list}) is None


@pytest.mark.parametrize(
    ("said", "yes"), [("Yes", True), ("yes.", True), ("true", True), ("no", False), ("yes and no", False)]
)
def test_yes(said: str, yes: bool) -> None:
    assert is_yes(said) is yes


def test_a_writer_asks_again_with_another_seed_and_gives_up() -> None:
    replies = iter(["what?", '{"a": "x"}', "?", "?", "?"])
    with FakeEndpoint(lambda body: Answer(next(replies))) as server:
        writer = ModelWriter(ChatClient(Endpoint("m", server.url)))
        assert run_sync(writer.write("q", FIELDS, 7)) == {"a": "x"}
        assert [body["seed"] for body in server.bodies] == [7, 8]
        with pytest.raises(SynthesisFault, match="3 replies"):
            run_sync(writer.write("q", FIELDS, 7))


def test_recorded_replies_are_asked_once_and_belong_to_one_model(tmp_path: Path) -> None:
    path = tmp_path / "replies.jsonl"
    with FakeEndpoint(lambda body: Answer(f"reply {len(server.bodies)}")) as server:
        client = ChatClient(Endpoint("m", server.url))
        asked: list[dict[str, Any]] = [{"role": "user", "content": "q"}]
        texts = [
            run_sync(RecordedChat(client, path).complete(asked, max_tokens=9, seed=seed)).text
            for seed in (1, 1, 2)
        ]
        assert texts[0] == texts[1] != texts[2]
        assert len(server.bodies) == 2
        with pytest.raises(ConfigurationError):
            RecordedChat(ChatClient(Endpoint("other", server.url)), path)


def test_pages_link_by_the_titles_in_their_texts() -> None:
    pages = LinkedPages(
        [
            Document("1", "Ada Stone", "She wrote Red Lake."),
            Document("2", "Ada Stone", "She left Ulm."),
            Document("3", "Red Lake (novel)", "A book by Ada Stone."),
            Document("4", "Red", "A colour."),
            Document("5", "Ulm", "A town."),
        ]
    )
    assert pages.pages["Ada Stone"].ids == ("1", "2")
    assert pages.mentioned("Did Ada Stone write Red Lake?") == {
        "Ada Stone": "Ada Stone",
        "Red Lake (novel)": "Red Lake",
    }
    assert pages.linked("Ada Stone") == ["Red Lake (novel)", "Ulm"]
    assert pages.linked("Ulm") == ["Ada Stone"]
    assert pages.linked("Red") == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Was Ulm founded by United?", ["Ulm", "United"]),
        ("He left Leeds United for Ulm, a town.", ["Ulm"]),
        ("The United States met in Ulm Castle.", []),
        ("The town's Ulm. Chicago is no film, and This is no song.", ["Ulm"]),
        ("Grey Ulm Hall is a hall.", ["Grey Ulm Hall"]),
    ],
    ids=["alone", "after a name", "before a name", "told apart by brackets", "a longer title"],
)
def test_a_title_of_one_word_is_no_part_of_another_name(text: str, named: list[str]) -> None:
    """HotpotQA's corpus has "United (Marian Gold album)", which 495 pages about clubs and countries would link to."""
    titles = ["Ulm", "United", "Chicago (2002 film)", "This (song)", "Grey Ulm Hall", "After"]
    pages = LinkedPages([Document(title, title, "") for title in titles])
    assert list(pages.mentioned(text)) == named


def test_finding_the_links_of_a_page_does_not_go_through_the_corpus() -> None:
    class Unread(dict[str, Page]):
        def __iter__(self) -> Iterator[str]:
            raise AssertionError("the whole corpus was gone through for one page")

    pages = LinkedPages([Document("1", "Ada Stone", "She left Ulm."), Document("2", "Ulm", "A town.")])
    assert pages.linked("Ulm") == ["Ada Stone"]
    pages.pages = Unread(pages.pages)
    assert pages.linked("Ada Stone") == ["Ulm"]


def test_a_record_that_fails_ends_nothing_but_a_wrong_key_does() -> None:
    errors: dict[int, Exception] = {
        1: EndpointFault("down"),
        2: ContextTooSmall("long"),
        3: DatasetError("odd"),
        5: ConfigurationError("key"),
    }

    async def work(number: int) -> int:
        if number in errors:
            raise errors[number]
        return number * 10

    made, failures = run_sync(over_records([0, 1, 2, 3, 4], work, str, at_once=2))
    assert made == [0, 40]
    assert [(failure.id, failure.kind) for failure in failures] == [
        ("1", "EndpointFault"),
        ("2", "ContextTooSmall"),
        ("3", "DatasetError"),
    ]
    with pytest.raises(ConfigurationError, match="key"):
        run_sync(over_records([4, 5], work, str))


def test_a_folder_is_whole_or_absent(tmp_path: Path) -> None:
    out, failure = tmp_path / "out", RecordFailure("r1", "EndpointFault", "down")
    with pytest.raises(DatasetError, match="r1"):
        write_question_folder(out, [], None, [failure], {})
    with pytest.raises(ValueError, match="surrogates"):
        write_question_folder(out, [Task("1", "\ud83d?", ("a",))], None, [], {})
    assert not out.exists()
    card = write_question_folder(
        out, [Task("1", "Q?", ("a",))], [Document("d", "T", "x")], [failure], {"seed": 1}
    )
    assert card == {"seed": 1, "questions": 1, "failures": {"EndpointFault": 1}}
    names = {"questions.jsonl", "corpus.jsonl", "synthesis.json", "failures.jsonl"}
    assert {path.name for path in out.iterdir()} == names
    with pytest.raises(ConfigurationError, match="out"):
        refuse_used_folder(out)


@pytest.mark.parametrize("inside", ["out", "out/replies", "out/kept/replies"])
def test_replies_are_not_kept_in_the_folder_that_is_to_be_written(tmp_path: Path, inside: str) -> None:
    with pytest.raises(ConfigurationError, match="keep the replies elsewhere"):
        refuse_used_folder(tmp_path / "out", tmp_path / inside)
    refuse_used_folder(tmp_path / "out", tmp_path / "replies")

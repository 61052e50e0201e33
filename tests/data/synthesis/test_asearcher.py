"""ASearcher's synthesis: what counts as an edit, when it ends, proofs over a world, and the command."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.env import run_sync
from agentenv.core.types import Document
from agentenv.data.datasets import load_dataset
from agentenv.data.synthesis.asearcher import (
    COVERED,
    Draft,
    Link,
    Synthesis,
    SynthesisConfig,
    as_task,
    form_flaw,
    link_flaw,
    roots_of,
    substitution_flaw,
    synthesize,
    with_link,
)
from agentenv.data.synthesis.asearcher_model import ModelEditor
from agentenv.data.synthesis.asearcher_world import WorldEditor, WorldReviewer
from agentenv.data.synthesis.model_replies import ModelWriter
from agentenv.data.synthesis.pages import LinkedPages, Page
from agentenv.data.world import WorldConfig, write_world
from agentenv.data.world_documents import write_documents
from agentenv.data.world_facts import generate_facts
from agentenv.data.world_solver import Solver
from agentenv.errors import ConfigurationError, EndpointFault, SynthesisFault
from agentenv.policies.endpoint import ChatClient
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint

ROOT = Page("Ada", "Ada was born in Ulm.", ("d1",))
FIRST = Draft("Where was Ada born?", "Ulm", ("Ada was born in Ulm.",), ("d1",), ("Ada",))


@dataclass
class Scripted:
    """An editor, a reviewer and a solver in one, which do what lists say; asked again, the last entry counts."""

    links: Sequence[Link | Exception | None] = ()
    flaws: Sequence[str] = ("",)
    direct: Sequence[Sequence[str]] = (("Rome",) * 8,)
    too: frozenset[str] = frozenset()
    covered: frozenset[str] = frozenset()
    question: str = ""
    """What a substitution makes; empty for what the link question says."""
    actions: list[list[str]] = field(default_factory=list)
    choice: Callable[[Sequence[str]], str] = lambda offered: "inject"
    kinds: tuple[Any, ...] = ("inject", "fuzz")
    calls: dict[str, int] = field(default_factory=dict)

    def _next(self, name: str, entries: Sequence[Any]) -> Any:
        place = self.calls[name] = self.calls.get(name, -1) + 1
        return entries[min(place, len(entries) - 1)]

    async def start(self, page: Page, rng: Random) -> Draft | None:
        return FIRST

    async def choose(self, draft: Draft, actions: Sequence[str], rng: Random) -> str:
        self.actions.append(sorted(actions))
        return self.choice(actions)

    async def link(self, draft: Draft, rng: Random) -> Link | None:
        made: Link | Exception | None = self._next("link", self.links)
        if isinstance(made, Exception):
            raise made
        return made

    async def substitute(self, draft: Draft, link: Link, rng: Random) -> str:
        self.calls["substitute"] = self.calls.get("substitute", 0) + 1
        return self.question or f"Where was the one of {link.question.split()[-1].rstrip('?')} born?"

    async def fuzz(self, draft: Draft, rng: Random) -> Draft | None:
        return replace(draft, question="Where was somebody born?")

    async def is_covered(self, draft: Draft, statement: str) -> bool:
        return statement in self.covered

    async def flaw(self, draft: Draft) -> str:
        return str(self._next("flaw", self.flaws))

    async def answers(self, question: str, count: int, seed: int) -> list[str]:
        return list(self._next("direct", self.direct))

    async def is_right(self, draft: Draft, answer: str) -> bool:
        return answer == draft.answer

    async def is_right_too(self, draft: Draft, answer: str) -> bool:
        return answer in self.too


def link_of(number: int) -> Link:
    """A link question whose answer is Ada, about the page of that number."""
    page = Page(f"P{number}", "", (f"p{number}",))
    return Link("Ada", page, f"Who is the one of {number}?", f"Ada is the one of {number}.")


def edited(number: int) -> Draft:
    """The first draft after so many injections."""
    draft = FIRST
    for n in range(1, number + 1):
        draft = with_link(draft, link_of(n), f"Where was the one of {n} born?")
    return draft


def played(script: Scripted, **config: int) -> Synthesis:
    return run_sync(synthesize(ROOT, script, script, script, SynthesisConfig(**config)))


def test_an_edit_counts_and_its_page_stands_before_the_others() -> None:
    made = played(Scripted([link_of(1), link_of(2)]), turns=2)
    assert made.draft == edited(2)
    assert made.draft.documents == ("p2", "p1", "d1")
    assert made.committed() == ["inject", "inject"]
    task = as_task(made, 0)
    assert (task.data["hops"], task.data["supporting_ids"]) == (3, ["p2", "p1", "d1"])


def test_an_injection_keeps_its_link_question_and_the_fact_of_it() -> None:
    """The link question about P1 gives way to nothing but the name, and its statement joins those of the question."""
    made = played(Scripted([link_of(1)]), turns=1)
    assert made.draft is not None
    assert made.draft.statements == ("Ada was born in Ulm.", "Ada is the one of 1.")
    assert made.draft.used == ("Ada", "P1")
    (edit,) = as_task(made, 0).data["edits"]
    assert (edit["link"], edit["question"]) == ("Who is the one of 1?", "Where was the one of 1 born?")


@pytest.mark.parametrize(
    ("changes", "covered", "why"),
    [
        ({}, frozenset({"Ada is the one of 1."}), COVERED),
        ({"statement": "ada was born in ULM"}, frozenset(), COVERED),
        ({"statement": "She is the one."}, frozenset(), "the statement does not name 'Ada'"),
        ({"question": "Who is Ada, the one of 1?"}, frozenset(), "the link question: it holds its answer"),
        ({"question": "The one of 1"}, frozenset(), "the link question: it is not one question"),
    ],
    ids=["judged covered", "covered by its wording", "a pronoun", "names its answer", "no question"],
)
def test_a_flawed_link_question_is_refused_before_it_stands_anywhere(
    changes: dict[str, str], covered: frozenset[str], why: str
) -> None:
    script = Scripted([replace(link_of(1), **changes)], covered=covered)  # type: ignore[arg-type]
    made = played(script, turns=1)
    assert made.draft == FIRST
    assert (made.edits[0].flaw, made.edits[0].question) == (why, "")
    assert made.edits[0].link == changes.get("question", "Who is the one of 1?")
    assert "substitute" not in script.calls
    assert (link_flaw(FIRST, link_of(1)), link_flaw(edited(1), link_of(1))) == ("", COVERED)


@pytest.mark.parametrize(
    ("question", "flawed"),
    [
        ("Where was the one of 1 born?", False),
        ("Where was ADA, the one of 1, born?", True),
        ("Where was somebody born?", True),
        ("In which town was Adam's one born?", False),
    ],
    ids=["described", "named still", "nothing of the link", "a longer word"],
)
def test_the_link_question_has_to_stand_in_the_place_of_the_name(question: str, flawed: bool) -> None:
    assert bool(substitution_flaw(FIRST, link_of(1), question)) is flawed
    made = played(Scripted([link_of(1)], question=question), turns=1)
    assert bool(made.edits[0].flaw) is flawed
    assert (made.draft == FIRST) is flawed


def test_a_refused_edit_leaves_the_question_as_it_was() -> None:
    made = played(Scripted([link_of(1), link_of(2)], flaws=["", "", "two questions"]), turns=2)
    assert made.draft == edited(1)
    assert [edit.flaw for edit in made.edits] == ["", "two questions"]


def test_another_right_answer_refuses_the_edit() -> None:
    made = played(
        Scripted([link_of(1)], direct=[["Rome"], ["Bonn"]], too=frozenset({"Bonn"})), turns=1, direct=1
    )
    assert made.draft == FIRST
    assert "'Bonn'" in made.edits[0].flaw


def test_the_agent_may_stop_once_no_direct_answer_to_an_edit_is_right() -> None:
    """First question: 2 of 2 right; one edit: 1 of 2; two edits: 0 of 2, so that the third turn may stop."""
    script = Scripted(
        [link_of(1), link_of(2)],
        direct=[["Ulm", "Ulm"], ["Ulm", "Rome"], ["Rome", "Rome"]],
        choice=lambda offered: "exit" if "exit" in offered else "inject",
    )
    made = played(script, turns=9, direct=2)
    assert script.actions == [["fuzz", "inject"], ["fuzz", "inject"], ["exit", "fuzz", "inject"]]
    assert (made.right, made.committed(), made.flaw(1)) == (0, ["inject", "inject"], "")


def test_the_agent_may_not_stop_before_an_edit_counts() -> None:
    """No direct answer to the first question is right, and the first edit is refused: the second turn may not stop."""
    script = Scripted([None, link_of(1)], choice=lambda offered: "exit" if "exit" in offered else "inject")
    made = played(script, turns=9)
    assert script.actions == [["fuzz", "inject"], ["fuzz", "inject"], ["exit", "fuzz", "inject"]]
    assert made.committed() == ["inject"]


@pytest.mark.parametrize(("readable", "counts"), [(0, False), (3, False), (4, True), (8, True)])
def test_an_edit_whose_direct_answers_cannot_be_read_does_not_count(readable: int, counts: bool) -> None:
    """Of 8 at least 4 have to be read: without them nobody knows how hard the question is."""
    made = played(Scripted([link_of(1)], direct=[["Rome"] * 8, ["Rome"] * readable]), turns=1)
    assert (made.flaw(1) == "") is counts
    assert (made.read, made.edits[0].read) == ((readable, readable) if counts else (8, 0))
    assert as_task(made, 0).data["direct_asked"] == made.read
    assert bool(made.edits[0].flaw) is not counts


def test_a_page_whose_first_question_cannot_be_tested_fails_and_without_a_solver_none_is() -> None:
    with pytest.raises(SynthesisFault, match="only 3 of 8"):
        played(Scripted([link_of(1)], direct=[["Rome"] * 3]), turns=1)
    script = Scripted([link_of(1)])
    made = run_sync(synthesize(ROOT, script, script, None, SynthesisConfig(turns=1)))
    assert (made.right, made.read, made.flaw(1), "direct" in script.calls) == (0, 0, "", False)


def test_a_question_that_is_answered_without_a_search_is_not_kept() -> None:
    made = played(Scripted([link_of(1)], direct=[["Ulm"]]), turns=1, direct=1)
    assert made.flaw(1) == "answered without a search"
    assert replace(made, right=0).flaw(1) == ""
    assert replace(made, right=0).flaw(2) == "too few edits"
    assert Synthesis("Ada", None, (), 0, 8).flaw(1) == "no question"


@pytest.mark.parametrize("error", [SynthesisFault("unreadable"), None], ids=["unreadable", "nothing"])
def test_an_editor_that_finds_nothing_loses_a_turn(error: Exception | None) -> None:
    made = played(Scripted([error, link_of(1)]), turns=2)
    assert made.draft == edited(1)
    assert made.edits[0].flaw


def test_a_model_that_fails_ends_the_question() -> None:
    with pytest.raises(EndpointFault):
        played(Scripted([EndpointFault("down")]), turns=2)


@pytest.mark.parametrize(
    ("question", "flawed"),
    [
        ("Where was Ada born?", False),
        ("Where was Ada born", True),
        ("Where was Ada born? And who is she?", True),
        ("Was Ada born in Ulm?", True),
        ("Was Ada born in Ulmen?", False),
        ("x" * 1500 + "?", True),
    ],
    ids=["fine", "no question", "two", "holds it", "holds a longer word", "endless"],
)
def test_form(question: str, flawed: bool) -> None:
    assert bool(form_flaw(replace(FIRST, question=question))) is flawed


@pytest.mark.parametrize("changes", [{"turns": 0}, {"fewest": 0}, {"direct": -1}], ids=str)
def test_budgets_out_of_range_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match=rf"{next(iter(changes))}={next(iter(changes.values()))}"):
        SynthesisConfig(**changes)


WORLD = WorldConfig(seed=3, documents=200, questions=0)


def test_every_injection_into_a_world_is_proved_and_has_a_path() -> None:
    """The solver, which knows nothing of how a question was made, finds one answer to each; each hop waits for the last."""
    facts = generate_facts(WORLD)
    editor, reviewer = WorldEditor(facts), WorldReviewer(facts)
    pages = LinkedPages(write_documents(facts))
    made = [
        run_sync(synthesize(page, editor, reviewer, None, SynthesisConfig(turns=3)))
        for page in roots_of(pages, 30, 0)
    ]
    hard = [one.draft for one in made if one.draft is not None and one.committed()]
    assert len(hard) > 10
    for draft in hard:
        assert Solver(facts).answers(draft.question) == {draft.answer}
        assert [hop["answer"] for hop in draft.path[:-1]] == [hop["entity"] for hop in draft.path[1:]]
        assert draft.path[-1]["answer"] == draft.answer
        assert draft.path[0]["entity"] in draft.question


def test_a_world_refuses_what_has_two_answers() -> None:
    facts = generate_facts(WORLD)
    reviewer = WorldReviewer(facts)
    draft = run_sync(
        WorldEditor(facts).start(roots_of(LinkedPages(write_documents(facts)), 1, 0)[0], Random(0))
    )
    assert draft is not None
    assert run_sync(reviewer.flaw(draft)) == ""
    assert run_sync(reviewer.flaw(replace(draft, answer="Bonn")))
    assert run_sync(reviewer.flaw(replace(draft, question="Who is it?")))
    # A direct answer in another case is right as well, so that the question can be answered without a search.
    assert run_sync(reviewer.is_right(draft, f" {draft.answer.upper()}"))
    assert run_sync(reviewer.is_right_too(draft, draft.answer.lower()))
    assert not run_sync(reviewer.is_right(draft, "Bonn"))


def test_the_command_over_a_world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_world(replace(WORLD, questions=5), tmp_path / "world")
    words = ["synthesize", "asearcher", "--corpus", str(tmp_path / "world"), "--roots", "12", "--turns", "2"]
    assert main([*words, "--out", str(tmp_path / "a"), "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["committed"] > 0
    dataset = load_dataset("jsonl", tmp_path / "a" / "questions.jsonl")
    assert len(dataset.tasks) == card["questions"] > 3
    assert dataset.corpus == tmp_path / "a" / "corpus.jsonl"
    assert main([*words, "--out", str(tmp_path / "b"), "--json"]) == 0
    assert (tmp_path / "a/questions.jsonl").read_bytes() == (tmp_path / "b/questions.jsonl").read_bytes()
    assert main([*words, "--out", str(tmp_path / "b"), "--json"]) == 1  # nothing is written over


PAGES = [
    {"id": "1", "title": "Ada Stone", "text": "Ada Stone was born in Ulm and wrote Red Lake."},
    {"id": "2", "title": "Red Lake", "text": "Red Lake is a novel by Ada Stone of 1950."},
    {"id": "3", "title": "Lonely", "text": "Nothing."},
]


def model(body: Any) -> Answer:
    """An editor that knows one edit of a question about Ada Stone, and judges that agree to everything."""
    asked = body["messages"][0]["content"]
    if "Write one question about a fact that the page states" in asked:
        if "titled Red Lake" in asked:
            return Answer("I cannot.")
        said = {
            "question": "Where was Ada Stone born?",
            "answer": "Ulm",
            "statement": "Ada Stone was born in Ulm.",
        }
    elif "What should be done next" in asked:
        said = {"action": "exit" if "exit" in asked else "inject"}
    elif "Write one question about a fact" in asked:
        said = {"question": "Who wrote Red Lake?", "statement": "Ada Stone wrote Red Lake."}
    elif "Write the first question again" in asked:
        said = {"question": "Where was the author of Red Lake born?"}
    elif "from what you know; nothing" in asked:
        said = {"answer": "Rome"}
    else:
        said = {"reason": "so", "valid": "yes", "same": "no", "right": "no", "covered": "no"}
    return Answer("Let me think {so}. " + json.dumps(said))


def test_the_command_with_a_model_keeps_its_replies_and_goes_on_past_a_record_that_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(page) + "\n" for page in PAGES))
    words = [
        "synthesize",
        "asearcher",
        "--corpus",
        str(corpus),
        "--roots",
        "3",
        "--replies",
        str(tmp_path / "r"),
    ]
    with FakeEndpoint(model) as server:
        words += ["--editor", f"openai:m@{server.url}", "--json"]
        assert main([*words, "--out", str(tmp_path / "a")]) == 0
        asked = len(server.bodies)
        assert main([*words, "--out", str(tmp_path / "b")]) == 0
        # of the second time, only what could not be read is asked again
        assert 0 <= len(server.bodies) - asked <= 3
    card = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (card["questions"], card["failures"]) == (1, {"SynthesisFault": 1})
    (row,) = map(json.loads, (tmp_path / "a/questions.jsonl").read_text().splitlines())
    assert (row["question"], row["answers"]) == ("Where was the author of Red Lake born?", ["Ulm"])
    assert (row["supporting_ids"], row["hops"], row["direct_right"]) == (["2", "1"], 2, 0)
    (failure,) = map(json.loads, (tmp_path / "a/failures.jsonl").read_text().splitlines())
    assert failure["id"] == "Red Lake"
    assert (tmp_path / "a/questions.jsonl").read_bytes() == (tmp_path / "b/questions.jsonl").read_bytes()


def test_no_question_is_kept_as_hard_because_the_solver_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def mute(body: Any) -> Answer:
        return (
            Answer("Rome") if "from what you know; nothing" in body["messages"][0]["content"] else model(body)
        )

    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(page) + "\n" for page in PAGES))
    with FakeEndpoint(mute) as server:
        words = ["synthesize", "asearcher", "--corpus", str(corpus), "--editor", f"openai:m@{server.url}"]
        assert main([*words, "--out", str(tmp_path / "a")]) == 1
    assert "2 failed" in capsys.readouterr().err


def test_nothing_is_written_where_no_question_comes_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(page) + "\n" for page in PAGES))
    with FakeEndpoint(lambda body: Answer("no")) as server:
        words = ["synthesize", "asearcher", "--corpus", str(corpus), "--editor", f"openai:m@{server.url}"]
        assert main([*words, "--out", str(tmp_path / "a")]) == 1
    assert "2 failed" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


TWO_NAMES = [
    *PAGES,
    {"id": "4", "title": "Max Wood", "text": "Max Wood of Bonn painted Grey Hall."},
    {"id": "5", "title": "Grey Hall", "text": "Grey Hall is a picture by Max Wood."},
]
ABOUT_TWO = Draft("Did Ada Stone meet Max Wood?", "1950", ("They met in 1950.",), ("1", "4"), ("Ada Stone",))


def test_the_editor_chooses_the_name_and_asks_about_a_page_that_was_not_used() -> None:
    """Both names have a linked page; it takes the second name, is shown that name's page, and writes about it."""
    seen: list[str] = []

    def choosing(body: Any) -> Answer:
        asked = body["messages"][0]["content"]
        seen.append(asked)
        if "should give way" in asked:
            return Answer(json.dumps({"name": "max wood"}))
        said = {"question": "Who painted Grey Hall?", "statement": "Max Wood painted Grey Hall."}
        return Answer(json.dumps(said))

    with FakeEndpoint(choosing) as server:
        writer = ModelWriter(ChatClient(Endpoint("m", server.url)))
        editor = ModelEditor(writer, LinkedPages([Document(**page) for page in TWO_NAMES]))
        link = run_sync(editor.link(ABOUT_TWO, Random(0)))
        used = replace(ABOUT_TWO, used=("Ada Stone", "Max Wood", "Grey Hall"))
        other = run_sync(editor.link(used, Random(0)))
        assert run_sync(editor.link(replace(used, used=(*used.used, "Red Lake")), Random(0))) is None
    assert link is not None
    assert other is not None
    assert (link.written, link.page.title, link.page.ids) == ("Max Wood", "Grey Hall", ("5",))
    assert all(name in seen[0] for name in ("Ada Stone", "Max Wood"))
    assert "titled Grey Hall" in seen[1]
    assert (other.written, other.page.title) == ("Ada Stone", "Red Lake")
    assert len(seen) == 3  # one name alone has an unused page, so that there is nothing to choose


def test_a_page_that_identifies_nobody_gives_no_link_question() -> None:
    with FakeEndpoint(lambda body: Answer('{"question": "None.", "statement": "none"}')) as server:
        writer = ModelWriter(ChatClient(Endpoint("m", server.url)))
        editor = ModelEditor(writer, LinkedPages([Document(**page) for page in PAGES]))
        assert run_sync(editor.link(FIRST_OF_MODEL, Random(0))) is None


FIRST_OF_MODEL = Draft("Where was Ada Stone born?", "Ulm", ("She was.",), ("1",), ("Ada Stone",))


@pytest.mark.parametrize("what", ["substitution", "covered"])
def test_the_command_refuses_an_injection_whose_second_step_or_fact_is_of_no_use(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def poor(body: Any) -> Answer:
        asked = body["messages"][0]["content"]
        if what == "substitution" and "Write the first question again" in asked:
            return Answer(json.dumps({"question": "Where was ADA STONE, who wrote Red Lake, born?"}))
        if what == "covered" and "A fact:" in asked:
            return Answer(json.dumps({"covered": "yes"}))
        return model(body)

    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(page) + "\n" for page in PAGES))
    with FakeEndpoint(poor) as server:
        words = ["synthesize", "asearcher", "--corpus", str(corpus), "--editor", f"openai:m@{server.url}"]
        assert main([*words, "--turns", "2", "--out", str(tmp_path / "a")]) == 1
    assert "no question came" in capsys.readouterr().err

"""The report in a real browser without a window: it opens, filters, steps, and shows the numbers of ``results.json``.

Needs playwright's Python package and a Chromium of the system; skipped, with the reason, where one is absent.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import EndReason, Message, Task
from agentenv.envs.browser.driver import find_chromium
from agentenv.envs.gui.actions import Action, ActionKind, action_text
from agentenv.envs.gui.scene import ScreenScene
from agentenv.envs.gui.screen import Box, Element, Screen
from agentenv.evaluation.diagnosis import cause_of
from agentenv.evaluation.records import EpisodeRecord, read_evaluation, write_evaluation
from agentenv.evaluation.report.report import write_report
from agentenv.evaluation.results import score_of, summarize
from agentenv.evaluation.runner import to_record
from agentenv.evaluation.suite import summarize_suite

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright (the extra 'dev')")
pytest.importorskip("jinja2", reason="needs the extra 'report'")

CHROMIUM = find_chromium()
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WAIT_MS = 60_000

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs a Chromium of the system (apt-get install chromium)"
)

PASSAGES = (
    "\n\n<information>Doc 1(Title: Harbour) Velandrax: it was founded by VELANDRA & sons.\n"
    "Doc 2(Title: Port) Nothing of use, <b>really</b>.</information>\n\n"
)
CASES: list[tuple[str, dict[str, Any]]] = [
    ("Velandra", {}),
    ("Toreth", {}),
    ("Toreth", {"retrieved_ids": [["p"]], "supporting_ids": ["s"]}),
    ("Velandra", {}),
    ("", {}),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests."""
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=WAIT_MS)
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[[Path], Any]]:
    """Opens a file; at the end no request but for the file itself and no error may have been seen."""
    asked: list[str] = []
    errors: list[str] = []
    opened: list[Any] = []

    def go(path: Path) -> Any:
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(WAIT_MS)
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(path.as_uri())
        opened.append(page)
        return page

    yield go
    for page in opened:
        page.close()
    assert errors == []
    assert all(url.startswith("file:") and url.partition("#")[0].endswith(".html") for url in asked), asked


def episodes(record: Callable[..., EpisodeRecord], name: str) -> list[EpisodeRecord]:
    """Two right, a read miss, a retrieval miss and one that gave up; each searches and then answers."""
    rows = []
    for i, (prediction, changes) in enumerate(CASES):
        search = {
            "action": f"<think>first</think><search>who founded {name}{i}</search>",
            "observation": PASSAGES,
            "valid": True,
            "reward": 0.0,
            "policy_tokens": 7,
            "observation_tokens": 31,
            "tool_results": [
                {"name": "search", "status": "ok", "text": "q", "error_class": "", "ids": [["s", "p"]]}
            ],
        }
        last = {"action": f"<answer>{prediction}</answer>", "observation": "", "valid": True, "reward": 1.0}
        known: dict[str, Any] = {"retrieved_ids": [["s", "p"]], "supporting_ids": ["s"], **changes}
        rows.append(
            record(
                f"{name}{i}",
                prediction,
                question=f"Who founded the harbour {name}{i}?",
                answers=["Velandra"],
                turns=[search, last | {"policy_tokens": 5, "observation_tokens": 0, "tool_results": []}],
                tokens={"policy": 12, "total": 60},
                **known,
            )
        )
    return rows


@pytest.fixture
def run(tmp_path: Path, record: Callable[..., EpisodeRecord], write_run: Callable[..., None]) -> Path:
    """One evaluation with its page."""
    rows = episodes(record, "q")
    bounds = {"oracle": {"mean": 0.2, "ci95": [0.1, 0.4], "n": 5}, "expert": {"mean": 1.0, "n": 5}}
    write_run(tmp_path / "run", rows, ("em_squad", "f1_squad"), bounds=bounds)
    write_report(tmp_path / "run")
    return tmp_path / "run"


def cells(page: Any, title: str, row: str) -> list[str]:
    """The texts of one row of the table whose caption begins with ``title``."""
    table = page.locator("table", has=page.locator(f"caption:text-matches('^{title}')"))
    found: list[str] = (
        table.locator("tr", has=page.locator(f"th[scope=row]:text-is('{row}')"))
        .locator("td")
        .all_inner_texts()
    )
    return found


def test_it_shows_the_numbers_of_the_results(run: Path, open_page: Callable[[Path], Any]) -> None:
    results = json.loads((run / "results.json").read_text())
    page = open_page(run / "report.html")
    for name, score in results["scores"].items():
        low, high = score["ci95"]
        assert cells(page, "Scores", name) == [
            str(score["n"]),
            f"{score['mean']:.3f}",
            f"{low:.3f} to {high:.3f}",
        ]
    assert page.locator(".card strong").inner_text() == f"{results['scores']['em_squad']['mean']:.3f}"
    for cause in ("correct", "retrieval_miss", "read_miss", "gave_up"):
        n = results["errors"][cause]
        assert cells(page, "Errors", cause.replace("_", " ")) == [str(n), f"{n / 5:.1%}"]
    assert cells(page, "Behaviour", "support recall") == [f"{results['retrieval']['support_recall']:.3f}"]
    assert cells(page, "Bounds", "oracle")[1] == "0.200"
    assert "the bound oracle is below the run itself" in page.locator(".warnings").inner_text()


@pytest.mark.parametrize("outcome", ["", "correct", "wrong", "retrieval_miss", "read_miss", "gave_up"])
def test_it_filters_by_outcome_as_the_records_say(
    run: Path, open_page: Callable[[Path], Any], outcome: str
) -> None:
    evaluation = read_evaluation(run)
    causes = {row["id"]: cause_of(row, score_of(row, "em_squad")) for row in evaluation.records}
    wanted = [
        identity
        for identity, cause in causes.items()
        if outcome in ("", cause) or (outcome == "wrong" and cause != "correct")
    ]
    page = open_page(run / "report.html")
    page.locator("#outcome").select_option(outcome)
    assert page.locator("#count").inner_text() == f"{len(wanted)} of 5"
    assert page.locator("#list li .m > span:first-child").all_text_contents() == wanted


def test_it_searches_and_says_when_nothing_is_found(run: Path, open_page: Callable[[Path], Any]) -> None:
    page = open_page(run / "report.html")
    page.locator("#text").fill("FOUNDED Q3")
    assert page.locator("#count").inner_text() == "1 of 5"
    assert page.locator("#detail h3").inner_text() == "Who founded the harbour q3?"
    page.locator("#text").fill("no such words")
    assert page.locator("#count").inner_text() == "0 of 5"
    assert "No episode matches" in page.locator("#detail").inner_text()


def test_it_steps_through_the_turns_and_marks_answers(run: Path, open_page: Callable[[Path], Any]) -> None:
    page = open_page(run / "report.html")
    assert page.locator("#place").inner_text() == "turn 1 of 2"
    first = page.locator(".turn.current")
    assert "who founded q0" in first.inner_text()
    assert "7 tokens written, 31 shown" in first.inner_text()
    assert "12 tokens written, 60 in all" in page.locator("#detail .side").inner_text()
    assert first.locator("mark").all_inner_texts() == ["VELANDRA"]  # whole words, in any case
    assert "Harbour" in first.locator(".passage.needed").inner_text()
    assert first.locator(".passage").count() == 2
    assert "<b>really</b>" in first.inner_text()  # text, never markup
    assert page.locator("#previous").is_disabled()
    page.locator("#next").click()
    assert page.locator("#place").inner_text() == "turn 2 of 2"
    assert "<answer>Velandra</answer>" in page.locator(".turn.current").inner_text()
    assert page.locator("#next").is_disabled()
    page.keyboard.press("h")
    assert page.locator("#place").inner_text() == "turn 1 of 2"
    page.keyboard.press("j")
    assert page.locator("#detail h3").inner_text() == "Who founded the harbour q1?"
    assert page.locator("#detail .verdict").inner_text() == "\u2717 read miss"


def test_a_link_opens_its_episode(run: Path, open_page: Callable[[Path], Any]) -> None:
    page = open_page(run / "report.html")
    page.goto((run / "report.html").as_uri() + "#q4")
    page.reload()
    assert page.locator("#detail h3").inner_text() == "Who founded the harbour q4?"
    assert page.locator("#detail .verdict").inner_text() == "\u2717 gave up"


def test_a_broken_link_opens_the_first_episode(run: Path, open_page: Callable[[Path], Any]) -> None:
    page = open_page(run / "report.html")
    page.goto((run / "report.html").as_uri() + "#%E0%A4")
    page.reload()
    assert page.locator("#detail h3").inner_text() == "Who founded the harbour q0?"


def test_a_screen_reader_is_told_which_episode_is_open_and_how_it_went(
    run: Path, open_page: Callable[[Path], Any]
) -> None:
    page = open_page(run / "report.html")
    page.locator("#list").focus()
    page.keyboard.press("ArrowDown")
    chosen = page.locator("#list").get_by_role("option", selected=True)
    assert chosen.count() == 1
    assert "harbour q1" in chosen.inner_text()
    assert chosen.get_by_role("img", name="read miss").count() == 1
    assert page.locator("#list").get_attribute("aria-activedescendant") == chosen.get_attribute("id")


def test_without_javascript_the_page_says_where_the_episodes_are(run: Path, browser: Any) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto((run / "report.html").as_uri())
    assert "episodes.jsonl" in page.locator("#viewer").inner_text()
    assert not page.locator("#list").is_visible()
    page.close()


def test_a_long_word_widens_no_page_and_paper_shows_every_turn(
    tmp_path: Path,
    record: Callable[..., EpisodeRecord],
    write_run: Callable[..., None],
    open_page: Callable[[Path], Any],
) -> None:
    turns = [{"action": f"a{i} " + "y" * 500, "observation": "o" * 3000, "valid": True} for i in range(30)]
    long = {"question": "Q" * 500, "family": "F" * 300, "hops": 2, "turns": turns}
    write_run(tmp_path, [record("L" * 300, "P" * 500, **long), record("b", family="g")], dataset="D" * 300)
    page = open_page(write_report(tmp_path))
    for width in (1400, 400):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.emulate_media(media="print")
    shown = page.locator("#detail").bounding_box()
    last = page.locator("#detail .turn").last.bounding_box()
    panes = page.locator(".panes").bounding_box()
    assert last["y"] + last["height"] <= shown["y"] + shown["height"] <= panes["y"] + panes["height"]


def test_the_page_of_two_suites_compares_and_filters_by_set(
    tmp_path: Path,
    record: Callable[..., EpisodeRecord],
    write_run: Callable[..., None],
    open_page: Callable[[Path], Any],
) -> None:
    for side, right in (("a", 0), ("b", 2)):
        for name in ("x", "y"):
            rows = episodes(record, name)
            for row in rows[1 : 1 + right]:
                row["prediction"] = "Velandra"
            write_run(tmp_path / side / name, rows, ("em_squad",), dataset=name)
            path = tmp_path / side / name / "results.json"
            more = {"index_recall": {}, "answer_in_corpus": {"share": 1.0, "n": 5}}
            path.write_text(json.dumps(json.loads(path.read_text()) | more))
        summarize_suite(tmp_path / side, ["x", "y"])
    page = open_page(write_report(tmp_path / "b", tmp_path / "a"))
    summary = json.loads((tmp_path / "b" / "suite.json").read_text())
    for kind in ("macro", "micro"):
        mean = summary["scores"]["em_squad"][kind]
        low, high = mean["ci95"]
        assert cells(page, "Suite", f"{kind} mean")[1:3] == [
            f"{mean['mean']:.3f}",
            f"{low:.3f} to {high:.3f}",
        ]
    assert cells(page, "Comparison", "x")[:4] == ["5", "0.400", "0.800", "+0.400"]
    page.locator("#set").select_option("y")
    assert page.locator("#count").inner_text() == "5 of 10"
    page.locator("#outcome").select_option("gained")
    assert page.locator("#count").inner_text() == "2 of 10"
    assert [text.strip()[0] for text in page.locator("#detail .verdict").all_inner_texts()] == [
        "\u2717",
        "\u2713",
    ]


MARKUP = "<img src=x onerror=alert(1)><b>Send</b>"


def graphical(folder: Path) -> Path:
    """The page of three episodes on a made-up screen: solved in two turns, not solved in three, and one of words alone."""
    send = Element("1", "button", MARKUP, Box(100, 20, 180, 60))
    scene = ScreenScene(
        Screen(400, 200, MARKUP, (send,)), Action(ActionKind.CLICK, point=(20, 20)), (Box(0, 0, 40, 40),)
    )
    actions = [
        Action(ActionKind.CLICK, id="1"),
        Action(ActionKind.SWIPE, point=(300, 150), end=(300, 50)),
        Action(ActionKind.TYPE, text="Ann"),
    ]
    turns = [
        Turn(
            action_text(a, "so"),
            (Message("user", MARKUP),),
            valid=a.kind is not ActionKind.SWIPE,
            scene=scene,
        )
        for a in actions
    ]
    played = [
        Trajectory(Task(f"t{n}", MARKUP), (), tuple(turns[:n]), float(n == 2), EndReason.SUBMITTED)
        for n in (2, 3)
    ]
    played.append(Trajectory(Task("words", "words"), (), (Turn("no action"),), 0.0, EndReason.TURN_LIMIT))
    rows = [to_record(trajectory, folder) for trajectory in played]
    about = {"dataset": "d", "split": "test", "policy": "p", "retriever": None, "k": 1}
    write_evaluation(folder, summarize(rows, ("reward",), **about), rows)  # type: ignore[arg-type]
    return write_report(folder)


def drawn(page: Any, selector: str) -> list[str]:
    """Each shape of ``selector`` with its place."""
    found: list[str] = page.locator(selector).evaluate_all(
        """nodes => nodes.map(n => [n.tagName, ...["x", "y", "width", "height", "x1", "y1", "x2", "y2", "cx", "cy"]
            .filter(a => n.hasAttribute(a)).map(a => n.getAttribute(a))].join(" "))"""
    )
    return found


def test_the_gallery_opens_an_episode_at_its_last_screen(
    tmp_path: Path, open_page: Callable[[Path], Any]
) -> None:
    page = open_page(graphical(tmp_path))
    cards = page.locator("#gallery li")
    assert cards.count() == 2  # the episode of words has no screen
    assert [text.splitlines()[0] for text in cards.all_inner_texts()] == [f"✓ {MARKUP}", f"✗ {MARKUP}"]
    assert 'submitted · type "Ann"' in cards.nth(1).inner_text()
    assert page.locator("img").evaluate_all(
        "all => all.every(one => one.complete && one.naturalWidth === 400)"
    )
    cards.nth(1).locator("button").click()
    assert page.locator("#place").inner_text() == "turn 3 of 3"
    assert "not solved" in page.locator("#detail .verdict").inner_text()
    page.locator("#outcome").select_option("correct")
    assert cards.count() == 1
    page.locator("#text").fill("words")
    page.locator("#outcome").select_option("")
    assert not page.locator("#gallery").is_visible()


def test_an_episode_is_replayed_with_the_action_on_each_screen(
    tmp_path: Path, open_page: Callable[[Path], Any]
) -> None:
    page = open_page(graphical(tmp_path))
    page.locator("#gallery button").nth(1).click()
    now = ".turn.current .screen"
    assert page.locator(now).count() == 1
    assert drawn(page, f"{now} g.expert > *") == ["circle 20 20", "circle 20 20", "rect 0 0 40 40"]
    assert page.locator(f"{now} .label").all_inner_texts() == ['type "Ann"']
    page.keyboard.press("h")
    assert drawn(page, f"{now} g.policy > *") == ["line 300 150 300 50", "polyline", "circle 300 150"]
    # the expert's words stand there because the action was not his
    assert page.locator(f"{now} .label").all_inner_texts() == ["expert: click", "swipe"]
    page.locator(".thumb").nth(0).click()
    assert page.locator("#place").inner_text() == "turn 1 of 3"
    assert drawn(page, f"{now} g.policy > *") == ["rect 100 20 80 40", "circle 140 40", "circle 140 40"]
    assert page.locator(f"{now} .label.policy").inner_text() == f'click "{MARKUP}"'
    picture = page.locator(f"{now} img").bounding_box()
    ring = page.locator(f"{now} g.policy circle:not(.dot)").bounding_box()
    centre = (ring["x"] + ring["width"] / 2 - picture["x"]) / picture["width"]
    assert abs(centre - 140 / 400) < 0.01  # the layer lies on the picture as that is scaled
    page.locator("#play").click()
    page.locator("#place", has_text="turn 3 of 3").wait_for()
    assert page.locator("#play").inner_text() == "▶ play"  # it stops at the end


def test_an_episode_that_a_fault_ended_shows_no_score(
    tmp_path: Path,
    record: Callable[..., EpisodeRecord],
    write_run: Callable[..., None],
    open_page: Callable[[Path], Any],
) -> None:
    """A fault is in no mean, so that a 0 beside it would be a number that nothing was computed from."""
    failed = record("q", None, valid=False, end_reason="policy_fault", error="PolicyFault: gone")
    write_run(tmp_path, [failed, *episodes(record, "r")], ("em_squad",))
    page = open_page(write_report(tmp_path))
    shown = page.locator("#detail").inner_text()
    assert "policy fault" in shown
    assert "em_squad" not in shown
    assert "reward" not in shown
    page.keyboard.press("j")
    assert "em_squad 1" in page.locator("#detail").inner_text()

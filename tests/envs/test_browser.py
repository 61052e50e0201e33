"""Browser-v0 in a real Chromium: MiniWoB, local pages, what is told to the policy, what is a fault, going back.

Needs the extra ``gui`` and a Chromium of the system; skipped, with the reason, where one is absent.
"""

import asyncio
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import EndReason, Task, ToolStatus
from agentenv.envs.browser import page as page_module
from agentenv.envs.browser.browser_session import BrowserSession
from agentenv.envs.browser.driver import Driver, find_chromium, unavailable
from agentenv.envs.browser.env import Browser
from agentenv.envs.browser.experts import EXPERTS, rehearse
from agentenv.envs.browser.sites import (
    ORIGIN,
    PageFacts,
    Site,
    miniwob,
    miniwob_task,
    miniwob_tasks,
    page_of,
)
from agentenv.envs.gui.actions import Action, ActionKind, action_text
from agentenv.errors import BrowserFault, ConfigurationError, DatasetError, ReplayDivergence, UnknownName
from agentenv.evaluation.runner import to_record

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())

COVERED = """<!DOCTYPE html><title>Covered</title><style>button {position: absolute; width: 120px; height: 40px}</style>
<button onclick="document.title = 'below'" style="left: 20px; top: 20px">below</button>
<button onclick="document.title = 'above'" style="left: 60px; top: 30px">above</button>"""
DRAWN = """<!DOCTYPE html><title>Drawn</title>
<style>#late {display: none} .shown #late {display: inline; cursor: pointer; content: url(late.png)}</style>
<button onclick="setTimeout(() => document.body.className = 'shown', 50)">show</button><span id=late></span>"""
FORM = """<!DOCTYPE html><title>Form</title>
<label>Name <input name=who></label><label><input type=checkbox name=sure> sure</label>
<select name=colour><option>red</option><option>blue</option></select>
<button onclick="localStorage.saved = document.querySelector('[name=who]').value">Save</button>
<a href="second.html">next</a><p id=out></p>
<script>
  document.querySelector('#out').textContent = 'It is ' + new Date().toISOString() + ', ' + Math.random();
  fetch('data.txt').then(answer => answer.text()).then(text => setTimeout(() => { document.title = text; }, 700));
</script>"""
HAZARDS = """<!DOCTYPE html><title>Hazards</title>
<button onclick="while (true) alert('again')">alerts</button>
<button onclick="setInterval(() => alert('tick'), 10)">ticks</button>
<button onclick="if (confirm('sure?')) document.title = 'sure'">confirm</button>
<button onclick="nothing.here()">error</button>
<button onclick="while (true) {}">hang</button>
<button onclick="window.open('http://example.com')">popup</button>
<button onclick="location = 'http://example.com/away'">script</button>
<button onclick="leak()">leak</button>
<a href="http://example.com/">link</a><a href="http://example.com/" target=_blank>tab</a>
<iframe srcdoc="<p>in a frame</p>"></iframe>
<input oninput="document.querySelector('#sink').innerHTML = this.value" name=typed><div id=sink></div>
<script>
  async function leak() {
    const port = PORT, seen = [];
    new Image().src = `http://127.0.0.1:${port}/image`;
    navigator.sendBeacon(`http://127.0.0.1:${port}/beacon`, 'x');
    new WebSocket(`ws://127.0.0.1:${port}/socket`).onerror = () => seen.push('socket');
    await fetch(`http://127.0.0.1:${port}/fetch`).catch(() => seen.push('fetch'));
    const peer = new RTCPeerConnection({iceServers: [{urls: `stun:127.0.0.1:${port}`}]});
    peer.createDataChannel('x');
    await peer.setLocalDescription(await peer.createOffer());
    document.title = 'tried';
  }
</script>"""


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    made = Driver(spares=0)
    yield made
    made.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A server of this machine that nobody may reach."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


@pytest.fixture
def folder(tmp_path: Path, listener: socket.socket) -> Path:
    (tmp_path / "form.html").write_text(FORM)
    (tmp_path / "second.html").write_text("<title>Second</title><p>here</p>")
    (tmp_path / "data.txt").write_text("from the file")
    (tmp_path / "hazards.html").write_text(HAZARDS.replace("PORT", str(listener.getsockname()[1])))
    return tmp_path


def never(facts: PageFacts) -> float | None:
    return None


def local(driver: Driver, folder: Path, page: str, validator: Any = never, **site: Any) -> Browser:
    task = Task("local", "Do it.", data={"page": page})
    env = Browser(site=Site(folder, **site), tasks=[task], validator=validator, driver=driver)
    env.reset(seed=0)
    return env


def wob(driver: Driver, name: str, **options: Any) -> Browser:
    env = Browser(tasks=[miniwob_task(name)], driver=driver, **options)
    env.reset(seed=0)
    return env


def named(env: Browser, text: str) -> str:
    return next(one.id for one in env.screen().elements or () if one.text == text)


def do(env: Browser, kind: ActionKind, on: str = "", **fields: Any) -> Any:
    """One action, on the element that is called ``on``; gives the step."""
    return env.step(action_text(Action(kind, id=named(env, on) if on else None, **fields), "so"))


def only(step: Any) -> Any:
    (result,) = step.info["tool_results"]
    return result


def test_the_browser_opens_no_pages_of_its_own(driver: Driver, folder: Path) -> None:
    """Those of an address bar's pop-ups would double the processes of an episode."""
    env = local(driver, folder, "form.html")

    async def addresses() -> list[str]:
        session = await driver._chromium.browser.new_browser_cdp_session()  # type: ignore[union-attr]
        told = await session.send("Target.getTargets", {"filter": [{}]})
        return [target["url"] for target in told["targetInfos"]]

    found = driver.submit(addresses()).result()
    assert f"{ORIGIN}/form.html" in found
    assert [address for address in found if address.startswith("chrome")] == []
    env.close()


# What a viewer sees.


def test_the_scene_is_the_page_with_the_action_on_it(driver: Driver, folder: Path, tmp_path: Path) -> None:
    task = Task("local", "Do it.", data={"page": "form.html"})
    env = Browser(site=Site(folder), tasks=[task], validator=never, driver=driver, pixels=True)
    opening, _ = env.reset(seed=0)
    save = env.screen().element(named(env, "Save"))
    scene = env.scene()
    action = action_text(Action(ActionKind.CLICK, id=named(env, "Save")), "so")
    turn = Turn(action, scene=scene)
    env.close()
    (mark,) = scene.marks(action)
    assert save is not None
    assert (mark.label, mark.at, mark.box) == ('click "Save"', save.box.centre, tuple(save.box))
    assert "Save" in scene.svg()
    played = Trajectory(task, (), (turn,), 0.0, EndReason.SUBMITTED, opening)
    (row,) = to_record(played, tmp_path)["turns"]
    kept = (tmp_path / "screens" / row["scene"]["picture"]).read_bytes()
    assert kept == env.screen().image  # shown as it is: its sides are multiples of 28
    assert tuple(row["scene"]["size"]) == (env.screen().width, env.screen().height)


# What a site serves.


def test_a_site_serves_its_folder_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "site" / "a.html").write_text("<script>1</script><script src=b.js></script>")
    site = Site(tmp_path / "site", strict=True)
    body, headers = site.read(f"{ORIGIN}/a.html?x=1") or pytest.fail("a.html is there")
    assert body.count(f'nonce="{site.nonce}"'.encode()) == 2
    assert f"'nonce-{site.nonce}'" in headers["Content-Security-Policy"]
    for url in ("../secret.txt", "%2e%2e/secret.txt", "b.js", ""):
        assert site.read(f"{ORIGIN}/{url}") is None
    assert site.read("http://example.com/a.html") is None


def test_bad_arguments_are_refused(driver: Driver, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="validator"):
        Browser(site=Site(folder), driver=driver)
    with pytest.raises(ConfigurationError, match=r"\{goal\}.*Do it"):
        Browser(prompt="Do it.", driver=driver)
    with pytest.raises(ConfigurationError, match="max_steps=0"):
        Browser(max_steps=0, driver=driver)
    with pytest.raises(DatasetError):
        Browser(tasks=[], driver=driver).reset(seed=0)
    with pytest.raises(ConfigurationError, match=r"'gone\.html'"):
        local(driver, folder, "gone.html")
    with pytest.raises(UnknownName, match="'click-button'"):
        Browser.make_tasks(1, pages=["click-buton"])
    with pytest.raises(ConfigurationError, match="recycle_after=0"):
        Driver(recycle_after=0)
    monkeypatch.setenv("AGENTENV_CHROMIUM", str(folder / "no-browser"))
    assert find_chromium() is None
    assert "no Chromium" in unavailable()


def test_tasks_of_splits_share_no_seed() -> None:
    seeds = [
        {task.data["seed"] for task in Browser.make_tasks(300, split=s)} for s in ("train", "dev", "test")
    ]
    assert len(set.union(*seeds)) == sum(map(len, seeds))
    assert Browser.make_tasks(5) == Browser.make_tasks(5)


# MiniWoB.

SOLVED = sorted(EXPERTS)[::2]
STEPPED = (
    sorted({str(task.data["page"]) for task in miniwob_tasks()} - set(EXPERTS)) if not unavailable() else []
)


@pytest.mark.slow
def test_experts_solve_and_clicks_do_no_harm(driver: Driver) -> None:
    """Every page once: half of the experts are played to the end, and the pages without one are clicked at."""
    site = miniwob()
    lost = {}
    for page in SOLVED:
        session = BrowserSession(driver, site, images=False)
        _, reward = driver.submit(rehearse(session, f"{ORIGIN}/{page}", 3, EXPERTS[page], 60)).result()
        if reward != 1:
            lost[page] = reward
    assert lost == {}
    assert len(SOLVED) >= 28

    async def click(page: str) -> None:
        session = BrowserSession(driver, site, images=False)
        seen = await session.open(f"{ORIGIN}/{page}", 1)
        assert seen.goal
        for element in (seen.screen.elements or ())[:1]:
            after = await session.act(Action(ActionKind.CLICK, id=element.id))
            assert [note for note in after.notes.events if note[0] in ("network", "navigation")] == []
        await session.leave()

    for page in STEPPED:
        driver.submit(click(page)).result()
    assert len(SOLVED) + len(STEPPED) >= 60


@pytest.mark.parametrize(
    ("page", "seeds"),
    [
        # Far from the start; and a page with each of the layouts of its form.
        ("use-slider", (2129609529, 1, 2, 3)),
        ("multi-layouts", (86753910, 905266062, 1, 2)),
    ],
)
def test_experts_solve_what_their_pages_ask_within_twenty_actions(
    driver: Driver, page: str, seeds: tuple[int, ...]
) -> None:
    for seed in seeds:
        session = BrowserSession(driver, miniwob(), images=False)
        name = f"miniwob/{page}.html"
        _, reward = driver.submit(rehearse(session, f"{ORIGIN}/{name}", seed, EXPERTS[name], 20)).result()
        assert reward == 1


def test_a_right_click_is_rewarded_and_a_wrong_one_is_not(driver: Driver) -> None:
    env = wob(driver, "click-button")
    quoted = re.findall('"(.*)"', env.state.goal)[0]
    wrong = next(e for e in env.screen().elements or () if e.role == "button" and e.text != quoted)
    step = env.step(action_text(Action(ActionKind.CLICK, id=wrong.id), "so"))
    assert (step.reward, step.terminated, step.info["end_reason"]) == (0.0, True, EndReason.SUBMITTED)
    env.reset(seed=0)
    assert do(env, ActionKind.CLICK, quoted).reward == 1
    env.close()


def test_equal_seeds_open_equal_pages_and_others_do_not(driver: Driver) -> None:
    env = wob(driver, "click-checkboxes")
    opening = env.reset(seed=4)
    assert env.reset(seed=4) == opening
    assert env.reset(seed=5) != opening
    env.close()


def test_pixels_are_equal_too(driver: Driver) -> None:
    env = wob(driver, "click-button", tree=False, pixels=True, render_mode="rgb_array")
    (first,) = env.reset(seed=4)[0]
    assert [part.kind for part in first.content if not isinstance(part, str)] == ["text", "image"]
    assert env.reset(seed=4)[0] == (first,)
    assert env.render().shape == (224, 336, 3)  # type: ignore[union-attr]
    env.close()


def test_time_passes_only_with_actions(driver: Driver) -> None:
    env = wob(driver, "button-delay")  # the second button counts some seconds after the first
    do(env, ActionKind.CLICK, "ONE")
    assert do(env, ActionKind.WAIT, time=float(re.findall(r"wait (\d+)", env.state.goal)[0])).reward == 0
    assert do(env, ActionKind.CLICK, "TWO").reward == 1
    env.close()


def test_the_page_cannot_give_itself_a_reward(driver: Driver) -> None:
    env = wob(driver, "click-button")
    tab: Any = env.state.session._tab
    tricks = (
        "WOB_REWARD_GLOBAL = 1; WOB_RAW_REWARD_GLOBAL = 1; WOB_DONE_GLOBAL = true;"
        "window.agentenvReport = () => {}; String(typeof agentenvReport)"
    )
    driver.submit(tab._evaluate(tricks)).result()
    step = do(env, ActionKind.WAIT)
    assert (step.reward, step.terminated) == (0.0, False)
    with pytest.raises(BrowserFault, match="endEpisode"):
        driver.submit(tab._evaluate("'use strict'; core.endEpisode = () => {}")).result()
    env.close()


def test_ending_without_a_result_is_worth_nothing(driver: Driver) -> None:
    env = wob(driver, "click-button")
    step = env.step(action_text(Action(ActionKind.TERMINATE, text="success"), "so"))
    assert (step.reward, step.info["end_reason"]) == (0.0, EndReason.SUBMITTED)
    env.close()


# Local pages.


def saved(facts: PageFacts) -> float | None:
    return float(facts.storage.get("saved") == "Ann") if "saved" in facts.storage else None


def test_a_validator_judges_a_local_page(driver: Driver, folder: Path) -> None:
    env = local(driver, folder, "form.html", saved)
    assert env.screen().title == "from the file"  # requests and timers have come to rest
    do(env, ActionKind.TYPE, "Name", text="Ann")
    assert env.screen().element(named(env, "Name")).value == "Ann"  # type: ignore[union-attr]
    step = do(env, ActionKind.CLICK, "Save")
    assert (step.reward, step.info["end_reason"]) == (1.0, EndReason.SUBMITTED)
    env.close()


def test_a_validator_sees_fields_answers_and_the_end(driver: Driver, folder: Path) -> None:
    seen: list[PageFacts] = []
    env = local(driver, folder, "form.html", seen.append)
    do(env, ActionKind.CLICK, "sure")
    do(env, ActionKind.SELECT, "colour", text="blue")
    do(env, ActionKind.ANSWER, text="blue it is")
    step = env.step(action_text(Action(ActionKind.TERMINATE, text="success"), "so"))
    assert (step.reward, step.terminated) == (0.0, True)
    assert seen[-1].fields == {"who": "", "sure": True, "colour": "blue"}
    assert (seen[-1].answers, seen[-1].ended, seen[-2].ended) == (("blue it is",), True, False)
    env.close()


def test_clock_and_randomness_are_seeded(driver: Driver, folder: Path) -> None:
    env = local(driver, folder, "form.html")
    told = next(one.text for one in env.screen().elements or () if one.text.startswith("It is"))
    assert told.startswith("It is 2024-01-02T12:00:00.")
    env.reset(seed=0)
    assert named(env, told)
    env.reset(seed=1)
    assert told not in [one.text for one in env.screen().elements or ()]
    env.close()


def test_links_within_the_site_are_followed_where_it_navigates(driver: Driver, folder: Path) -> None:
    env = local(driver, folder, "form.html")
    do(env, ActionKind.CLICK, "next")
    assert (env.screen().title, env.screen().elements[0].text) == ("Second", "here")  # type: ignore[index]
    env.close()
    env = local(driver, folder, "form.html", navigates=False)
    assert only(do(env, ActionKind.CLICK, "next")).error_class == "NavigationBlocked"
    env.close()


# What the page does to a policy, and what it may not do.


@pytest.mark.parametrize("button", ["alerts", "ticks"])
def test_endless_dialogs_end_the_episode(driver: Driver, folder: Path, button: str) -> None:
    env = local(driver, folder, "hazards.html")
    step = do(env, ActionKind.CLICK, button)
    assert (step.truncated, step.reward, step.info["end_reason"]) == (True, 0.0, EndReason.TIME_LIMIT)
    assert (only(step).status, only(step).error_class) == (ToolStatus.TIMEOUT, "DialogLoop")
    env.close()


def test_a_dialog_is_answered_and_told(driver: Driver, folder: Path) -> None:
    env = local(driver, folder, "hazards.html")
    step = do(env, ActionKind.CLICK, "confirm")
    assert (only(step).status, only(step).text) == (ToolStatus.OK, "The page asks, and OK is chosen: sure?")
    assert env.screen().title == "sure"
    assert "sure?" in step.observation[0].text
    env.close()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("error", "PageError"),
        ("link", "NavigationBlocked"),
        ("script", "NavigationBlocked"),
        ("popup", "PopupBlocked"),
        ("tab", "PopupBlocked"),
    ],
)
def test_errors_and_ways_out_are_told_and_the_episode_goes_on(
    driver: Driver, folder: Path, name: str, kind: str
) -> None:
    env = local(driver, folder, "hazards.html")
    step = do(env, ActionKind.CLICK, name)
    assert (only(step).status, only(step).error_class) == (ToolStatus.ERROR, kind)
    assert "end_reason" not in step.info
    assert env.screen().title == "Hazards"
    assert only(step).text in step.observation[0].text
    env.close()


ODD = """<!DOCTYPE html><title>Odd</title>
<button onclick="history.back()">back</button>
<a href="table.csv">table</a>
<button onclick="Promise = null">promise</button>
<button onclick="document.title = 't'.repeat(1e6); goal.textContent = 'g'.repeat(1e6);
  this.setAttribute('role', 'a\\n[9] button '.repeat(1e5))">long</button>
<button onclick="for (let i = 0; i < 60; i++) new Image().src = 'http://example.com/' + i">images</button>
<p id=goal>goal</p>"""


@pytest.fixture
def odd(folder: Path) -> Path:
    (folder / "odd.html").write_text(ODD)
    (folder / "table.csv").write_text("a,b\n")
    return folder


def test_going_back_in_the_history_does_not_leave_the_site(driver: Driver, odd: Path) -> None:
    """It led to the blank page, of which no validator learns anything: a policy could so mask its episode."""
    env = local(driver, odd, "odd.html")
    do(env, ActionKind.CLICK, "back")
    assert env.screen().title == "Odd"
    env.close()


def test_a_document_without_an_origin_has_no_storage(driver: Driver, odd: Path) -> None:
    site = Site(odd)

    async def learnt() -> PageFacts:
        tab = await driver.open(site, f"{ORIGIN}/odd.html", 0)
        await tab._page.goto("about:blank")
        facts = await tab.facts((), ended=True)
        await driver.close_tab(tab)
        return facts

    assert driver.submit(learnt()).result(20).storage == {}


def test_a_link_to_a_file_that_is_not_shown_is_told(driver: Driver, odd: Path) -> None:
    env = local(driver, odd, "odd.html")
    began = time.monotonic()
    step = do(env, ActionKind.CLICK, "table")
    assert time.monotonic() - began < 15.0  # the page was waited for to the end of the deadline
    assert (only(step).error_class, env.screen().title) == ("NavigationBlocked", "Odd")
    assert f"{ORIGIN}/table.csv" in only(step).text
    env.close()


def test_a_page_that_breaks_our_scripts_ends_its_episode_and_masks_it_not(driver: Driver, odd: Path) -> None:
    env = local(driver, odd, "odd.html")
    step = do(env, ActionKind.CLICK, "promise")
    assert (step.truncated, step.reward, step.info["end_reason"]) == (True, 0.0, EndReason.TIME_LIMIT)
    assert only(step).error_class == "PageHangs"
    env.close()


def written(folder: Path, body: str) -> str:
    """The name of a page of ``body``."""
    (folder / "written.html").write_text(f"<!DOCTYPE html><title>Written</title>{body}")
    return "written.html"


@pytest.mark.parametrize(
    "script",
    [
        "Array.prototype.push = function () { this[this.length] = 5; }; alert(1)",
        "Array.prototype.push = function () { this[this.length] = ['strange', 'x']; }; alert(1)",
        "Array.prototype[Symbol.iterator] = function* () { yield [[{}, {}]]; yield false; yield 0; }",
        "document.body.innerHTML += '<svg><input id=x></svg>'",
    ],
)
def test_a_page_that_changes_what_is_noted_of_it_masks_no_episode(
    driver: Driver, folder: Path, script: str
) -> None:
    env = local(driver, folder, written(folder, f'<button onclick="{script}">break</button>'))
    for _ in range(2):  # notes of the first action may come with the second
        step = do(env, ActionKind.CLICK, "break")
        if step.truncated:
            break
    assert step.info.get("end_reason") in (None, EndReason.TIME_LIMIT)
    env.close()


def test_a_page_that_a_validator_cannot_read_masks_no_episode(
    driver: Driver, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = local(driver, folder, "form.html")

    async def broken(*_: Any, **__: Any) -> PageFacts:
        raise page_module.BrokenPage("TypeError: the page has changed what this reads")

    monkeypatch.setattr(page_module.Tab, "facts", broken)
    step = do(env, ActionKind.CLICK, "Save")
    assert (step.truncated, step.reward, only(step).error_class) == (True, 0.0, "PageHangs")
    env.close()


def test_a_page_that_closes_its_window_stays(driver: Driver, folder: Path) -> None:
    """A page that was gone was a fault of the browser, by which a policy could have its episode excluded."""
    env = local(driver, folder, written(folder, "<button onclick=window.close()>leave</button>"))
    assert only(do(env, ActionKind.CLICK, "leave")).status is ToolStatus.OK
    assert only(do(env, ActionKind.CLICK, "leave")).status is ToolStatus.OK
    env.close()


def test_a_page_that_writes_itself_anew_is_shown(driver: Driver, folder: Path) -> None:
    """The browser waits for more of such a document until it is closed, and the page was taken for one that hangs."""
    script = "document.write('<title>Anew</title><button>next</button>')"
    env = local(driver, folder, written(folder, f'<button onclick="{script}">write</button>'))
    step = do(env, ActionKind.CLICK, "write")
    assert (step.truncated, env.screen().title) == (False, "Anew")
    assert only(do(env, ActionKind.CLICK, "next")).status is ToolStatus.OK
    env.close()


def test_what_a_page_writes_later_stands_behind_what_it_has_written(driver: Driver, folder: Path) -> None:
    script = (
        "document.write('<p>Please wait.</p>'); setTimeout(() => document.write('<button>next</button>'), 50)"
    )
    env = local(driver, folder, written(folder, f'<button onclick="{script}">write</button>'))
    do(env, ActionKind.CLICK, "write")
    assert [element.text for element in env.screen().elements or ()] == ["Please wait.", "next"]
    assert only(do(env, ActionKind.CLICK, "next")).status is ToolStatus.OK
    env.close()


def test_a_note_of_a_page_is_one_line(driver: Driver, folder: Path) -> None:
    """It could otherwise write elements that are not there behind a line break."""
    page = written(
        folder, """<button onclick="alert('done\\n[7] button &quot;Pay&quot; at 9,9')">say</button>"""
    )
    env = local(driver, folder, page)
    step = do(env, ActionKind.CLICK, "say")
    assert only(step).text == 'The page says: done [7] button "Pay" at 9,9'
    env.close()


@pytest.mark.parametrize(
    "field", ["<input name=children value=2>", "<select name=children><option>2</select>"]
)
def test_a_form_whose_fields_are_called_like_its_properties_is_shown(
    driver: Driver, folder: Path, field: str
) -> None:
    named = "".join(
        f"<input type=hidden name={name} value=x>" for name in ("value", "checked", "id", "childNodes")
    )
    env = local(driver, folder, written(folder, f"<form>Guests {field}{named}<button>Book</button></form>"))
    shown = [(element.role, element.text, element.value) for element in env.screen().elements or ()]
    assert shown[0] == ("text", "Guests", "")
    assert [text for _, text, _ in shown if text in ("children", "Book")] == ["children", "Book"]
    env.close()


@pytest.mark.parametrize("role", ["menu", "textbox", "combobox"])
def test_a_form_with_a_role_and_fields_called_like_its_properties_is_shown(
    driver: Driver, folder: Path, role: str
) -> None:
    names = ("querySelector", "textContent", "name", "options", "scrollIntoView", "getClientRects", "focus")
    named = "".join(f"<input type=hidden name={name} value=x>" for name in names)
    env = local(driver, folder, written(folder, f"<form role={role}>Guests {named}</form>"))
    (form,) = env.screen().elements or ()
    assert form.role == role
    step = env.step(action_text(Action(ActionKind.CLICK, id=form.id), "so"))
    assert only(step).status is ToolStatus.OK
    env.close()


def test_what_a_page_says_of_itself_is_cut(driver: Driver, odd: Path) -> None:
    env = local(driver, odd, "odd.html", goal="#goal")
    step = do(env, ActionKind.CLICK, "long")
    (message,) = step.observation
    assert len(message.text) < 5_000
    assert message.text.count("\n[9]") == 0
    assert len(env.state.seen.goal) <= 20_000
    assert len(env.screen().title) <= 200
    env.close()


def test_no_more_stopped_requests_are_told_than_a_turn_has_room_for(driver: Driver, odd: Path) -> None:
    env = local(driver, odd, "odd.html")
    assert 10 <= only(do(env, ActionKind.CLICK, "images")).text.count("There is no network") <= 20
    env.close()


def test_nothing_reaches_the_network(driver: Driver, folder: Path, listener: socket.socket) -> None:
    env = local(driver, folder, "hazards.html")
    step = do(env, ActionKind.CLICK, "leak")
    assert only(step).error_class == "NetworkBlocked"
    for _ in range(5):  # an offer of WebRTC is made off the page's own thread
        if env.screen().title != "tried":
            do(env, ActionKind.WAIT)
    assert env.screen().title == "tried"
    with pytest.raises(BlockingIOError):
        listener.accept()
    env.close()


def test_what_is_typed_into_a_strict_page_never_runs(driver: Driver, folder: Path) -> None:
    attack = "<img src=x onerror=\"document.title='owned'\">"
    page = HAZARDS.replace('oninput="', 'data-was="').replace(
        "async function leak",
        "document.querySelector('[name=typed]').oninput = event => "
        "{ document.querySelector('#sink').innerHTML = event.target.value; };\nasync function leak",
    )
    (folder / "strict.html").write_text(page.replace("PORT", "9"))
    env = local(driver, folder, "strict.html", strict=True)
    do(env, ActionKind.TYPE, "typed", text=attack)
    assert env.screen().title == "Hazards"
    env.close()


@pytest.mark.parametrize(
    ("action", "told"),
    [
        (Action(ActionKind.CLICK, id="99"), "no element 99"),
        (Action(ActionKind.TYPE, id="99", text="x"), "no element 99"),
        (Action(ActionKind.CLICK, point=(5000, 5)), "outside of the 1008x756 screen"),
        (Action(ActionKind.KEY, text="Hyper+Q"), "no key 'Hyper+Q'"),
        (Action(ActionKind.SELECT, id="1", text="red"), "no drop-down list"),
        (Action(ActionKind.SCROLL, direction="right"), "Nothing scrolls here"),
    ],
)
def test_an_action_that_cannot_be_done_is_told(
    driver: Driver, folder: Path, action: Action, told: str
) -> None:
    env = local(driver, folder, "hazards.html")
    step = env.step(action_text(action, "so"))
    assert (only(step).status, only(step).error_class) == (ToolStatus.ERROR, "Refused")
    assert told in step.observation[0].text
    assert env.step("click it").info["valid"] is False
    env.close()


# What breaks is a fault, and the next episode is well.


def test_a_page_that_hangs_ends_its_episode_and_masks_it_not(
    driver: Driver, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy could choose to be masked by it."""
    env = local(driver, folder, "hazards.html")
    with monkeypatch.context() as patch:
        patch.setattr(page_module, "DEADLINE_S", 1.0)
        step = do(env, ActionKind.CLICK, "hang")
    assert (step.truncated, step.reward, step.info["end_reason"]) == (True, 0.0, EndReason.TIME_LIMIT)
    assert (only(step).status, only(step).error_class) == (ToolStatus.TIMEOUT, "PageHangs")
    env.reset(seed=0)
    assert env.screen().title == "Hazards"
    env.close()


def test_a_page_that_hangs_in_a_browser_that_hangs_is_a_fault(
    driver: Driver, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_well(tab: Any) -> bool:
        return False

    env = local(driver, folder, "hazards.html")
    with monkeypatch.context() as patch:
        patch.setattr(page_module, "DEADLINE_S", 1.0)
        patch.setattr(driver, "is_well", is_well)
        with pytest.raises(BrowserFault, match=r"click.*\b1 s"):
            do(env, ActionKind.CLICK, "hang")
    env.reset(seed=0)
    assert env.screen().title == "Hazards"
    env.close()


def test_a_page_that_crashes_is_a_fault(driver: Driver, folder: Path) -> None:
    env = local(driver, folder, "hazards.html")
    tab: Any = env.state.session._tab

    async def crash() -> None:
        asyncio.ensure_future(tab._cdp.send("Page.crash")).add_done_callback(lambda done: done.exception())
        await asyncio.wait_for(tab._answered.wait(), 30)

    tab._answered.clear()
    driver.submit(crash()).result()
    with pytest.raises(BrowserFault, match="crashed"):
        do(env, ActionKind.CLICK, "error")
    env.reset(seed=0)
    assert not do(env, ActionKind.CLICK, "error").terminated
    env.close()


def browser_of(driver: Driver) -> int:
    """The process of the present browser."""

    async def pid() -> int:
        assert driver._chromium is not None
        session = await driver._chromium.browser.new_browser_cdp_session()
        processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
        return next(int(one["id"]) for one in processes if one["type"] == "browser")

    return driver.submit(pid()).result()


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of temporary files; its name is short enough for a socket of Chromium."""
    with tempfile.TemporaryDirectory() as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)


def test_a_killed_browser_is_a_fault_and_is_replaced(folder: Path, room: Path) -> None:
    """Nothing is left of it."""
    driver = Driver(spares=1)
    env = local(driver, folder, "hazards.html")
    assert list(room.iterdir())
    os.kill(browser_of(driver), signal.SIGKILL)
    with pytest.raises(BrowserFault):
        do(env, ActionKind.CLICK, "error")
    env.reset(seed=0)
    assert env.screen().title == "Hazards"
    env.close()
    driver.close()
    driver.close()
    assert list(room.iterdir()) == []


def test_the_next_browser_removes_what_a_killed_process_left(room: Path) -> None:
    started = (
        "from agentenv.envs.browser.driver import Driver\n"
        "driver = Driver()\ndriver.submit(driver._live_browser()).result(60)\n"
        "print('here', flush=True)\nimport time\ntime.sleep(120)"
    )
    with subprocess.Popen([sys.executable, "-c", started], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.kill()
    assert list(room.glob("agentenv-*"))
    driver = Driver()
    driver.submit(driver._live_browser()).result(60)
    assert len(list(room.glob("agentenv-*"))) == 1
    driver.close()
    assert not list(room.glob("agentenv-*"))


def test_what_waits_for_a_page_hears_of_the_end_of_its_browser(folder: Path) -> None:
    """A request or a load that the page was waiting for will never come, so the deadline is not waited for."""
    driver = Driver(spares=0)
    env = local(driver, folder, "hazards.html")
    tab: Any = env.state.session._tab

    async def wait() -> None:
        async with page_module.guarded("waiting"):
            await tab._wait_until(lambda: False)

    process, waiting = browser_of(driver), driver.submit(wait())
    os.kill(process, signal.SIGKILL)
    with pytest.raises(BrowserFault, match="gone"):
        waiting.result(60)
    env.close()
    driver.close()


def test_browsers_are_recycled_and_nothing_is_left(folder: Path) -> None:
    driver = Driver(recycle_after=2, spares=1)
    env = local(driver, folder, "form.html")
    first = driver._chromium
    for seed in range(4):
        env.reset(seed=seed)
    assert first is not None
    assert driver._chromium is not first
    env.close()
    driver.submit(asyncio.sleep(0)).result()
    for _ in range(600):
        if not first.browser.is_connected():
            break
        driver.submit(asyncio.sleep(0.05)).result()
    assert (first.tabs, first.browser.is_connected()) == (0, False)
    driver.close()


def test_the_page_of_an_episode_that_nobody_closed_is_closed(driver: Driver, folder: Path) -> None:
    env = local(driver, folder, "form.html")
    snapshot, (twin,) = env.snapshot(), env.fork()
    chromium = driver._chromium
    assert chromium is not None
    before = chromium.tabs
    del env, twin, snapshot
    gc.collect()
    for _ in range(600):
        if chromium.tabs == before - 2:
            break
        driver.submit(asyncio.sleep(0.05)).result()
    assert chromium.tabs == before - 2


def test_a_click_meets_the_element_that_it_names(driver: Driver, folder: Path) -> None:
    (folder / "covered.html").write_text(COVERED)
    env = local(driver, folder, "covered.html")
    for name in ("below", "above"):
        do(env, ActionKind.CLICK, name)
        assert env.screen().title == name
    env.close()


def test_a_picture_is_waited_for_before_the_page_is_looked_at(
    driver: Driver, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (40, 30)).save(folder / "late.png")
    (folder / "drawn.html").write_text(DRAWN)
    serve = page_module.Tab._serve

    async def slowly(tab: page_module.Tab, route: Any) -> None:
        await asyncio.sleep(0.3 * route.request.url.endswith(".png"))
        await serve(tab, route)

    monkeypatch.setattr(page_module.Tab, "_serve", slowly)
    env = local(driver, folder, "drawn.html")
    do(env, ActionKind.CLICK, "show")
    (late,) = [one for one in env.screen().elements or () if one.text == "late"]
    assert (late.box.x2 - late.box.x1, late.box.y2 - late.box.y1) == (40, 30)
    snapshot, screen = env.snapshot(), env.screen()
    env.restore(snapshot)
    assert env.screen() == screen
    env.close()


def test_a_picture_that_never_comes_ends_no_turn_as_a_fault(
    driver: Driver, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "drawn.html").write_text(DRAWN)
    serve = page_module.Tab._serve

    async def never_a_picture(tab: page_module.Tab, route: Any) -> None:
        if not route.request.url.endswith(".png"):
            await serve(tab, route)

    monkeypatch.setattr(page_module.Tab, "_serve", never_a_picture)
    monkeypatch.setattr(page_module, "DRAWN_S", 0.2)
    env = local(driver, folder, "drawn.html")
    assert not do(env, ActionKind.CLICK, "show").terminated
    env.close()


# Going back.


def test_going_back_plays_the_episode_again(driver: Driver) -> None:
    env = wob(driver, "click-checkboxes")
    expert = env.expert() or ()
    env.step(expert[0])
    snapshot, (twin,) = env.snapshot(), env.fork()
    checked = env.screen()
    for one in (env, env, twin):
        if one is env:
            env.restore(snapshot)
        assert one.screen() == checked
        steps = [one.step(action) for action in expert[1:]]
        assert steps[-1].reward == 1
    twin.close()
    env.close()


def test_a_replay_that_shows_something_else_is_a_fault_and_no_state(driver: Driver, folder: Path) -> None:
    env = local(driver, folder, "form.html")
    do(env, ActionKind.TYPE, "Name", text="Ann")
    snapshot = env.snapshot()
    (folder / "form.html").write_text(FORM.replace("Save", "Keep"))
    from agentenv.envs.browser import sites

    sites._content.cache_clear()
    with pytest.raises(ReplayDivergence):
        env.restore(snapshot)
    assert env._over
    with pytest.raises(ReplayDivergence):
        twin_of(env, snapshot)
    env.close()


def twin_of(env: Browser, snapshot: Any) -> Any:
    env.restore(snapshot)
    return env.fork()


def test_a_task_names_a_page_of_its_site(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="'t'"):
        page_of(Site(folder), Task("t", "", data={"page": "form.html"}))

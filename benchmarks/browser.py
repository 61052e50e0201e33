"""Browser-v0 measured: pages stepped and solved, a reset against relaunching the browser, memory over many episodes.

    python benchmarks/browser.py
    python benchmarks/browser.py --parts memory     # one part; the others stay in the file as they are
    python benchmarks/browser.py --parts browsers   # what a page costs in each Chromium that is installed

Needs the extra ``gui`` and a Chromium. A reset is ``env.reset()`` up to its observation. Rollouts of one page come in
groups, as a trainer plays them, and the next page is made ready while the policy thinks; how long that takes is told, and
so is the first reset of each group, for which no page waits. A relaunch starts and ends a browser around each episode and
opens the same page with a bare playwright, as environments that keep no browser do; what they wait for besides is not
counted.
"""

import asyncio
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import RESULTS, command_line, common_arguments, run_script, write

from agentenv.core.types import Task
from agentenv.envs.browser.browser_session import BrowserSession
from agentenv.envs.browser.driver import DRAWING, FEATURES, NAMES, NETWORK, VARIABLE, Driver, find_chromium
from agentenv.envs.browser.env import Browser
from agentenv.envs.browser.experts import EXPERTS, rehearse
from agentenv.envs.browser.sites import ORIGIN, miniwob, miniwob_task, miniwob_tasks
from agentenv.envs.gui.actions import Action, ActionKind, action_text
from agentenv.errors import BrowserFault

MILLISECONDS = 1000
GROUP = 8
"""Episodes of one page after another, as a trainer plays them."""


def pages(driver: Driver, limit: int | None) -> dict[str, Any]:
    """Opens every page and clicks once."""
    failed: dict[str, str] = {}
    tasks = miniwob_tasks()[:limit]
    env = Browser(tasks=tasks, driver=driver)
    for task in tasks:
        try:
            env.reset(seed=0, options={"task": task})
            elements = env.screen().elements or ()
            action = Action(ActionKind.CLICK, id=elements[0].id) if elements else Action(ActionKind.WAIT)
            env.step(action_text(action, "so"))
        except Exception as error:
            failed[task.id] = str(error)
    env.close()
    return {"pages": len(tasks), "failed": failed}


def experts(driver: Driver, seeds: int, limit: int | None) -> dict[str, Any]:
    """Plays every expert under several seeds."""
    won: dict[str, int] = {}
    for page in sorted(EXPERTS)[:limit]:
        won[page] = 0
        for seed in range(seeds):
            session = BrowserSession(driver, miniwob(), images=False)
            playing = rehearse(session, f"{ORIGIN}/{page}", seed, EXPERTS[page], 60)
            try:
                won[page] += driver.submit(playing).result()[1] == 1
            except LookupError:
                continue
    always = sum(count == seeds for count in won.values())
    lost = {page: seeds - count for page, count in won.items() if count < seeds}
    return {"experts": len(won), "seeds": seeds, "always_reward_1": always, "lost": lost}


def timed(env: Browser, driver: Driver, tasks: list[Task]) -> tuple[list[float], list[float]]:
    """Milliseconds of each reset, and from there until the next page was ready."""
    taken, preparing = [], []
    for seed, task in enumerate(tasks):
        start = time.perf_counter()
        env.reset(seed=seed, options={"task": task})
        open_at = time.perf_counter()
        driver.submit(driver.rest()).result()
        taken.append(MILLISECONDS * (open_at - start))
        preparing.append(MILLISECONDS * (time.perf_counter() - open_at))
    return taken, preparing


async def relaunch(addresses: list[str]) -> list[float]:
    """Milliseconds of each episode's start where a browser is started and ended around it."""
    from playwright.async_api import async_playwright

    taken = []
    async with async_playwright() as playwright:
        for address in addresses:
            start = time.perf_counter()
            browser = await playwright.chromium.launch(
                executable_path=find_chromium(), args=[*NETWORK, *DRAWING, *FEATURES, "--no-sandbox"]
            )
            page = await browser.new_page(viewport={"width": miniwob().width, "height": miniwob().height})
            await page.goto(f"file://{miniwob().folder}/{address}")
            await page.evaluate("core.startEpisodeReal()")
            await page.evaluate("core.getDOMInfo()")
            await browser.close()
            taken.append(MILLISECONDS * (time.perf_counter() - start))
    return taken


def resets(driver: Driver, n: int) -> dict[str, Any]:
    """The same pages by reset and by relaunch, in turns, so that both meet the same load."""
    tasks = [task for task in miniwob_tasks() if task.data["page"] in EXPERTS][:: max(1, len(EXPERTS) // n)]
    env = Browser(tasks=tasks, driver=driver)
    taken: list[float] = []
    first: list[float] = []
    prepared: list[float] = []
    relaunched: list[float] = []
    for task in tasks[:n]:
        group, preparing = timed(env, driver, [task] * GROUP)
        taken += group
        first += group[:1]
        prepared += preparing
        relaunched += asyncio.run(relaunch([str(task.data["page"])]))
    env.close()
    whole = [reset + rest for reset, rest in zip(taken, prepared, strict=True)]
    return {
        "groups_of": GROUP,
        "reset_ms": summary(taken),
        "first_of_a_group_ms": summary(first),
        "preparing_the_next_ms": summary(prepared),
        "relaunch_ms": summary(relaunched),
        "reset_and_preparation_ms": summary(whole),
        "times_faster_reset_alone": round(statistics.median(relaunched) / statistics.median(taken), 1),
        "times_faster": round(statistics.median(relaunched) / statistics.median(whole), 1),
    }


def summary(values: list[float]) -> dict[str, float]:
    """Median, upper decile and number."""
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 1),
        "p90": round(ordered[int(0.9 * (len(ordered) - 1))], 1),
        "n": len(ordered),
    }


def browsers(n: int) -> dict[str, Any]:
    """Seconds of the processor for a page, and resident MiB, of each browser that is installed; with ``n`` resets."""
    found: dict[str, Any] = {}
    named = os.environ.get(VARIABLE)
    try:
        for name in filter(shutil.which, NAMES):
            os.environ[VARIABLE] = name
            found[name] = _cost_of_pages(n)
    finally:
        os.environ.pop(VARIABLE)
        os.environ.update({VARIABLE: named} if named else {})
    return found


def _cost_of_pages(n: int) -> dict[str, Any]:
    """Of the browser that is named now; its start, and the first page, do not count."""
    driver = Driver()
    env = Browser(tasks=[miniwob_task("click-test")], driver=driver)
    spent = []
    for seed in range(n + 1):
        env.reset(seed=seed)
        driver.submit(driver.rest()).result()
        spent.append(sum(map(_processor_s, processes_below())))
    held = resident()["browser"]
    env.close()
    driver.close()
    return {"pages": n, "processor_s_a_page": round((spent[-1] - spent[0]) / n, 3), "mib": held}


def _processor_s(pid: int) -> float:
    """Of a process and of those that it has waited for; 0 where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, stat[11:15])) / os.sysconf("SC_CLK_TCK")


def memory(driver: Driver, episodes: int, every: int) -> Iterator[dict[str, Any]]:
    """Resident memory of this process and of all below it over many episodes, browsers replaced as they come due.

    The row of episode 0 is taken before a browser is started; ``quarters`` are medians over the rows after it. The figures
    so far come after every row, so that a run that is stopped leaves them.
    """
    tasks = [task for task in miniwob_tasks() if task.data["page"] in EXPERTS]
    env = Browser(tasks=tasks, driver=driver)
    rows, start = [{"episode": 0, **resident()}], time.perf_counter()
    faults = 0
    for episode in range(episodes):
        try:
            env.reset(seed=episode, options={"task": tasks[episode // GROUP % len(tasks)]})
            env.step(action_text(Action(ActionKind.CLICK, point=(30.0, 80.0)), "so"))
        except BrowserFault:  # of an overloaded machine: the next episode has another page
            faults += 1
        if (episode + 1) % every == 0:
            rows.append({"episode": episode + 1, **resident()})
            counted = {
                "episodes": episode + 1,
                "faults": faults,
                "seconds": round(time.perf_counter() - start, 1),
            }
            yield counted | {"quarters": quarters(rows[1:]), "mib": rows}
    env.close()


def quarters(rows: list[dict[str, float]]) -> dict[str, list[float]]:
    """Median MiB of each quarter of the rows, of this process and of those below it."""
    bounds = [len(rows) * i // 4 for i in range(5)]
    parts = [rows[a:b] for a, b in pairwise(bounds) if b > a]
    return {
        name: [round(statistics.median(row[name] for row in part), 1) for part in parts]
        for name in ("python", "browser")
    }


def resident() -> dict[str, float]:
    """Resident MiB of this process and, shared pages counted once each, of the processes below it; and their number."""
    below = processes_below()
    return {
        "python": _mib(os.getpid(), "Rss"),
        "browser": round(sum(_mib(pid, "Pss") for pid in below), 1),
        "processes": len(below),
    }


def processes_below() -> list[int]:
    """The processes that this one has started, and those that these have."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                stat = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(folder.name)] = int(stat[1])
    return [pid for pid in parents if pid != os.getpid() and _is_below(pid, parents)]


def _is_below(pid: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == os.getpid():
            return True
    return False


def _mib(pid: int, kind: str) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return round(sum(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:")) / 1024, 1)


def main() -> None:
    """Measures and writes; each part says under which command and load it was measured."""
    parser = common_arguments(__doc__ or "")
    parser.add_argument("--parts", default="memory,resets,pages,experts,browsers")
    parser.add_argument("--limit", type=int, help="pages and experts at most")
    parser.add_argument("--seeds", type=int, default=3, help="seeds of each expert")
    parser.add_argument("--groups", type=int, default=10, help="pages whose resets are timed")
    parser.add_argument("--episodes", type=int, default=1000, help="episodes whose memory is watched")
    parser.add_argument("--opened", type=int, default=40, help="pages that each installed browser opens")
    given = parser.parse_args()
    driver = Driver()
    parts: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
        "resets": lambda: [resets(driver, given.groups)],
        "pages": lambda: [pages(driver, given.limit)],
        "experts": lambda: [experts(driver, given.seeds, given.limit)],
        "browsers": lambda: [browsers(given.opened)],
        "memory": lambda: memory(driver, given.episodes, max(1, given.episodes // 20)),
    }
    path = given.out or RESULTS / "browser.json"
    held = json.loads(path.read_text()) if path.is_file() else {}
    figures = {name: held[name] for name in ("runs", *parts) if name in held}
    for name in given.parts.split(","):
        before = os.getloadavg()[0]
        for found in parts[name]():
            load = [before, os.getloadavg()[0]]
            run = {"command": command_line(), "date": time.strftime("%Y-%m-%d"), "load": load}
            figures |= {name: found, "runs": figures.get("runs", {}) | {name: run}}
            write("browser", given, figures)
        print(json.dumps({name: figures[name]}), flush=True)
    driver.close()


if __name__ == "__main__":
    run_script(main)

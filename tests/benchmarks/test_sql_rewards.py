"""The comparison of rewards of queries: what the arms share, what counts of an episode, and that all of it runs."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the extra train is not installed")

from agentenv.core.registry import make
from agentenv.core.trajectory import Trajectory, Turn
from agentenv.core.types import EndReason, Task
from agentenv.data.sql_tasks import generate_sql_tasks

ROOT = Path(__file__).resolve().parents[2]
LABELS = next(task for task in generate_sql_tasks(40, levels=(1,)) if task.data["kind"] == "labels_where")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    found: Any = importlib.import_module("sql_rewards")
    monkeypatch.setattr(found, "make_start", lambda name, folder: "tiny")
    return found


def episode(*actions: str) -> Trajectory:
    """What an agent does that writes ``actions`` for ``LABELS``, paid for the right rows alone."""
    with make("agentenv/SQL-v0", tasks=[LABELS]) as env:
        env.reset(options={"task": LABELS})
        steps = [env.step(action) for action in actions]
    turns = tuple(
        Turn(action, step.observation, step.info.get("tool_results", ()), step.reward)
        for action, step in zip(actions, steps, strict=True)
    )
    return Trajectory(LABELS, (), turns, steps[-1].reward, EndReason.SUBMITTED, info=dict(steps[-1].info))


def test_the_arms_of_a_study_differ_in_the_reward_alone(script: Any) -> None:
    for study, of in script.STUDIES.items():
        runs = {arm: script.run_of(study, arm, 3, 2, Path()).model_dump() for arm in of.arms}
        rewards = {arm: run["env"]["options"].pop("reward") for arm, run in runs.items()}
        assert rewards == dict(of.arms)
        assert len({run.pop("name") for run in runs.values()}) == len(runs)
        first, *others = runs.values()
        assert all(other == first for other in others)
        assert first["rollout"]["questions"] * first["rollout"]["group_size"] == 64
        assert first["reward_shaping"]["relative_length"] == 0.0
    assert [of.baseline for of in script.STUDIES.values()] == ["execution", "ex"]


def test_what_counts_of_an_episode(script: Any) -> None:
    """A right one with two queries tried out, one of which fails; and wrong ones with all cells, with none, or no result."""
    gold, table = LABELS.data["gold"], LABELS.data["gold"].partition(" FROM ")[2].partition(" ")[0]
    right = episode(
        "<sql>SELECT nothing</sql>", f"<sql>SELECT * FROM {table}</sql>", f"<submit>{gold}</submit>"
    )
    found = script.episode_row(right)
    assert found == {
        "id": LABELS.id,
        "right": True,
        "reward": 1.0,
        "probes": 2,
        "probes_ran": 1,
        "ran": True,
        "star": False,
        "covers": False,
    }
    shown = ("right", "ran", "star", "covers")
    for query, values in {
        f"SELECT * FROM {table}": (False, True, True, True),
        f"SELECT distinct {table}.* FROM {table}": (False, True, True, True),
        gold.partition(" WHERE ")[0]: (False, True, False, True),
        f"SELECT count(*) FROM {table}": (False, True, False, False),
        "SELECT * FROM nowhere": (False, False, True, False),
    }.items():
        row = script.episode_row(episode(f"<submit>{query}</submit>"))
        assert tuple(row[key] for key in shown) == values, query
    silent = script.episode_row(episode("I do not know."))
    assert [silent[key] for key in (*shown, "probes")] == [False] * 4 + [0]


def row(name: str, right: bool, reward: float, **others: Any) -> dict[str, Any]:
    return {"id": name, "right": right, "reward": reward, "probes": 1, "probes_ran": 0, "ran": True} | {
        "star": others.get("star", False),
        "covers": others.get("covers", False),
    }


def test_what_wrong_episodes_earn_by_hand(script: Any) -> None:
    rows = [row("a", True, 1.0), row("b", False, 0.5, star=True, covers=True), row("c", False, 0.1)]
    found = script.measured(rows)
    assert (found["right"], found["wrong"], found["episodes"]) == (pytest.approx(1 / 3), 2, 3)
    assert found["reward_of_wrong"] == pytest.approx(0.3)
    assert (found["star_of_wrong"], found["covers_of_wrong"]) == (0.5, 0.5)
    assert script.measured(rows[:1])["reward_of_wrong"] is None


def test_arms_are_compared_seed_by_seed_on_the_tasks_that_all_have(script: Any) -> None:
    """By 1 and 0 in the first seed and by 0 and 0 in the second, so by .5 and 0; task c failed in one run."""
    arm = [
        [row("a", True, 1), row("b", True, 1), row("c", True, 1)],
        [row("b", False, 0), row("a", False, 0)],
    ]
    base = [
        [row("c", False, 0), row("a", False, 0), row("b", True, 1)],
        [row("a", False, 0), row("b", False, 0)],
    ]
    found = script.difference(arm, base, "right")
    assert (found["difference"], found["by_seed"], found["n"]) == (0.25, [0.5, 0.0], 2)
    assert found["ci95"][0] < 0.25 < found["ci95"][1]
    assert found["ci95_seeds_too"][0] < 0.25 < found["ci95_seeds_too"][1]
    assert "ci95_seeds_too" not in script.difference(arm[:1], base[:1], "right")


def test_questions_that_are_known_by_their_words_are_not_asked(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "known_questions", lambda *_: frozenset({"known"}))
    tasks = [Task(str(place), words) for place, words in enumerate(("new", "known", "other", "new"))]
    config = script.run_of("single", "ex", 0, 1, Path())
    assert [task.id for task in script.unseen(config, tasks)] == ["0", "2"]


def test_the_questions_that_are_trained_on_are_known(script: Any) -> None:
    config = script.run_of("single", "ex", 0, 1, Path())
    trained = script.Sql.make_tasks(200, seed=config.train.seed, **config.train.options)
    assert config.train.limit == 200
    assert script.unseen(config, trained) == []


@pytest.mark.slow
def test_it_runs_from_the_start_to_the_result_file(
    script: Any, here: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step of two arms of each study, from a policy that knows nothing of databases."""
    fewer = {
        study: replace(of, arms=dict(list(of.arms.items())[::3])) for study, of in script.STUDIES.items()
    }
    monkeypatch.setattr(script, "STUDIES", fewer)
    monkeypatch.setattr(script, "TASKS", 2)
    monkeypatch.setattr(script, "QUESTIONS", 1)
    monkeypatch.setattr(script, "known_questions", lambda *_: frozenset())
    for preset in ("reex-sql", "think2sql"):
        of = importlib.import_module("miniatures").TABLE["presets"][preset]
        monkeypatch.setitem(of, "rollout", {"turn_tokens": 4, "group_size": 2})
    out = tmp_path / "result.json"
    words = ("--runs", str(tmp_path), "--seeds", "1", "--steps", "1", "--out", str(out), "--threads", "1")
    here("sql_rewards", *words)
    studies = json.loads(out.read_text())["studies"]
    for study, of in script.STUDIES.items():
        assert list(studies[study]) == ["start", *of.arms]
        for arm in list(of.arms)[1:]:
            for found in (studies[study][arm][name] for name in ("greedy", "sampled")):
                assert found["episodes"] == 2
                assert found["over_baseline"]["by_seed"] == [0.0]
    runs = sorted(tmp_path.glob("*-1.json"))
    assert len(runs) == 4
    written = {path: path.stat().st_mtime_ns for path in runs}
    here("sql_rewards", *words)  # what is finished is not done again
    assert {path: path.stat().st_mtime_ns for path in runs} == written

"""Parts of somebody's own, named by ``module:name``: the guide's examples in a run, and what is refused with a sentence."""

import importlib
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import agentenv
from agentenv.cli.main import main
from agentenv.core.scoring import scorers
from agentenv.core.scoring.scorers import get_scorer, load_scorer
from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.trust import risks
from agentenv.core.types import EndReason, Task
from agentenv.envs.search.outcomes import Ending, get_outcome
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.evaluation.records import read_json
from agentenv.retrievers.retriever_spec import check_retriever, make_retriever
from agentenv.sandbox.backends import make_executor
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.config.identity import named_parts
from agentenv.trainers.credit.estimators import get_estimator
from agentenv.trainers.learner.losses import Tokens, get_objective, usual_aggregation
from agentenv.trainers.strategies.strategies import get_strategy
from agentenv.trainers.task_sampling.samplers import chooses_tasks, get_sampler

PAGE = Path(__file__).resolve().parents[1] / "docs" / "guides" / "own_parts.md"
RUN = """
name = "own"
threads = 1
[env.options]
k = 2
max_turns = 1
observation_tokens = 128
prompt = "{{question}}"
{env}
[train.world]
documents = 200
questions = 12
families = ["lookup"]
hops = [1, 1]
[test]
limit = 4
[rollout]
questions = 2
group_size = 2
turn_tokens = 24
context_tokens = 256
{rollout}
[loss]
{loss}
[optimizer]
steps = 2
[search]
{search}
[evaluation]
every = 0
bounds = false
{evaluation}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the module of the guide, in which commands are given."""
    (code,) = re.findall(
        r"```python title=\"parts.py\"\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    write(tmp_path / "parts.py", code)
    (tmp_path / "shelf.txt").write_text("The mill stands at the river.\nThe bridge was built by the mayor.\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("parts", "broken", "wrong"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(scorers, "_own", {})
    return tmp_path


def write(path: Path, code: str) -> None:
    """A module that the next import finds, however soon after the last one it was written."""
    path.write_text(code)
    importlib.invalidate_caches()


def documented() -> dict[str, Any]:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return tomllib.loads(text)


def tokens(n: int = 3) -> Tokens:
    zeros = torch.zeros(n)
    return Tokens(zeros, zeros, torch.ones(n), torch.zeros(n, dtype=torch.int64), zeros.bool())


def test_the_documented_run_trains_and_is_scored(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = {
        name: "\n".join(
            f"{key} = {value!r}" if isinstance(value, str) else f"{key} = {_inline(value)}"
            for key, value in table.items()
        )
        for name, table in documented().items()
    }
    tables["env"] = "\n".join(
        f"{key} = {_inline(one)}" for key, one in documented()["env"]["options"].items()
    )
    (here / "own.toml").write_text(RUN.format(**tables))
    assert main(["train", "own.toml", "--out", "run"]) == 1
    assert "parts:above_best_loser" in capsys.readouterr().err
    assert main(["train", "own.toml", "--trust-config", "--out", "run"]) == 0
    scores = read_json(here / "run" / "evaluation" / "after" / "results.json")["scores"]
    assert list(scores) == ["em_squad", "parts:FIRST_LETTER"]
    folders = ["run/evaluation/before", "run/evaluation/after"]
    assert main(["compare", *folders, "--scorer", "parts:FIRST_LETTER"]) == 0
    assert main(["report", "run", "--scorer", "parts:FIRST_LETTER"]) == 0
    (here / "parts.py").write_text((here / "parts.py").read_text() + "\nchanged = True\n")
    assert main(["train", "--resume", "run", "--trust-config", "--optimizer.steps", "3"]) == 1
    assert "sources of env.options.outcome" in capsys.readouterr().err


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_inline(one)}" for key, one in value.items()) + "}"
    return repr(value)


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ("loss", "estimator"),
        ("rollout", "sampler"),
        ("rollout", "strategy"),
        ("evaluation", "strategy"),
    ],
)
def test_a_part_that_is_not_there_is_refused_when_the_configuration_is_read(
    here: Path, section: str, key: str
) -> None:
    with pytest.raises(ConfigurationError, match=r"parts:OneByOn\b.*parts:OneByOne"):
        parse_config({section: {key: "parts:OneByOn"}}, "test")
    with pytest.raises(ConfigurationError, match="no_such_module"):
        parse_config({section: {key: "no_such_module:Part"}}, "test")
    with pytest.raises(ConfigurationError, match="no_such_part"):
        parse_config({section: {key: "no_such_part"}}, "test")
    write(here / "broken.py", "Part = 3\ndef needy(group, must):\n    pass\n")
    with pytest.raises(ConfigurationError, match=r"broken:Part.*cannot be called"):
        parse_config({section: {key: "broken:Part"}}, "test")


def test_a_reward_of_a_search_is_a_function_of_its_ending(here: Path) -> None:
    reward = get_outcome("parts:brief_answer", {"price": "0.25"})
    assert [reward(Ending(1.0, searches=n)) for n in (0, 1, 3, 9)] == [1.0, 1.0, 0.5, 0.0]
    with pytest.raises(UnknownName, match=r"'prise'.*'price'"):
        get_outcome("parts:brief_answer", {"prise": 1})
    with pytest.raises(ConfigurationError, match=r"parts:brief_anser\b.*parts:brief_answer"):
        get_outcome("parts:brief_anser")
    with pytest.raises(UnknownName, match=r"'anser'.*'answer'"):
        get_outcome("anser")
    assert list(risks({"env": {"options": {"outcome": "parts:brief_answer"}}}))
    assert not list(risks({"env": {"options": {"outcome": "answer"}}}))


def test_options_of_own_parts_are_checked(here: Path) -> None:
    with pytest.raises(UnknownName, match=r"'scal'.*'scale'"):
        get_estimator("parts:above_best_loser", {"scal": 1})
    with pytest.raises(ConfigurationError, match=r"'stride'.*'much'"):
        get_sampler("parts:InOrder", {"stride": "much"})
    assert vars(sampler := get_sampler("parts:InOrder", {"stride": "2"})) == {"stride": 2}
    assert chooses_tasks(sampler)  # it would leave the weights of sets unheeded


@pytest.mark.parametrize(
    ("get", "name", "named"),
    [
        (get_sampler, "wrong:Sampler", "draw"),
        (get_strategy, "wrong:Sampler", "play"),
        (get_sampler, "wrong:Needy", "must"),
        (make_executor, "wrong:Sampler", "run"),
        (make_retriever, "python:wrong:Sampler", "search"),
    ],
)
def test_a_class_of_another_kind_is_refused(here: Path, get: Any, name: str, named: str) -> None:
    write(
        here / "wrong.py",
        "class Sampler:\n    pass\nclass Needy:\n    def __init__(self, must):\n        pass\n",
    )
    with pytest.raises(ConfigurationError, match=f"{name}.*{named}"):
        get(name)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("return [np.zeros(3) for _ in group]", r"\(3,\)"),
        ("return [np.full(len(t.ids), np.nan) for t in group]", "finite"),
        ("return None", "None"),
    ],
)
def test_what_an_own_estimator_returns_is_checked(here: Path, body: str, named: str) -> None:
    write(here / "wrong.py", f"import numpy as np\ndef credit(group):\n    {body}\n")
    segment = Segment(SegmentKind.POLICY, (1, 2), 0, logprobs=(0.0, 0.0))
    group = [Trajectory(Task("t", "q", ("a",)), (segment,), (), 1.0, EndReason.ANSWERED)]
    with pytest.raises(ConfigurationError, match=f"wrong:credit.*{named}"):
        get_estimator("wrong:credit")(group)
    (values,) = get_estimator("parts:above_best_loser")([*group])
    assert np.array_equal(values, [0.0, 0.0])


@pytest.mark.parametrize(
    ("section", "key", "code"),
    [
        ("loss", "estimator", "def part(group):\n    return [1 / 0]\n"),
        ("loss", "objective", "def part(tokens):\n    return 1 / 0\n"),
        (
            "rollout",
            "strategy",
            "class part:\n    async def play(self, specs, context):\n        return [1 / 0]\n",
        ),
        (
            "rollout",
            "sampler",
            "from agentenv.trainers.task_sampling.samplers import StatelessSampler\n"
            "class part(StatelessSampler):\n    def draw(self, step_budget):\n        return [1 / 0]\n",
        ),
    ],
)
def test_an_error_of_an_own_part_is_one_sentence_with_its_place(
    here: Path, section: str, key: str, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write(here / "wrong.py", code)
    tables = dict.fromkeys(("env", "rollout", "loss", "evaluation"), "") | {"search": 'encoder = "hash"'}
    (here / "own.toml").write_text(RUN.format(**tables))
    words = ["train", "own.toml", "--out", "run", f"--{section}.{key}", "wrong:part"]
    assert main(words) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert re.search(r"wrong:part failed: ZeroDivisionError.*\(wrong\.py, line \d\)", said)


def test_what_an_own_objective_returns_is_checked(here: Path) -> None:
    losses, clipped = get_objective("parts:plain_gradient")(tokens())
    assert losses.tolist() == [-1.0, -1.0, -1.0]
    assert not clipped.any()
    assert usual_aggregation("parts:plain_gradient") == "token_mean"
    write(here / "wrong.py", "def loss(tokens):\n    return tokens.advantages.sum()\n")
    with pytest.raises(ConfigurationError, match=r"wrong:loss.*Surrogate"):
        get_objective("wrong:loss")(tokens())


def test_results_of_somebody_else_import_nothing_from_the_current_folder(here: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"parts:FIRST_LETTER.*--scorer"):
        get_scorer("parts:FIRST_LETTER")
    assert "parts" not in sys.modules
    named = load_scorer("parts:FIRST_LETTER")
    assert named.name == "parts:FIRST_LETTER"
    assert get_scorer("parts:FIRST_LETTER") is named
    assert named("Paris", ("Porto",)).value == 1.0
    with pytest.raises(ConfigurationError, match="parts:InOrder is no Scorer"):
        load_scorer("parts:InOrder")


@pytest.mark.parametrize(
    ("body", "named"), [("return 2", "gave 2"), ("return prediction.x", "AttributeError")]
)
def test_what_an_own_scorer_gives_is_checked(here: Path, body: str, named: str) -> None:
    write(
        here / "wrong.py",
        "from agentenv.core.scoring.scorers import Scorer\n"
        f"def score(prediction, answers):\n    {body}\n"
        "MINE = Scorer('mine', 1, True, 'none', score)\n",
    )
    with pytest.raises(ConfigurationError, match=f"wrong:MINE.*{named}"):
        load_scorer("wrong:MINE")("a", ("b",))


def test_a_retriever_of_ones_own_needs_its_module(here: Path) -> None:
    assert make_retriever("python:parts:Shelf").info().documents == 2
    for spec in ("python:", "python:parts", "python:a b:c"):
        with pytest.raises(ConfigurationError, match="python:MODULE:NAME"):
            check_retriever(spec)
    with pytest.raises(UnknownName, match=r"'fais'.*'faiss'"):
        check_retriever("fais:wiki")


@pytest.mark.parametrize(
    "values",
    [
        {"loss": {"estimator": "evil:part"}},
        {"loss": {"estimator_options": {"estimators": {"proposer": "evil:part"}}}},
        {"loss": {"objective": "evil:part"}},
        {"rollout": {"strategy": "evil:part"}},
        {"rollout": {"sampler": "evil:part"}},
        {"evaluation": {"scorers": ["em_squad", "evil:part"]}},
        {"hotpotqa": {"scorer": "evil:part"}},
        {"env": {"options": {"executor": "evil:part"}}},
        {"env": {"options": {"outcome": "evil:part"}}},
        {"search": {"retriever": "python:evil:part"}},
        {"search": {"retriever": "rerank:model@python:evil:part"}},
        {"rollout": {"strategy_options": {"role_policies": {"judge": "python:evil:part"}}}},
    ],
)
def test_a_file_that_names_a_part_of_its_own_needs_a_confirmation(values: dict[str, Any]) -> None:
    assert list(risks(values))


def test_the_module_of_a_function_that_plays_a_role_belongs_to_the_run(here: Path) -> None:
    players = {"judge": "python:parts:same_first_letter", "attacker": "tiny"}
    options = {"game": "red_team", "checks": [], "role_policies": players}
    env = {"id": "agentenv/SearchSolver-v0"}
    rollout = {"strategy": "self_play", "strategy_options": options}
    config = parse_config({"env": env, "rollout": rollout}, "test")
    key = "rollout.strategy_options.role_policies.judge"
    assert named_parts(config) == {key: "parts:same_first_letter"}


def test_an_environment_runs_its_programs_in_an_executor_of_ones_own(here: Path) -> None:
    write(here / "wrong.py", "from agentenv.sandbox import FakeExecutor\n")
    env = agentenv.make("agentenv/Code-v0", executor="wrong:FakeExecutor", stateful=False)
    env.reset(seed=1)
    actions = env.expert()
    assert actions
    for action in actions:
        step = env.step(action)
    assert step.reward == 1.0


def test_a_long_name_of_a_scorer_stands_apart_from_its_score(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "eval",
        "--env",
        "agentenv/Calculator-v0",
        "--policy",
        "scripted",
        "--limit",
        "1",
        "--out",
        "run",
    ]
    assert main([*words, "--scorer", "parts:FIRST_LETTER"]) == 0
    assert "parts:FIRST_LETTER 1.000" in capsys.readouterr().out

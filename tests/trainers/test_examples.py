"""The example presets: each loads, plans, and trains an untrained policy for two steps; one line makes it another's."""

import json
import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.long_search import CERTAIN, DOUBTFUL
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.fakes import random_policy
from agentenv.policies.tiny import shipped_weights
from agentenv.sandbox.backends import unavailable
from agentenv.trainers import plan as planner
from agentenv.trainers.config.config_files import load_config, override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.plan import plan_run
from agentenv.trainers.selfplay.games import get_game
from agentenv.trainers.task_sampling.allocation import hardness_allocation

FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.toml"))
each = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)

SETTINGS = {
    "threads": 1,
    "optimizer.steps": 2,
    "rollout.questions": 1,
    "rollout.group_size": 4,
    "rollout.turn_tokens": 16,
    "search.encoder": "hash",
    "evaluation.every": 0,
    "evaluation.bounds": "false",
    "test.limit": 1,
    "trajectories_every": 0,
}
SMALL = [word for key, value in SETTINGS.items() for word in (f"--{key}", str(value))]
SIZES = (("documents", 200), ("questions", 8))


HOTPOT = {
    "_id": "a",
    "question": "Which country is the birthplace of Mary Plant in?",
    "answer": "England",
    "supporting_facts": [["Mary Plant", 0], ["Leeds", 0]],
}
PAGES = [("1", "Mary Plant", "Mary Plant was born in Leeds."), ("2", "Leeds", "Leeds is a town in England.")]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the command that a preset names was run, over a miniature of its question set."""
    folder = tmp_path_factory.mktemp("prepared")
    data = folder / "data" / "hotpotqa"
    data.mkdir(parents=True)
    (data / "hotpot_dev.json").write_text(json.dumps([HOTPOT]))
    (data / "hotpot_dev.qrels.tsv").write_text("a\t1\t1\na\t2\t1\n")
    pages = [json.dumps(dict(zip(("id", "title", "text"), page, strict=True))) for page in PAGES]
    (data / "corpus.jsonl").write_text("\n".join(pages) + "\n")
    words = ["--dataset", "hotpotqa", "--data", str(data.parent), "--out", str(folder / "runs" / "fictional")]
    assert main(["synthesize", "fictional-hot", *words]) == 0
    return folder


@pytest.fixture(autouse=True)
def there(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs where the files are that presets name."""
    monkeypatch.chdir(prepared)


def few_tasks(config: TrainConfig) -> list[str]:
    """Small worlds where ``config`` has worlds, else a few tasks."""
    if config.train.dataset == "env":
        words = ["--train.limit", "2", "--dev.limit", "1"]
        if config.train.options.get("apart_from"):  # each task of the test is made and proved
            words += ["--train.options.apart_from.n", "2"]
        if config.env.options.get("max_steps", 0) > 6:  # an untrained policy plays to the last one
            words += ["--env.options.max_steps", "6"]
        return words
    worlds = [f"--{name}.world.{key} {size}" for name in ("train", "dev", "test") for key, size in SIZES]
    if "first" in config.rollout.sampler_options:  # episodes of a first look, of the four that there are
        worlds += ["--rollout.sampler_options.first 2"]
    return " ".join(worlds).split()


def skip_without_games(config: TrainConfig) -> None:
    """Skips where the games are not on this machine, without which no task can be made."""
    if config.env.id == "agentenv/TextArena-v0":
        pytest.importorskip("textarena", reason="the extra textarena is not installed")


def skip_without_engine(config: TrainConfig) -> None:
    """Skips where what the environment needs is not on this machine."""
    if config.env.id in ("agentenv/Code-v0", "agentenv/TraceCode-v0") and (why := unavailable("bwrap")):
        pytest.skip(f"the sandbox runs no program on this machine: {why}")
    skip_without_games(config)
    if config.env.id == "agentenv/SemiOnlineGUI-v0":
        pytest.importorskip("PIL", reason="the extra gui is not installed")


def test_there_is_one_for_every_method() -> None:
    names = {path.stem for path in EXAMPLES}
    assert names >= {"search-r1", "dapo", "dr-grpo", "gigpo", "mt-grpo", "cleaner", "mc-grpo", "r3l"}
    assert names >= {
        "zerosearch",
        "ssrl",
        "ikea",
        "reseek",
        "asearcher",
        "asearcher-40",
        "hybrid-search",
        "hybrid-deep-search",
        "search-planner",
        "fictional-hot",
    }
    assert names >= {"hiersearch", "convsearch-r1", "con-rag", "grpo-tcr"}
    assert names >= {
        "ssp",
        "mae",
        "comas",
        "self-redteam",
        "sws",
        "trace",
        "drive-expand",
        "drive",
        "evocua",
        "sql",
        "reex-sql",
        "think2sql",
        "sql-r1",
        "tracecoder",
        "ui-s1",
    }
    assert names >= {"dars", "xrpo", "vade", "dots", "gdro", "arrol", "branch-grpo", "latr", "guide", "seele"}
    assert names >= {
        "critique-grpo",
        "relift",
        "scope",
        "vcpo",
        "areal",
        "april",
        "ulorl",
        "gdro-rollouts",
        "brorl",
        "dynamic-tree",
        "layer-tuning",
        "rest-rl",
    }
    assert names >= {
        "rloo",
        "reinforce",
        "vine",
        "gspo",
        "cispo",
        "prime-rl",
        "group-dro",
        "curriculum",
        "ace",
    }
    listed = (FOLDER / "README.md").read_text()
    assert all(f"`{path.name}`" in listed for path in EXAMPLES)


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that take memory and speed as known: what is measured is of this machine and the policy, not of a preset."""
    monkeypatch.setattr(planner, "_probe_memory", lambda policy, config: (0.0, 0))
    monkeypatch.setattr(planner, "_probe_learning", lambda policy, config: 1000.0)
    monkeypatch.setattr(planner, "_probe_sampling", lambda policy, config: 1000.0)


def shipped_context() -> int:
    """Tokens that the shipped policy reads."""
    return int(json.loads((shipped_weights() / "config.json").read_text())["max_position_embeddings"])


@each
@pytest.mark.usefixtures("unmeasured")
def test_it_loads_and_plans(path: Path) -> None:
    config = load_config(str(path))
    skip_without_games(config)
    assert config.name == path.stem
    assert config.policy == "tiny"
    assert config.rollout.context_tokens <= shipped_context()  # as it stands, where the words below lower it
    words = [
        "--threads",
        "1",
        "--rollout.turn_tokens",
        "8",
        "--rollout.context_tokens",
        "16",
        *few_tasks(config),
    ]
    planned = plan_run(override(config, words))
    assert planned["episodes_per_step"] == config.rollout.questions * config.rollout.group_size


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random model of a few thousand weights that knows the tags of all environments."""
    folder = tmp_path_factory.mktemp("untrained")
    random_policy(folder, context=2048, texts=["<search> </search> <answer> </answer> <think> who is it ?"])
    return f"hf:{folder}"


_SEARCH_R1 = {
    "rollout.group_size": 5,
    "loss.clip_low": 0.2,
    "loss.clip_high": 0.2,
    "loss.kl_coefficient": 0.001,
    "loss.kl": "k3",
    "loss.entropy_coefficient": 0.001,
    "optimizer.mini_batches": 2,
}
_HIERSEARCH = {"rollout.group_size": 5, "loss.kl_coefficient": 0.001, "optimizer.mini_batches": 4}
PUBLISHED: dict[str, dict[str, Any]] = {
    "search-r1": _SEARCH_R1,
    "search-r1-format": _SEARCH_R1,
    "hiersearch": _HIERSEARCH,
    "hiersearch-local": _HIERSEARCH,
    "hiersearch-web": _HIERSEARCH,
    "ikea": {
        "rollout.group_size": 16,
        "loss.kl_coefficient": 0.001,
        "env.options.max_turns": 3,
        "optimizer.steps": 60,
        "optimizer.warmup_steps": 45,  # .75
    },
    "ssrl": {
        "rollout.group_size": 5,
        "loss.kl_coefficient": 0.001,
        "loss.entropy_coefficient": 0.0,
        "optimizer.warmup_steps": 1,  # .02 of 60
    },
    "reseek": {  # version 3
        "env.options.threshold": 0.7,
        "env.options.judge_reward": 0.3,
        "env.options.false_yes": 2.0,
        "env.options.search_again": True,
        "rollout.strategy_options.drop": "mark",
        "rollout.strategy_options.split": True,  # the action follows from C_t, which the verdict has changed
    },
    "hybrid-deep-search": {"evaluation.scorers": ("f1_plain", "em_plain", "em_cover_plain")},
    "con-rag": {"rollout.strategy_options.wordings": 1, "rollout.strategy_options.answers": 1},
    "convsearch-r1": {"rollout.group_size": 8, "loss.kl_coefficient": 0.001, "rollout.temperature": 0.7},
    "asearcher": {
        "env.options.ends_without_action": True,
        "rollout.group_size": 16,
        "loss.estimator": "dr_grpo",
        "loss.clip_low": 0.4,
        "loss.clip_high": 0.4,
        "loss.kl_coefficient": 0.0,
    },
    "vcpo": {
        "loss.objective_options.dual_clip": 1e9,
        "loss.estimator_options.norm": "gradient",
        "loss.aggregation": "sequence_mean",
        "loss.correction.level": "sequence",
        "loss.correction.high": 8.0,
        "loss.correction.ess_base": 1.0,
    },
    "relift": {
        "loss.objective_options.dual_clip": 1e9,
        "loss.entropy_coefficient": 0.0,
        "rollout.group_size": 8,
        "loss.estimator": "dr_grpo",
        "loss.aggregation": "token_sum",
        "optimizer.max_grad_norm": 0.7,
    },
    "think2sql": {
        "loss.objective": "gspo",
        "loss.clip_low": 0.2,
        "loss.clip_high": 0.28,
        "loss.aggregation": "token_mean",
        "loss.estimator_options.scale": "batch",
        "loss.kl_coefficient": 0.0,
        "rollout.group_size": 16,
        "optimizer.max_grad_norm": 0.2,
    },
    "ssp": {
        "rollout.group_size": 5,
        "rollout.temperature": 1.0,
        "rollout.strategy_options.temperatures": {"proposer": 0.8},
        "loss.kl_coefficient": 0.01,
        "loss.clip_high": 0.285,
    },
    "r3l-self": {"rollout.group_size": 8, "rollout.temperature": 1.0, "evaluation.temperature": 0.4},
    "gdpo": {"loss.estimator": "decoupled", "loss.estimator_options.scale": "batch"},
    "mae": {
        "loss.estimator": "reinforce_pp",
        "loss.estimator_options": {},
        "rollout.group_size": 5,
        "loss.clip_low": 0.2,
        "loss.clip_high": 0.28,
        "loss.entropy_coefficient": 0.001,
        "rollout.sampler_options.reference_share": 0.5,
    },
    "dars": {"rollout.sampler_options": {"first": 8, "weighting": "equal", "cap": 32}},
    "critique-grpo": {
        "rollout.group_size": 8,
        "loss.entropy_coefficient": 0.001,
        "loss.clip_low": 0.2,
        "loss.clip_high": 0.2,
        "loss.kl_coefficient": 0.0,
    },
    "self-redteam": {
        "loss.estimator": "reinforce_pp",
        "loss.estimator_options.kl_coefficient": 0.01,
        "optimizer.mini_batches": 4,
    },
    "drive-expand": {
        "rollout.group_size": 8,
        "optimizer.steps": 32,
        "train.options.steps": 3,  # medium: the dial goes from 0 to 6
    },
    "drive": {"rollout.context_tokens": 512, "train.limit": 175, "rollout.sampler_options.group_size": 64},
    "rest-rl": {"rollout.group_size": 8, "reward_shaping.answer_penalty": 0.001},
    "dart": {
        "rollout.group_size": 8,
        "env.options.window": 5,
        "env.options.max_steps": 30,
        "loss.objective": "gspo",
        "loss.clip_low": 0.1,
        "loss.clip_high": 0.28,
        "loss.aggregation": None,  # that of gspo is the mean over episodes of their means over tokens
        "loss.kl_coefficient": 0.1,
        "optimizer.learning_rate": 1e-7,
    },
}
"""Constants of the papers that a preset must have."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_has_the_published_constants(name: str) -> None:
    place = FOLDER / f"{name}.toml"
    config = load_config(str(place) if place.exists() else name)
    found = {
        key: reduce(lambda part, word: part[word], key.split("."), config.model_dump())
        for key in PUBLISHED[name]
    }
    assert found == PUBLISHED[name]


def test_dars_has_the_budget_for_what_the_hardest_questions_ask() -> None:
    """Equal treatment takes a question without a success in 8 episodes to 32, and no question further."""
    rollout = load_config(str(FOLDER / "dars.toml")).rollout
    first, cap = rollout.sampler_options["first"], rollout.sampler_options["cap"]
    left = rollout.questions * (rollout.group_size - first)
    assert hardness_allocation(0.0, first, cap=cap) == 24
    assert left >= 24 * rollout.questions


UNTAUGHT = (
    "ikea",
    "reseek",
    "ssrl",
    "hiersearch",
    "hiersearch-local",
    "hiersearch-web",
    "orgforge",
    "hybrid-deep-search",
    "convsearch-r1",
)
"""Presets whose form the shipped policy was not taught: with it their rewards and tools would not act."""


@pytest.mark.parametrize("name", UNTAUGHT)
def test_a_preset_of_a_form_that_the_shipped_policy_does_not_write_says_who_teaches_it(name: str) -> None:
    text = (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    assert f"agentenv warmstart --imitate examples/{name}.toml" in text


def test_relift_makes_supervised_steps_in_its_run() -> None:
    """Its buffer fills where one question of a hundred is failed by a whole group; of the miniature it was one of 24."""
    config = load_config(str(FOLDER / "relift.toml"))
    assert config.optimizer.supervised_batch <= 0.01 * config.optimizer.steps * config.rollout.questions
    assert (
        config.optimizer.supervised_rate == config.optimizer.learning_rate
    )  # as published, where both are 1e-6


def test_reseek_is_evaluated_with_the_verdicts_that_it_is_trained_with() -> None:
    """Without its strategy a page that the policy has judged useless would stand unmarked in the evaluations alone."""
    config = load_config(str(FOLDER / "reseek.toml"))
    trained, evaluated = config.rollout, config.evaluation
    assert evaluated.strategy == trained.strategy == "judge"
    assert evaluated.strategy_options == trained.strategy_options != {}


@pytest.mark.parametrize(("name", "move"), [("mae", "solve"), ("comas", "solve_1")])
def test_a_game_without_tools_is_evaluated_by_the_message_of_its_solver_and_without_a_search(
    name: str, move: str
) -> None:
    config = load_config(str(FOLDER / f"{name}.toml"))
    game = get_game(config.rollout.strategy_options["game"])
    assert config.env.options["prompt"] in [turn.prompt for turn in game.turns if turn.name == move]
    assert config.env.options["max_turns"] == 0


@pytest.mark.parametrize("page", ["examples/drive-expand.toml", "docs/sampling.md"])
def test_drives_first_run_has_three_quarters_of_the_context_of_its_supervised_stage(page: str) -> None:
    """24k after 32k: 384 after 512."""
    text = (FOLDER.parent / page).read_text(encoding="utf-8")
    (said,) = re.findall(r"warmstart --imitate examples/drive-expand\.toml .*--context-tokens (\d+)", text)
    assert load_config(str(FOLDER / "drive-expand.toml")).rollout.context_tokens * 4 == int(said) * 3


JUDGES = {'game = "comas_history"': "scorer", 'game = "red_team_vanilla"': "judge"}
"""Games whose judge an untrained policy cannot play, because it never writes what can be read; by their line in a preset."""


@pytest.fixture(scope="module")
def judge() -> Iterator[str]:
    """The spec of a judge that always says the same."""
    said = Answer(
        "<score>2</score><prompt>harmful</prompt><response>unharmful</response><refusal>yes</refusal>",
        says_stop=True,
    )
    with FakeEndpoint(lambda body: said) as server:
        yield f"openai:judge@{server.url}"


def with_judge(path: Path, judge: str, folder: Path) -> Path:
    """The preset at ``path``, or where its policy would be its own judge a copy that names ``judge``."""
    text = path.read_text()
    for line, role in JUDGES.items():
        if line in text:
            path = folder / path.name
            path.write_text(text.replace(line, f'{line}\nrole_policies = {{ {role} = "{judge}" }}'))
    return path


@each
def test_two_steps_of_it_train_an_untrained_policy(
    path: Path, untrained: str, judge: str, tmp_path: Path
) -> None:
    config = load_config(str(path))
    skip_without_engine(config)
    path = with_judge(path, judge, tmp_path)
    words = [
        "train",
        str(path),
        "--policy",
        untrained,
        "--out",
        str(tmp_path / "out"),
        "--trust-config",
        "--json",
        *SMALL,
        *few_tasks(config),
    ]
    assert main(words) == 0
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 2
    assert [line["faults"] for line in lines] == [0, 0]
    assert all(line["sampled_tokens"] > 0 for line in lines)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Qwen2 without a card, whose tokenizer knows the environment's own opening message."""
    from agentenv.envs.search.local_search import PROMPT

    world = FictionalWorld.generate(WorldConfig(documents=200, questions=8))
    folder = tmp_path_factory.mktemp("stranger")
    random_policy(folder, [PROMPT, *(document.text for document in world.documents)])
    return folder


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("guide", "hinted"),
        ("r3l", "retries"),
    ],
)
def test_one_line_makes_it_a_run_of_another_model(
    stranger: Path, tmp_path: Path, name: str, figure: str
) -> None:
    """That model is asked with the environment's own words; where a search format is all it lacks, nothing of ours fails."""
    text = (FOLDER / f"{name}.toml").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("policy")]
    path, out = tmp_path / f"{name}.toml", tmp_path / "out"
    path.write_text(text.replace(line, f'policy = "hf:{stranger}"'))
    assert (
        main(
            [
                "train",
                str(path),
                "--out",
                str(out),
                "--json",
                *SMALL,
                *few_tasks(load_config(str(path))),
            ]
        )
        == 0
    )
    episode = json.loads((out / "evaluation" / "before" / "episodes.jsonl").read_text().splitlines()[0])
    assert episode["prompt"].startswith("Find the answer to the question below.")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all(figures[figure] > 0 for figures in lines)  # it knows no format
    assert [figures["faults"] for figures in lines] == [0, 0]


def test_asearcher_trains_asynchronously_with_the_message_by_which_a_doubt_costs(
    untrained: str, tmp_path: Path
) -> None:
    """Without its line ``prompt``, and with what its head says of the published run."""
    text = (FOLDER / "asearcher.toml").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("prompt")]
    path, out = tmp_path / "asearcher.toml", tmp_path / "out"
    path.write_text(text.replace(line, "certain_share = 0.5"))
    published = {
        "rollout.deterministic": "false",
        "asynchronous.staleness": "4",
        "loss.proximal": "recompute",
        "loss.correction.mode": "truncate",
        "loss.correction.high": "5.0",
        "rollout.context_tokens": "1536",
        "trajectories_every": "1",
        "test.limit": "8",
    }
    words = [word for key, value in published.items() for word in (f"--{key}", value)]
    few = few_tasks(load_config(str(path)))
    assert main(["train", str(path), "--policy", untrained, "--out", str(out), *SMALL, *few, *words]) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["faults"] for line in lines] == [0, 0]
    rows = (out / "evaluation" / "before" / "episodes.jsonl").read_text().splitlines()
    said = [json.loads(row)["prompt"] for row in rows]
    assert all((CERTAIN in prompt) is not (DOUBTFUL in prompt) for prompt in said)
    assert {CERTAIN in prompt for prompt in said} == {True, False}


def test_a_base_is_a_preset_whose_tables_a_file_changes_key_by_key(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "laptop-search"\nname = "mine"\n[rollout]\nquestions = 3\n')
    mine, base = load_config(str(path)), load_config("laptop-search")
    assert (mine.name, mine.rollout.questions) == ("mine", 3)
    assert mine.rollout.model_copy(update={"questions": 16}) == base.rollout
    assert mine.train == base.train
    path.write_text('base = "laptop-serch"')
    with pytest.raises(UnknownName, match="'laptop-search'"):
        load_config(str(path))
    path.write_text('base = "laptop-search"\n[rollout]\nquestion = 3\n')
    with pytest.raises(ConfigurationError, match=r"'rollout\.questions'"):
        load_config(str(path))

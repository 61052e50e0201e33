"""The example presets: each loads, plans, and trains a small step on the tiny policy; one line makes it another model's."""

import json
from pathlib import Path

import pytest

from agentenv.cli.main import main
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.policies.fakes import random_policy
from agentenv.trainers.config.config_files import load_config, override
from agentenv.trainers.plan import plan_run

FOLDER = Path(__file__).resolve().parents[2] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.toml"))
each = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)

SIZES = (("documents", 200), ("questions", 8))
WORLDS = [f"--{name}.world.{key} {size}" for name in ("train", "dev", "test") for key, size in SIZES]
SMALL = (
    "--threads 1 --optimizer.steps 1 --rollout.questions 1 --search.encoder hash --evaluation.every 0 "
    "--evaluation.bounds false --test.limit 1 --trajectories_every 0 " + " ".join(WORLDS)
).split()


def test_there_is_one_for_every_method() -> None:
    names = {path.stem for path in EXAMPLES}
    assert names >= {"search-r1", "dapo", "dr-grpo", "gigpo", "mt-grpo", "cleaner", "mc-grpo", "r3l"}
    assert names >= {"zerosearch", "ssrl", "ikea", "reseek", "asearcher", "hybrid-search", "search-planner"}
    assert names >= {"hiersearch", "convsearch-r1", "con-rag", "grpo-tcr"}
    listed = (FOLDER / "README.md").read_text()
    assert all(f"`{path.name}`" in listed for path in EXAMPLES)


@each
def test_it_loads_and_plans(path: Path) -> None:
    config = load_config(str(path))
    assert config.name == path.stem
    assert config.policy == "tiny"
    words = ["--threads", "1", "--rollout.turn_tokens", "8", "--rollout.context_tokens", "16"]
    planned = plan_run(override(config, words))
    assert planned["episodes_per_step"] == config.rollout.questions * config.rollout.group_size


@each
def test_a_step_of_it_runs_on_the_tiny_policy(path: Path, tmp_path: Path) -> None:
    assert main(["train", str(path), "--out", str(tmp_path / "out"), "--json", *SMALL]) == 0
    (line,) = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    figures = json.loads(line)
    assert figures["faults"] == 0
    assert figures["sampled_tokens"] > 0


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Qwen2 without a card, whose tokenizer knows the environment's own opening message."""
    from agentenv.envs.search.local_search import PROMPT

    world = FictionalWorld.generate(WorldConfig(documents=200, questions=8))
    folder = tmp_path_factory.mktemp("stranger")
    random_policy(folder, [PROMPT, *(document.text for document in world.documents)])
    return folder


@pytest.mark.parametrize(("name", "figure"), [("cleaner", "rollback_triggered"), ("r3l", "retries")])
def test_one_line_makes_it_a_run_of_another_model(
    stranger: Path, tmp_path: Path, name: str, figure: str
) -> None:
    """That model is asked with the environment's own words; where a search format is all it lacks, nothing of ours fails."""
    text = (FOLDER / f"{name}.toml").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("policy")]
    path, out = tmp_path / f"{name}.toml", tmp_path / "out"
    path.write_text(text.replace(line, f'policy = "hf:{stranger}"'))
    assert main(["train", str(path), "--out", str(out), "--json", *SMALL]) == 0
    episode = json.loads((out / "evaluation" / "before" / "episodes.jsonl").read_text().splitlines()[0])
    assert episode["prompt"].startswith("Find the answer to the question below.")
    figures = json.loads((out / "metrics.jsonl").read_text())
    assert figures[figure] > 0  # it knows no format
    assert figures["faults"] == 0


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

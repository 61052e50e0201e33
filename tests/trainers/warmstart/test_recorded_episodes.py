"""Learning from recorded episodes: which are taken, that their tokens are those of the learner, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.trajectory import SegmentKind
from agentenv.data.sources import SourceConfig
from agentenv.data.world import WorldConfig, write_world
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.evaluation.recorded_conversations import evaluations_in, why_not_restorable
from agentenv.evaluation.records import read_evaluation
from agentenv.evaluation.task_env import open_tasks
from agentenv.policies.card import read_card
from agentenv.policies.policy_spec import make_policy
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.warmstart.recorded_episodes import in_tokens, refuse_measured

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
WORLD = WorldConfig(seed=77, documents=200, questions=6, families=("lookup",), split="train")
SMALL = """\
base = "laptop-search"
name = "small"
threads = 1
[search]
encoder = "hash"
[test.world]
documents = 200
questions = 6
families = ["lookup"]
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("worlds") / "world"
    write_world(WORLD, folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("runs") / "small.toml"
    path.write_text(SMALL)
    return str(path)


def evaluated(world: Path, out: Path, *more: str) -> Path:
    words = ["eval", "--dataset", "fictional", "--data", str(world), "--retriever", "bm25", "--no-bounds"]
    words += ["--option", "prompt={question}", "--k", "2", "--option", "observation_tokens=256"]
    assert main([*words, "--out", str(out), *more]) == 0
    return out


@pytest.fixture(scope="module")
def teacher(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of the expert, whose tokens are bytes."""
    return evaluated(world, tmp_path_factory.mktemp("teacher") / "out", "--policy", "scripted")


@pytest.fixture(scope="module")
def own(world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of the learner itself, with their ids."""
    return evaluated(world, tmp_path_factory.mktemp("own") / "out", "--policy", "tiny", "--token-ids")


def learned(out: Path, run: str, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    capsys.readouterr()
    words = ["warmstart", "--imitate", run, "--trust-config", "--epochs", "1", "--out", str(out), "--json"]
    assert main([*words, *more]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_solved_episodes_of_another_policy_are_learned(
    teacher: Path, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = read_evaluation(teacher).records
    solved = [record for record in records if record["reward"] >= 1]
    assert len(solved) > 0
    found = learned(tmp_path / "policy", run, capsys, "--episodes", str(teacher))
    counts = (found["episodes"], found["demonstrations"], found["tasks"], found["exact"])
    assert counts == (len(records), len(solved), len(solved), 0)
    assert found["tokens"] > 0
    assert read_card(tmp_path / "policy").env == "agentenv/LocalSearch-v0"
    card = (tmp_path / "policy" / "README.md").read_text()
    assert "`scripted`" in card
    assert f"{len(solved)} of {len(records)} recorded episodes" in card


def test_recorded_ids_of_the_same_tokens_are_learned_as_they_are(own: Path, run: str) -> None:
    """Spelt from their texts, the same episodes have the same text, so that what is spelt for others is right too."""
    evaluation, config, policy = read_evaluation(own), load_config(run), make_policy("tiny")
    records = [record for record in evaluation.records if record["valid"]]
    recorded, exact, _ = in_tokens(config, policy, [(evaluation, records)])
    assert exact == len(recorded) == len(records) > 0
    for trajectory, record in zip(recorded, records, strict=True):
        assert trajectory.ids.tolist() == [i for part in record["segments"] for i in part["ids"]]
        assert trajectory.loss_mask.sum() == record["tokens"]["policy"]
    bare: list[Any] = [{k: v for k, v in record.items() if k != "segments"} for record in records]
    spelt, none, _ = in_tokens(config, policy, [(evaluation, bare)])
    assert none == 0
    assert len(spelt) > 0
    texts = {t.task.id: [policy.tokenizer.decode(s.ids) for s in t.segments] for t in recorded}
    for trajectory in spelt:
        assert [policy.tokenizer.decode(s.ids) for s in trajectory.segments] == texts[trajectory.task.id]
        assert [s.kind for s in trajectory.segments].count(SegmentKind.POLICY) == len(trajectory.turns)


def test_recorded_ids_of_other_tokens_are_spelt_again(own: Path, run: str) -> None:
    evaluation = read_evaluation(own)
    evaluation.results["settings"]["token_ids"]["tokenizer"] = "another"
    records = [record for record in evaluation.records if record["valid"]]
    spelt, exact, _ = in_tokens(load_config(run), make_policy("tiny"), [(evaluation, records)])
    assert exact == 0
    assert spelt


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record["segments"][1]["ids"].append(10**6),
        lambda record: record["segments"][1]["ids"].append(-5),
        lambda record: record["segments"][1]["ids"].append(10**30),
        lambda record: record.update(end_reason="gone"),
        lambda record: record.update(segments=[]),
        lambda record: record.update(segments=[record["segments"][0]]),
        lambda record: [segment["ids"].clear() for segment in record["segments"]],
        lambda record: record["segments"][0].pop("row"),
    ],
)
def test_damaged_ids_are_refused_with_their_episode(own: Path, run: str, change: Any) -> None:
    evaluation = read_evaluation(own)
    records: list[Any] = [record for record in evaluation.records if record["valid"]][:1]
    change(records[0])
    with pytest.raises(DatasetError, match=f"the token ids of the episode '{records[0]['id']}' in"):
        in_tokens(load_config(run), make_policy("tiny"), [(evaluation, records)])


def test_tasks_without_an_answer_are_told_by_their_question(tmp_path: Path) -> None:
    """Records hold no data of a task, by which such tasks are told apart otherwise."""
    config = load_config(str(EXAMPLES / "sql.toml")).model_copy(
        update={"test": SourceConfig(dataset="env", split="test", limit=2)}
    )
    task = open_tasks(config.test, config.search, config.env).tasks[0]
    record: Any = {"id": task.id, "question": task.question, "answers": list(task.answers)}
    with pytest.raises(ConfigurationError, match="what is measured on test is not held out"):
        refuse_measured(config, [record], SilentDisplay())


def test_all_samples_of_a_folder_are_read(
    world: Path, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "samples"
    evaluated(world, out, "--policy", "tiny", "--samples", "2", "--temperature", "0.7", "--limit", "3")
    assert [one.directory.name for one in evaluations_in(out)] == ["sample-0", "sample-1"]
    found = learned(tmp_path / "policy", run, capsys, "--episodes", str(out), "--least", "0")
    assert found["episodes"] == 6
    assert found["tasks"] <= 3


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"prompt": "q", "turns": [{"action": "a", "observation": ""}]}, ""),
        ({"prompt": "q", "turns": [{"action": "a", "observation": "x"}], "roles": [["user"], ["user"]]}, ""),
        (
            {
                "prompt": "sq",
                "opening": ["s", "q"],
                "turns": [{"action": "a", "observation": "xy", "messages": ["x", "y"]}],
                "roles": [["system", "user"], ["tool", "tool"]],
            },
            "",
        ),
        (
            {"prompt": "q", "turns": [{"action": "a", "observation": ""}], "roles": [["system", "user"], []]},
            "tell apart",
        ),
        (
            {
                "prompt": "q",
                "turns": [{"action": "a", "observation": "xy"}],
                "roles": [["user"], ["tool"] * 2],
            },
            "tell apart",
        ),
        ({"prompt": "q", "turns": [{"action": "a", "observation": "", "scene": {}}]}, "pictures"),
        ({"prompt": "q", "turns": [{"action": "a", "observation": "", "images": 1}]}, "pictures"),
        ({"prompt": "q", "turns": [{"action": "a", "observation": "", "cut": True}]}, "cut off"),
        ({"prompt": "q", "images": 1, "turns": [{"action": "a", "observation": ""}]}, "pictures"),
        (
            {"prompt": "q", "turns": [{"action": "a", "observation": ""}], "roles": [["assistant"], []]},
            "earlier turns of an assistant",
        ),
        ({"prompt": "q", "turns": []}, "no turn"),
        ({"turns": [{"action": "a", "observation": ""}]}, "no opening"),
    ],
)
def test_why_texts_do_not_say_all(record: Any, why: str) -> None:
    assert why in why_not_restorable(record)
    assert bool(why) is bool(why_not_restorable(record))


def refusal(out: Path, run: str, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    capsys.readouterr()
    assert main(["warmstart", "--imitate", run, "--trust-config", "--out", str(out), *more]) == 1
    assert not out.exists()
    return capsys.readouterr().err.splitlines()[-1]


def test_what_cannot_be_learned_is_one_sentence(
    teacher: Path, world: Path, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*more: str, of: str = run) -> str:
        return refusal(tmp_path / "policy", of, capsys, *more)

    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in said("--episodes", str(tmp_path / "empty"))
    assert "earns 3" in said("--episodes", str(teacher), "--least", "3")
    judged = evaluated(
        world,
        tmp_path / "judged",
        "--policy",
        "scripted",
        "--env",
        "agentenv/JudgedSearch-v0",
        "--limit",
        "2",
    )
    other = said("--episodes", str(judged))
    assert "agentenv/JudgedSearch-v0" in other
    assert "agentenv/LocalSearch-v0" in other
    tested = tmp_path / "tested.toml"
    tested.write_text(SMALL + 'seed = 77\nsplit = "train"\n')
    assert "are training tasks too" in said("--episodes", str(teacher), of=str(tested))
    short = tmp_path / "short.toml"
    short.write_text(SMALL + "[rollout]\ncontext_tokens = 20\n")
    assert "rollout.context_tokens=20" in said("--episodes", str(teacher), of=str(short))
    assert "--mask-redundant" in said("--episodes", str(teacher), "--mask-redundant")
    assert "--episodes" in said("--episodes", str(teacher), "--arena", "3")


def test_episodes_of_a_sealed_set_are_not_learned(
    teacher: Path, run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from agentenv.evaluation.records import write_evaluation

    found = read_evaluation(teacher)
    sealed: list[Any] = [{**record, "canary": "canary"} for record in found.records]
    write_evaluation(tmp_path / "sealed", found.results, sealed)
    assert "sealed" in refusal(tmp_path / "policy", run, capsys, "--episodes", str(tmp_path / "sealed"))


def test_a_policy_that_shows_no_ids_keeps_none(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", "--dataset", "fictional", "--data", str(world), "--retriever", "bm25", "--no-bounds"]
    assert main([*words, "--policy", "scripted", "--token-ids", "--out", str(tmp_path / "out")]) == 1
    assert "token_ids" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()

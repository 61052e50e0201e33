"""What is shown of retries after advice: from where the policy went wrong, what is left for the expert, nothing else."""

from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.trajectory import SegmentKind, Turn
from agentenv.core.types import Task, ToolResult, ToolStatus
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import config_of
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.strategies.guidance import is_guided
from agentenv.trainers.warmstart.advised_episodes import _done, advised_episodes
from agentenv.trainers.warmstart.expert_warmstart import expert_warmstart, training_examples
from agentenv.trainers.warmstart.learning import LearningSettings

TASK = Task("t", "Where?", ("x",), data={"supporting_ids": ["a", "b"]})


def run() -> TrainConfig:
    world = {"documents": 200, "questions": 12, "families": ["bridge"], "hops": [2, 3]}
    return config_of({"base": "lab-advice", "train": {"limit": 12, "world": world}}, "a run")


def searched(*ids: str) -> Turn:
    return Turn("search", tool_results=(ToolResult("search", ToolStatus.OK, "q", data={"ids": [list(ids)]}),))


@pytest.mark.parametrize(
    ("before", "done"),
    [((), 0), (("a",), 1), (("a", "b"), 2), (("b",), 0), (("c",), 0)],
)
def test_what_was_found_is_not_looked_up_again(before: tuple[str, ...], done: int) -> None:
    expert = [searched("a", "c"), searched("b", "d"), Turn("answer")]
    assert _done(expert, [searched(one) for one in before], TASK) == done


def test_the_expert_goes_on_where_the_policy_went_wrong() -> None:
    episodes = advised_episodes(run(), "evidence")
    assert episodes
    for episode in episodes:
        assert is_guided(episode)
        assert episode.reward == 1.0
        learned = {s.turn for s in episode.segments if s.kind is SegmentKind.POLICY and s.trained}
        kept = {s.turn for s in episode.segments if s.kind is SegmentKind.POLICY} - learned
        assert learned
        assert max(kept, default=-1) < min(learned)
        ((ids, written),) = training_examples([episode])
        assert len(ids) == len(written)
        lengths = {s.turn: len(s.ids) for s in episode.segments if s.kind is SegmentKind.POLICY}
        assert sum(written) == sum(lengths[turn] for turn in learned)


def test_an_unknown_verifier_is_refused() -> None:
    with pytest.raises(UnknownName, match="evidence"):
        advised_episodes(run(), "evidnce")


@pytest.mark.parametrize("other", [[], ["--imitate", "lab-advice", "--arena", "2"]])
def test_advice_goes_with_imitation_alone(
    other: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["warmstart", "--out", str(tmp_path / "p"), "--advisor", "rule", *other]) == 1
    assert "--advisor goes with --imitate" in capsys.readouterr().err


def test_advice_is_refused_in_the_format_native(tmp_path: Path) -> None:
    """It stands between turns. Nothing is played before that is said, not even a policy loaded."""
    native = run().model_copy(update={"format": "native", "policy": f"hf:{tmp_path / 'none'}"})
    with pytest.raises(ConfigurationError, match=r"format='native'.*--advisor"):
        expert_warmstart([run(), native], SilentDisplay(), tmp_path / "p", advisor="evidence")


def test_the_advice_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: Any = expert_warmstart(
        [run()],
        SilentDisplay(),
        tmp_path / "p",
        learning=LearningSettings(steps=1, batch=2),
        advisor="evidence",
    )
    assert 0 < figures["advised"] < figures["demonstrations"]

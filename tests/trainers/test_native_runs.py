"""Training and evaluating in the native format: a random model with a chat template for tools, from end to end."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.api import evaluate, train
from agentenv.cli.main import main
from agentenv.errors import ConfigurationError
from agentenv.policies.fakes import chat_tokenizer, random_model
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import changed, load_config
from agentenv.trainers.config.train_config import TrainConfig

SMALL: dict[str, Any] = {
    "optimizer.steps": 2,
    "checkpoint_every": 1,
    "trajectories_every": 1,
    "rollout.questions": 1,
    "rollout.group_size": 2,
    "rollout.turn_tokens": 24,
    "env.options.max_turns": 1,
    "dev.limit": 2,
    "test.limit": 2,
    "evaluation.every": 2,
}
for part in ("train", "dev", "test"):
    SMALL |= {f"{part}.world.documents": 200, f"{part}.world.questions": 8}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with Qwen3's chat template."""
    trl = pytest.importorskip("trl", reason="needs the interop extra, which brings the template")
    source = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    tokenizer = chat_tokenizer(
        source.read_text(encoding="utf-8"),
        eos="<|im_end|>",
        special=["<|im_start|>"],
        added=["<think>", "</think>", "<tool_call>", "</tool_call>"],
    )
    folder = tmp_path_factory.mktemp("policy")
    model = random_model(
        len(tokenizer), layers=1, width=16, inner=32, context=4096, eos=tokenizer.eos_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def configured(policy: Path, **more: Any) -> TrainConfig:
    return changed(load_config("native-search"), SMALL | {"policy": f"hf:{policy}"} | more)


def test_the_preset_trains_natively_and_its_policy_is_asked_as_it_was_trained(
    policy: Path, tmp_path: Path
) -> None:
    config = configured(policy, **{"chat.options.enable_thinking": True, "chat.family": "qwen"})
    assert train(config, out=tmp_path / "run", display=SilentDisplay()).after.n == 2
    card = json.loads((tmp_path / "run" / "policy" / "episode.json").read_text())
    assert (card["format"], card["family"], card["template_options"]) == (
        "native",
        "qwen",
        {"enable_thinking": True},
    )
    written = [path.read_text() for path in sorted((tmp_path / "run").rglob("*.jsonl"))]
    assert not any("<information>" in text or "between <search>" in text for text in written)
    found = evaluate(f"hf:{tmp_path / 'run' / 'policy'}", env="agentenv/Calculator-v0", limit=2)
    assert found.n == 2


def test_an_evaluation_names_the_format_itself(policy: Path, tmp_path: Path) -> None:
    found = evaluate(
        f"hf:{policy}", env="agentenv/Calculator-v0", limit=2, format="native", out=tmp_path / "eval",
        template_options={"enable_thinking": False},
    )  # fmt: skip
    assert found.n == 2
    with pytest.raises(ConfigurationError, match="native"):
        evaluate(f"hf:{policy}", env="agentenv/Calculator-v0", limit=2, family="qwen")


def test_the_preset_without_a_policy_says_which_one_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "native-search", "--out", str(tmp_path / "run")]) == 1
    said = capsys.readouterr().err
    assert "'tiny'" in said
    assert "--policy hf:PATH" in said
    assert not (tmp_path / "run").exists()


def test_the_flags_of_the_command_line_reach_the_template(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["eval", "--env", "agentenv/Calculator-v0", "--policy", f"hf:{policy}", "--limit", "1", "--json"]
    words += ["--format", "native", "--family", "qwen"]
    options = ["--template-option", "enable_thinking=false", "--template-option", "date=2026-02-03"]
    assert main([*words, *options, "--out", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["n"] == 1
    assert main([*words, "--template-option", "date=yesterday", "--out", str(tmp_path / "bad")]) == 1
    assert "'yesterday'" in capsys.readouterr().err
    assert main([*words[:-1], "qwem", "--out", str(tmp_path / "bad")]) == 1
    assert "'qwem'" in capsys.readouterr().err
    assert not (tmp_path / "bad").exists()


def test_a_tree_trains_natively(policy: Path, tmp_path: Path) -> None:
    tree = {"rollout.strategy": "tree", "rollout.strategy_options.depth": 1, "rollout.group_size": 2}
    one = {"optimizer.steps": 1, "evaluation.every": 1, "env.options.max_turns": 2}
    done = train(configured(policy, **tree, **one), out=tmp_path / "run", display=SilentDisplay())
    assert done.after.n == 2


def test_what_does_not_go_together_is_refused(policy: Path) -> None:
    with pytest.raises(ConfigurationError, match="rollback"):
        configured(policy, **{"rollout.strategy": "rollback"})
    with pytest.raises(ConfigurationError, match="qwem"):
        configured(policy, **{"chat.family": "qwem"})
    with pytest.raises(ConfigurationError, match="qwen"):
        configured(policy, **{"format": "inline", "chat.family": "qwen"})

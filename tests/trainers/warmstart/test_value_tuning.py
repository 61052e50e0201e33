"""A value model that learns as a whole: its loss by hand, what moves, the command, what is refused."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch

from agentenv.cli.main import main
from agentenv.core.trajectory import Trajectory, Turn, to_record
from agentenv.core.types import EndReason, Message, Task
from agentenv.errors import ConfigurationError, Diverged
from agentenv.policies.fakes import random_policy
from agentenv.policies.hf import HFPolicy
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.value_model import LIKELIHOODS, encoded_pieces, features_of, load_value_model
from agentenv.progress import SilentDisplay
from agentenv.trainers.learner.value_training import LabelledEpisode
from agentenv.trainers.warmstart.value_tuning import TuningSettings, summed_error, tune

PIECES = (("", "Question 1"), ("x", "."), ("y", ""))


@pytest.fixture
def policy(tmp_path: Path) -> HFPolicy:
    random_policy(tmp_path / "policy", ["Question 12345678 x.yn"], spread=0.5)
    return make_policy(f"hf:{tmp_path / 'policy'}")


def head_of(policy: HFPolicy, bias: float = 0.0) -> torch.nn.Linear:
    torch.manual_seed(0)
    head = torch.nn.Linear(policy.model.get_output_embeddings().weight.shape[-1], 1)
    with torch.no_grad():
        head.bias.fill_(bias)
    return head


def test_the_loss_is_the_sum_of_squared_errors_of_the_labelled_states(policy: HFPolicy) -> None:
    """Of three states the first and the last are labelled, with .25 and 1; the value reads the hidden state alone."""
    head = head_of(policy, 0.5)
    hidden = torch.from_numpy(features_of(policy, PIECES)[:, :-LIKELIHOODS]).float()
    values = head(hidden)[:, 0]
    wanted = (values[0] - 0.25) ** 2 + (values[2] - 1.0) ** 2
    found = summed_error(policy, head, LabelledEpisode("t", PIECES, {2: 1.0, 0: 0.25}))
    assert found.item() == pytest.approx(wanted.item(), rel=1e-4)


def test_states_beyond_the_context_are_left_out(policy: HFPolicy) -> None:
    head, whole = head_of(policy), LabelledEpisode("t", PIECES, {0: 0.25, 2: 1.0})
    first = summed_error(policy, head, LabelledEpisode("t", PIECES, {0: 0.25})).item()
    assert summed_error(policy, head, whole).item() > first + 1e-6
    _, _, (_, second, last) = encoded_pieces(policy, PIECES)
    policy.context_tokens = second
    assert summed_error(policy, head, whole).item() == pytest.approx(first, rel=1e-4)
    policy.context_tokens = last
    assert summed_error(policy, head, whole).item() > first + 1e-6


def test_the_language_model_learns_with_the_head(policy: HFPolicy) -> None:
    episodes = [
        LabelledEpisode("a", (PIECES[0], ("x", "."), (end, "")), {2: float(end == "y")}) for end in "yn"
    ]
    head = head_of(policy)
    before = [p.detach().clone() for p in policy.model.parameters()]
    error = sum(summed_error(policy, head, one).item() for one in episodes)
    tune(policy, head, episodes, TuningSettings(30, 1e-2, 2), Random(0), SilentDisplay())
    assert sum(summed_error(policy, head, one).item() for one in episodes) < 0.1 * error
    assert any(not torch.equal(old, new) for old, new in zip(before, policy.model.parameters(), strict=True))
    with pytest.raises(Diverged):
        tune(
            policy,
            head,
            [replace(episodes[0], targets={2: float("nan")})],
            TuningSettings(),
            Random(0),
            SilentDisplay(),
        )


def recorded(run: Path) -> None:
    (run / "trajectories").mkdir(parents=True)
    for step in range(1, 9):
        task, lines = Task(f"t{step}", f"Question {step}"), []
        for name in "yn":
            turns = (Turn("x", (Message("tool", "."),)), Turn(name, (), (), float(name == "y")))
            one = Trajectory(task, (), turns, float(name == "y"), EndReason.ANSWERED, group_id="g")
            lines.append(json.dumps(to_record(one)))
        path = run / "trajectories" / f"step-{step:06d}.jsonl.gz"
        path.write_bytes(gzip.compress("\n".join(lines).encode()))


def test_the_command_writes_a_model_that_the_search_can_load(tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "value.safetensors"
    recorded(run)
    random_policy(run / "policy", ["Question 12345678 x.yn"], spread=0.5)
    words = [
        "value",
        str(run),
        "--out",
        str(out),
        "--epochs",
        "4",
        "--rate",
        "1e-3",
        "--ridge",
        "0.01",
        "--json",
    ]
    assert main(words) == 0
    own = make_policy(f"hf:{run / 'policy'}")
    model = load_value_model(str(out))
    moved = zip(own.model.parameters(), model.policy.model.parameters(), strict=True)
    assert any(not torch.equal(old.bfloat16(), new.bfloat16()) for old, new in moved)
    assert model.weight_F[-LIKELIHOODS:].tolist() == [0.0, 0.0]
    good, bad = (model.values([("", "Question 9"), ("x", "."), (end, "")])[-1] for end in "yn")
    assert good > bad + 0.4
    assert main(words) != 0  # both are there
    out.unlink()
    assert main(words) != 0  # the folder still is


@pytest.mark.parametrize("settings", [{"epochs": 0}, {"rate": 0.0}, {"rate": float("inf")}, {"batch": 0}])
def test_settings_have_bounds(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings))):
        TuningSettings(**settings)  # type: ignore[arg-type]
    assert (TuningSettings().epochs, TuningSettings().rate) == (2, 1e-7)  # ReST-RL's


def test_numbers_of_the_command_have_bounds(tmp_path: Path) -> None:
    for words in (["--epochs", "-1"], ["--epochs", "2", "--rate", "0"]):
        assert main(["value", str(tmp_path), "--out", str(tmp_path / "v"), *words]) != 0

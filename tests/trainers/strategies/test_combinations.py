"""Strategy, proximal policy, correction and engine: every combination is accepted or refused when it is read.

The runs themselves are those of ``benchmarks/combinations.py``; here one strategy of each kind makes its two steps.
"""

import gzip
import importlib
import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from agentenv.errors import ConfigurationError
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.run_folder.folder import RunFolder
from agentenv.trainers.strategies.strategies import IN_CONTEXT, STRATEGIES

AHEAD = ["--asynchronous.staleness", "1", "--rollout.deterministic", "false"]


@pytest.fixture(scope="module")
def benchmark() -> Iterator[Any]:
    """The benchmark that trains them all."""
    folder = str(Path(__file__).resolve().parents[3] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        yield importlib.import_module("combinations")
    finally:
        sys.path.remove(folder)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_whatever_is_accepted_can_be_weighed(strategy: str, benchmark: Any) -> None:
    """No accepted configuration leaves tokens of another context to a correction that the learner refuses."""
    counts = Counter[bool]()
    rows = product(benchmark.PROXIMAL, benchmark.MODES, benchmark.OFF_CONTEXT, ("hf", "vllm"))
    for proximal, mode, off_context, engine in rows:
        row = benchmark.Combination(strategy, proximal, mode, off_context, 1, engine)
        try:
            settings = row.config(1).resolved_loss
        except ConfigurationError:
            counts[False] += 1
            continue
        counts[True] += 1
        assert not settings.correction.weighs or settings.proximal != "sampler"
        if settings.correction.weighs and strategy not in IN_CONTEXT:
            assert settings.correction.off_context in ("rescore", "weight"), row
    assert all(counts.values())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_defaults_of_asynchronous_training_fit_every_strategy(strategy: str) -> None:
    # `critical_step` compares with the start.
    words = ["--rollout.strategy", strategy, "--loss.kl_coefficient", "1e-3"]
    loss = override(TrainConfig(), [*AHEAD, *words]).resolved_loss
    assert (loss.correction.mode, loss.correction.off_context) == ("truncate", "weight")
    at_home = override(TrainConfig(), words).resolved_loss
    assert (at_home.correction.mode, at_home.correction.off_context) == ("none", "recompute")


@pytest.mark.parametrize("off_context", ["recompute", "ratio"])
def test_what_a_correction_cannot_weigh_is_refused_when_it_is_read(off_context: str) -> None:
    words = [*AHEAD, "--loss.correction.off_context", off_context]
    if off_context == "recompute":
        override(TrainConfig(), words)  # nothing changes its context
    with pytest.raises(ConfigurationError, match=rf"rollback.*off_context='{off_context}'"):
        override(TrainConfig(), [*words, "--rollout.strategy", "rollback"])
    with pytest.raises(ConfigurationError, match=r"rollout\.sampler='dots'"):
        override(TrainConfig(), [*words, "--rollout.sampler", "dots"])


@pytest.mark.parametrize("strategy", ["judge", "guide", "critique", "reflect_retry"])
def test_two_asynchronous_steps_with_tokens_of_another_context(
    strategy: str, benchmark: Any, tmp_path: Path
) -> None:
    """By the defaults, which died at the first such token."""
    torch.set_num_threads(1)
    config = benchmark.Combination(strategy, None, None, None, 1, "hf").config(1)
    folder = RunFolder.create(tmp_path / "run", config)
    train(folder, SilentDisplay())
    assert len(folder.history()) == 2
    texts = [gzip.decompress(path.read_bytes()) for path in (tmp_path / "run" / "trajectories").iterdir()]
    assert any(b'"origin": "splice"' in text or b'"origin": "retry"' in text for text in texts)


def test_the_result_file_has_every_pair_that_is_accepted_and_says_why_the_others_are_not(
    benchmark: Any,
) -> None:
    """A strategy or a correction that is added must be run in pairs with the others before it is published."""
    accepted, refused = benchmark.read(
        Namespace(strategy=list(benchmark.STRATEGIES), engines=["hf"], threads=1)
    )
    held = set().union(*map(benchmark.pairs, accepted))
    drawn = benchmark.covering(accepted, 0)
    assert set().union(*map(benchmark.pairs, drawn)) == held
    assert len(drawn) < len(accepted) / 10
    results = Path(benchmark.__file__).parent / "results"
    file = json.loads((results / "combinations.json").read_text())
    rows = [benchmark.Combination(*(row[name] for name in drawn[0]._fields)) for row in file["combinations"]]
    assert {row["result"] for row in file["combinations"]} == {"ran"}
    assert set().union(*map(benchmark.pairs, rows)) == held
    never = set().union(*map(benchmark.pairs, refused)) - held
    assert {tuple(entry["pair"].items()) for entry in file["pairs_refused"]} == never
    assert {entry["sentence"] for entry in file["pairs_refused"]} <= set(refused.values())

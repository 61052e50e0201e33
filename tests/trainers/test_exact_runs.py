"""Whole runs hand the learner what their samplers gave: ids, log-probs, contexts and versions of the weights.

``strategies/test_exact_tokens.py`` looks at the episodes of each strategy. Here all that lies between sampler and optimiser
takes part: adapters, a second set of weights, updates while others sample, faults, and contexts that are full.
"""

import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest

from agentenv.core.types import Completion, FinishReason, Sampling, Step
from agentenv.envs.search.search_env import SearchEnv
from agentenv.errors import EnvFault
from agentenv.policies.hf import HFPolicy
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import override, parse_config
from agentenv.trainers.grpo import train
from agentenv.trainers.learner.learner import Learner
from agentenv.trainers.learner.packing import TrainingRow
from agentenv.trainers.run_folder.folder import RunFolder

WORLD = {"documents": 200, "questions": 12, "families": ["lookup"], "hops": [1, 1]}
VALUES: dict[str, Any] = {
    "threads": 1,
    "env": {"options": {"k": 1, "max_turns": 2, "observation_tokens": 64, "prompt": "{question}"}},
    "search": {"encoder": "hash"},
    "train": {"world": WORLD | {"seed": 1, "split": "train"}},
    "dev": {"limit": 1, "world": WORLD | {"seed": 2, "split": "dev"}},
    "test": {"limit": 1, "world": WORLD | {"seed": 3, "split": "test"}},
    "rollout": {
        "questions": 2,
        "group_size": 3,
        "turn_tokens": 20,
        "context_tokens": 384,
        "temperature": 2.0,
    },
    "optimizer": {"steps": 2, "learning_rate": 1e-3},
    "evaluation": {"every": 0, "bounds": False},
}
SELF_PLAY = (
    "--env.id agentenv/SearchSolver-v0 --train.topics true --rollout.strategy self_play --rollout.sampler self_play "
    "--rollout.strategy_options.searches [1,1] --rollout.strategy_options.checks [] --loss.estimator role_wise "
    "--rollout.context_tokens 1000 --rollout.turn_tokens 40"
)
AHEAD = "--asynchronous.staleness 1 --rollout.deterministic false"


class InTraining(SilentDisplay):
    """Knows whether the training is on, and not an evaluation."""

    on = False

    def phase(self, name: str, total: int) -> None:
        """Another phase begins."""
        self.on = name == "training"


class Sampled(NamedTuple):
    """What one call of a sampler was asked and gave."""

    model: Any
    prompt: tuple[int, ...]
    done: Completion


class Update(NamedTuple):
    """The rows of one optimiser step, and the model that it moves."""

    model: Any
    rows: tuple[TrainingRow, ...]


class Watched:
    """What samplers gave and what learners took, of every policy and learner of this process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sampled: list[Sampled] = []
        self.updates: list[Update] = []
        generate, accumulate = HFPolicy.generate, Learner.accumulate

        async def sampling(policy: HFPolicy, ids: Sequence[int], how: Sampling, **more: Any) -> Completion:
            done = await generate(policy, ids, how, **more)
            self.sampled.append(Sampled(policy.model, tuple(ids), done))
            return done

        def training(learner: Learner, rows: Sequence[TrainingRow], *args: Any, **more: Any) -> Any:
            self.updates.append(Update(learner.model, tuple(rows)))
            return accumulate(learner, rows, *args, **more)

        monkeypatch.setattr(HFPolicy, "generate", sampling)
        monkeypatch.setattr(Learner, "accumulate", training)

    def check(self) -> int:
        """How many trained tokens were found to be what the policy of their learner sampled in their context."""
        samplers, count = {id(call.model) for call in self.sampled}, 0
        for model, rows in self.updates:
            # A learner that trains while others sample has a model of its own.
            calls = [call for call in self.sampled if call.model is model or id(model) not in samplers]
            versions = set[int]()
            for row in rows:
                given = _given(row, calls)
                own = [int(place) for place in row.trained if not row.mismatch[place]]
                assert [place for place in own if place not in given] == []
                assert row.age is not None
                versions |= {int(row.age[place]) + given[place] for place in own}
                count += len(own)
            assert len(versions) <= 1  # every age counts from the weights at the start of the update
        return count


def _given(row: TrainingRow, calls: Sequence[Sampled]) -> dict[int, int]:
    """The places of a row that hold what a call gave after exactly the ids before, with its log-probs; and its version."""
    ids, found = tuple(map(int, row.ids)), {}
    for _, prompt, done in calls:
        if ids[: len(prompt)] != prompt:
            continue
        for place, (token, logprob) in enumerate(zip(done.ids, done.logprobs, strict=True), len(prompt)):
            if place >= len(ids) or ids[place] != token:
                break
            if row.logprobs[place] == np.float32(logprob):
                found[place] = done.versions[place - len(prompt)] if done.versions else done.version
    return found


async def played(policy: HFPolicy, ids: Sequence[int], how: Sampling, **more: Any) -> Completion:
    """What a policy that knows the game of self-play gives: a search, a question, or an answer that may be right."""
    shown = policy.tokenizer.decode(list(ids))
    if "can only" not in shown:  # a solver
        text = ("<answer>Kov</answer>", "<answer>Bay</answer>")[how.seed % 2]
    elif "<information>Doc" in shown:
        text = f"<question>Where did number {how.seed % 9} live?</question><answer>Kov</answer>"
    else:
        text = "<search>who is it</search>"
    written = policy.tokenizer.encode(text, add_special_tokens=False)[: how.max_tokens]
    scores = await policy.score([*ids, *written])
    return Completion(
        tuple(written), text, tuple(scores[-len(written) :]), FinishReason.STOP, version=policy.version
    )


def trained(place: Path, patch: pytest.MonkeyPatch, words: str, faults: float = 0.0) -> Watched:
    """Two steps over a small world in which every action earns something else, and a share of them fails."""
    act, rng, display = SearchEnv.astep, Random(0), InTraining()

    async def paid(env: SearchEnv, action: str) -> Step:
        if display.on and rng.random() < faults:
            raise EnvFault("made up")
        step = await act(env, action)
        return step._replace(reward=zlib.crc32(action.encode()) % 100 / 100)

    patch.setattr(SearchEnv, "astep", paid)
    if "self_play" in words:
        patch.setattr(HFPolicy, "generate", played)
    watched = Watched(patch)
    config = override(parse_config(VALUES, "the test"), words.split())
    train(RunFolder.create(place / "run", config), display)
    return watched


@pytest.mark.parametrize(
    ("words", "faults"),
    [
        (f"{AHEAD} --lora.rank 2", 0.2),
        ("--rollout.strategy tree --optimizer.mini_batches 2", 0.2),
        ("--rollout.context_tokens 120", 0.0),
        (f"{SELF_PLAY} --second.roles ['proposer']", 0.0),
    ],
    ids=["adapters ahead", "tree", "full contexts", "second weights"],
)
def test_the_learner_trains_what_its_policy_sampled(
    words: str, faults: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = trained(tmp_path, monkeypatch, words, faults)
    assert watched.check() > 10
    assert len({id(update.model) for update in watched.updates}) == (2 if "second" in words else 1)


def test_what_differs_from_the_sampler_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = trained(tmp_path, monkeypatch, "--optimizer.steps 1")
    assert watched.check() > 50
    update = watched.updates[0]
    row = update.rows[0]
    place = int(row.trained[-1])
    ids, logprobs, mask = row.ids.copy(), row.logprobs.copy(), row.mask.copy()
    ids[place] += 1
    logprobs[place] -= 0.1
    mask[0] = True
    for other in (replace(row, ids=ids), replace(row, logprobs=logprobs), replace(row, mask=mask)):
        watched.updates = [update._replace(rows=(other,))]
        with pytest.raises(AssertionError):
            watched.check()

"""What the learner trains on is what the sampler gave: ids, log-probs, masks and contexts, in every template and strategy.

A random model is sampled, or a turn is written for it: calls and answers in odd pieces, cut or ended in any way, whose
log-probs the model gives. Every trained run of tokens has to stand behind the prompt after which it was sampled, and the
learner has to compute the log-probs that the sampler recorded.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.core.chat import cut_at_stop
from agentenv.core.chat_formats import make_chat_format
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.envs.calculator import Calculator
from agentenv.policies.fakes import random_model
from agentenv.policies.hf import HFPolicy
from agentenv.policies.wrapper import PolicyWrapper
from agentenv.trainers.learner.logprobs import token_logprobs
from agentenv.trainers.learner.packing import micro_batches, rows_of
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups
from tests.core.test_native_families import MODELS

ARGUMENTS: list[dict[str, Any]] = [
    {"expression": "1+1"},
    {"expression": "1//0"},
    {"expression": 'é 日本 🙂\n"x"'},
    {"expression": 5},
    {"other": []},
    {},
]
ANSWERS = ["42", "", "Zoë 日本 🙂", "5<|im_end|>", "I think"]
NATIVE = [name for name, model in MODELS.items() if model.call and name not in ("Phi-4", "Gemma 3", "Phi-3")]
NO_TOOLS = ("DeepSeek-V3", "DeepSeek-R1 (distilled)", "OLMo 3 Think")
TOLERANCE = 3e-3  # nats; the cache, the plain pass and the packed one round in their own ways


@dataclass
class Writer(PolicyWrapper):
    """Writes one of ``texts``, or lets the model sample, and keeps what was asked and answered."""

    policy: HFPolicy
    texts: Sequence[str]
    log: list[tuple[tuple[int, ...], Completion]] = field(default_factory=list)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None, **images: Any
    ) -> Completion:
        rng = Random(sampling.seed * 31 + len(prompt_ids))
        if rng.random() < 0.2:
            room = min(sampling.max_tokens, rng.randint(1, 12))
            done = await self.policy.generate(prompt_ids, replace(sampling, max_tokens=room), episode=episode)
        else:
            done = await self._written(prompt_ids, sampling, rng)
        self.log.append((tuple(prompt_ids), done))
        return done

    async def _written(self, prompt_ids: Sequence[int], sampling: Sampling, rng: Random) -> Completion:
        ids = self._pieces(rng.choice(self.texts), rng)
        ids = ids[: rng.randint(1, len(ids))] if ids and rng.random() < 0.15 else ids
        ids = [*ids, rng.choice(self.policy.ends)] if not ids or rng.random() < 0.8 else ids
        ids, text, finish = self._ended(ids[: sampling.max_tokens], sampling.stop)
        scores = await self.policy.score([*prompt_ids, *ids])
        return Completion(tuple(ids), text, tuple(scores[-len(ids) :]), finish)

    def _pieces(self, text: str, rng: Random) -> list[int]:
        """Ids of ``text``, often others than those of the whole: marks of one id may be spelt out."""
        cuts = sorted(rng.sample(range(len(text) + 1), min(3, len(text)))) if rng.random() < 0.5 else []
        ends = [0, *cuts, len(text)]
        parts = [text[begin:end] for begin, end in pairwise(ends)]
        return [i for part in parts for i in self.policy.tokenizer.encode(part, add_special_tokens=False)]

    def _ended(self, ids: list[int], stop: Sequence[str]) -> tuple[list[int], str, FinishReason]:
        decode = self.policy.tokenizer.decode
        end = next((place for place, i in enumerate(ids) if i in self.policy.ends), None)
        cut = cut_at_stop(ids, decode, stop)
        if cut and (end is None or cut[0] <= end):
            return ids[: cut[0]], cut[1], FinishReason.STOP
        if end is not None:
            return ids[: end + 1], decode(ids[:end]), FinishReason.EOS
        return ids, decode(ids), FinishReason.LENGTH


def played(name: str, form: str, strategy: str, seed: int, **options: Any) -> tuple[list[Trajectory], Writer]:
    """The episodes of two groups, and who wrote them."""
    model = MODELS[name]
    tokenizer = model.tokenizer()
    policy = HFPolicy(
        random_model(len(tokenizer), context=4096, seed=seed, spread=0.1, eos=tokenizer.eos_token_id),
        tokenizer,
    )
    writer = Writer(policy, [*ANSWERS, *(_called(name, given, form) for given in ARGUMENTS)])
    tasks = Calculator.make_tasks(2, seed=seed)
    specs = [
        [
            EpisodeSpec(Calculator(), task, 100 * seed + 10 * group + slot, group_id=task.id)
            for slot in range(3)
        ]
        for group, task in enumerate(tasks)
    ]
    stop = ("</tool_call>",) if form != "native" else ()
    config = RolloutConfig(context_tokens=3600, turn_tokens=120, deterministic=False, stop=stop)
    context = RolloutContext(writer, make_chat_format(form, tokenizer, policy.ends), config, tokenizer.decode)
    groups = asyncio.run(play_groups(specs, get_strategy(strategy, options), context))
    return [trajectory for group in groups for trajectory in group], writer


def _called(name: str, given: dict[str, Any], form: str) -> str:
    """A call as the model of a family writes it, or in the tags of the environment."""
    if form != "native":
        call = json.dumps({"name": "calculate", "arguments": given}, ensure_ascii=False)
        return f"I use it. <tool_call>{call}</tool_call>"
    return MODELS[name].written("", "", [("calculate", given)]).removesuffix(MODELS[name].end)


def check(trajectories: Sequence[Trajectory], writer: Writer) -> int:
    """How many trained tokens were found to be those of the sampler, in their own context."""
    answers: dict[tuple[int, ...], list[Completion]] = {}
    for prompt, done in writer.log:
        answers.setdefault(prompt, []).append(done)
    for trajectory in trajectories:
        assert trajectory.valid, trajectory.error
        for row in _rows(trajectory):
            for context, ids, logprobs in row:
                whole = [done for done in answers.get(context, []) if done.ids == ids]
                assert any(done.logprobs == logprobs for done in whole)
        _check_learner(trajectory, writer.policy.model)
    return sum(int(trajectory.loss_mask.sum()) for trajectory in trajectories)


def _rows(trajectory: Trajectory) -> list[list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]]:
    """Of each row the turns that stand in the context in which they were sampled: context, ids and log-probs."""
    rows = []
    for _, segments in groupby((s for s in trajectory.segments if s.ids), key=lambda segment: segment.row):
        context: tuple[int, ...] = ()
        runs = []
        for (kind, _), run in groupby(segments, key=lambda segment: (segment.kind, segment.turn)):
            parts = list(run)
            ids = tuple(i for part in parts for i in part.ids)
            if kind is SegmentKind.POLICY and not any(part.context_mismatch for part in parts):
                runs.append((context, ids, tuple(value for part in parts for value in part.logprobs)))
            context += ids
        rows.append(runs)
    return rows


def _check_learner(trajectory: Trajectory, model: Any) -> None:
    rows = rows_of([trajectory], [np.ones(len(trajectory.ids))])
    packed = list(micro_batches(rows, 100_000))
    assert sum(len(batch.targets) for batch in packed) == int(trajectory.loss_mask.sum())
    for batch in packed:
        with torch.no_grad():
            computed, _ = token_logprobs(model, batch, 1.0)
        gap = (computed - batch.old).abs()[~batch.mismatch]
        assert not len(gap) or float(gap.max()) < TOLERANCE


@pytest.mark.parametrize("name", [name for name in NATIVE if name not in NO_TOOLS])
def test_native_turns_are_trained_as_they_were_sampled(name: str) -> None:
    assert check(*played(name, "native", "plain", 0)) > 50


@pytest.mark.parametrize("form", ["inline", "template"])
@pytest.mark.parametrize("name", ["Qwen2.5", "Mistral (v3)"])
@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("plain", {}),
        ("rollback", {"retries": 2}),
        ("rollback", {"retries": 2, "threshold": 0.0, "commit": "on_success"}),
        ("tree", {}),
        ("judge", {}),
        ("reflect_retry", {}),
        ("critical_step", {}),
        ("guide", {}),
        ("critique", {}),
        ("demonstrate", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_turns_of_strategies_are_trained_as_they_were_sampled(
    name: str, form: str, strategy: str, options: dict[str, Any]
) -> None:
    assert check(*played(name, form, strategy, 2, **options)) > 0


def test_a_log_prob_of_another_token_is_found() -> None:
    trajectories, writer = played("Qwen2.5", "inline", "plain", 0)
    place = next(i for i, one in enumerate(trajectories[0].segments) if one.kind is SegmentKind.POLICY)
    segments = list(trajectories[0].segments)
    changed = tuple(value - 0.1 for value in segments[place].logprobs)
    segments[place] = replace(segments[place], logprobs=changed)
    with pytest.raises(AssertionError):
        check([trajectories[0].with_segments(segments)], writer)
    with pytest.raises(AssertionError):
        _check_learner(trajectories[0].with_segments(segments), writer.policy.model)

"""Whether sampler, learner, ``score`` and the model itself give a token the same log-prob."""

import asyncio
from collections.abc import Sequence

import numpy as np
import torch

from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.types import Completion, Sampling
from agentenv.policies.hf import HFPolicy
from agentenv.trainers.learner.logprobs import token_logprobs
from agentenv.trainers.learner.packing import TrainingRow, micro_batches

_EPISODES = 3
_SAMPLED = 5
_PROMPT_TOKENS = 20
"""Tokens of the longest prompt."""


def logprob_gaps(policy: HFPolicy, *, vocabulary: int | None = None) -> dict[str, float]:
    """Largest distances, in nats, from the log-probs of ``model.forward`` on the plain sequence.

    Three episodes of two turns are sampled from prompts of unequal length in one batch, the second turn on the cache of the
    first; then each is rewound and sampled once more. The learner gets the rows of one prompt packed behind one copy of it,
    and the others padded.

    Args:
        policy: Samples; its model is scored.
        vocabulary: Ids below it make up the prompts; None takes all.

    Returns:
        ``sampler``, ``learner`` and ``score``.

    Raises:
        PolicyFault: the model failed.
    """
    size = vocabulary or int(policy.model.config.get_text_config().vocab_size)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(2, size, _PROMPT_TOKENS - 3 * i).tolist() for i in range(_EPISODES)]
    turns, ids = [], prompts
    for seed in range(3):
        if seed == 2:  # back to the middle of the first turn, with another end
            ids = [[*prompt[: len(prompt) - 2], 3, 2] for prompt in prompts]
        done = run_to_completion(_sampled(policy, ids, seed))
        turns += list(zip(ids, done, strict=True))
        ids = [[*before, *answer.ids, 4] for before, answer in zip(ids, done, strict=True)]
    sampler = max(_gap(policy, [*before, *a.ids], len(before), a.logprobs) for before, a in turns)
    rows = [row for before, a in turns for row in (_row(before, a), _row(before, a, shift=1))]
    scored = [[*row.ids.tolist()] for row in rows[:2]]
    score = max(_gap(policy, one, 1, run_to_completion(policy.score(one))[1:]) for one in scored)
    return {"sampler": sampler, "learner": _learner_gap(policy, rows), "score": score}


async def _sampled(policy: HFPolicy, prompts: Sequence[Sequence[int]], seed: int) -> list[Completion]:
    asked = (
        policy.generate(ids, Sampling(_SAMPLED, seed=seed + i), episode=f"agreement-{i}")
        for i, ids in enumerate(prompts)
    )
    return list(await asyncio.gather(*asked))


def _row(before: Sequence[int], answer: Completion, *, shift: int = 0) -> TrainingRow:
    """A row whose answer is trained; with ``shift``, another answer of the same prompt."""
    ids = np.array([*before, *((i + shift) % max(answer.ids, default=1) for i in answer.ids), 2])
    mask = np.arange(len(ids)) >= len(before)
    zeros = np.zeros(len(ids))
    return TrainingRow(ids, mask, zeros.astype(np.float32), zeros.astype(np.bool_), zeros)


@torch.no_grad()
def _learner_gap(policy: HFPolicy, rows: Sequence[TrainingRow]) -> float:
    most = 0.0
    for batch in micro_batches(rows, 512):
        found = token_logprobs(policy.model, batch.to(policy.model.device), 1.0)[0].cpu()
        wanted = torch.cat(
            [_plain(policy, row.ids.tolist())[torch.from_numpy(row.trained) - 1] for row in batch.members]
        )
        most = max(most, float((found - wanted).abs().max()))
    return most


def _gap(policy: HFPolicy, ids: Sequence[int], first: int, logprobs: Sequence[float]) -> float:
    found = torch.tensor(logprobs)
    return float((found - _plain(policy, ids)[first - 1 : first - 1 + len(found)]).abs().max())


@torch.no_grad()
def _plain(policy: HFPolicy, ids: Sequence[int]) -> torch.Tensor:
    """Log-probs [T - 1] of ``ids`` after the first."""
    tokens = torch.tensor([list(ids)], device=policy.model.device)
    logprobs = torch.log_softmax(policy.model(input_ids=tokens, use_cache=False).logits[0].float(), -1)
    return logprobs[:-1].gather(-1, tokens[0, 1:, None])[:, 0].cpu()

"""``agentenv train --plan``: what a run will take on this machine, from a probe of a few seconds."""

import time
from typing import Any

import torch

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.policies.spec import make_policy
from agentenv.trainers.config import TrainConfig
from agentenv.trainers.learner import Learner, Objective, rows_of

_PROBE_ROWS = 8
_TYPICAL_FILL = 0.5  # share of the context that an episode fills, where nothing better is known


def plan_run(config: TrainConfig) -> dict[str, Any]:
    """Tokens, memory and time of a run.

    Returns:
        Sizes, peak memory in GiB (weights, gradients, two Adam moments, caches, activations of one micro-batch; an
        estimate) and seconds of training, extrapolated from one forward and backward pass of this model.
    """
    torch.set_num_threads(config.threads)
    policy = make_policy(config.policy)
    parameters = sum(p.numel() for p in policy.model.parameters())
    rollout = config.rollout
    episodes = rollout.questions * rollout.group_size
    tokens = int(episodes * rollout.context_tokens * _TYPICAL_FILL)
    speed = _probe(policy, rollout.context_tokens)
    shape = policy.model.config
    cache_bytes = 2 * 4 * shape.num_hidden_layers * shape.hidden_size * episodes * rollout.context_tokens
    activation_bytes = 4 * config.optimization.micro_tokens * shape.hidden_size * shape.num_hidden_layers * 30
    memory = 4 * parameters * 4 + cache_bytes + activation_bytes
    step_seconds = tokens / speed * 1.5  # sampling costs about half as much as learning
    return {
        "parameters": parameters,
        "episodes_per_step": episodes,
        "tokens_per_step": tokens,
        "memory_gib": round(memory / 2**30, 2),
        "trained_tokens_per_s": round(speed),
        "seconds_per_step": round(step_seconds, 2),
        "training_minutes": round(step_seconds * config.optimization.steps / 60, 1),
    }


def _probe(policy: Any, context_tokens: int) -> float:
    """Tokens a second through forward and backward, measured on made-up rows of half the context."""
    length = max(int(context_tokens * _TYPICAL_FILL), 2)
    ids = tuple(i % policy.model.config.vocab_size for i in range(length))
    segment = Segment(SegmentKind.POLICY, ids, 0, logprobs=(0.0,) * length)
    trajectory = Trajectory(
        Task("probe", ""), (Segment(SegmentKind.PROMPT, (0,), 0), segment), (), 0.0, EndReason.ANSWERED
    )
    credit = [trajectory.loss_mask.astype(float)] * _PROBE_ROWS
    rows = rows_of([trajectory] * _PROBE_ROWS, credit)
    learner = Learner(policy.model, Objective(), learning_rate=1e-9)
    learner.accumulate(rows)
    began = time.perf_counter()
    learner.accumulate(rows)
    return _PROBE_ROWS * length / (time.perf_counter() - began)

"""A value model whose language model learns as well, and not its head alone, as that of ReST-RL does.

ReST-RL, 2025, arXiv:2508.19576: the value model has the size of the policy, its head gives one number, and all of it learns
by the summed squared error of the states, in two passes with a step size of 1e-7. `learner/value_training.py` fits a head
to a language model that stays as it is, which takes minutes and no further weights.

Shapes: N states of one episode, T tokens, H hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentenv.errors import ConfigurationError, Diverged
from agentenv.policies.compute import ComputeSettings
from agentenv.policies.hf import HFPolicy
from agentenv.policies.output_head import hidden_at
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.value_model import (
    LIKELIHOODS,
    Features,
    ValueModel,
    encoded_pieces,
    features_of,
    save_value_model,
)
from agentenv.progress import Display
from agentenv.trainers.learner.value_training import (
    LabelledEpisode,
    held_out_tasks,
    least_squares,
    refuse_few_states,
    ridge_of,
)
from agentenv.trainers.warmstart.supervised import write_folder


@dataclass(frozen=True)
class TuningSettings:
    """How a whole value model learns.

    Raises:
        ConfigurationError: a number is out of range.
    """

    epochs: int = 2
    """Passes over the episodes, each in another order; 2 in ReST-RL."""
    rate: float = 1e-7
    """Step size of Adam; 1e-7 in ReST-RL, whose models have billions of weights."""
    batch: int = 8
    """Episodes of a step; that of the paper was not found."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1 or not (isfinite(self.rate) and self.rate > 0):
            raise ConfigurationError(
                f"a value model learns in epochs and batches of at least 1 at a rate above 0, not epochs={self.epochs}, "
                f"batch={self.batch} and rate={self.rate}"
            )


def summed_error(policy: HFPolicy, head: torch.nn.Linear, episode: LabelledEpisode) -> Tensor:
    """Sum of (V(s) - target)^2 over the states of ``episode`` whose text fits into the context."""
    ids, _, ends = encoded_pieces(policy, episode.pieces)
    most = policy.context_tokens
    known = [(max(ends[place], 1) - 1, value) for place, value in sorted(episode.targets.items())]
    known = [(place, value) for place, value in known if place < most]
    device = policy.model.device
    places = torch.tensor([place for place, _ in known], dtype=torch.long, device=device)
    wanted = torch.tensor([value for _, value in known], device=device)
    fed = torch.tensor([ids[:most]], device=device)
    hidden = hidden_at(policy.model, fed, torch.zeros_like(places), places, use_cache=False)
    # In float32 whatever the model computes in: the differences of values are small beside their rounding in bfloat16.
    values: Tensor = head(hidden.float())[:, 0]
    return (values - wanted).square().sum()


def tune(
    policy: HFPolicy,
    head: torch.nn.Linear,
    episodes: Sequence[LabelledEpisode],
    settings: TuningSettings,
    rng: Random,
    display: Display,
) -> None:
    """Moves the weights of ``policy`` and of ``head`` by the summed squared error of the states.

    Raises:
        Diverged: the error is not finite.
    """
    weights = [p for p in policy.model.parameters() if p.requires_grad]
    adam = torch.optim.Adam([*weights, *head.parameters()], lr=settings.rate)
    done = 0
    for _ in range(settings.epochs):
        order = rng.sample(episodes, len(episodes))
        for start in range(0, len(order), settings.batch):
            adam.zero_grad(set_to_none=True)
            total = 0.0
            for episode in order[start : start + settings.batch]:
                # One episode a pass: the graphs of a batch of long ones would not fit into memory together.
                error = summed_error(policy, head, episode)
                error.backward()  # type: ignore[no-untyped-call]
                total += error.item()
                done += 1
            if not isfinite(total):
                raise Diverged(f"the squared error of the value model is {total}: lower --rate")
            adam.step()
            display.advance(done, {"squared_error": total})


def tune_value_model(
    policy: HFPolicy,
    episodes: Sequence[LabelledEpisode],
    out: Path,
    folder: Path,
    settings: TuningSettings,
    *,
    ridge: float,
    compute: ComputeSettings,
    display: Display,
) -> dict[str, Any]:
    """Trains a language model and its head on states of known value and writes both.

    It begins with the head that least squares finds for the language model as it is. Every fifth task is held out, to say
    how well the values of tasks that were not seen are predicted, and is not learned.

    Args:
        policy: The language model; its weights move.
        episodes: Where the states are from.
        out: File of the head.
        folder: Of the language model; must not exist.
        settings: How they learn.
        ridge: Of the head at the beginning; see ``ridge_of``.
        compute: Where the language model that was written computes its held-out values.
        display: Told of the progress.

    Returns:
        As ``train_value_model``, and ``model``, the folder.

    Raises:
        ConfigurationError: there are hardly any states.
        Diverged: the error is not finite.
    """
    episodes = [episode for episode in episodes if episode.targets]
    refuse_few_states(sum(len(episode.targets) for episode in episodes))
    held = held_out_tasks(episodes)
    taught = [episode for episode in episodes if episode.task not in held]
    display.phase("value model", settings.epochs * len(taught))
    head = _first_head(policy, taught, ridge)
    tune(policy, head, taught, settings, Random(0), display)
    write_folder(policy, folder, lambda part: None)
    # Weights are written in bfloat16, so what is measured is what was written.
    weight = head.weight.detach()[0].double().cpu().numpy()
    weight_F = np.concatenate([weight, np.zeros(LIKELIHOODS)])
    spec = f"hf:{folder}"
    model = ValueModel(make_policy(spec, compute), weight_F, head.bias.item())
    save_value_model(out, spec, weight_F, head.bias.item())
    tasks = len({episode.task for episode in episodes})
    states = sum(len(episode.targets) for episode in episodes)
    found = {"states": states, "episodes": len(episodes), "tasks": tasks, "model": str(folder)}
    return found | _held_out(model, taught, [episode for episode in episodes if episode.task in held])


def _first_head(policy: HFPolicy, episodes: Sequence[LabelledEpisode], ridge: float) -> torch.nn.Linear:
    """The head that least squares finds for the hidden states of ``policy`` as it is."""
    rows: list[Features] = []
    for episode in episodes:
        rows.append(features_of(policy, episode.pieces)[sorted(episode.targets), :-LIKELIHOODS])
    features_NH, targets_N = np.concatenate(rows), np.array(_targets(episodes))
    weight_H, bias = least_squares(
        features_NH, targets_N, ridge_of(features_NH.shape[1] + LIKELIHOODS, ridge)[:-LIKELIHOODS]
    )
    head = torch.nn.Linear(features_NH.shape[1], 1, device=policy.model.device)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weight_H)[None])
        head.bias.fill_(bias)
    return head


def _targets(episodes: Sequence[LabelledEpisode]) -> list[float]:
    return [episode.targets[place] for episode in episodes for place in sorted(episode.targets)]


def _held_out(
    model: ValueModel, taught: Sequence[LabelledEpisode], held: Sequence[LabelledEpisode]
) -> dict[str, float | None]:
    """Mean squared errors on the states that were held out, of the model and of the mean of the others."""
    if not held:
        return {"squared_error": None, "constant_error": None}
    found = [
        values[place]
        for one in held
        for values in [model.values(one.pieces)]
        for place in sorted(one.targets)
    ]
    wanted, constant = np.array(_targets(held)), float(np.mean(_targets(taught)))
    return {
        "squared_error": float(((np.array(found) - wanted) ** 2).mean()),
        "constant_error": float(((constant - wanted) ** 2).mean()),
    }

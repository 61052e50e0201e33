"""A value model: what reward an episode will earn, predicted after each of its turns by a linear head on a language model.

The head reads what the language model computes over the text of a state (the question, then every action with its
observation): the hidden state that its output layer would read next, and how likely it finds the actions. As states are
text, the language model may be another one than the policy that is judged. A file holds the head and names the language
model; ``agentenv value`` writes it.

Shapes: N states of one episode, T tokens, H hidden size, F = H + 2 features.
"""

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from itertools import accumulate
from math import isfinite
from os.path import relpath
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentenv.core.chat import InlineFormat
from agentenv.core.io.digests import PathState, path_state
from agentenv.core.io.files import replacing
from agentenv.core.trajectory import Turn
from agentenv.core.types import Message
from agentenv.errors import CheckpointMismatch, PolicyFault
from agentenv.policies.policy_spec import make_policy, policy_digest, policy_folder

if TYPE_CHECKING:
    from agentenv.policies.hf import HFPolicy

Features = NDArray[np.float64]
SHIPPED = "tiny"
"""The value model that comes with the package."""


Piece = tuple[str, str]
"""What the policy wrote, and what it was shown then."""

LIKELIHOODS = 2
"""Features of a state that say how likely its last action was; they stand behind the hidden state."""

_FLOOR = -20.0  # nats; below it one token is as unlikely as another


def state_pieces(question: str, turns: Sequence[Turn]) -> list[Piece]:
    """The text of an episode in pieces: the question, then each action with what was observed after it."""
    said = ("".join(message.text for message in turn.observation) for turn in turns)
    return [("", question), *((turn.action, text) for turn, text in zip(turns, said, strict=True))]


class ValueModel:
    """Predicts rewards: V(s) = w x(s) + b, with x(s) as of ``features_of``."""

    def __init__(self, policy: "HFPolicy", weight_F: Features, bias: float) -> None:
        """Puts a head on a language model.

        Args:
            policy: The language model; its weights stay as they are.
            weight_F: w.
            bias: b.

        Raises:
            CheckpointMismatch: the head is for another hidden size, or not finite.
        """
        self.policy = policy
        self.weight_F = weight_F
        self.bias = bias
        size = policy.model.get_output_embeddings().weight.shape[-1] + LIKELIHOODS
        if weight_F.shape != (size,) or not (np.isfinite(weight_F).all() and isfinite(bias)):
            raise CheckpointMismatch(
                f"a value head needs {size} finite weights and a finite bias, not {weight_F.shape} and {bias}"
            )

    def values(self, pieces: Sequence[Piece]) -> list[float]:
        """The predicted reward after each of ``pieces``.

        Raises:
            PolicyFault: a prediction is not finite.
        """
        found: list[float] = (features_of(self.policy, pieces) @ self.weight_F + self.bias).tolist()
        if not all(map(isfinite, found)):
            raise PolicyFault("the value model predicts numbers that are not finite")
        return found


def features_of(policy: "HFPolicy", pieces: Sequence[Piece]) -> Features:
    """float64[N, F]: what ``policy`` computes over an episode, after each of ``pieces``.

    These are the hidden state after the piece, and the mean and the least log-prob of what was written in the piece, 0 where
    nothing was. The question is posed as a user's message in the form of the model's tokenizer. A text beyond the context
    loses its beginning.
    """
    ids, writers, ends = encoded_pieces(policy, pieces)
    most = policy.context_tokens
    if len(ids) <= most:
        return _read(policy, ids, writers, ends)
    fit = sum(end <= most for end in ends)
    heads = [features_of(policy, pieces[:fit])] if fit else []
    begins = [0, *ends]
    tails = [
        _read(
            policy,
            ids[end - most : end],
            [-1 if writer < 0 else int(writer == n) for writer in writers[end - most : end]],
            [max(begins[n] - (end - most), 0), most],
        )[1:]
        for n, end in enumerate(ends)
        if n >= fit
    ]
    return np.concatenate([*heads, *tails])


def encoded_pieces(policy: "HFPolicy", pieces: Sequence[Piece]) -> tuple[list[int], list[int], list[int]]:
    """The tokens of an episode: int[T] ids, int[T] the piece in which each was written (-1: it was shown), int[N] ends."""
    # In the form that the model was trained in: to text without it a language model gives other hidden states.
    posed = InlineFormat(policy.tokenizer).prompt((Message("user", "".join(pieces[0])),))
    later = [[policy.tokenizer.encode(text, add_special_tokens=False) for text in one] for one in pieces[1:]]
    encoded = [[[], posed], *later]
    ids = [i for piece in encoded for part in piece for i in part]
    writers = [n for n, (own, shown) in enumerate(encoded) for n in [n] * len(own) + [-1] * len(shown)]
    return ids, writers, [*accumulate(len(own) + len(shown) for own, shown in encoded)]


def _read(policy: "HFPolicy", ids: list[int], writers: list[int], ends: list[int]) -> Features:
    """float64[N, F] of a text that fits.

    Args:
        policy: The language model.
        ids: int[T]; at least one.
        writers: int[T], the number of the state before which a token was written; -1 where the policy was shown it.
        ends: int[N], tokens before each state ends.
    """
    import torch

    from agentenv.policies.output_head import hidden_at, logits_of

    model = policy.model
    # Not the first token, which nothing before it could predict.
    written = [place for place, n in enumerate(writers) if n >= 0 and place]
    places = torch.tensor([*(max(end, 1) - 1 for end in ends), *(place - 1 for place in written)])
    places = places.to(model.device)
    with torch.inference_mode():
        fed = torch.tensor([ids], device=model.device)
        hidden = hidden_at(model, fed, torch.zeros_like(places), places, use_cache=False)
        wanted, taken = fed[0, written], list[float]()
        for logits in logits_of(model, hidden[len(ends) :]):
            tokens, wanted = wanted[: len(logits)], wanted[len(logits) :]
            logprobs = torch.log_softmax(logits, -1).gather(-1, tokens[:, None])[:, 0]
            taken += logprobs.clamp(min=_FLOOR).tolist()
    by_state: list[list[float]] = [[] for _ in ends]
    for place, logprob in zip(written, taken, strict=True):
        by_state[writers[place]].append(logprob)
    likely = [[fmean(own or [0.0]), min(own, default=0.0)] for own in by_state]
    return np.concatenate([hidden[: len(ends)].double().cpu().numpy(), np.array(likely)], axis=1)


def save_value_model(path: Path, spec: str, weight_F: Features, bias: float) -> None:
    """Writes a head, with the name and the digest of its language model; a folder is named as seen from the file.

    Args:
        path: The file.
        spec: The language model, ``tiny`` or ``hf:PATH``.
        weight_F: w.
        bias: b.
    """
    import torch
    from safetensors.torch import save_file

    named = spec if spec == SHIPPED else f"hf:{relpath(policy_folder(spec).resolve(), path.parent.resolve())}"
    head = {"weight": torch.from_numpy(weight_F.copy()), "bias": torch.tensor([bias], dtype=torch.float64)}
    with replacing(path) as part:
        save_file(head, part, metadata={"policy": named, "digest": policy_digest(spec)})


def value_file(spec: str) -> Path:
    """The file of the value model ``spec``: ``tiny``, or a path."""
    return Path(str(files("agentenv.policies") / "tiny_value.safetensors")) if spec == SHIPPED else Path(spec)


def load_value_model(spec: str) -> ValueModel:
    """The value model ``spec``, loaded once a process, and again where its file has changed since.

    Args:
        spec: ``tiny``, which comes with the package, or a file that ``agentenv value`` wrote.

    Raises:
        CheckpointMismatch: there is no such file, or its language model is another one than it was trained with.
        MissingExtra: torch or transformers is not installed.
    """
    path = value_file(spec)
    if not path.is_file():
        raise CheckpointMismatch(f"there is no value model {spec!r}: train one with `agentenv value RUN`")
    return _loaded(path, path_state(path))


@lru_cache(maxsize=2)
def _loaded(path: Path, state: PathState) -> ValueModel:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            about = file.metadata() or {}
            weight_F, bias = file.get_tensor("weight"), file.get_tensor("bias")
            spec, digest = about["policy"], about["digest"]
    except (SafetensorError, KeyError) as error:
        raise CheckpointMismatch(f"{path} holds no value model: {error}") from error
    if spec != SHIPPED:
        spec = f"hf:{path.parent / spec.removeprefix('hf:')}"
    if spec != SHIPPED and not policy_folder(spec).is_dir():
        raise CheckpointMismatch(f"the value model {path} reads the policy {spec}, which is not there")
    if policy_digest(spec) != digest:
        raise CheckpointMismatch(
            f"the value model {path} was trained with other weights than {spec} holds now"
        )
    return ValueModel(make_policy(spec), weight_F.astype(np.float64), float(bias[0]))

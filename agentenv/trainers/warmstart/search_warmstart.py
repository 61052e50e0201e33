"""``agentenv warmstart``: the tiny policy from nothing, by supervised learning in worlds of the training split.

Four phases. *Copying* repeats pages of one document and answers questions about them. The *reading phase* answers questions
about pages of a search and imitates careful demonstrators, until it reads, copies and chains names that it has never seen.
*Refinement* gives it harder examples, round after round; the mean of the weights after each round goes on, which reads
better than any of them. The *mixture* phase then mixes in careless demonstrators, so that the
policy behaves badly while it still can do better; finding the good behaviour is left to reinforcement learning.
"""

import asyncio
import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

import torch
from torch import Tensor

from agentenv.core.chat import InlineFormat
from agentenv.core.io.model_files import read_settings
from agentenv.core.types import Sampling
from agentenv.data.world import WorldConfig
from agentenv.envs.search.local_search import STOP
from agentenv.errors import ConfigurationError
from agentenv.policies.card import EpisodeCard
from agentenv.policies.compute import process_compute
from agentenv.policies.hf import HFPolicy
from agentenv.policies.loading import moved
from agentenv.policies.tiny import build_model, build_tokenizer
from agentenv.progress import Display
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.warmstart.demonstrations import (
    ADVICE_MIXTURE,
    MIXTURE,
    Demo,
    Demonstrator,
    careful,
    demonstrate,
    echo,
    follow,
    reading_exercises,
    to_tokens,
)
from agentenv.trainers.warmstart.role_demonstrations import ROLE_MIXTURE, WEAK_PROPOSER_MIXTURE
from agentenv.trainers.warmstart.supervised import (
    METRICS,
    Batch,
    Metrics,
    fit,
    in_batches,
    write_policy,
)

_WORLD = WorldConfig(documents=200, questions=48, families=("lookup", "bridge"), split="train")


@dataclass(frozen=True)
class WarmstartConfig:
    """How the tiny policy is made."""

    seed: int = 0
    """Seeds the weights and the worlds."""
    copying_steps: int = 300
    """Optimiser steps on pages of one document."""
    reading_steps: int = 1600
    """Optimiser steps on exercises and careful demonstrations."""
    refinement_steps: int = 1100
    """Optimiser steps of one round of harder examples, at half the step size."""
    refinement_rounds: int = 2
    """Rounds of refinement, each with fresh worlds, a fresh optimiser and a schedule of its own."""
    mixture_steps: int = 200
    """Optimiser steps on the mixture of demonstrators."""
    role_steps: int = 0
    """Optimiser steps on the roles of self-play, proposer and verifier, mixed with the mixture; 0 leaves a solver only."""
    weak_proposer_steps: int = 0
    """Optimiser steps on the same roles, after all others, with a proposer that is mostly careless."""
    advice_steps: int = 0
    """Optimiser steps after all others on questions of two hops and more; half of the episodes are advised before one of
    their turns, as retries are."""
    episodes: int = 32
    """Demonstrations an optimiser step."""
    matrix_rate: float = 0.02
    """Peak step size of Muon; the mixture phase runs at a tenth of both rates."""
    vector_rate: float = 3e-3
    """Peak step size of AdamW, for embeddings, norms and biases."""
    world: WorldConfig = field(default=_WORLD)
    """Dials of the worlds; the seed is replaced for every batch."""
    k: int = 2
    """Documents a search."""
    page_weight: float = 0.3
    """Loss weight of prompt and page tokens against 1 for the policy's own: names repeat there, which teaches copying.
    Refinement and the mixture count the policy's own alone."""
    refinement_distractors: float = 0.5
    """Share of nearly equal names in the worlds of refinement: the document of a similar name is what readers take last."""
    judged: int = 3000
    """Episodes of unseen worlds on which the reader is judged."""


@flushed_denormals()
def warmstart(
    config: WarmstartConfig, display: Display, out: Path, *, init_from: Path | None = None
) -> Metrics:
    """Makes the policy and writes it to ``out``.

    The mixture phase starts from the reader as it is stored, so that it gives the same policy in the same process and from
    a reader that was kept.

    Args:
        config: Dials.
        display: Told of every tenth step.
        out: Folder to write.
        init_from: Folder of a reader made earlier (with ``mixture_steps=0``); None makes one.

    Returns:
        The metrics that stand on the card: tokens, minutes, the reader's accuracy on unseen worlds.

    Raises:
        ConfigurationError: ``init_from`` was not made by ``agentenv warmstart``.
    """
    torch.manual_seed(config.seed)
    began = time.perf_counter()
    policy, metrics = _load_reading_policy(init_from) if init_from else _train_reading(config, display)
    if config.mixture_steps:
        display.phase("mixture", config.mixture_steps)
        mixture = _mixture(MIXTURE, config, 20_000_000, InlineFormat(policy.tokenizer))
        metrics["tokens"] += fit(_rounded(policy), mixture, config.mixture_steps, 0.1, config, display)
    if config.role_steps:
        display.phase("roles", config.role_steps)
        roles = _mixture(ROLE_MIXTURE, config, 90_000_000, InlineFormat(policy.tokenizer))
        metrics["tokens"] += fit(_rounded(policy), roles, config.role_steps, 0.3, config, display)
    if config.weak_proposer_steps:
        display.phase("weak proposers", config.weak_proposer_steps)
        weak_proposers = _mixture(WEAK_PROPOSER_MIXTURE, config, 95_000_000, InlineFormat(policy.tokenizer))
        metrics["tokens"] += fit(
            _rounded(policy), weak_proposers, config.weak_proposer_steps, 0.1, config, display
        )
    if config.advice_steps:
        display.phase("advice", config.advice_steps)
        retries = _mixture(ADVICE_MIXTURE, _chains(config), 110_000_000, InlineFormat(policy.tokenizer))
        metrics["tokens"] += fit(_rounded(policy), retries, config.advice_steps, 0.5, config, display)
    metrics["minutes"] += (time.perf_counter() - began) / 60
    save(policy, metrics, config, out)
    return metrics


def _train_reading(config: WarmstartConfig, display: Display) -> tuple[HFPolicy, Metrics]:
    sample = demonstrate({careful: 1.0}, seed=10_000_000 + config.seed, worlds=config.world, k=config.k)
    tokenizer = build_tokenizer(_text(demo) for batch in islice(sample, 60) for demo in batch)
    chat = InlineFormat(tokenizer)
    policy = HFPolicy(moved(build_model(tokenizer), process_compute().resolved().device), tokenizer)
    batches = chain(islice(_copying(config, chat), config.copying_steps), _reading(config, chat))
    steps = config.copying_steps + config.reading_steps
    display.phase("reader", steps)
    tokens = fit(policy, batches, steps, 1.0, config, display)
    rounds = []
    for number in range(config.refinement_rounds):
        display.phase(f"refinement {number + 1}", config.refinement_steps)
        harder = _refinement_batches(config, chat, number)
        tokens += fit(_rounded(policy), harder, config.refinement_steps, 0.5, config, display)
        rounds.append(copy.deepcopy(_rounded(policy).model.state_dict()))
    if rounds:
        policy.model.load_state_dict(mean_weights(rounds))
        policy.set_weights()
    accuracy = reading_accuracy(_rounded(policy), chat, config)
    return policy, {"tokens": tokens, "minutes": 0.0, "reading_accuracy": accuracy}


def mean_weights(policies: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several states of one model, tensor by tensor (stochastic weight averaging, Izmailov et al. 2018)."""
    return {name: torch.stack([state[name] for state in policies]).mean(0) for name in policies[0]}


def _rounded(policy: HFPolicy) -> HFPolicy:
    """The policy with its weights as they are stored: rounded to bfloat16, computed with in float32."""
    policy.model.to(torch.bfloat16).to(torch.float32)
    return policy


def _load_reading_policy(folder: Path) -> tuple[HFPolicy, Metrics]:
    path = folder / METRICS
    if not path.is_file():
        raise ConfigurationError(f"{folder} was not made by agentenv warmstart: it has no {METRICS}")
    metrics: Metrics = read_settings(path)
    return HFPolicy.load(folder), metrics


def _text(demo: Demo) -> str:
    """Roles are written out, so that the tokenizer learns them as pieces."""
    return "\n".join(["user", *(piece.text for piece in demo), "assistant"])


def _copying(config: WarmstartConfig, chat: InlineFormat) -> Iterator[list[Batch]]:
    """Half exercises about one document, half echoes of one."""
    half = config.episodes // 2
    for demos in reading_exercises(seed=config.seed + 50_000_000, worlds=config.world, k=1, count=2 * half):
        yield _batches(config, chat, [*demos[:half], *map(echo, demos[half:])])


def _reading(config: WarmstartConfig, chat: InlineFormat) -> Iterator[list[Batch]]:
    """The reader's steps."""
    for demos in _exercises_and_episodes(config, 0):
        yield _batches(config, chat, demos)


def _exercises_and_episodes(config: WarmstartConfig, offset: int) -> Iterator[list[Demo]]:
    """Half exercises, then half episodes of careful demonstrators; ``offset`` picks the worlds."""
    half = config.episodes // 2
    seed = config.seed + offset
    exercises = reading_exercises(seed=seed + 40_000_000, worlds=config.world, k=config.k, count=half)
    episodes = demonstrate({careful: 1.0}, seed=seed, worlds=config.world, k=config.k)
    for drilled, played in zip(exercises, episodes, strict=False):
        yield [*drilled, *played[:half]]


def _refinement_batches(config: WarmstartConfig, chat: InlineFormat, number: int) -> Iterator[list[Batch]]:
    """Lessons in worlds where half of the names have a twin, without weight on what cannot be known.

    A quarter exercises, a quarter searches in a row, where the reader's last mistakes are (the page of its own second
    query), and half careful episodes. Each round has worlds of its own.
    """
    worlds = replace(config.world, distractors=config.refinement_distractors)
    config = replace(config, seed=config.seed + number * 1_000_000, world=worlds, page_weight=0.0)
    rows = follow(seed=config.seed + 70_000_000, worlds=worlds, k=config.k, count=config.episodes // 4)
    for batches, searches in zip(_exercises_and_episodes(config, 60_000_000), rows, strict=False):
        yield _batches(config, chat, [*batches[config.episodes // 4 :], *searches])


def _mixture(
    mixture: Mapping[Demonstrator, float], config: WarmstartConfig, offset: int, chat: InlineFormat
) -> Iterator[list[Batch]]:
    """The steps of a mixture of demonstrators; ``offset`` picks the worlds.

    Pages weigh nothing, as in refinement: to learn them again would cost the copying that was learned since.
    """
    config = replace(config, page_weight=0.0)
    for demos in demonstrate(mixture, seed=config.seed + offset, worlds=config.world, k=config.k):
        yield _batches(config, chat, demos[: config.episodes])


def _chains(config: WarmstartConfig) -> WarmstartConfig:
    """Questions of two hops and more in larger worlds with twins: names that begin alike have to be copied to their end."""
    world = replace(
        config.world, families=("bridge",), documents=400, distractors=config.refinement_distractors
    )
    return replace(config, world=world)


def _batches(config: WarmstartConfig, chat: InlineFormat, demos: Sequence[Demo]) -> list[Batch]:
    return in_batches([to_tokens(chat, demo) for demo in demos], config.page_weight)


def reading_accuracy(policy: HFPolicy, chat: InlineFormat, config: WarmstartConfig) -> float:
    """Share of right answers, greedy, given careful searches that found every document, in worlds never trained on."""
    worlds = WorldConfig(**{**vars(config.world), "split": "dev"})
    stock = demonstrate({careful: 1.0}, seed=30_000_000 + config.seed, worlds=worlds, k=config.k)
    demos = [demo for batch in islice(stock, -(-config.judged // 30)) for demo in batch][: config.judged]

    async def answer(ids: list[int]) -> str:
        completion = await policy.generate(ids, Sampling(max_tokens=40, temperature=0.0, stop=STOP))
        return completion.text

    async def answers() -> list[str]:
        prompts = [to_tokens(chat, demo[:-1])[0] for demo in demos]
        return await asyncio.gather(*map(answer, prompts))

    written = asyncio.run(answers())
    right = [text == demo[-1].text for text, demo in zip(written, demos, strict=True)]
    return sum(right) / len(right)


def save(policy: HFPolicy, metrics: Metrics, config: WarmstartConfig, out: Path) -> None:
    """Writes model (bfloat16), tokenizer, the form of its episodes and a card that says how it was made."""
    episodes = EpisodeCard(
        prompt="{question}",
        k=config.k,
        max_turns=3,
        observation_tokens=256,
        turn_tokens=32,
        context_tokens=640,
    )
    shares = {demonstrator.__name__: share for demonstrator, share in MIXTURE.items()}
    parameters = sum(p.numel() for p in policy.model.parameters())
    card = _CARD.format(config=config, shape=policy.model.config, parameters=parameters, **metrics, **shares)
    write_policy(policy, metrics, episodes, card, out)


_CARD = """\
# The tiny policy

A Qwen2 of {parameters:,} parameters ({shape.num_hidden_layers} layers of width {shape.hidden_size}) with its own
tokenizer of {shape.vocab_size} pieces, weights in bfloat16. Made from nothing by `agentenv warmstart --seed {config.seed}`:
no text but that of FictionalWorlds of the training split was ever seen.

| phase | steps | what it imitates |
|---|---|---|
| copying | {config.copying_steps} | echoes of one page, and questions about it |
| reading | {config.reading_steps} | questions about the page of a search, and careful episodes of one and two hops |
| refinement | {config.refinement_rounds} x {config.refinement_steps} | harder: rows of searches, twins; mean of the rounds |
| mixture | {config.mixture_steps} | careful {careful:.0%}, guessing {guessing:.0%}, hasty {hasty:.0%}, astray {astray:.0%} |
| roles | {config.role_steps} | proposers and verifiers of self-play, and some of the mixture |
| weak proposer | {config.weak_proposer_steps} | the same, with proposers that mostly ask before they search |
| advice | {config.advice_steps} | retries that are advised what to look up, and some of the mixture |

{tokens:,} tokens in {minutes:.0f} minutes. After refinement {reading_accuracy:.3f} of {config.judged:,} answers were right
on unseen worlds, greedy, given searches that had found every document. The mixture phase then makes it behave badly on
purpose: reinforcement learning has to find the good behaviour again.

It answers questions of the families lookup and bridge over FictionalWorlds and nothing else.
"""

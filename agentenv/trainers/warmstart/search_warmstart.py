"""``agentenv warmstart``: the tiny policy from nothing, by supervised learning in worlds of the training split.

Five phases. *Copying* repeats pages of one document and answers questions about them. The *reading phase* answers questions
about pages of a search and imitates careful demonstrators, until it reads, copies and chains names that it has never seen.
*Refinement* gives it harder examples, round after round; the mean of the weights after each round goes on, which reads
better than any of them. The *index phase* shows it the pages that the sentence encoder finds in worlds as large as those
of a run. The *mixture* phase then mixes in careless demonstrators, so that the policy behaves badly while it still can do
better; finding the good behaviour is left to reinforcement learning. Half of its lessons are reading exercises as before,
and none of its demonstrators misreads a page.
"""

import asyncio
import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from itertools import count as numbers
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from agentenv.core.chat import InlineFormat
from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.io.model_files import read_settings
from agentenv.core.types import Sampling
from agentenv.data.world import WorldConfig
from agentenv.envs.search.local_search import STOP
from agentenv.errors import ConfigurationError
from agentenv.policies.card import EpisodeCard
from agentenv.policies.compute import process_compute
from agentenv.policies.hf import HFPolicy
from agentenv.policies.loading import moved
from agentenv.policies.policy_spec import WARMSTART_RECORD
from agentenv.policies.tiny import build_model, build_tokenizer
from agentenv.progress import Display
from agentenv.retrievers.encoder import make_encoder
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.warmstart.advised_demonstrations import ADVICE_MIXTURE
from agentenv.trainers.warmstart.demonstrations import (
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
from agentenv.trainers.warmstart.index_lessons import IndexedWorld, index_lessons
from agentenv.trainers.warmstart.role_demonstrations import ROLE_MIXTURE, WEAK_PROPOSER_MIXTURE
from agentenv.trainers.warmstart.several_demonstrations import SEVERAL_MIXTURE
from agentenv.trainers.warmstart.supervised import (
    Batch,
    Metrics,
    fit,
    in_batches,
    write_policy,
)

_WORLD = WorldConfig(documents=200, questions=48, families=("lookup", "bridge"), split="train")
_INDEX_USES = 30  # optimiser steps on one world of the index phase
_PAGE_WEIGHT = 0.3
"""Loss weight of prompt and page tokens against 1 for the policy's own, while it learns to read: names repeat there, which
teaches copying. Refinement and what follows count the policy's own alone."""
_INDEX_WORLD = replace(_WORLD, documents=1000, questions=1500, distractors=0.2)


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
    index_steps: int = 900
    """Optimiser steps on the pages that ``encoder`` finds in worlds of ``index_world``, at half the step size."""
    mixture_steps: int = 450
    """Optimiser steps on such pages with the mixture of demonstrators, at a fifth of the step size."""
    role_steps: int = 0
    """Optimiser steps on the roles of self-play, proposer and verifier, mixed with the mixture; 0 leaves a solver only."""
    weak_proposer_steps: int = 0
    """Optimiser steps on the same roles, after all others, with a proposer that is mostly careless."""
    advice_steps: int = 0
    """Optimiser steps after all others on questions of two hops and more; half of the episodes are advised before one of
    their turns, as retries are."""
    several_steps: int = 0
    """Optimiser steps after all others on questions about several things, each of which has a document of its own."""
    episodes: int = 32
    """Demonstrations an optimiser step."""
    world: WorldConfig = field(default=_WORLD)
    """Dials of the worlds; the seed is replaced for every batch."""
    index_world: WorldConfig = field(default=_INDEX_WORLD)
    """Dials of the worlds of the index phase and the mixture; the seed is replaced for every world."""
    encoder: str = "minilm"
    """Encoder of their documents and queries, as ``search.encoder`` of a run names it."""
    k: int = 2
    """Documents a search."""
    refinement_distractors: float = 0.5
    """Share of nearly equal names in the worlds of refinement: the document of a similar name is what readers take last."""
    judged: int = 1200
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
        init_from: Folder of a policy made earlier, such as a reader (with ``mixture_steps=0``), with which the index phase,
            the mixture and the roles go on; None makes one.

    Returns:
        The metrics that stand on the card: tokens, minutes, the reader's accuracy on unseen worlds.

    Raises:
        ConfigurationError: ``init_from`` was not made by ``agentenv warmstart``.
    """
    torch.manual_seed(config.seed)
    began = time.perf_counter()
    policy, metrics = _load_policy(init_from) if init_from else _train_reading(config, display)
    chat = InlineFormat(policy.tokenizer)

    def learn(phase: str, batches: Iterator[list[Batch]], steps: int, scale: float) -> None:
        if steps:
            display.phase(phase, steps)
            metrics["tokens"] += fit(_rounded(policy), batches, steps, scale, display)
            metrics["steps"][phase] = metrics["steps"].get(phase, 0) + steps

    learn("index", _index_batches({careful: 1.0}, config, 80_000_000, chat), config.index_steps, 0.5)
    if config.index_steps or init_from is None:
        metrics["reading_accuracy"] = reading_accuracy(_rounded(policy), chat, config)
    learn("mixture", _index_batches(MIXTURE, config, 20_000_000, chat), config.mixture_steps, 0.2)
    learn("roles", _small_batches(ROLE_MIXTURE, config, 90_000_000, chat), config.role_steps, 0.3)
    weak_proposers = _small_batches(WEAK_PROPOSER_MIXTURE, config, 95_000_000, chat)
    learn("weak proposer", weak_proposers, config.weak_proposer_steps, 0.1)
    retries = _small_batches(ADVICE_MIXTURE, _chains(config), 110_000_000, chat)
    learn("advice", retries, config.advice_steps, 0.5)
    several = _small_batches(SEVERAL_MIXTURE, _listings(config), 130_000_000, chat)
    learn("several", several, config.several_steps, 0.5)
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
    tokens = fit(policy, batches, steps, 1.0, display)
    rounds = []
    for number in range(config.refinement_rounds):
        display.phase(f"refinement {number + 1}", config.refinement_steps)
        harder = _refinement_batches(config, chat, number)
        tokens += fit(_rounded(policy), harder, config.refinement_steps, 0.5, display)
        rounds.append(copy.deepcopy(_rounded(policy).model.state_dict()))
    if rounds:
        policy.model.load_state_dict(mean_weights(rounds))
        policy.set_weights()
    made = {"copying": config.copying_steps, "reading": config.reading_steps}
    made |= {"refinement": config.refinement_rounds * config.refinement_steps}
    return policy, {"tokens": tokens, "minutes": 0.0, "steps": made}


def mean_weights(policies: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of several states of one model, tensor by tensor (stochastic weight averaging, Izmailov et al. 2018)."""
    return {name: torch.stack([state[name] for state in policies]).mean(0) for name in policies[0]}


def _rounded(policy: HFPolicy) -> HFPolicy:
    """The policy with its weights as they are stored: rounded to bfloat16, computed with in float32."""
    policy.model.to(torch.bfloat16).to(torch.float32)
    return policy


def _load_policy(folder: Path) -> tuple[HFPolicy, Metrics]:
    path = folder / WARMSTART_RECORD
    if not path.is_file():
        raise ConfigurationError(f"{folder} was not made by agentenv warmstart: it has no {WARMSTART_RECORD}")
    metrics: Metrics = read_settings(path)
    return HFPolicy.load(folder), {"steps": {}} | metrics


def _text(demo: Demo) -> str:
    """Roles are written out, so that the tokenizer learns them as pieces."""
    return "\n".join(["user", *(piece.text for piece in demo), "assistant"])


def _copying(config: WarmstartConfig, chat: InlineFormat) -> Iterator[list[Batch]]:
    """Half exercises about one document, half echoes of one."""
    half = config.episodes // 2
    for demos in reading_exercises(seed=config.seed + 50_000_000, worlds=config.world, k=1, count=2 * half):
        yield _batches(chat, [*demos[:half], *map(echo, demos[half:])], _PAGE_WEIGHT)


def _reading(config: WarmstartConfig, chat: InlineFormat) -> Iterator[list[Batch]]:
    """The steps of the reading phase."""
    for demos in _exercises_and_episodes(config, 0):
        yield _batches(chat, demos, _PAGE_WEIGHT)


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
    config = replace(config, seed=config.seed + number * 1_000_000, world=worlds)
    rows = follow(seed=config.seed + 70_000_000, worlds=worlds, k=config.k, count=config.episodes // 4)
    for batches, searches in zip(_exercises_and_episodes(config, 60_000_000), rows, strict=False):
        yield _batches(chat, [*batches[config.episodes // 4 :], *searches])


def _index_batches(
    mixture: Mapping[Demonstrator, float], config: WarmstartConfig, offset: int, chat: InlineFormat
) -> Iterator[list[Batch]]:
    """The steps of the index phase or of the mixture; ``offset`` picks the worlds.

    Pages weigh nothing, as in refinement: to learn them again would cost the copying that was learned since.
    """
    lessons = index_lessons(
        mixture,
        seed=config.seed + offset,
        worlds=config.index_world,
        k=config.k,
        encoder=make_encoder(config.encoder),
        count=config.episodes,
        uses=_INDEX_USES,
    )
    for demos in lessons:
        yield _batches(chat, demos)


def _small_batches(
    mixture: Mapping[Demonstrator, float], config: WarmstartConfig, offset: int, chat: InlineFormat
) -> Iterator[list[Batch]]:
    """The steps of a mixture over small worlds; ``offset`` picks the worlds, and pages weigh nothing."""
    for demos in demonstrate(mixture, seed=config.seed + offset, worlds=config.world, k=config.k):
        yield _batches(chat, demos[: config.episodes])


def _chains(config: WarmstartConfig) -> WarmstartConfig:
    """Questions of two hops and more in larger worlds with twins: names that begin alike have to be copied to their end."""
    world = replace(
        config.world, families=("bridge",), documents=400, distractors=config.refinement_distractors
    )
    return replace(config, world=world)


def _listings(config: WarmstartConfig) -> WarmstartConfig:
    """Questions for one relation of three or four things, no fact of which stands on another's page."""
    world = replace(config.world, families=("list",), hops=(3, 4), indirect=0)
    return replace(config, world=world)


def _batches(chat: InlineFormat, demos: Sequence[Demo], page_weight: float = 0.0) -> list[Batch]:
    return in_batches([to_tokens(chat, demo) for demo in demos], page_weight)


def reading_accuracy(policy: HFPolicy, chat: InlineFormat, config: WarmstartConfig) -> float:
    """Share of right answers, greedy, given careful searches that found every document, in worlds never trained on."""
    demos = list(islice(_careful_episodes(config), config.judged))

    async def answer(ids: list[int]) -> str:
        completion = await policy.generate(ids, Sampling(max_tokens=40, temperature=0.0, stop=STOP))
        return completion.text

    async def answers() -> list[str]:
        prompts = [to_tokens(chat, demo[:-1])[0] for demo in demos]
        return await asyncio.gather(*map(answer, prompts))

    written = run_to_completion(answers())
    right = [text == demo[-1].text for text, demo in zip(written, demos, strict=True)]
    return sum(right) / len(right)


def _careful_episodes(config: WarmstartConfig) -> Iterator[Demo]:
    """Careful episodes over worlds of the dev split that are as large as those of the index phase."""
    encoder = make_encoder(config.encoder)
    for seed in numbers(30_000_001 + config.seed):
        dials = replace(config.index_world, split="dev", seed=seed)
        world = IndexedWorld.generate(dials, encoder, config.k)
        yield from (demo for task in world.questions if (demo := careful(world.context(task, Random(0)))))


def save(policy: HFPolicy, metrics: Metrics, config: WarmstartConfig, out: Path) -> None:
    """Writes model (bfloat16), tokenizer, the form of its episodes and a card that says how it was made."""
    usual = EpisodeCard(
        prompt="{question}",
        k=config.k,
        max_turns=3,
        observation_tokens=256,
        turn_tokens=32,
        context_tokens=640,
    )
    listing = replace(usual, k=1, max_turns=4, turn_tokens=96, options={"queries": 8})
    episodes = listing if config.several_steps else usual
    shares = {demonstrator.__name__: share for demonstrator, share in MIXTURE.items()}
    parameters = sum(p.numel() for p in policy.model.parameters())
    about = {"encoder": config.encoder, "documents": config.index_world.documents} | shares
    table = [
        f"| {phase} | {metrics['steps'][phase]} | {what.format(**about)} |"
        for phase, what in _PHASES.items()
        if phase in metrics["steps"]
    ]
    card = _CARD.format(
        config=config,
        families="lookup, bridge and list" if config.several_steps else "lookup and bridge",
        shape=policy.model.config,
        parameters=parameters,
        table="\n".join(table),
        **metrics,
    )
    write_policy(policy, metrics, episodes, card, out)


_PHASES = {
    "copying": "echoes of one page, and questions about it",
    "reading": "questions about the page of a search, and careful episodes of one and two hops",
    "refinement": "harder: rows of searches, similar names; mean of the weights after each round",
    "index": "careful episodes and exercises on the pages that {encoder} finds in worlds of {documents:,} documents",
    "mixture": "on the same pages: careful {careful:.0%}, guessing {guessing:.0%}, hasty {hasty:.0%}",
    "roles": "proposers and verifiers of self-play, and some of the mixture",
    "weak proposer": "the same, with proposers that mostly ask before they search",
    "advice": "retries that are advised what to look up, and some of the mixture",
    "several": "what documents of several things tell, one by one or together, and such episodes",
}
"""What each phase imitates, as the card says it."""

_CARD = """\
# The tiny policy

A Qwen2 of {parameters:,} parameters ({shape.num_hidden_layers} layers of width {shape.hidden_size}) with its own
tokenizer of {shape.vocab_size} pieces, weights in bfloat16. Made from nothing by `agentenv warmstart --seed {config.seed}`:
no text but that of FictionalWorlds of the training split was ever seen.

| phase | steps | what it imitates |
|---|---|---|
{table}

{tokens:,} tokens in {minutes:.0f} minutes. After the index phase {reading_accuracy:.3f} of {config.judged:,} answers were
right on unseen worlds of that size, greedy, given searches that had found every document. The mixture phase then makes it
behave badly on purpose: reinforcement learning has to find the good behaviour again.

It answers questions of the families {families} over FictionalWorlds and nothing else.
"""

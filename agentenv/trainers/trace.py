"""TRACE: environments made for the capabilities that an agent lacks, and a training run for each (arXiv:2604.05336).

From an evaluation to the capabilities that failures lack, from each of these to the easiest environment in which the policy
succeeds neither hardly ever nor nearly always, and from that to a configuration that trains adapters for it. A router then
lets the model choose among them.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentenv.core.concurrency.tasks import run_to_completion
from agentenv.core.grammar import shortened
from agentenv.core.io.files import write_text
from agentenv.core.registry import load_own
from agentenv.envs.search.capability_search import CAPABILITIES
from agentenv.errors import ConfigurationError
from agentenv.evaluation.capabilities import SEARCH_SKILLS, TrainableCapability
from agentenv.evaluation.contrast import (
    LEAST_LACKED,
    PASSES,
    Contrast,
    Labels,
    contrasts,
    label_by_model,
    label_by_skills,
    propose,
)
from agentenv.evaluation.diagnosis import cause_of
from agentenv.evaluation.records import Evaluation
from agentenv.evaluation.results import values_of
from agentenv.evaluation.runner import valid_episodes
from agentenv.evaluation.task_env import OWN_ENVIRONMENT
from agentenv.policies.endpoint import Chat
from agentenv.policies.policy_spec import check_policy, check_trainable
from agentenv.policies.router import BASE, Route, RouterCard, write_router
from agentenv.trainers.config.config_files import changed, dump_config
from agentenv.trainers.config.sections import RewardShapingSettings
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.settings import LossSettings
from agentenv.trainers.loop.evaluate import play_under

ENV = "agentenv/CapabilitySearch-v0"
BAND = (0.2, 0.6)
"""Success rates of the policy between which an environment is kept."""
EXERCISED = 1.0
"""What showing the capability pays in the runs, as in the paper; the rest of 1 would be paid for a right answer with it."""
QUESTIONS = GROUP_SIZE = 8
"""Groups of a step, and episodes of each, as in the paper."""
_SPLITS = ("train", "dev", "test")
_NAME = re.compile(r"[A-Za-z0-9][\w-]*")


@dataclass(frozen=True)
class CapabilityEnvironment:
    """What was made for one capability."""

    capability: str
    rates: tuple[float, ...]
    """Success rate of the policy in each variant that was tried, the easiest first."""
    config: TrainConfig | None
    """The run that trains it; None where no variant lies within the band."""


def check_band(band: tuple[float, float]) -> None:
    """Refuses success rates between which no policy can lie.

    Raises:
        ConfigurationError: they are not in order within 0 and 1.
    """
    if not 0 <= band[0] <= band[1] <= 1:
        raise ConfigurationError(
            f"band={band[0]:g} {band[1]:g} must be the least and then the greatest success rate, both within 0 and 1"
        )


def check_runs(
    target: TrainConfig,
    capabilities: Mapping[str, TrainableCapability],
    *,
    rank: int,
    keep_method: bool = False,
) -> None:
    """Refuses a target of which no run could be made, whatever it lacks; nothing is loaded or played.

    Args:
        target: The run whose policy may lack something.
        capabilities: What may be lacking, by name.
        rank: See `write_capabilities`.
        keep_method: See `variant_of`.

    Raises:
        ConfigurationError: its environment, its policy or the rank of the adapters cannot be used.
    """
    check_trainable(target.policy)
    check_policy(target.policy)
    for name, one in capabilities.items():
        for changes in one.variants:
            changed(variant_of(target, name, changes, keep_method=keep_method), {"lora.rank": rank})


def open_once(target: TrainConfig, capabilities: Mapping[str, TrainableCapability]) -> None:
    """Opens all that an episode by which a success rate is measured needs, such as the policy and a search; plays none.

    Raises:
        AgentEnvError: it cannot be opened.
    """
    name, one = next(iter(capabilities.items()))
    play_under(_over_training_tasks(variant_of(target, name, one.variants[0]), 1), lambda tasks: ())


def _over_training_tasks(config: TrainConfig, tasks: int) -> TrainConfig:
    """``config`` with so many of its training tasks in the place of the test tasks."""
    return config.model_copy(update={"test": config.train.model_copy(update={"limit": tasks})})


def search_capabilities(
    target: TrainConfig, *, exercise: float = EXERCISED
) -> dict[str, TrainableCapability]:
    """The rows of ``CAPABILITIES`` for a run that searches an invented world; tools, prompts and budgets stay its own.

    Args:
        target: The run whose policy lacks something.
        exercise: What showing a capability pays; see `CapabilitySearch`.

    Raises:
        ConfigurationError: the target is no environment of searches over an invented world.
    """
    if target.env.id not in ("agentenv/LocalSearch-v0", ENV) or target.train.dataset != "world":
        raise ConfigurationError(
            "the six capabilities are those of agentenv/LocalSearch-v0 over an invented world, not of "
            f"{target.env.id} over {target.train.dataset!r}; name your own by --capabilities module:NAME"
        )
    skills = {skill.name: skill for skill in SEARCH_SKILLS}
    found: dict[str, TrainableCapability] = {}
    for name, row in CAPABILITIES.items():
        env = {"id": ENV, "options": {**target.env.options, "capability": name, "exercise": exercise}}
        worlds = [
            {f"{split}.world.{dial}": value for split in _SPLITS for dial, value in dials.items()}
            for dials in row.worlds
        ]
        variants = tuple({"env": env, **world} for world in worlds)
        found[name] = TrainableCapability(skills[row.skill], row.description, variants, success=exercise)
    return found


def own_capabilities(name: str) -> dict[str, TrainableCapability]:
    """The mapping of `TrainableCapability` by name that ``module:NAME`` names.

    Raises:
        ConfigurationError: there is no such mapping, it is empty, or a name in it cannot be that of a file and a route.
    """
    found = load_own(name, "mapping of capabilities")
    if not isinstance(found, Mapping) or not found:
        raise ConfigurationError(
            f"{name} must be a mapping of capabilities by name, not {shortened(repr(found), 200)}"
        )
    for key, value in found.items():
        if not isinstance(key, str) or not _NAME.fullmatch(key) or key == BASE:
            raise ConfigurationError(
                f"{name} calls a capability {key!r}; a name has letters, digits, - and _ alone, and is not {BASE!r}"
            )
        if not isinstance(value, TrainableCapability) or not value.variants:
            raise ConfigurationError(
                f"{name}[{key!r}] must be a TrainableCapability with at least one variant"
            )
    return dict(found)


def lacking(
    evaluation: Evaluation,
    capabilities: Mapping[str, TrainableCapability],
    chat: Chat | None = None,
    *,
    passes: int = PASSES,
) -> tuple[list[Contrast], dict[str, str]]:
    """The contrasts of an evaluation, and what a model proposed besides the capabilities that are known.

    A model is asked only about an evaluation in which something failed.

    Args:
        evaluation: Of the policy, in the target environment.
        capabilities: What may be lacking, by name.
        chat: A model that proposes capabilities and labels episodes; None labels by programme.
        passes: Of the model over each episode.

    Raises:
        ConfigurationError: no episode failed, or none is valid.
        JudgeFault: nothing that the model replied could be read.
    """
    records = evaluation.records
    values = values_of(records, next(iter(evaluation.results["scores"])))
    labels: list[Labels]
    proposed: dict[str, str] = {}
    least = 0.0
    pairs = [pair for pair in zip(records, values, strict=True) if pair[0]["valid"]]
    if all(cause_of(*pair) == "correct" for pair in pairs):
        raise ConfigurationError(
            f"none of the {len(pairs)} valid episodes of {evaluation.directory} failed, so no capability is lacking"
        )
    if chat is None:
        least = LEAST_LACKED
        labels = label_by_skills(records, values, {name: one.skill for name, one in capabilities.items()})
    else:
        known = {name: one.description for name, one in capabilities.items()}
        labels, proposed = run_to_completion(_asked(chat, evaluation, values, known, passes))
    if not any(not one.solved for one in labels):
        raise ConfigurationError(
            f"none of the {len(labels)} labelled episodes of {evaluation.directory} failed; the model labelled no others"
        )
    return contrasts(labels, least_lacked=least), proposed


async def _asked(
    chat: Chat, evaluation: Evaluation, values: Sequence[float], known: Mapping[str, str], passes: int
) -> tuple[list[Labels], dict[str, str]]:
    proposed = await propose(chat, evaluation.records, values, list(known))
    labels = await label_by_model(chat, evaluation.records, values, {**known, **proposed}, passes=passes)
    return labels, proposed


def with_grpo(target: TrainConfig) -> TrainConfig:
    """``target`` with the method of the paper, GRPO, in place of its own.

    That is group-relative credit with the clipped loss, uniformly drawn tasks, and plain episodes whose rewards are not
    shaped. Budgets, optimizer and adapters stay as they are.
    """
    plain = {"strategy": "plain", "strategy_options": {}, "sampler": "uniform", "sampler_options": {}}
    update = {
        "rollout": target.rollout.model_copy(update=plain),
        "loss": LossSettings(),
        "reward_shaping": RewardShapingSettings(),
    }
    return target.model_copy(update=update)


def variant_of(
    target: TrainConfig, capability: str, changes: Mapping[str, Any], *, keep_method: bool = False
) -> TrainConfig:
    """The configuration of a run on the environment of one capability; what is not changed stays that of ``target``.

    Further environments of ``target`` are left out: nobody has looked at what is lacking there.

    Args:
        target: The run whose policy lacks the capability.
        capability: Its name.
        changes: One of its variants.
        keep_method: Whether the run learns as ``target`` does and not by GRPO.

    Raises:
        UnknownName: the variant has a key that no configuration has; carries the nearest.
        ConfigurationError: a value of it is wrong.
    """
    groups = {"rollout.questions": QUESTIONS, "rollout.group_size": GROUP_SIZE}
    own = target.by_environment[OWN_ENVIRONMENT]
    return changed(
        own if keep_method else with_grpo(own), {"name": f"trace-{capability}", **groups, **changes}
    )


def success_rate(config: TrainConfig, tasks: int, success: float) -> float:
    """Share of sampled episodes over training tasks that earn at least ``success``; faults are left out.

    Raises:
        EnvFault: every episode met an infrastructure failure.
    """
    posed = _over_training_tasks(config, tasks)
    played = valid_episodes(play_under(posed, temperature=config.rollout.temperature))
    return sum(trajectory.reward >= success for trajectory in played) / len(played)


def environment_for(
    target: TrainConfig,
    name: str,
    capability: TrainableCapability,
    *,
    tasks: int = 64,
    band: tuple[float, float] = BAND,
    keep_method: bool = False,
    rate: Callable[[TrainConfig, int, float], float] = success_rate,
) -> CapabilityEnvironment:
    """The easiest variant in which the policy of ``target`` succeeds within ``band``.

    Args:
        target: The run whose policy lacks the capability.
        name: Of the capability.
        capability: Its variants, and the reward from which an episode shows it.
        tasks: Episodes by which a success rate is measured.
        band: Least and greatest success rate of a variant that is kept.
        keep_method: Whether the run learns as ``target`` does and not by GRPO.
        rate: Measures it.

    Raises:
        ConfigurationError: the band is none, or no run can be made of the target.
    """
    check_band(band)
    rates: list[float] = []
    for changes in capability.variants:
        config = variant_of(target, name, changes, keep_method=keep_method)
        rates.append(rate(config, tasks, capability.success))
        if band[0] <= rates[-1] <= band[1]:
            return CapabilityEnvironment(name, tuple(rates), config)
    return CapabilityEnvironment(name, tuple(rates), None)


def write_capabilities(
    folder: Path,
    target: TrainConfig,
    capabilities: Mapping[str, TrainableCapability],
    found: Sequence[Contrast],
    proposed: Mapping[str, str],
    made: Sequence[CapabilityEnvironment],
    *,
    rank: int,
) -> dict[str, Any]:
    """Writes ``capabilities.json``, a configuration for each environment that was kept, and ``router.json``.

    Args:
        folder: Where they are written.
        target: The run that was looked at.
        capabilities: What may be lacking, by name.
        found: Every capability that was labelled.
        proposed: What a model named besides; there is no environment for these.
        made: What was made for those that are kept.
        rank: Of the adapters; 0 trains all weights.

    Returns:
        The content of ``capabilities.json``.
    """
    kept = [one for one in made if one.config is not None]
    routes = []
    for one in kept:
        assert one.config is not None
        trained = changed(one.config, {"lora.rank": rank})
        write_text(folder / f"{one.capability}.toml", dump_config(trained))
        description = capabilities[one.capability].description
        routes.append(Route(one.capability, description, f"hf:{one.capability}/policy"))
    base = target.policy
    if base.startswith("hf:"):
        base = f"hf:{Path(base.removeprefix('hf:')).absolute()}"
    write_router(folder, RouterCard(base, tuple(routes)))
    rows = [{**asdict(one), "contrast": one.contrast} for one in found]
    environments = [
        {"capability": one.capability, "rates": list(one.rates), "kept": one.config is not None}
        for one in made
    ]
    report = {"capabilities": rows, "proposed": dict(proposed), "environments": environments}
    write_text(folder / "capabilities.json", json.dumps(report, indent=2) + "\n")
    return report

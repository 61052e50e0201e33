"""The parts of a training run, each made from the section of the configuration that is about it."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from agentenv.core import chat_formats
from agentenv.core.episodes import EpisodeBudgets
from agentenv.core.protocols import ChatFormat
from agentenv.core.registry import env_class
from agentenv.core.rollout import RolloutConfig
from agentenv.data.sources import Source, SourceConfig
from agentenv.errors import AgentEnvError, ConfigurationError
from agentenv.evaluation.task_env import (
    OWN_ENVIRONMENT,
    EnvConfig,
    SearchConfig,
    TaskEnv,
    checked_options,
    open_task_env,
    open_tasks,
    refuse_without_corpus,
)
from agentenv.policies.card import read_card
from agentenv.policies.compute import ComputeSettings
from agentenv.policies.hf import HFPolicy
from agentenv.policies.loading import compile_layers, has_compiled_layers
from agentenv.policies.lora import WRAPPED, adapt, is_adapted
from agentenv.policies.policy_spec import make_policy, policy_folder
from agentenv.policies.quantized import quantize
from agentenv.policies.vllm import VLLMPolicy
from agentenv.progress import Display, indexing
from agentenv.retrievers.mixed import MixedRetriever
from agentenv.trainers.config.sections import (
    ChatSettings,
    LoraSettings,
    OptimizerSettings,
    SimulationSettings,
)
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.learner import Learner, Objective
from agentenv.trainers.learner.logprobs import checkpoint_layers
from agentenv.trainers.learner.losses import get_objective
from agentenv.trainers.learner.settings import LossSettings, MemorySettings
from agentenv.trainers.learner.sharded import ShardedLearner, world_size
from agentenv.trainers.run_folder.folder import TrainedPolicy


@contextmanager
def naming_environment(name: str) -> Iterator[None]:
    """Within the block every error has a note with the environment that it is about, where ``name`` is a further one."""
    try:
        yield
    except (AgentEnvError, OSError) as error:
        if name != OWN_ENVIRONMENT:
            error.add_note(f"this is about environments.{name}")
        raise


def with_declared_scorers(config: TrainConfig) -> TrainConfig:
    """``config`` with the scorers of each environment and the policy's usual opening message there, where it names none."""
    card = read_card(policy_folder(config.policy))

    def opened(env: EnvConfig) -> EnvConfig:
        own = card.of(env.id)
        usual = own.prompt if own.format == config.format and own.env == env.id else None
        if usual is None or "prompt" in env.options:
            return env
        return EnvConfig(id=env.id, options=env.options | {"prompt": usual})

    def scorers(named: Sequence[str], env: EnvConfig) -> Sequence[str]:
        return named or env_class(env.id).scorers

    own_scorers = scorers(config.evaluation.scorers, config.env)
    further = {
        name: one.model_copy(update={"env": opened(one.env), "scorers": scorers(one.scorers, one.env)})
        for name, one in config.environments.items()
    }
    evaluation = config.evaluation.model_copy(update={"scorers": own_scorers})
    declared = {"env": opened(config.env), "evaluation": evaluation, "environments": further}
    return config.model_copy(update=declared)


def open_trained(config: TrainConfig) -> HFPolicy:
    """The policy whose weights are trained, on torch's threads of the run.

    Raises:
        AgentEnvError: it cannot be loaded, or not play the episodes of the run.
    """
    if config.format == "native" and config.policy == "tiny":
        raise ConfigurationError(
            "format='native' asks a model that was trained to call tools, and the shipped policy 'tiny' was not: name "
            "such a model with --policy hf:PATH, or take format='inline'"
        )
    torch.set_num_threads(config.threads)
    policy = trained_policy(
        config.policy, config.lora, config.compute, seed=config.seed, frozen=config.optimizer.frozen
    )
    if config.rollout.context_tokens > policy.context_tokens:
        raise ConfigurationError(
            f"rollout.context_tokens={config.rollout.context_tokens} is more than the {policy.context_tokens} tokens "
            f"that {config.policy} can read: lower it"
        )
    return policy


def open_policy(config: TrainConfig) -> TrainedPolicy:
    """The policy to train, with engines beside it where the configuration wants them.

    Raises:
        AgentEnvError: the configuration cannot be used, or no engine came up.
    """
    policy = open_trained(config)
    if config.engine.kind == "hf":
        return policy
    plain = config.rollout.strategy == config.evaluation.strategy == "plain"
    # Other strategies ask beyond the budget of an episode.
    longest = config.rollout.context_tokens + 1 if plain else None
    folder = policy_folder(config.policy)
    engine = config.engine.resolved(rounds=config.compute.rounds)
    return VLLMPolicy.load(folder, engine, policy.model, context_tokens=longest)


def trained_policy(
    spec: str, lora: LoraSettings, compute: ComputeSettings, *, seed: int, frozen: Sequence[str] = ()
) -> HFPolicy:
    """The policy that a run starts from, with adapters where it wants them.

    Args:
        spec: ``tiny`` or ``hf:PATH``.
        lora: The adapters.
        compute: Device, number format and attention.
        seed: Draws their first weights.
        frozen: Prefixes of the names of weights that do not learn.

    Raises:
        AgentEnvError: it cannot be loaded, or not be frozen so.
    """
    policy = make_policy(spec, compute)
    if lora.quantization == "nf4":
        quantize(policy.model)
    if lora.rank:
        policy.model = adapt(policy.model, rank=lora.rank, alpha=lora.alpha, modules=lora.modules, seed=seed)
    freeze(policy.model, frozen)
    return policy


def freeze(model: Any, prefixes: Sequence[str]) -> None:
    """Keeps the weights of ``model`` whose names have one of ``prefixes`` as they are; adapters are named by their layers.

    Raises:
        ConfigurationError: no weight that learns has a name that begins so, or none is left to learn.
    """
    # Under adapters the names begin with those of what peft wraps around the model.
    weights = {name.removeprefix(WRAPPED): weight for name, weight in model.named_parameters()}
    learning = [name for name, weight in weights.items() if weight.requires_grad]
    for prefix in prefixes:
        named = [weights[name] for name in learning if name.startswith(prefix)]
        if not named:
            raise ConfigurationError(
                f"optimizer.frozen names {prefix!r}, and the name of no weight that learns begins so: the first is "
                f"{learning[0]}"
            )
        for weight in named:
            weight.requires_grad_(False)
    if not any(weight.requires_grad for weight in weights.values()):
        raise ConfigurationError("optimizer.frozen leaves no weight to learn: leave one of its prefixes out")


def make_learner(
    policy: TrainedPolicy,
    start: Callable[[], HFPolicy],
    objective: Objective,
    optimizer: OptimizerSettings,
    *,
    ahead: bool,
) -> Learner:
    """The learner of ``policy``'s weights, or of a copy where episodes under way read them or processes share them out.

    Args:
        policy: The policy that is trained.
        start: Opens the policy that the run starts from, which a penalty compares with.
        objective: What is minimised.
        optimizer: The size of a step.
        ahead: Whether episodes under way read the weights of ``policy`` while the learner learns.
    """
    sharded = world_size() > 1
    model = policy.model
    if sharded:
        # A copy, because sharding replaces the parameters in place, and the sampler reads whole ones.
        model = copy.deepcopy(model)
    elif ahead:
        # Weights that are not trained are shared, so that under adapters the copy costs the adapters alone.
        model = copy.deepcopy(model, {id(p): p for p in model.parameters() if not p.requires_grad})
        if has_compiled_layers(policy.model):
            compile_layers(model)
    reference = None
    if objective.needs_reference:
        # A model with adapters is its own reference without them; otherwise the start is opened once more, because
        # `model` moves.
        reference = model if is_adapted(model) else start().model
    # After the copies, so that a sampler with a model of its own goes on without checkpoints.
    if objective.gradient_checkpointing:
        checkpoint_layers(model)
    return (ShardedLearner if sharded else Learner)(
        model,
        objective,
        learning_rate=optimizer.learning_rate,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        reference=reference,
        image_reader=policy.image_reader,
    )


def make_objective(loss: LossSettings, memory: MemorySettings, budgets: EpisodeBudgets) -> Objective:
    """What is minimised.

    Args:
        loss: As ``TrainConfig.resolved_loss`` has it.
        memory: How the passes use memory.
        budgets: Those of the episodes that are trained.

    Raises:
        UnknownName: no such objective, or no such option of it.
        ConfigurationError: an option's value is of another type.
    """
    objective = Objective(
        **dict(loss), **dict(memory), length=budgets.context_tokens, temperature=budgets.temperature
    )
    get_objective(objective.objective, objective.surrogate_options)
    return objective


def make_chat_format(name: str, chat: ChatSettings, policy: TrainedPolicy) -> ChatFormat:
    """How messages become ids of ``policy``: ``inline``, ``template`` or ``native``."""
    return chat_formats.make_chat_format(
        name,
        policy.tokenizer,
        policy.ends,
        family=chat.family,
        template_options=chat.options,
        image_reader=policy.image_reader,
    )


def rollout_config(budgets: EpisodeBudgets, env: EnvConfig, *, temperature: float) -> RolloutConfig:
    """How episodes of ``env`` are played at a temperature; 0 is greedy."""
    return RolloutConfig.of(budgets, temperature=temperature, stop=env_class(env.id).stop)


def open_sources(config: TrainConfig, display: Display) -> dict[str, Source]:
    """The tasks of training, dev and test, all read before the first index is built, which may take long.

    Raises:
        AgentEnvError: there are no such tasks, or they have no passages and nothing else to search.
    """
    display.phase("reading the questions", 0)
    checked_options(config.env)
    simulated = SearchConfig(retriever=config.simulation.retriever)
    sources = {}
    for name, source in {"train": config.train, "dev": config.dev, "test": config.test}.items():
        sources[name] = open_tasks(source, config.search, config.env)
        only_simulated = name == "train" and simulated.retriever and not any(config.simulation.real)
        refuse_without_corpus(sources[name], simulated if only_simulated else config.search, config.env)
    return sources


def open_questions(
    source: SourceConfig,
    search: SearchConfig,
    env: EnvConfig,
    policy: TrainedPolicy,
    display: Display | None = None,
    opened: Source | None = None,
) -> TaskEnv:
    """The task environment of ``source``, with observations measured in tokens of ``policy``.

    Args:
        source: Which tasks.
        search: Which retriever.
        env: Which environment.
        policy: Whose tokens are counted.
        display: Gets the phase that is prepared.
        opened: What `open_sources` gave for ``source``, where that was called before.
    """
    if display is not None:
        display.phase(f"preparing the {source.split or source.world.split} questions", 0)

    def count(text: str) -> int:
        return len(policy.tokenizer.encode(text, add_special_tokens=False))

    progress = None if display is None else indexing(display)
    return open_task_env(source, search, env, count, opened=opened, progress=progress)


def open_training_questions(
    source: SourceConfig,
    search: SearchConfig,
    simulation: SimulationSettings,
    env: EnvConfig,
    policy: TrainedPolicy,
    display: Display | None = None,
    opened: Source | None = None,
) -> TaskEnv:
    """The training task environment, with the simulated search in place of ``search`` where one is configured."""
    if not simulation.retriever:
        return open_questions(source, search, env, policy, display, opened)
    pretended = SearchConfig(retriever=simulation.retriever)
    simulated = open_questions(source, pretended, env, policy, display, opened)
    if not any(simulation.real):
        return simulated
    real = open_questions(source, search, env, policy, display, opened)
    start, end = simulation.real
    mixed = MixedRetriever(simulated.searched, real.searched, start=start, end=end)
    return simulated.varied(retriever=mixed)


def open_second_policy(config: TrainConfig) -> HFPolicy | None:
    """The policy of the second set of weights; None where there is one set for all."""
    if not config.second.roles:
        return None
    return trained_policy(
        config.second.policy or config.policy,
        config.lora,
        config.compute,
        seed=config.seed,
        frozen=config.optimizer.frozen,
    )

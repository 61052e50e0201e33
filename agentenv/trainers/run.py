"""What a training run holds while it lasts, and how it is set up from its configuration."""

import copy
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import torch

from agentenv.core.chat import InlineFormat, TemplateFormat
from agentenv.core.io.digests import value_digest
from agentenv.core.protocols import ChatFormat
from agentenv.core.registry import env_class
from agentenv.core.rollout import RolloutConfig
from agentenv.data.overlap import refuse_overlap
from agentenv.data.sources import SourceConfig
from agentenv.errors import ConfigurationError
from agentenv.evaluation.contents import environment_digest
from agentenv.evaluation.task_env import EnvConfig, SearchConfig, TaskEnv, open_task_env
from agentenv.policies.card import read_card
from agentenv.policies.hf import HFPolicy
from agentenv.policies.lora import adapt, is_adapted
from agentenv.policies.policy_spec import make_policy, policy_digest, policy_folder
from agentenv.policies.vllm import VLLMPolicy
from agentenv.progress import Display
from agentenv.retrievers.mixed import MixedRetriever
from agentenv.tracking import ForgivingTracker, Tracker, make_tracker
from agentenv.trainers.config.identity import named_files, named_policies
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.learner.learner import Learner, Objective
from agentenv.trainers.learner.logprobs import checkpoint_layers
from agentenv.trainers.learner.losses import get_objective
from agentenv.trainers.learner.second_policy import SecondPolicy
from agentenv.trainers.learner.sharded import ShardedLearner, world_size
from agentenv.trainers.run_folder.folder import RunFolder, Stateful, TrainedPolicy
from agentenv.trainers.task_sampling.samplers import TaskSampler, get_sampler
from agentenv.trainers.workers.cluster import RayCluster
from agentenv.trainers.workers.group_runner import GroupRunner
from agentenv.trainers.workers.rollout_scheduler import RolloutScheduler
from agentenv.trainers.workers.worker_pool import WorkerPool


@dataclass
class Run:
    """Everything that a training run holds while it lasts."""

    config: TrainConfig
    folder: RunFolder
    display: Display
    policy: TrainedPolicy
    chat: ChatFormat
    learner: Learner
    sampler: TaskSampler
    scheduler: RolloutScheduler
    train: TaskEnv
    dev: TaskEnv
    test: TaskEnv
    second: SecondPolicy | None = None
    """The second set of weights, where there is one."""
    trackers: Sequence[Tracker] = ()
    """At most one, where the configuration names it."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock seconds of each phase."""

    def close(self) -> None:
        """Ends what is under way, in other processes too."""
        for tracker in self.trackers:
            tracker.close()
        self.scheduler.close()
        self.policy.close()
        if isinstance(self.learner, ShardedLearner):
            self.learner.dismiss()

    @property
    def parts(self) -> dict[str, Stateful]:
        """What checkpoints hold beside policy and learner; the draws of the rollouts follow what the sampler has learned."""
        held: dict[str, Stateful] = {"sampler": self.sampler, "rollouts": self.scheduler}
        return held | ({"second": self.second} if self.second else {})


def open_run(folder: RunFolder, display: Display) -> Run:
    """Policy, learner and the three task environments of a run, as its configuration wants them; close it afterwards.

    Raises:
        AgentEnvError: the configuration cannot be used.
    """
    began = time.perf_counter()
    with ExitStack() as opened:
        policy = open_policy(folder.config)
        opened.callback(policy.close)
        worker_pool = _open_worker_pool(folder.config)
        if worker_pool is not None:
            opened.callback(worker_pool.close)
        run = _make_run(folder, display, policy, worker_pool)
        opened.pop_all()
    run.seconds["preparation"] = time.perf_counter() - began
    return run


def content_digests(run: Run) -> dict[str, str]:
    """Digests of what the configuration of ``run`` names: sources, questions, passages, files, weights."""
    config = run.folder.config
    specs = {"policy": config.policy, "second.policy": config.second.policy} | named_policies(config)
    contents = {"sources of the environment": environment_digest(config.env.id)}
    contents |= {f"weights of {key}": policy_digest(spec) for key, spec in specs.items() if spec}
    for name, task_env in {"train": run.train, "dev": run.dev, "test": run.test}.items():
        contents[f"questions of {name}"] = value_digest(task_env.source.tasks)
        if task_env.retriever is not None:
            contents[f"passages searched in {name}"] = task_env.retriever.info().fingerprint
    return contents | named_files(config)


def open_policy(config: TrainConfig) -> TrainedPolicy:
    """The policy to train, with engines beside it where the configuration wants them.

    Raises:
        AgentEnvError: the configuration cannot be used, or no engine came up.
    """
    torch.set_num_threads(config.threads)
    policy = trained_policy(config)
    if config.rollout.context_tokens > policy.context_tokens:
        raise ConfigurationError(
            f"rollout.context_tokens={config.rollout.context_tokens} is more than the {policy.context_tokens} tokens "
            f"that {config.policy} can read: lower it"
        )
    if config.engine.kind == "hf":
        return policy
    plain = config.rollout.strategy == config.evaluation.strategy == "plain"
    longest = (
        config.rollout.context_tokens + 1 if plain else None
    )  # others ask beyond the budget of an episode
    folder = policy_folder(config.policy)
    return VLLMPolicy.load(folder, config.engine, policy.model, context_tokens=longest)


def trained_policy(config: TrainConfig) -> HFPolicy:
    """The policy that ``config`` starts from, with adapters where it wants them."""
    policy, lora = make_policy(config.policy, config.compute), config.lora
    if lora.rank:
        policy.model = adapt(
            policy.model, rank=lora.rank, alpha=lora.alpha, modules=lora.modules, seed=config.seed
        )
    return policy


def _make_run(
    folder: RunFolder, display: Display, policy: TrainedPolicy, worker_pool: WorkerPool | None
) -> Run:
    config = folder.config
    learner = learner_of(config, policy)
    second = _open_second(config, policy)
    config = with_declared_scorers(config)
    chat = chat_format_of(config, policy)
    sampler = get_sampler(config.rollout.sampler, config.rollout.sampler_options)
    train = _open_training(config, policy, display)
    dev = _open(config.dev, config, policy, display)
    test = _open(config.test, config, policy, display)
    refuse_overlap(
        train.source.tasks,
        {"dev": dev.source.tasks, "test": test.source.tasks},
        allowed=config.evaluation.on_training_tasks,
        warn=display.warn,
    )
    settings = rollout_config(config, temperature=config.rollout.temperature)
    return Run(
        config=config,
        folder=folder,
        display=display,
        policy=policy,
        chat=chat,
        learner=learner,
        sampler=sampler,
        scheduler=RolloutScheduler(
            config, settings, policy, chat, sampler, train, second=second, worker_pool=worker_pool
        ),
        second=second,
        train=train,
        dev=dev,
        test=test,
        trackers=[ForgivingTracker(make_tracker(config.tracker, folder.path), display.warn)]
        if config.tracker
        else [],  # last: nothing after it can fail
    )


def _open_worker_pool(config: TrainConfig) -> WorkerPool | None:
    """Those who play in a cluster, where the configuration names one; close it afterwards."""
    settings = config.cluster
    if not settings.address:
        return None
    cluster = RayCluster(settings, partial(open_group_runner, config))
    return WorkerPool(cluster, settings.workers, start_s=settings.start_s, deadline_s=settings.deadline_s)


def open_group_runner(config: TrainConfig) -> GroupRunner:
    """Who plays on a worker of a cluster: a policy of its own over the training questions.

    Raises:
        AgentEnvError: the configuration cannot be used there.
    """
    config, policy = with_declared_scorers(config), open_policy(config)
    try:
        task_env = _open_training(config, policy)
    except BaseException:
        policy.close()
        raise
    settings = rollout_config(config, temperature=config.rollout.temperature)
    return GroupRunner(config, settings, policy, chat_format_of(config, policy), task_env)


def learner_of(config: TrainConfig, policy: TrainedPolicy) -> Learner:
    """The learner of ``policy``'s weights, or of a copy where episodes under way read them or processes share them out."""
    objective, settings = objective_of(config), config.optimizer
    sharded = world_size() > 1
    model = policy.model
    if sharded:
        model = copy.deepcopy(model)
    elif config.asynchronous.staleness:
        model = copy.deepcopy(model, {id(p): p for p in model.parameters() if not p.requires_grad})
    reference = None
    if objective.needs_reference:
        reference = model if is_adapted(model) else make_policy(config.policy, config.compute).model
    if config.memory.gradient_checkpointing:
        checkpoint_layers(model)
    return (ShardedLearner if sharded else Learner)(
        model,
        objective,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        reference=reference,
    )


def open_second_policy(config: TrainConfig) -> HFPolicy | None:
    """The policy of the second set of weights; None where there is one set for all."""
    if not config.second.roles:
        return None
    return trained_policy(config.model_copy(update={"policy": config.second.policy or config.policy}))


def _open_second(config: TrainConfig, first: TrainedPolicy) -> SecondPolicy | None:
    policy = open_second_policy(config)
    if policy is None:
        return None
    if world_size() > 1:
        raise ConfigurationError(
            "a second set of weights is trained in one process: start it without torchrun"
        )
    config = config.model_copy(update={"policy": config.second.policy or config.policy})
    if policy.tokenizer.get_vocab() != first.tokenizer.get_vocab():
        raise ConfigurationError(f"second.policy={config.policy} has other tokens than the first policy")
    if config.rollout.context_tokens > policy.context_tokens:
        raise ConfigurationError(
            f"second.policy={config.policy} reads {policy.context_tokens} tokens only: lower rollout.context_tokens"
        )
    return SecondPolicy(config.second.roles, policy, learner_of(config, policy))


@flushed_denormals()
def run_follower(config: TrainConfig) -> None:
    """What every process but the first of ``torchrun`` does: its share of the learning, until the first one is done."""
    torch.set_num_threads(config.threads)
    learner = learner_of(config, trained_policy(config))
    assert isinstance(learner, ShardedLearner)
    learner.follow()


def with_declared_scorers(config: TrainConfig) -> TrainConfig:
    """``config`` with the environment's scorers and the policy's usual opening message, where it names none."""
    evaluation, env = config.evaluation, config.env
    if not evaluation.scorers:
        evaluation = evaluation.model_copy(update={"scorers": env_class(env.id).scorers})
    card = read_card(policy_folder(config.policy))
    if card.prompt is not None and card.env == env.id and "prompt" not in env.options:
        env = EnvConfig(id=env.id, options=env.options | {"prompt": card.prompt})
    return config.model_copy(update={"env": env, "evaluation": evaluation})


def objective_of(config: TrainConfig) -> Objective:
    """What ``config`` minimises.

    Raises:
        UnknownName: no such objective, or no such option of it.
        ConfigurationError: an option's value is of another type.
    """
    objective = Objective(
        **dict(config.resolved_loss),
        **dict(config.memory),
        length=config.rollout.context_tokens,
        temperature=config.rollout.temperature,
    )
    get_objective(objective.objective, objective.surrogate_options)
    return objective


def _open(
    source: SourceConfig, config: TrainConfig, policy: TrainedPolicy, display: Display | None
) -> TaskEnv:
    if display is not None:
        display.phase(f"index of {source.split or source.world.split} questions", 0)

    def count(text: str) -> int:
        return len(policy.tokenizer.encode(text, add_special_tokens=False))

    return open_task_env(source, config.search, config.env, count)


def _open_training(config: TrainConfig, policy: TrainedPolicy, display: Display | None = None) -> TaskEnv:
    """The training task environment, with the simulated search where one is configured."""
    simulation = config.simulation
    if not simulation.retriever:
        return _open(config.train, config, policy, display)
    search = SearchConfig(retriever=simulation.retriever)
    simulated = _open(config.train, config.model_copy(update={"search": search}), policy, display)
    if not any(simulation.real):
        return simulated
    real = _open(config.train, config, policy, display)
    start, end = simulation.real
    mixed = MixedRetriever(simulated.searched, real.searched, start=start, end=end)
    return simulated.varied(retriever=mixed)


def chat_format_of(config: TrainConfig, policy: TrainedPolicy) -> ChatFormat:
    """How messages become ids of ``policy``."""
    if config.format == "inline":
        return InlineFormat(policy.tokenizer)
    return TemplateFormat(policy.tokenizer, policy.ends)


def rollout_config(config: TrainConfig, *, temperature: float) -> RolloutConfig:
    """The budgets of ``config`` at a temperature; 0 is greedy."""
    return RolloutConfig.of(config.rollout, temperature=temperature, stop=env_class(config.env.id).stop)


class PhaseTimer:
    """Where the seconds of one step of ``run`` went."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._last = time.perf_counter()
        self._laps: dict[str, float] = {}
        self._neural = self._counters()

    def _counters(self) -> dict[str, float]:
        encoder = getattr(self._run.train.retriever, "encoder", None)
        return {
            "policy_forward": self._run.policy.forward_seconds,
            "learner_compute": self._run.learner.compute_seconds,
            "encoder_forward": float(getattr(encoder, "forward_seconds", 0.0)),
        }

    def lap(self, name: str) -> None:
        """Ends a phase of the step."""
        now = time.perf_counter()
        self._laps[name] = now - self._last
        self._last = now

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase, and of the neural forward and backward passes within them."""
        now = self._counters()
        spent = self._laps | {name: now[name] - then for name, then in self._neural.items()}
        return {name: round(value, 4) for name, value in spent.items()}

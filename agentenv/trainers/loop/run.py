"""What a training run holds while it lasts, and how it is set up from its configuration."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import torch

from agentenv.core.io.digests import value_digest
from agentenv.core.protocols import ChatFormat
from agentenv.core.registry import env_class
from agentenv.core.types import Task
from agentenv.data.overlap import refuse_overlap
from agentenv.data.sources import Source
from agentenv.errors import ConfigurationError
from agentenv.evaluation.contents import environment_digest, part_digest
from agentenv.evaluation.records import RESULTS
from agentenv.evaluation.task_env import OWN_ENVIRONMENT, TaskEnv
from agentenv.policies.compute import set_process_compute
from agentenv.policies.policy_spec import check_reached, make_policy, policy_digest
from agentenv.policies.vllm import VLLMPolicy
from agentenv.progress import Display
from agentenv.tracking import ForgivingTracker, Tracker, make_tracker
from agentenv.trainers.config.identity import named_files, named_parts, named_policies
from agentenv.trainers.config.sections import ClusterSettings, RolloutSettings, SecondSettings
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.learner.denormals import flushed_denormals
from agentenv.trainers.learner.imitation import DemonstrationBuffer
from agentenv.trainers.learner.learner import Learner, Objective
from agentenv.trainers.learner.second_policy import SecondPolicy
from agentenv.trainers.learner.sharded import ShardedLearner, world_size
from agentenv.trainers.loop.parts import (
    make_chat_format,
    make_learner,
    make_objective,
    naming_environment,
    open_policy,
    open_questions,
    open_second_policy,
    open_sources,
    open_training_questions,
    rollout_config,
    trained_policy,
    with_declared_scorers,
)
from agentenv.trainers.run_folder.folder import RunFolder, Stateful, TrainedPolicy
from agentenv.trainers.strategies.branch_windows import EntropyTemperatures
from agentenv.trainers.strategies.strategies import RolloutStrategy, check_expert, check_tasks, get_strategy
from agentenv.trainers.strategies.tree import TreeStrategy
from agentenv.trainers.task_sampling.samplers import GatedSampler, TaskSampler, get_sampler
from agentenv.trainers.task_sampling.set_mixture import set_mixture
from agentenv.trainers.task_sampling.training_tasks import TrainedEnvironment, TrainingTasks
from agentenv.trainers.workers.cluster import RayCluster
from agentenv.trainers.workers.group_runner import GroupRunner
from agentenv.trainers.workers.rollout_scheduler import RolloutScheduler
from agentenv.trainers.workers.worker_pool import WorkerPool


@dataclass(frozen=True)
class RunEnvironment:
    """One environment of a run: what is trained on there, and what the policy is measured on."""

    config: TrainConfig
    """The run as it would be in this environment alone, with the scorers of its evaluations."""
    train: TaskEnv
    dev: TaskEnv
    test: TaskEnv


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
    environments: Mapping[str, RunEnvironment]
    """By name, the run's own first."""
    training: TrainingTasks
    """The tasks of all environments."""
    demonstrations: DemonstrationBuffer
    second: SecondPolicy | None = None
    """The second set of weights, where there is one."""
    trackers: Sequence[Tracker] = ()
    """At most one, where the configuration names it."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall-clock seconds of each phase."""

    @property
    def own(self) -> RunEnvironment:
        """The run's own environment, and none of the further ones."""
        return self.environments[OWN_ENVIRONMENT]

    def close(self, *, failed: bool = False) -> None:
        """Ends what is under way, in other processes too; ``failed`` is what the trackers say of the run."""
        # Closed from the last to the first, each even if another one fails. The episodes end before the policy that
        # answers them does, and the other processes last, because they wait for orders of this one.
        with ExitStack() as opened:
            if isinstance(self.learner, ShardedLearner):
                opened.callback(self.learner.dismiss)
            opened.callback(self.policy.close)
            opened.callback(self.scheduler.close)
            for tracker in self.trackers:
                opened.callback(tracker.close, failed=failed)

    @property
    def parts(self) -> dict[str, Stateful]:
        """What checkpoints hold beside policy and learner; the draws of the rollouts follow what the sampler has learned."""
        held: dict[str, Stateful] = {"sampler": self.sampler, "rollouts": self.scheduler}
        if self.config.rollout.strategy == "demonstrate":
            held["demonstrations"] = self.demonstrations
        return held | ({"second": self.second} if self.second else {})


def open_run(folder: RunFolder, display: Display) -> Run:
    """Policy, learner and the three task environments of a run, as its configuration wants them; close it afterwards.

    Raises:
        AgentEnvError: the configuration cannot be used.
    """
    began = time.perf_counter()
    with ExitStack() as opened:
        policy = open_policy(folder.config)
        # From here on, whatever fails closes engines and workers, which would outlive the process otherwise.
        opened.callback(policy.close)
        if isinstance(policy, VLLMPolicy):
            policy.replicas.warn = display.warn
        worker_pool = _open_worker_pool(folder.config.cluster, partial(open_group_runner, folder.config))
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
    contents = {f"sources of {key}": part_digest(entry) for key, entry in named_parts(config).items()}
    contents |= {f"weights of {key}": policy_digest(spec) for key, spec in specs.items() if spec}
    for name, environment in run.environments.items():
        contents |= _environment_digests(name, environment)
    return contents | named_files(config)


def _environment_digests(name: str, environment: RunEnvironment) -> dict[str, str]:
    """Digests of the sources, questions and passages of one environment of a run."""
    own = name == OWN_ENVIRONMENT
    which, above = ("the environment", "") if own else (f"environments.{name}", f"environments.{name}.")
    contents = {f"sources of {which}": environment_digest(environment.config.env.id)}
    opened = {"train": environment.train, "dev": environment.dev, "test": environment.test}
    for part, task_env in opened.items():
        contents[f"questions of {above}{part}"] = value_digest(task_env.source.tasks)
        if task_env.retriever is not None:
            contents[f"passages searched in {above}{part}"] = task_env.retriever.info().fingerprint
    return contents


def _make_run(
    folder: RunFolder, display: Display, policy: TrainedPolicy, worker_pool: WorkerPool | None
) -> Run:
    config = folder.config
    if world_size() > 1:
        _refuse_single(config.rollout, config.second)
    objective = make_objective(config.resolved_loss, config.memory, config.rollout)
    learner = make_learner(
        policy,
        partial(make_policy, config.policy, config.compute),
        objective,
        config.optimizer,
        ahead=config.copies_weights,
    )
    second = _open_second(config, policy, objective)
    config = with_declared_scorers(config)
    _check_judges(config, folder)
    chat = make_chat_format(config.format, config.chat, policy)
    sampler = get_sampler(config.rollout.sampler, config.rollout.sampler_options)
    environments = _open_environments(config, policy, display)
    training = _training_tasks(config, {name: one.train for name, one in environments.items()})
    runner = worker_pool or _make_group_runner(config, policy, chat, training, sampler, second)
    return Run(
        config=config,
        folder=folder,
        display=display,
        policy=policy,
        chat=chat,
        learner=learner,
        sampler=sampler,
        scheduler=RolloutScheduler(
            runner,
            policy,
            sampler,
            training.tasks,
            config.rollout,
            seed=config.seed,
            steps=config.optimizer.steps,
            staleness=config.asynchronous.staleness,
            concurrent=config.concurrent_groups,
            abort=config.asynchronous.abort,
            temperatures=_temperatures(config.rollout),
            mixture=training.mixture,
        ),
        environments=environments,
        training=training,
        demonstrations=DemonstrationBuffer(config.optimizer.supervised_batch, training.tasks),
        second=second,
        trackers=[ForgivingTracker(make_tracker(config.tracker, folder.path), display.warn)]
        if config.tracker
        else [],  # last: nothing after it can fail
    )


def _is_finished(folder: RunFolder) -> bool:
    """Whether results are there and no step is left, so that nobody will be asked any more."""
    steps, history = folder.config.optimizer.steps, folder.history()
    over = any("stopped" in line or line["step"] >= steps for line in history)
    return over and (folder.path / RESULTS).exists()


def _check_judges(config: TrainConfig, folder: RunFolder) -> None:
    """Refuses judges at whose address nobody takes a connection: most are asked after hours only, and none in the end.

    Raises:
        ConfigurationError: one is not there.
    """
    if _is_finished(folder):
        return
    options = config.rollout.strategy_options, config.evaluation.strategy_options
    for judge in (config.evaluation.judge, *(one.get("judge") for one in options)):
        if isinstance(judge, str):
            check_reached(judge)


def _temperatures(rollout: RolloutSettings) -> EntropyTemperatures | None:
    """What sets the temperatures of a tree's window, where they follow the entropy."""
    strategy = get_strategy(rollout.strategy, rollout.strategy_options)
    return strategy.temperature_control() if isinstance(strategy, TreeStrategy) else None


def _open_environments(
    config: TrainConfig, policy: TrainedPolicy, display: Display
) -> dict[str, RunEnvironment]:
    """The questions of all environments, with what is searched; whatever can be refused is refused first."""
    configs = config.by_environment
    opened: dict[str, dict[str, Source]] = {}
    strategy = get_strategy(config.rollout.strategy, config.rollout.strategy_options)
    learned: list[Task] = []
    for name, one in configs.items():
        with naming_environment(name):
            opened[name] = open_sources(one, display)
            train = opened[name]["train"]
            set_mixture(train, one.train.weights)  # which refuses weights of sets without questions
        # Topics are titles, and no questions.
        learned += () if one.train.topics else train.tasks
    for name, one in configs.items():
        # Before anything is played: scores on questions that were trained on would say nothing.
        with naming_environment(name):
            refuse_overlap(
                learned,
                {"dev": opened[name]["dev"].tasks, "test": opened[name]["test"].tasks},
                allowed=one.evaluation.on_training_tasks,
                warn=display.warn,
            )
    environments = {}
    for name, one in configs.items():
        with naming_environment(name):
            environments[name] = _open_environment(one, opened[name], strategy, policy, display)
    return environments


def _open_environment(
    config: TrainConfig,
    sources: Mapping[str, Source],
    strategy: RolloutStrategy,
    policy: TrainedPolicy,
    display: Display,
) -> RunEnvironment:
    search, env = config.search, config.env
    train = open_training_questions(
        config.train, search, config.simulation, env, policy, display, sources["train"]
    )
    check_tasks(strategy, train.source.tasks)  # all of which the strategy can play
    check_expert(strategy, env_class(env.id), train.source.tasks)
    dev = open_questions(config.dev, search, env, policy, display, sources["dev"])
    test = open_questions(config.test, search, env, policy, display, sources["test"])
    return RunEnvironment(config, train, dev, test)


def _training_tasks(config: TrainConfig, train: Mapping[str, TaskEnv]) -> TrainingTasks:
    """The training tasks of the environments, played within the budgets of the run; each has stop strings of its own."""
    configs, shares, temperature = config.by_environment, config.shares, config.rollout.temperature
    return TrainingTasks(
        [
            TrainedEnvironment(
                name,
                shares[name],
                task_env,
                rollout_config(config.rollout, configs[name].env, temperature=temperature),
                configs[name].train.weights,
            )
            for name, task_env in train.items()
        ]
    )


def _make_group_runner(
    config: TrainConfig,
    policy: TrainedPolicy,
    chat: ChatFormat,
    training: TrainingTasks,
    sampler: TaskSampler | None = None,
    second: SecondPolicy | None = None,
) -> GroupRunner:
    """The runner of groups; where the learner is, ``sampler`` and ``second`` decide part of how they are played."""
    return GroupRunner(
        config.rollout,
        policy,
        chat,
        training,
        seed=config.seed,
        steps=config.optimizer.steps,
        rescore=config.resolved_loss.correction.off_context == "rescore",
        gate=sampler.gate if isinstance(sampler, GatedSampler) else None,
        role_policies=dict.fromkeys(second.roles, second.policy) if second else None,
    )


def _open_worker_pool(settings: ClusterSettings, open_runner: Callable[[], GroupRunner]) -> WorkerPool | None:
    """The workers of a cluster, where the configuration names one; the caller closes the pool."""
    if not settings.address:
        return None
    cluster = RayCluster(settings, open_runner)
    return WorkerPool(cluster, settings.workers, start_s=settings.start_s, deadline_s=settings.deadline_s)


def open_group_runner(config: TrainConfig) -> GroupRunner:
    """The runner of groups on a worker of a cluster: a policy of its own over the training questions.

    Raises:
        AgentEnvError: the configuration cannot be used there.
    """
    set_process_compute(config.compute)
    config, policy = with_declared_scorers(config), open_policy(config)
    try:
        train = {
            name: open_training_questions(one.train, one.search, one.simulation, one.env, policy)
            for name, one in config.by_environment.items()
        }
        training = _training_tasks(config, train)
    except BaseException:
        policy.close()
        raise
    return _make_group_runner(config, policy, make_chat_format(config.format, config.chat, policy), training)


def _refuse_single(rollout: RolloutSettings, second: SecondSettings) -> None:
    """Refuses what trains in one process alone; what the learner refuses by itself is not asked here."""
    single = {
        "rollout.strategy='demonstrate'": rollout.strategy == "demonstrate",
        "a second set of weights (second.roles)": bool(second.roles),
    }
    for name in (name for name, wanted in single.items() if wanted):
        raise ConfigurationError(f"{name} is for one process: train without torchrun, or leave it out")


def _open_second(config: TrainConfig, first: TrainedPolicy, objective: Objective) -> SecondPolicy | None:
    policy = open_second_policy(config)
    if policy is None:
        return None
    spec = config.second.policy or config.policy
    if policy.tokenizer.get_vocab() != first.tokenizer.get_vocab():
        raise ConfigurationError(f"second.policy={spec} has other tokens than the first policy")
    if config.rollout.context_tokens > policy.context_tokens:
        raise ConfigurationError(
            f"second.policy={spec} reads {policy.context_tokens} tokens only: lower rollout.context_tokens"
        )
    learner = make_learner(
        policy, partial(make_policy, spec, config.compute), objective, config.optimizer, ahead=False
    )
    return SecondPolicy(config.second.roles, policy, learner)


@flushed_denormals()
def run_follower(config: TrainConfig) -> None:
    """What every process but the first of ``torchrun`` does: its share of the learning, until the first one is done."""
    torch.set_num_threads(config.threads)
    set_process_compute(config.compute)
    policy = trained_policy(
        config.policy, config.lora, config.compute, seed=config.seed, frozen=config.optimizer.frozen
    )
    objective = make_objective(config.resolved_loss, config.memory, config.rollout)
    learner = make_learner(
        policy,
        partial(make_policy, config.policy, config.compute),
        objective,
        config.optimizer,
        ahead=False,
    )
    assert isinstance(learner, ShardedLearner)
    learner.follow()


class PhaseTimer:
    """Where the seconds of one step of ``run`` went."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._last = time.perf_counter()
        self._laps: dict[str, float] = {}
        self._neural = self._counters()

    def _counters(self) -> dict[str, float]:
        retrievers = (one.train.retriever for one in self._run.environments.values())
        encoders = {id(one): one for one in (getattr(each, "encoder", None) for each in retrievers)}
        return {
            "policy_forward": self._run.policy.forward_seconds,
            "learner_compute": self._run.learner.compute_seconds,
            "encoder_forward": sum(float(getattr(one, "forward_seconds", 0.0)) for one in encoders.values()),
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

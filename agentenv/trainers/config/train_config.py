"""The configuration of a training run: a TOML preset plus dotted overrides. Importable without torch."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from agentenv.core.chat_formats import FormatName, check_chat_options
from agentenv.data.sources import (
    called_sets,
)
from agentenv.evaluation.task_env import OWN_ENVIRONMENT
from agentenv.policies.compute import ComputeSettings, multiplies_bfloat16
from agentenv.policies.engine import COLDEST, HOTTEST, EngineConfig
from agentenv.tracking import check_tracker
from agentenv.trainers.config.conflicts import (
    bounds_note,
    conflict_of,
    environments_conflict,
    leaves_contexts,
)
from agentenv.trainers.config.sections import (
    AsynchronousSettings,
    ChatSettings,
    ClusterSettings,
    EnvironmentSections,
    EnvironmentSettings,
    EvaluationSettings,
    GuardSettings,
    LeagueSettings,
    LoraSettings,
    OptimizerSettings,
    RewardShapingSettings,
    RolloutSettings,
    SecondSettings,
)
from agentenv.trainers.learner.settings import LossSettings, MemorySettings
from agentenv.trainers.selfplay.games import agent_names, get_game
from agentenv.trainers.strategies.strategies import NATIVE
from agentenv.trainers.task_sampling.samplers import (
    GatedSampler,
    GuidingSampler,
    TaskSampler,
    chooses_tasks,
    get_sampler,
)


class TrainConfig(EnvironmentSections):
    """A training run, and the sections of its own environment."""

    name: str = "run"
    """What the run is called in its report."""
    seed: int = Field(0, ge=0, lt=2**63)
    """Seeds question draws and sampling."""
    threads: int = Field(2, ge=1, le=4096)
    """Threads of torch; results depend on it in the last digits."""
    compute: ComputeSettings = ComputeSettings()
    """Where models compute, and how."""
    policy: str = "tiny"
    """The policy to start from: ``tiny`` or ``hf:PATH``. If ``env.options`` names no prompt, that of the policy's
    ``episode.json`` is used, or else the environment's own."""
    format: FormatName = "inline"
    """``inline``: tags within one assistant turn (Search-R1). ``template``: the chat template with tool messages.
    ``native``: tools are declared, called and answered in the form that the model was trained in."""
    chat: ChatSettings = ChatSettings()
    """Model family and options of the chat template, for the format ``native``."""
    environments: dict[str, EnvironmentSettings] = Field(default_factory=dict)
    """Further environments that the policy is trained in, by the names that their metrics get."""
    rollout: RolloutSettings = Field(default_factory=RolloutSettings)  # it imports its methods
    """How episodes are sampled."""
    asynchronous: AsynchronousSettings = AsynchronousSettings()
    """Asynchronous training: rollouts continue while the learner learns."""
    engine: EngineConfig = EngineConfig()
    """The engine that samples tokens."""
    cluster: ClusterSettings = ClusterSettings()
    """Workers on other machines that play episodes."""
    optimizer: OptimizerSettings = OptimizerSettings()
    """Steps of the learner."""
    reward_shaping: RewardShapingSettings = RewardShapingSettings()
    """Changes to the rewards."""
    loss: LossSettings = Field(default_factory=LossSettings)  # it imports its estimator
    """The loss: objective, advantage estimator and corrections."""
    memory: MemorySettings = MemorySettings()
    """Memory of the learner."""
    lora: LoraSettings = LoraSettings()
    """Adapters in place of all weights."""
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    """Evaluation."""
    monitor: GuardSettings = GuardSettings()
    """Guard against collapse."""
    second: SecondSettings = SecondSettings()
    """A second set of weights; for ``rollout.strategy = "self_play"``."""
    league: LeagueSettings = LeagueSettings()
    """Past versions against each other; for ``rollout.strategy = "self_play"``."""
    checkpoint_every: int = Field(25, ge=1)
    """Steps between two checkpoints."""
    checkpoints_kept: int = Field(2, ge=1)
    """Number of newest checkpoints that are kept. With two, the run can continue if the last one is damaged."""
    checkpoint_shard_gib: float = Field(5.0, gt=0)
    """Weights larger than this, in GiB, are written as several files and an index of them."""
    trajectories_every: int = Field(10, ge=0)
    """Steps between two dumps of all trajectories of a step; 0 keeps none."""
    tracker: str = ""
    """``tensorboard`` (in the run's folder), ``wandb:PROJECT`` or ``mlflow:EXPERIMENT``; empty uses none."""

    @field_validator("environments")
    @classmethod
    def _sorted(cls, environments: dict[str, EnvironmentSettings]) -> dict[str, EnvironmentSettings]:
        # The places of the tasks follow this order, and a file may have its tables in another one when a run goes on.
        return dict(sorted(environments.items()))

    @field_validator("tracker")
    @classmethod
    def _known_tracker(cls, tracker: str) -> str:
        if tracker:
            check_tracker(tracker)
        return tracker

    @model_validator(mode="after")
    def _format_fits(self) -> Self:
        check_chat_options(self.format, self.chat.family, self.chat.options)
        asked = {
            "rollout.strategy": self.rollout.strategy,
            "evaluation.strategy": self.evaluation.strategy,
        }
        for key, strategy in asked.items():
            if self.format == "native" and strategy not in NATIVE:
                raise ValueError(
                    f"{key}={strategy!r} inserts text between turns, which format='native' cannot: take one of "
                    f"{', '.join(NATIVE)}, or format='inline'"
                )
        return self

    @model_validator(mode="after")
    def _engine_fits(self) -> Self:
        if self.engine.urls and self.engine.kind != "vllm":
            raise ValueError("engine.urls are vLLM servers: set engine.kind to 'vllm'")
        if self.engine.kind == "vllm" and self.rollout.deterministic:
            raise ValueError(
                "engine.kind='vllm' forms batches by arrival, which rollout.deterministic rules out: set it to false"
            )
        temperatures = {
            "rollout": self.rollout.temperature,
            "evaluation": self.evaluation.temperature or COLDEST,
        }
        for name, temperature in temperatures.items():
            if self.engine.kind == "vllm" and not COLDEST <= temperature <= HOTTEST:
                raise ValueError(
                    f"engine.kind='vllm' samples at temperatures from {COLDEST} to {HOTTEST:g}, and {name}.temperature is "
                    f"{temperature:g}"
                )
        return self

    @model_validator(mode="after")
    def _pivots_agree(self) -> Self:
        if self.rollout.strategy == "reflect_retry" and self.loss.estimator == "pivotal":
            masked = self.rollout.strategy_options.get("pivotal", True)
            credited = self.loss.estimator_options.get("from_pivot", True)
            if masked != credited:
                raise ValueError(
                    f"rollout.strategy_options.pivotal={masked} and loss.estimator_options.from_pivot={credited} must be "
                    "equal, or neither has an effect: for R3L without pivotal credit set both to false"
                )
        return self

    @model_validator(mode="after")
    def _progress_is_measured(self) -> Self:
        measured = self.rollout.strategy == "tree" and self.rollout.strategy_options.get("progress", False)
        if self.reward_shaping.progress and not (measured and self.loss.objective == "ppo_clip"):
            raise ValueError(
                f"reward_shaping.progress={self.reward_shaping.progress:g} needs rollout.strategy='tree' with "
                f"strategy_options.progress=true and loss.objective='ppo_clip', not {self.rollout.strategy!r} and "
                f"{self.loss.objective!r}"
            )
        return self

    @model_validator(mode="after")
    def _fits(self) -> Self:
        rollout = self.rollout
        if rollout.turn_tokens >= rollout.context_tokens:
            raise ValueError(
                f"rollout.turn_tokens={rollout.turn_tokens} must be below rollout.context_tokens="
                f"{rollout.context_tokens}, or no prompt fits beside one turn"
            )
        if (self.league.every or self.second.roles) and rollout.strategy != "self_play":
            raise ValueError(
                f"league.every and second.roles need rollout.strategy = 'self_play', not {rollout.strategy!r}"
            )
        if self.second.roles:
            options = rollout.strategy_options
            roles = {turn.role for turn in get_game(options.get("game", "ssp")).turns}
            roles |= set(agent_names(options.get("agents", 0)))
            if unknown := sorted(set(self.second.roles) - roles):
                raise ValueError(f"second.roles names {unknown}; the game has {sorted(roles)}")
        if self.second.roles and self.asynchronous.staleness:
            raise ValueError(
                "a second set of weights is trained synchronously: set asynchronous.staleness to 0"
            )
        sampler = get_sampler(rollout.sampler, rollout.sampler_options)
        if self.train.weights and chooses_tasks(sampler):
            raise ValueError(
                f"rollout.sampler={rollout.sampler!r} chooses tasks by a rule of its own, which train.weights would change: "
                "leave train.weights out, or take a sampler that draws uniformly, such as 'uniform' or 'dapo'"
            )
        if self.cluster.address and (reason := self._keeps_home(sampler)):
            raise ValueError(f"episodes cannot be played in a cluster: {reason}")
        if guides(sampler) and (rollout.strategy != "plain" or self.format == "native"):
            raise ValueError(
                f"rollout.sampler={rollout.sampler!r} shows solved examples, which needs rollout.strategy='plain' and a "
                "format other than 'native': set rollout.sampler_options.examples to 0, or change these"
            )
        loss = self.resolved_loss
        if loss.correction.weighs and loss.proximal == "sampler":
            raise ValueError(
                "loss.correction compares the sampler's log-probs with the learner's own: set "
                "loss.proximal to 'recompute' or 'interpolate'"
            )
        if sampler.replays and loss.proximal != "sampler" and loss.correction.mode == "none":
            raise ValueError(
                f"rollout.sampler={rollout.sampler!r} trains on episodes of earlier weights, which "
                f"loss.proximal={loss.proximal!r} would take for those of the present ones: set it to "
                "'sampler', or loss.correction.mode to 'truncate' or 'mask'"
            )
        if source := self._unweighable(sampler):
            raise ValueError(
                f"{source} trains tokens that were sampled under another context, which a correction cannot weigh with "
                f"loss.correction.off_context={loss.correction.off_context!r}: set it to 'weight', "
                f"or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _plays_in_time(self) -> Self:
        rollout = self.rollout
        if self.asynchronous.staleness and rollout.deterministic:
            raise ValueError(
                "rollout.deterministic=true makes every episode wait for the slowest, which asynchronous training does "
                "not: set it to false, or asynchronous.staleness to 0"
            )
        if rollout.sampler == "partial_states" and rollout.strategy != "plain":
            raise ValueError(
                "rollout.sampler='partial_states' begins episodes within recorded ones, which rollout.strategy='plain' "
                f"alone can play, not {rollout.strategy!r}"
            )
        if self.asynchronous.abort and self.cluster.address:
            raise ValueError(
                "asynchronous.abort needs the tokens of unfinished episodes, and a worker of a cluster sends an episode "
                "only when it has ended: set it to false, or leave out cluster.address"
            )
        if rollout.workers and rollout.deterministic:
            raise ValueError(
                "rollout.workers starts an episode whenever another one ends, and rollout.deterministic starts all at "
                "once: set rollout.deterministic to false, or rollout.workers to 0"
            )
        return self

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if sentence := conflict_of(self.rollout, self.resolved_loss, self.optimizer):
            raise ValueError(sentence)
        return self

    @model_validator(mode="after")
    def _environments_fit(self) -> Self:
        if not self.environments:
            return self
        own_sets = {*called_sets(self.train.dataset), *called_sets(self.dev.dataset)}
        if sentence := environments_conflict(self.environments, own_sets, self.rollout, self.evaluation):
            raise ValueError(sentence)
        return self

    def _unweighable(self, sampler: TaskSampler) -> str:
        """The part whose tokens of another context ``correction.off_context`` cannot weigh; empty where there is none."""
        off_context, strategy = self.resolved_loss.correction.off_context, self.rollout.strategy
        if not self.resolved_loss.correction.weighs or off_context == "weight":
            return ""
        if off_context != "rescore" and leaves_contexts(self.rollout):
            return f"rollout.strategy={strategy!r}"
        if off_context != "rescore" and guides(sampler):
            return f"rollout.sampler={self.rollout.sampler!r}"
        recorded = off_context != "rescore" or "pool" in self.rollout.sampler_options
        return f"rollout.sampler={self.rollout.sampler!r}" if sampler.replays and recorded else ""

    def _keeps_home(self, sampler: TaskSampler) -> str:
        """Why the episodes have to be played where the learner is; empty where they need not."""
        if isinstance(sampler, GatedSampler):
            return f"rollout.sampler={self.rollout.sampler!r} watches them turn by turn"
        if self.second.roles:
            return "second.roles play with weights that workers do not have"
        if self.engine.urls:
            return "engine.urls would get their weights from every worker; let workers start engines of their own"
        return ""

    @property
    def by_environment(self) -> dict[str, Self]:
        """The run as it would be in each of its environments alone, the run's own first, as `OWN_ENVIRONMENT`.

        Further environments are played without a strategy of the evaluation, and nobody judges their answers.
        """
        alone = self.model_copy(update={"environments": {}})
        further = {
            name: alone.model_copy(
                update={field: getattr(one, field) for field in EnvironmentSections.model_fields}
                | {"evaluation": self.evaluation.of_further_environment(one.scorers)}
            )
            for name, one in self.environments.items()
        }
        return {OWN_ENVIRONMENT: alone, **further}

    @property
    def shares(self) -> dict[str, float]:
        """Share of the questions of a step that each environment poses; they add up to 1."""
        further = {name: one.share for name, one in self.environments.items()}
        return {OWN_ENVIRONMENT: 1 - sum(further.values()), **further}

    @property
    def resolved_loss(self) -> LossSettings:
        """``loss`` with what None stands for in this run."""
        return self.loss.resolved(mismatch=bool(self.mismatches))

    @property
    def mismatches(self) -> list[str]:
        """Why the log-probs that the sampler records are not those that the learner would compute; empty where they are."""
        engine = self.engine.resolved(rounds=self.compute.rounds)
        reasons = {
            f"asynchronous.staleness={self.asynchronous.staleness}": self.asynchronous.staleness > 0,
            f"engine.kind={self.engine.kind!r} in {engine.dtype}": engine.kind != "hf",
            f"memory.precision={self.memory.precision!r}": self.memory.precision != "float32",
            "weights in bfloat16": self.compute.rounds,
        }
        return [reason for reason, holds in reasons.items() if holds]

    @property
    def correction_note(self) -> str:
        """How the difference that ``mismatches`` names is corrected, as a sentence; empty where there is none."""
        if not self.mismatches:
            return ""
        loss = self.resolved_loss
        how = loss.correction
        weighed = f"weighs tokens by correction.mode={how.mode!r}, level={how.level!r}, high={how.high:g}"
        done = weighed if how.mode != "none" else "weighs no token for it (correction.mode='none')"
        return (
            f"the sampler's log-probs are not the learner's ({', '.join(self.mismatches)}): the loss takes "
            f"loss.proximal={loss.proximal!r} and {done}"
        )

    @property
    def bounds_note(self) -> str:
        """A sentence that says that the clip bounds cannot be reached; empty where they can, or where none are named."""
        return bounds_note(self.rollout, self.resolved_loss, self.optimizer, mismatch=bool(self.mismatches))

    @property
    def precision_note(self) -> str:
        """A sentence that says that bfloat16 is named on a processor that does not multiply in it; empty otherwise."""
        named = {"compute.dtype": self.compute.dtype, "memory.precision": self.memory.precision}
        rounded = [name for name, kind in named.items() if kind == "bfloat16"]
        if not rounded or not self.compute.on_processor or multiplies_bfloat16("cpu"):
            return ""
        return (
            f"{rounded[0]}='bfloat16' is honoured, but this processor does not multiply in it, and products take up to "
            "seventy times as long as in float32: leave it out"
        )

    @property
    def copies_weights(self) -> bool:
        """Whether the sampler reads a copy of the weights while the learner moves them; engines have their own."""
        return self.asynchronous.staleness > 0 and self.engine.kind == "hf"

    @property
    def concurrent_groups(self) -> int:
        """Most groups under way at once; a synchronous step plays all of its own."""
        rollout, ahead = self.rollout, self.asynchronous
        if ahead.staleness == 0 or (rollout.workers and not ahead.concurrent):
            return rollout.questions * rollout.group_size * (ahead.staleness + 1)
        return ahead.concurrent or 2 * rollout.questions


def guides(sampler: TaskSampler) -> bool:
    """Whether the sampler has some episodes played with guidance."""
    return isinstance(sampler, GuidingSampler) and sampler.guides

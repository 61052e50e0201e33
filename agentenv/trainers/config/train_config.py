"""The configuration of a training run: a TOML preset plus dotted overrides. Importable without torch."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from agentenv.core.validation import Frozen
from agentenv.data.sources import OWN, SourceConfig, check_draw, check_source, held_out_worlds
from agentenv.evaluation.results import measure_of
from agentenv.evaluation.task_env import EnvConfig, SearchConfig, known_retriever
from agentenv.policies.engine import EngineConfig
from agentenv.tracking import check_tracker
from agentenv.trainers.addresses import known_address
from agentenv.trainers.credit.estimators import get_estimator
from agentenv.trainers.selfplay.games import get_game
from agentenv.trainers.strategies.strategies import IN_CONTEXT, get_strategy
from agentenv.trainers.task_sampling.samplers import GatedSampler, TaskSampler, get_sampler

_LARGEST_RATE = 1e30  # beyond, Adam's own numbers leave the range of float32


class RolloutSettings(Frozen):
    """How episodes are sampled in training."""

    questions: int = Field(16, ge=1)
    """Questions an optimiser step."""
    group_size: int = Field(8, ge=2)
    """Episodes a question; at least 2, or every advantage is 0."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature; the loss divides logits by the same number."""
    turn_tokens: int = Field(48, ge=1)
    """Tokens that the policy may sample in one turn."""
    context_tokens: int = Field(512, ge=2)
    """Tokens of prompt, actions and observations together; an episode ends before it overflows."""
    deterministic: bool = True
    """Batches are formed by episode index: equal seed, machine and thread count give equal files."""
    deadline_s: float = Field(600.0, gt=0)
    """Seconds that one call of policy or environment may take."""
    workers: int = Field(0, ge=0)
    """Environments that play at once in training, whatever their groups: one whose episode has ended begins the next that
    waits, and no group keeps them for its slowest episode (DART). 0 gives every episode one."""
    strategy: str = "plain"
    """Name of the rollout strategy: how the episodes of a question become its group."""
    strategy_options: dict[str, Any] = Field(default_factory=dict)
    """Its options by name; ``docs/rollouts.md`` in the repository lists them."""
    sampler: str = "uniform"
    """Name of the task sampler: which questions are played and how often, within ``questions`` times ``group_size``
    episodes a step."""
    sampler_options: dict[str, Any] = Field(default_factory=dict)
    """Its options by name; ``docs/sampling.md`` in the repository lists them."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        get_strategy(self.strategy, self.strategy_options)
        get_sampler(self.sampler, self.sampler_options)
        return self


class CorrectionSettings(Frozen):
    """What is done about tokens that other weights or another context sampled."""

    mode: Literal["none", "truncate", "mask"] | None = None
    """``truncate`` weighs by min(w, high), w the proximal over the sampler's probability; ``mask`` by w within
    [low, high] and 0 outside. None is ``truncate`` where the sampler's log-probs are not those of the learner (asynchronous
    training, an engine, ``precision = "bfloat16"``) and ``none`` otherwise."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """w of the token, the product over its row, or the geometric mean over its row."""
    low: float = Field(0.0, ge=0)
    """Lower bound of ``mask``."""
    high: float = Field(2.0, gt=0)
    """Upper bound."""
    reject_above: float | None = Field(None, gt=0)
    """Tokens whose divergence from the sampler is larger leave the loss, not its denominator; None rejects none."""
    divergence: Literal["k1", "k2", "k3"] = "k3"
    """Estimate of that divergence."""
    reduce: Literal["token", "sum", "mean", "max"] = "mean"
    """Judges each token, or its whole row."""
    off_context: Literal["recompute", "weight", "rescore", "ratio"] | None = None
    """Tokens sampled under another context: taken for on-policy, weighed one by one by min(p(now) / p(sampled), high),
    scored again by the policy where they stand now, one forward pass an episode, or with p(sampled) as the denominator of
    their ratio (Guide). None is ``weight`` where recorded log-probs are weighed at all, and ``recompute`` otherwise."""
    ess_base: float | None = Field(None, gt=0)
    """The step size is scaled by sqrt(min(1, effective sample / base)) (VCPO, base 1); None leaves it."""

    @property
    def weighs(self) -> bool:
        """Whether recorded log-probs enter a weight."""
        weighted = self.mode not in (None, "none")
        return weighted or self.reject_above is not None or self.ess_base is not None


class OptimizationConfig(Frozen):
    """How the weights are moved."""

    steps: int = Field(100, ge=1)
    """Optimiser steps; one for each batch of rollouts."""
    learning_rate: float = Field(1e-4, gt=0, le=_LARGEST_RATE)
    """Adam step size, constant after the warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear warm-up; 0 starts at full size."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """The gradient is scaled down to this norm."""
    updates: int = Field(1, ge=1)
    """Optimiser steps on each batch of rollouts."""
    estimator: str = "group_relative"
    """Name of the advantage estimator."""
    estimator_options: dict[str, Any] = Field(default_factory=dict)
    """Its options by name; ``docs/credit.md`` in the repository lists them."""
    objective: str = "ppo_clip"
    """Name of the loss."""
    objective_options: dict[str, Any] = Field(default_factory=dict)
    """Its options by name; ``docs/credit.md`` in the repository lists them."""
    clip_low: float | None = Field(None, ge=0)
    """How far the ratio may fall below 1; None takes the objective's own bound (0.2 for ``ppo_clip``)."""
    clip_high: float | None = Field(None, ge=0)
    """How far the ratio may rise above 1; None takes the objective's own bound (0.28 for ``ppo_clip``)."""
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum", "constant", "token_sum"] | None = None
    """How token losses become one number, over the whole step; ``constant`` divides by episodes times ``context_tokens``.
    None takes the objective's own (``token_mean``; ``sequence_mean`` for ``gspo``)."""
    proximal: Literal["sampler", "recompute", "interpolate"] | None = None
    """Log-probs that ratios are formed with: the sampler's own, the learner's at the start of the update, or a way between
    the two by version (AReaL). None is ``recompute`` (decoupled PPO) where the sampler's log-probs are not those of the
    learner (asynchronous training, an engine, ``precision = "bfloat16"``) and ``sampler`` otherwise."""
    correction: CorrectionSettings = CorrectionSettings()
    """Weights for tokens that other weights sampled; with ``proximal`` other than ``sampler`` (decoupled PPO)."""
    supervised_rate: float = Field(1e-5, gt=0, le=_LARGEST_RATE)
    """Step size of a step of its own on the demonstrations that a strategy added (ReLIFT), after that on the episodes."""
    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the penalty towards the initial policy; 0 keeps no reference model."""
    kl: Literal["k1", "k2", "k3", "k3_corrected"] = "k3"
    """Its estimator."""
    ace_alpha: float = Field(0.0, ge=0)
    """Strength of ACE's push against overconfident errors; above 0 keeps a reference model."""
    ace_cap: float = Field(5.0, gt=0)
    """Bound, in nats a token, on the confidence that ACE counts."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """Weight of an entropy bonus, in nats a token."""
    overlong_buffer: int = Field(0, ge=0)
    """Last tokens of ``context_tokens`` over which a penalty on long episodes grows (DAPO); 0 gives none."""
    overlong_factor: float = Field(1.0, ge=0)
    """Size of that penalty at the limit."""
    answer_penalty: float = Field(0.0, ge=0)
    """Subtracted from the reward of an episode that ended without an answer."""
    novelty: float = Field(0.0, ge=0)
    """Strength of XRPO's bonus on positive advantages of episodes that were unlikely in their group (2.5 there); 0 gives
    none."""
    novelty_cap: float = Field(0.5, ge=0)
    """Most of that bonus, in units of the advantage."""
    micro_tokens: int = Field(8192, ge=1)
    """Padded tokens of one forward pass; bounds memory."""
    padding: float = Field(0.05, ge=0, le=1)
    """Largest share of padding in one forward pass: rows of other lengths go into another one; 1 sets no bound. Changes the
    order of sums and nothing else."""
    gradient_checkpointing: bool = False
    """Layers keep their inputs alone and compute the rest again in the backward pass: less memory, a third more time."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the learner's multiplications; weights stay in float32. With ``bfloat16`` the sampler's log-probs differ a little
    from the learner's, which ``proximal`` and ``correction.mode`` then allow for unless they are named."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        get_estimator(self.estimator, self.estimator_options)
        return self

    def resolved(self, apart: bool) -> Self:
        """These settings with what None stands for in ``proximal``, ``correction.mode`` and ``correction.off_context``.

        Args:
            apart: Whether the sampler's log-probs are not those that the learner would compute.
        """
        mode = self.correction.mode or ("truncate" if apart and self.proximal != "sampler" else "none")
        correction = self.correction.model_copy(update={"mode": mode})
        off_context = correction.off_context or ("weight" if correction.weighs else "recompute")
        correction = correction.model_copy(update={"off_context": off_context})
        proximal = self.proximal or ("recompute" if apart else "sampler")
        return self.model_copy(update={"proximal": proximal, "correction": correction})


class LoraSettings(Frozen):
    """Adapters that are trained in place of all weights; ``policies/lora.py``."""

    rank: int = Field(0, ge=0)
    """Rank of what is added to a layer's weights; 0 trains all weights."""
    alpha: int = Field(32, ge=1)
    """What is added is multiplied by alpha / rank."""
    modules: tuple[str, ...] = ()
    """Last names of the linear layers that are adapted, such as ``["q_proj", "v_proj"]``; none named is all but the output
    layer."""

    @model_validator(mode="after")
    def _used(self) -> Self:
        if self.modules and not self.rank:
            raise ValueError(f"modules names {list(self.modules)}, and rank=0 adapts none: set rank above 0")
        return self


class AsynchronousSettings(Frozen):
    """Rollouts that go on while the learner learns."""

    staleness: int = Field(0, ge=0)
    """Versions that the weights may have moved on between the beginning of an episode and its training (AReaL); 0 is
    synchronous training, where a step plays its own episodes and waits for them."""
    concurrent: int = Field(0, ge=0)
    """Groups under way at once; 0 is twice ``rollout.questions`` (APRIL), or no bound where ``rollout.workers`` sets one.
    Above ``questions`` the learner takes the groups that are complete first; at ``questions`` times ``staleness`` + 1 it
    trains on them in the order of their draw."""


class ClusterSettings(Frozen):
    """Workers of a Ray cluster that play the episodes of training, each with a policy and an environment of its own."""

    address: Annotated[str, AfterValidator(known_address)] = ""
    """``HOST:PORT`` of the head; ``local`` starts a cluster of this machine for the run; empty plays in this process."""
    workers: int = Field(2, ge=1)
    """How many; one that is lost is replaced where there is room."""
    cpus: float = Field(1.0, gt=0)
    """Processors that a worker takes up in the cluster; ``threads`` says what it computes with."""
    gpus: float = Field(0.0, ge=0)
    """GPUs that a worker takes up, for its engines."""
    start_s: float = Field(600.0, gt=0)
    """Seconds in which a worker must be up; where none is up for so long the run ends."""
    deadline_s: float = Field(3600.0, gt=0)
    """Seconds that one group may take; a worker that is late with it counts as lost."""


class EvaluationSettings(Frozen):
    """Evaluation during and around training; always greedy, and without a rollout strategy unless one is named."""

    every: int = Field(10, ge=0)
    """Steps between two evaluations on the dev questions; 0 makes none."""
    scorers: tuple[str, ...] = ()
    """Scorers of the evaluations before and after, the first is the headline; ``reward`` is the environment's own outcome.
    None named takes those that the environment declares."""
    on_training_tasks: bool = False
    """Whether a run may be tested on tasks that it learns from, which is refused otherwise."""
    bounds: bool = True
    """Whether the scripted expert, and where the environment searches closed book and oracle passages, are measured on the
    test questions."""
    strategy: str = "plain"
    """A strategy of one trajectory a start, such as ``rollback``, with which the evaluations before and after are made once
    more beside the plain ones; ``plain`` makes none."""
    strategy_options: dict[str, Any] = Field(default_factory=dict)
    """Its options by name."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        get_strategy(self.strategy, self.strategy_options)
        for scorer in self.scorers:
            measure_of(scorer)
        return self


class SimulationSettings(Frozen):
    """What training searches in place of ``search``; evaluations never do."""

    retriever: str = ""
    """Its spec, such as ``simulated:hf:PATH``; empty searches ``search``."""
    real: tuple[float, float] = (0.0, 0.0)
    """Share of the training episodes that search ``search`` all the same, at the first step and at the last; linear in
    between."""

    @field_validator("retriever")
    @classmethod
    def _known_retriever(cls, retriever: str) -> str:
        return known_retriever(retriever)

    @field_validator("real")
    @classmethod
    def _shares(cls, real: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= share <= 1 for share in real):
            raise ValueError("shares lie within 0 and 1")
        return real


class GuardSettings(Frozen):
    """What is done about signs of a collapse, beyond the warning that there always is."""

    guard: bool = False
    """Whether anything is done; the first ten steps are never judged."""
    action: Literal["lower", "stop"] = "lower"
    """``lower`` multiplies the step size by ``factor``, once for each kind of sign; ``stop`` ends the training with a
    checkpoint and the evaluation after it."""
    factor: float = Field(0.1, gt=0, lt=1)
    """See ``action``."""


class SecondSettings(Frozen):
    """A second set of weights, trained beside the first."""

    roles: tuple[str, ...] = ()
    """Roles of self-play that play with it, such as ``["proposer"]``; none trains one set for all."""
    policy: str = ""
    """Where it starts, with the tokens of the first; empty starts it where the first does."""
    learning_rate: float | None = Field(None, gt=0, le=_LARGEST_RATE)
    """Step size of its own; None takes that of the first set."""


class LeagueSettings(Frozen):
    """Past versions of a self-play run, and their matrix at its end."""

    every: int = Field(0, ge=0)
    """Steps between two versions that are kept for good; 0 keeps none and plays no league."""
    games: int = Field(32, ge=1)
    """Topics that every version poses a question about."""


class TrainConfig(Frozen):
    """A training run."""

    name: str = "run"
    """What the run is called in its report."""
    seed: int = 0
    """Seeds question draws and sampling."""
    threads: int = Field(2, ge=1)
    """Threads of torch; results depend on it in the last digits."""
    policy: str = "tiny"
    """Where the policy starts: ``tiny`` or ``hf:PATH``. Where ``env.options`` names no prompt it is that of the policy's
    ``episode.json``, or else the environment's own."""
    format: Literal["inline", "template"] = "inline"
    """Inline tags within one assistant turn (Search-R1), or the chat template with tool messages."""
    env: EnvConfig = EnvConfig()
    """The environment."""
    search: SearchConfig = SearchConfig()
    """Its retriever; without effect where it searches nothing."""
    simulation: SimulationSettings = SimulationSettings()
    """A simulated search for training alone."""
    train: SourceConfig = SourceConfig()
    """Questions to learn from; by default of an invented world's split ``train``."""
    dev: SourceConfig = SourceConfig()
    """Questions of the evaluations during training; by default of an invented world's split ``dev``."""
    test: SourceConfig = SourceConfig()
    """Questions of the evaluations before and after; by default of an invented world's split ``test``."""
    rollout: RolloutSettings = Field(default_factory=RolloutSettings)  # it imports its methods
    """Sampling."""
    asynchronous: AsynchronousSettings = AsynchronousSettings()
    """Rollouts ahead of the learner."""
    engine: EngineConfig = EngineConfig()
    """Who samples."""
    cluster: ClusterSettings = ClusterSettings()
    """Other machines that play."""
    optimization: OptimizationConfig = Field(default_factory=OptimizationConfig)
    """Learning."""
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
    """Steps between two checkpoints; the last two are kept."""
    trajectories_every: int = Field(10, ge=0)
    """Steps between two dumps of all trajectories of a step; 0 keeps none."""
    tracker: str = ""
    """``tensorboard`` (in the run's folder), ``wandb:PROJECT`` or ``mlflow:EXPERIMENT``; empty tracks nowhere else."""

    @model_validator(mode="before")
    @classmethod
    def _held_out(cls, values: Any) -> Any:
        return held_out_worlds(values)

    @field_validator("train", "dev", "test")
    @classmethod
    def _known_questions(cls, source: SourceConfig) -> SourceConfig:
        check_source(source.dataset, None if source.dataset == OWN else source.split, source.data)
        return check_draw(source)

    @field_validator("search")
    @classmethod
    def _known_search(cls, search: SearchConfig) -> SearchConfig:
        known_retriever(search.retriever)
        return search

    @field_validator("tracker")
    @classmethod
    def _known_tracker(cls, tracker: str) -> str:
        if tracker:
            check_tracker(tracker)
        return tracker

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
            roles = {turn.role for turn in get_game(rollout.strategy_options.get("game", "ssp")).turns}
            if unknown := sorted(set(self.second.roles) - roles):
                raise ValueError(f"second.roles names {unknown}; the game has {sorted(roles)}")
        if self.engine.urls and self.engine.kind != "vllm":
            raise ValueError("engine.urls are vLLM servers: set engine.kind to 'vllm'")
        if self.second.roles and self.asynchronous.staleness:
            raise ValueError(
                "a second set of weights is trained synchronously: set asynchronous.staleness to 0"
            )
        if self.engine.kind == "vllm" and rollout.deterministic:
            raise ValueError(
                "engine.kind='vllm' forms batches by arrival, which rollout.deterministic rules out: set it to false"
            )
        sampler = get_sampler(rollout.sampler, rollout.sampler_options)
        if self.cluster.address and (reason := self._keeps_home(sampler)):
            raise ValueError(f"episodes cannot be played in a cluster: {reason}")
        if self.asynchronous.staleness and rollout.deterministic:
            raise ValueError(
                "rollout.deterministic lets every episode wait for the slowest, and asynchronous training for none: set it "
                "to false, or asynchronous.staleness to 0"
            )
        if rollout.workers and rollout.deterministic:
            raise ValueError(
                "rollout.workers lets episodes begin as others end, and rollout.deterministic all at once: set it to false, "
                "or rollout.workers to 0"
            )
        learning = self.learning
        if learning.correction.weighs and learning.proximal == "sampler":
            raise ValueError(
                "optimization.correction compares the sampler's log-probs with the learner's own: set "
                "optimization.proximal to 'recompute' or 'interpolate'"
            )
        if sampler.replays and learning.proximal != "sampler" and learning.correction.mode == "none":
            raise ValueError(
                f"rollout.sampler={rollout.sampler!r} trains on episodes of earlier weights, which "
                f"optimization.proximal={learning.proximal!r} would take for those of the present ones: set it to "
                "'sampler', or optimization.correction.mode to 'truncate' or 'mask'"
            )
        if source := self._unweighable(sampler):
            raise ValueError(
                f"{source} trains tokens that were sampled under another context, which a correction cannot weigh with "
                f"optimization.correction.off_context={learning.correction.off_context!r}: set it to 'weight', "
                f"or leave it out"
            )
        return self

    def _unweighable(self, sampler: TaskSampler) -> str:
        """Whose tokens of another context cannot be weighed under ``correction.off_context``; empty where nobody's."""
        off_context, strategy = self.learning.correction.off_context, self.rollout.strategy
        if not self.learning.correction.weighs or off_context == "weight":
            return ""
        if off_context != "rescore" and strategy not in IN_CONTEXT:
            return f"rollout.strategy={strategy!r}"
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
    def learning(self) -> OptimizationConfig:
        """``optimization`` with what None stands for in this run."""
        return self.optimization.resolved(apart=bool(self.apart))

    @property
    def apart(self) -> list[str]:
        """Why the log-probs that the sampler records are not those that the learner would compute; empty where they are."""
        reasons = {
            f"asynchronous.staleness={self.asynchronous.staleness}": self.asynchronous.staleness > 0,
            f"engine.kind={self.engine.kind!r} in {self.engine.dtype}": self.engine.kind != "hf",
            f"optimization.precision={self.optimization.precision!r}": self.optimization.precision
            != "float32",
        }
        return [reason for reason, holds in reasons.items() if holds]

    @property
    def correction_note(self) -> str:
        """What is done about that, as a sentence; empty where there is nothing to be done."""
        if not self.apart:
            return ""
        learning = self.learning
        how = learning.correction
        weighed = f"weighs tokens by correction.mode={how.mode!r}, level={how.level!r}, high={how.high:g}"
        done = weighed if how.mode != "none" else "weighs no token for it (correction.mode='none')"
        return (
            f"the sampler's log-probs are not the learner's ({', '.join(self.apart)}): the loss takes "
            f"optimization.proximal={learning.proximal!r} and {done}"
        )

    @property
    def concurrent_groups(self) -> int:
        """Most groups under way at once; a synchronous step plays all of its own."""
        rollout, ahead = self.rollout, self.asynchronous
        if ahead.staleness == 0 or (rollout.workers and not ahead.concurrent):
            return rollout.questions * rollout.group_size * (ahead.staleness + 1)
        return ahead.concurrent or 2 * rollout.questions

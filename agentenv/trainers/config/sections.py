"""The sections of a training run's configuration. Importable without torch."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from agentenv.core.episodes import EpisodeBudgets
from agentenv.core.model_families import get_family
from agentenv.core.validation import Frozen
from agentenv.data.sources import (
    OWN,
    SourceConfig,
    TrainSourceConfig,
    check_draw,
    check_source,
    check_weights,
    held_out_worlds,
)
from agentenv.evaluation.llm_judge import check_judge
from agentenv.evaluation.results import load_measure
from agentenv.evaluation.task_env import EnvConfig, SearchConfig, known_retriever
from agentenv.trainers.config.addresses import known_address
from agentenv.trainers.strategies.strategies import evaluation_conflict, get_strategy
from agentenv.trainers.task_sampling.samplers import get_sampler

_LARGEST_RATE = 1e30  # beyond, Adam's own numbers leave the range of float32


class ChatSettings(Frozen):
    """How prompts are rendered for a model, and its replies read, in the format ``native``."""

    family: str = ""
    """Name of the model family (``docs/chat_formats.md`` in the repository); empty reads it from the chat template."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, such as ``enable_thinking`` and ``reasoning_effort``; ``date`` is the day that it
    takes for today."""

    @field_validator("family")
    @classmethod
    def _known_family(cls, family: str) -> str:
        if family:
            get_family(family)
        return family


class RolloutSettings(EpisodeBudgets):
    """How episodes are sampled in training."""

    questions: int = Field(16, ge=1)
    """Questions an optimiser step."""
    group_size: int = Field(8, ge=2)
    """Episodes a question; at least 2, or every advantage is 0."""
    workers: int = Field(0, ge=0)
    """Environments that play at once in training. One whose episode has ended begins the next waiting episode of any group,
    so that none waits for the slowest episode of its own group (DART). 0 gives every episode an environment of its own."""
    segment_tokens: int = Field(0, ge=0)
    """Tokens that the policy samples at once in training; a longer turn goes on in further segments (UloRL). An episode that
    is stopped within a turn keeps the whole segments of it. 0 samples every turn at once."""
    strategy: str = "plain"
    """Name of the rollout strategy: how the episodes of a question become its group."""
    strategy_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the strategy by name; ``docs/rollouts.md`` in the repository lists them."""
    sampler: str = "uniform"
    """Name of the task sampler: which questions are played and how often, within ``questions`` times ``group_size``
    episodes a step."""
    sampler_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the sampler by name; ``docs/sampling.md`` in the repository lists them."""

    @field_validator("temperature")
    @classmethod
    def _divides_logits(cls, temperature: float) -> float:
        if temperature == 0:
            raise ValueError(f"training samples at a temperature above 0, not {temperature}")
        return temperature

    @model_validator(mode="after")
    def _known(self) -> Self:
        get_strategy(self.strategy, self.strategy_options)
        get_sampler(self.sampler, self.sampler_options)
        return self


class OptimizerSettings(Frozen):
    """How many steps the optimiser takes, and how large they are."""

    steps: int = Field(100, ge=1)
    """Steps of the run: batches of rollouts that are learned from."""
    learning_rate: float = Field(1e-4, gt=0, le=_LARGEST_RATE)
    """Adam step size, at its largest."""
    reference_batch: int = Field(0, ge=0)
    """Episodes of a step for which ``learning_rate`` is meant: the step size is multiplied by the root of the episodes of a
    step over this number, as BroRL does where it broadens the rollouts; 0 leaves it as it is."""
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear warm-up; 0 starts at full size."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the step size changes after the warm-up until the last of ``steps``: ``constant`` keeps it, ``linear`` and
    ``cosine`` lower it along a line and along half a cosine."""
    final_rate: float = Field(0.0, ge=0, le=1)
    """Share of ``learning_rate`` at which ``linear`` and ``cosine`` end."""
    frozen: tuple[str, ...] = ()
    """Prefixes of the names of weights that do not learn, such as ``encoder.`` of a reader or ``model.visual.`` of a vision
    model. Adapters (``lora``) freeze all but themselves without it."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0, allow_inf_nan=True)
    """The gradient is scaled down to this norm; ``inf`` leaves it as it is."""
    updates: int = Field(1, ge=1)
    """Passes over each batch of rollouts."""
    mini_batches: int = Field(1, ge=1)
    """Parts that a batch of rollouts is cut into by trajectory, at random, with an optimiser step for each part in each pass
    (PPO); 1 makes one step a pass. Ratios are formed with the weights before the first of them."""
    supervised_rate: float = Field(1e-5, gt=0, le=_LARGEST_RATE)
    """Step size of the separate steps that follow the one on the episodes: on demonstrations that a strategy added (ReLIFT),
    and on pairs of a better and a worse action (EvoCUA)."""
    preference_beta: float = Field(0.1, gt=0)
    """Beta of direct preference optimisation on pairs of actions. The value that EvoCUA used was not found."""
    supervised_batch: int = Field(0, ge=0)
    """Demonstrations that are collected, over as many steps as it takes, before a step is made on them (128 in ReLIFT); 0
    makes one on the demonstrations of each batch."""


class RewardShapingSettings(Frozen):
    """What is added to the rewards of episodes and to their advantages before the loss sees them.

    Samplers that drop groups of equal outcomes (``dapo``, ``dars``, ``ui_s1``, ``partial_states``) have dropped them
    before that.
    """

    overlong_buffer: int = Field(0, ge=0)
    """Last tokens of ``context_tokens`` over which a penalty on long episodes grows (DAPO); 0 gives none."""
    overlong_factor: float = Field(1.0, ge=0)
    """Size of that penalty at the limit."""
    answer_penalty: float = Field(0.0, ge=0)
    """Subtracted from the reward of an episode that ended without an answer."""
    relative_length: float = Field(0.0, ge=0)
    """Subtracted from a reward above 0 for each standard deviation by which its episode is longer than the successes of the
    group (Think2SQL, .1 there), .9 at most; 0 gives none."""
    novelty: float = Field(0.0, ge=0)
    """Strength of XRPO's bonus on positive advantages of correct episodes that were unlikely in their group (2.5 there); 0
    gives none."""
    novelty_cap: float = Field(0.5, ge=0)
    """Largest bonus of ``novelty``, as a share of the advantage."""
    novelty_success: float = 1.0
    """Smallest outcome, before penalties, of an episode that ``novelty`` takes for correct."""
    progress: float = Field(0.0, ge=0)
    """Credit of a turn after which the expert's next turn is likely, in standard deviations, times the share of the group
    that failed (LayerTuning of Dynamic-TreeRPO); the strategy ``tree`` measures it with ``progress``. 0 gives none."""
    progress_clip: float = Field(0.08, ge=0)
    """How much further the ratio may rise than fall in a group in which that credit has weight 1; it takes the place of
    ``clip_high`` there."""


class LoraSettings(Frozen):
    """Adapters that are trained in place of all weights; ``policies/lora.py``."""

    rank: int = Field(0, ge=0)
    """Rank of what is added to a layer's weights; 0 trains all weights."""
    alpha: int = Field(32, ge=1)
    """The output of the adapters is multiplied by alpha / rank."""
    modules: tuple[str, ...] = ()
    """Last names of the linear layers that are adapted, such as ``["q_proj", "v_proj"]``. An empty list adapts all but the
    output layer."""
    quantization: Literal["none", "nf4"] = "none"
    """Whether the linear layers below the adapters hold their weights in 4 bits (QLoRA): with ``nf4`` all but the output
    layer do; it needs bitsandbytes and one process."""

    @model_validator(mode="after")
    def _used(self) -> Self:
        if self.modules and not self.rank:
            raise ValueError(f"modules names {list(self.modules)}, and rank=0 adapts none: set rank above 0")
        if self.quantization != "none" and not self.rank:
            raise ValueError(
                f"quantization={self.quantization!r} is for a base below adapters: set rank above 0"
            )
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
    abort: bool = False
    """Whether groups that are not complete when a step has its batch are stopped while the learner learns; they go on first
    in the next step, from the tokens that they have, and a step begins no more than ``concurrent`` groups (APRIL). Otherwise
    they go on while it learns, and a group that ends makes room for another one."""

    @model_validator(mode="after")
    def _goes_on_later(self) -> Self:
        if self.abort and not self.staleness:
            raise ValueError(
                "abort=true continues stopped groups in a later step, which staleness=0 forbids: set staleness above 0"
            )
        return self


class ClusterSettings(Frozen):
    """Workers of a Ray cluster that play the episodes of training, each with a policy and an environment of its own."""

    address: Annotated[str, AfterValidator(known_address)] = ""
    """``HOST:PORT`` of the head; ``local`` starts a cluster of this machine for the run; empty plays in this process."""
    workers: int = Field(2, ge=1)
    """Number of workers; one that is lost is replaced if the cluster has room for another."""
    cpus: float = Field(1.0, gt=0)
    """Processors that a worker takes up in the cluster; ``threads`` says what it computes with."""
    gpus: float = Field(0.0, ge=0)
    """GPUs that a worker takes up, for its engines."""
    start_s: float = Field(600.0, gt=0)
    """Seconds that a worker may take to start; if no worker runs for so long, the run ends."""
    deadline_s: float = Field(3600.0, gt=0)
    """Seconds that one group may take; a worker that is late with it counts as lost."""


class EvaluationSettings(Frozen):
    """Evaluations before, during and after training; they use no rollout strategy unless one is named."""

    temperature: float = Field(0.0, ge=0)
    """Sampling temperature of these evaluations; 0 always takes the most likely token (R3L: .4)."""
    every: int = Field(10, ge=0)
    """Steps between two evaluations on the dev questions; 0 makes none."""
    keep_best: bool = False
    """Whether the policy with the best score on the dev questions so far is kept in ``best/``, ready to be loaded; of equal
    scores the first counts."""
    scorers: tuple[str, ...] = ()
    """Scorers of the evaluations before and after, the first is the headline; ``reward`` is the environment's own outcome.
    None named takes those that the environment declares."""
    judge: str = ""
    """``openai:MODEL@URL`` says of every answer of the evaluations before and after whether it is right; its grades stand in
    their results under ``judged``, beside the scores. Empty asks nobody."""
    rubric: str = "equivalence"
    """What the judge is told: ``equivalence``, ``simpleqa`` or ``browsecomp``."""
    on_training_tasks: bool = False
    """Whether a run may be tested on tasks that it learns from, which is refused otherwise."""
    bounds: bool = True
    """Whether the bounds of the score are measured on the test questions: the scripted expert and, where the environment
    searches, the policy without a search (closed book) and with the supporting documents (oracle)."""
    strategy: str = "plain"
    """A strategy of one trajectory a start, such as ``rollback``, with which the evaluations before and after are made once
    more beside the plain ones; ``plain`` makes none."""
    strategy_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the strategy by name."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        if sentence := evaluation_conflict(self.strategy, self.strategy_options):
            raise ValueError(sentence)
        for scorer in self.scorers:
            load_measure(scorer)
        if self.judge:
            check_judge(self.judge, self.rubric)
        if self.keep_best and not self.every:
            raise ValueError("keep_best compares evaluations on the dev questions: set every above 0")
        return self

    def of_further_environment(self, scorers: tuple[str, ...]) -> Self:
        """The evaluations in an environment beside the run's own: plain ones, without a judge."""
        return self.model_copy(
            update={"scorers": scorers, "judge": "", "strategy": "plain", "strategy_options": {}}
        )


class SimulationSettings(Frozen):
    """A simulated retriever that training searches in place of ``search``; evaluations always search ``search``."""

    retriever: str = ""
    """Spec of the retriever, such as ``simulated:hf:PATH``; empty searches ``search``."""
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
            raise ValueError(f"both shares must be within 0 and 1, not {list(real)}")
        return real


class EnvironmentSections(Frozen):
    """Settings that every environment of a run has of its own."""

    env: EnvConfig = EnvConfig()
    """The environment."""
    search: SearchConfig = SearchConfig()
    """The retriever of the environment; without effect where the environment searches nothing."""
    simulation: SimulationSettings = SimulationSettings()
    """A simulated search for training alone."""
    train: TrainSourceConfig = TrainSourceConfig()
    """Questions to learn from; by default of an invented world's split ``train``."""
    dev: SourceConfig = SourceConfig()
    """Questions of the evaluations during training; by default of an invented world's split ``dev``."""
    test: SourceConfig = SourceConfig()
    """Questions of the evaluations before and after; by default of an invented world's split ``test``."""

    @model_validator(mode="before")
    @classmethod
    def _held_out(cls, values: Any) -> Any:
        return held_out_worlds(values)

    @field_validator("train", "dev", "test")
    @classmethod
    def _known_questions(cls, source: SourceConfig) -> SourceConfig:
        check_source(source.dataset, None if source.dataset == OWN else source.split, source.data)
        return check_draw(source)

    @field_validator("train")
    @classmethod
    def _known_weights(cls, source: TrainSourceConfig) -> TrainSourceConfig:
        return check_weights(source)

    @field_validator("search")
    @classmethod
    def _known_search(cls, search: SearchConfig) -> SearchConfig:
        known_retriever(search.retriever)
        return search


class EnvironmentSettings(EnvironmentSections):
    """One more environment that the policy is trained in, beside the run's own."""

    share: float = Field(gt=0, lt=1)
    """Share of the questions of a step that this environment poses; the run's own poses what the others leave."""
    scorers: tuple[str, ...] = ()
    """What its evaluations are scored by, the first being its headline; empty takes those of the environment."""

    @field_validator("scorers")
    @classmethod
    def _known_scorers(cls, scorers: tuple[str, ...]) -> tuple[str, ...]:
        for scorer in scorers:
            load_measure(scorer)
        return scorers


class GuardSettings(Frozen):
    """What the run does about signs that the policy collapses, besides the warning that it always gives."""

    guard: bool = False
    """Whether the guard acts. In the first nine steps it acts only on figures that are no finite numbers."""
    action: Literal["lower", "stop"] = "lower"
    """``lower`` multiplies the step size by ``factor``, once for each kind of sign; ``stop`` ends the training with a
    checkpoint and the evaluation after it."""
    factor: float = Field(0.1, gt=0, lt=1)
    """Factor by which ``lower`` multiplies the step size."""


class SecondSettings(Frozen):
    """A second set of weights, trained beside the first."""

    roles: tuple[str, ...] = ()
    """Roles of self-play that use the second set, such as ``["proposer"]``; an empty list trains one set for all roles."""
    policy: str = ""
    """The policy that it starts from, which has the same tokens as the first set; empty starts it where the first set
    does."""
    learning_rate: float | None = Field(None, gt=0, le=_LARGEST_RATE)
    """Step size of the second set; None takes that of the first."""


class LeagueSettings(Frozen):
    """Past versions of a self-play policy, which play against each other at the end of the run."""

    every: int = Field(0, ge=0)
    """Steps between two versions that are kept for good; 0 keeps none and plays no league."""
    games: int = Field(32, ge=1)
    """Topics that every version poses a question about."""

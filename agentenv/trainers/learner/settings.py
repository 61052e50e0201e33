"""The sections of a configuration that the learner reads: loss, correction, memory. Importable without torch."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from agentenv.core.validation import Frozen
from agentenv.trainers.credit.estimators import get_estimator


class CorrectionSettings(Frozen):
    """What is done about tokens that other weights or another context sampled."""

    mode: Literal["none", "truncate", "mask"] | None = None
    """``truncate`` weighs by min(w, high), w the proximal over the sampler's probability; ``mask`` by w within
    [low, high] and 0 outside. None is ``truncate`` where the sampler's log-probs are not those of the learner (asynchronous
    training, an engine, weights or ``memory.precision`` in bfloat16) and ``proximal`` is not ``sampler``, and ``none``
    otherwise."""
    level: Literal["token", "sequence", "geometric"] = "token"
    """Whether w is of the token (``token``), the product over its row (``sequence``), or the geometric mean over it
    (``geometric``)."""
    low: float = Field(0.0, ge=0)
    """Lower bound of ``mask``."""
    high: float = Field(2.0, gt=0, allow_inf_nan=True)
    """Upper bound; ``inf`` is none."""
    reject_above: float | None = Field(None, gt=0)
    """Tokens whose divergence from the sampler is larger leave the loss, not its denominator; None rejects none."""
    divergence: Literal["k1", "k2", "k3"] = "k3"
    """Estimate of that divergence."""
    reduce: Literal["token", "sum", "mean", "max"] = "mean"
    """``token`` judges each token, the others its whole row by the sum, mean or largest of its divergences."""
    off_context: Literal["recompute", "weight", "rescore", "ratio"] | None = None
    """What is done with tokens that were sampled under another context. ``recompute`` takes them for on-policy. ``weight``
    weighs each by min(p(now) / p(sampled), high). ``rescore`` has the policy score them again where they stand now, by one
    forward pass an episode. ``ratio`` takes p(sampled) as the denominator of their ratio (Guide). None is ``weight`` where
    recorded log-probs are weighed at all, and ``recompute`` otherwise."""
    ess_base: float | None = Field(None, gt=0)
    """The step size is scaled by sqrt(min(1, effective sample / base)) (VCPO, base 1); None leaves it."""
    ess_rule: Literal["sqrt", "linear"] = "sqrt"
    """``linear`` scales it by min(1, effective sample / base)."""

    @property
    def weighs(self) -> bool:
        """Whether recorded log-probs enter a weight."""
        weighted = self.mode not in (None, "none")
        return weighted or self.reject_above is not None or self.ess_base is not None


class LossSettings(Frozen):
    """What is minimised: credit, the loss of a token, and the penalties beside it."""

    estimator: str = "group_relative"
    """Name of the advantage estimator."""
    estimator_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the estimator by name; ``docs/credit.md`` in the repository lists them."""
    objective: str = "ppo_clip"
    """Name of the loss."""
    objective_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the objective by name; ``docs/credit.md`` in the repository lists them."""
    clip_low: float | None = Field(None, ge=0)
    """How far the ratio may fall below 1; None takes the objective's own bound (0.2 for ``ppo_clip``)."""
    clip_high: float | None = Field(None, ge=0, allow_inf_nan=True)
    """How far the ratio may rise above 1, ``inf`` for as far as it does; None takes the objective's own bound (0.28 for
    ``ppo_clip``)."""
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum", "constant", "token_sum"] | None = None
    """How token losses become one number, over the whole step; ``constant`` divides by episodes times ``context_tokens``.
    None takes the objective's own (``token_mean``; ``sequence_mean`` for ``gspo``)."""
    proximal: Literal["sampler", "recompute", "interpolate"] | None = None
    """Log-probs that ratios are formed with: the sampler's own, the learner's at the start of the update, or a way between
    the two by version (AReaL). None is ``recompute`` (decoupled PPO) where the sampler's log-probs are not those of the
    learner (asynchronous training, an engine, weights or ``memory.precision`` in bfloat16) and ``sampler`` otherwise."""
    correction: CorrectionSettings = CorrectionSettings()
    """Weights for tokens that other weights sampled; with ``proximal`` other than ``sampler`` (decoupled PPO)."""
    kl_coefficient: float = Field(0.0, ge=0)
    """Weight of the penalty towards the initial policy; 0 keeps no reference model."""
    kl: Literal["k1", "k2", "k3", "k3_corrected"] = "k3"
    """Estimator of that penalty (Schulman 2020)."""
    ace_alpha: float = Field(0.0, ge=0)
    """Strength of ACE's push against overconfident errors; above 0 keeps a reference model."""
    ace_cap: float = Field(5.0, gt=0)
    """Bound, in nats, on the confidence that ACE counts."""
    ace_scale: Literal["mean", "sum", "sqrt"] = "mean"
    """How ACE's confidence is taken over the n tokens of a row: their mean, their sum, or the sum over the root of n."""
    entropy_coefficient: float = Field(0.0, ge=0)
    """Weight of an entropy bonus, in nats a token."""
    mastered_probability: float | None = Field(None, gt=0, le=1)
    """Probability from which on a token of positive credit is left out of the loss, and not out of its denominator, where
    the mean entropy of its row is below ``mastered_entropy`` (UloRL, .99); None leaves out none."""
    mastered_entropy: float = Field(0.2, ge=0)
    """Mean entropy of a row, in nats, below which ``mastered_probability`` applies."""
    mask_truncated: bool = False
    """Whether episodes that ended at the limit of their turns or tokens are left out of the loss and its denominator (DAPO);
    they take part in the statistics of their group, and ``truncated_masked`` in ``metrics.jsonl`` counts them."""
    mask_redundant: bool = False
    """Whether turns that lead back to a state in which the episode has been before get no positive credit (EvoCUA), and
    ``redundant_masked`` counts them; the environment must name its states (``anchor_key``)."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        get_estimator(self.estimator, self.estimator_options)
        return self

    @property
    def compares_tokens(self) -> bool:
        """Whether the loss of a token compares with the initial policy."""
        return self.kl_coefficient > 0 or self.ace_alpha > 0

    @property
    def needs_reference(self) -> bool:
        """Whether the loss of a token or its credit (``reinforce_pp``) does."""
        return self.compares_tokens or self.estimator_options.get("kl_coefficient", 0.0) > 0

    def resolved(self, mismatch: bool) -> Self:
        """These settings with what None stands for in ``proximal``, ``correction.mode`` and ``correction.off_context``.

        Args:
            mismatch: Whether the sampler's log-probs are not those that the learner would compute.
        """
        mode = self.correction.mode or ("truncate" if mismatch and self.proximal != "sampler" else "none")
        correction = self.correction.model_copy(update={"mode": mode})
        off_context = correction.off_context or ("weight" if correction.weighs else "recompute")
        correction = correction.model_copy(update={"off_context": off_context})
        proximal = self.proximal or ("recompute" if mismatch else "sampler")
        return self.model_copy(update={"proximal": proximal, "correction": correction})


class MemorySettings(Frozen):
    """How the learner's forward and backward passes use memory."""

    micro_tokens: int = Field(8192, ge=1)
    """Padded tokens of one forward pass; bounds memory."""
    padding: float = Field(0.05, ge=0, le=1)
    """Largest share of padding in one forward pass: rows of other lengths go into another one; 1 sets no bound. Changes the
    order of sums and nothing else."""
    gradient_checkpointing: bool = False
    """Whether layers keep only their inputs and compute the rest again in the backward pass, which needs less memory and a
    third more time."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Number format of the learner's multiplications; weights stay in float32. With ``bfloat16`` the sampler's log-probs
    differ a little from the learner's, which ``loss.proximal`` and ``loss.correction.mode`` then allow for unless they
    are named."""
    optimizer: Literal["adamw", "adamw_8bit"] = "adamw"
    """``adamw_8bit`` keeps Adam's two moments in 8 bits in place of 32 (Dettmers et al. 2022); it needs bitsandbytes and one
    process."""
    master_weights: bool = True
    """Whether weights in bfloat16 have float32 copies that Adam moves; without, steps that are small beside a weight are
    rounded away. Without effect on weights in float32."""
    offload_optimizer: bool = False
    """Whether Adam's moments and float32 copies of the weights stand in the memory of the host, which then makes the step;
    without effect where the model is on the CPU."""
    offload_activations: bool = False
    """Whether what a forward pass keeps for the backward pass waits in the memory of the host; without effect where the
    model is on the CPU."""

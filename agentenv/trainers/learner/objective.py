"""What a learner minimises: two sections of a run and what is read from them."""

from typing import Any

from agentenv.trainers.learner.losses import Aggregation, usual_aggregation
from agentenv.trainers.learner.settings import LossSettings, MemorySettings


class Objective(LossSettings, MemorySettings):
    """What is minimised: the sections ``loss`` and ``memory`` of a run, and two numbers of its rollouts."""

    length: int = 1
    """The constant of the aggregation ``constant``."""
    temperature: float = 1.0
    """Logits are divided by it, as they were in sampling."""

    @property
    def surrogate_options(self) -> dict[str, Any]:
        """Keyword arguments of the loss of a token: the clip bounds that are named, and ``objective_options``."""
        bounds = {"clip_low": self.clip_low, "clip_high": self.clip_high}
        return {name: bound for name, bound in bounds.items() if bound is not None} | self.objective_options

    @property
    def keeps_zero_variance(self) -> bool:
        """Whether rows without credit matter: a term acts on them, or the effective sample counts them."""
        pulls = self.kl_coefficient > 0 or self.entropy_coefficient > 0
        return pulls or self.correction.ess_base is not None

    @property
    def averaging(self) -> Aggregation:
        """The aggregation, the objective's own where none is named."""
        return self.aggregation or usual_aggregation(self.objective)

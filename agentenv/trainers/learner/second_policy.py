"""A second set of weights, for some roles of self-play: its own policy, its own learner, the same tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.core.trajectory import Trajectory
from agentenv.policies.hf import HFPolicy
from agentenv.policies.lora import load_weights, on_host, trained_state
from agentenv.policies.soundness import refuse_diverged
from agentenv.trainers.learner.learner import Learner


@dataclass
class SecondPolicy:
    """The policy that plays with the second set of weights, and the learner that trains them."""

    roles: tuple[str, ...]
    policy: HFPolicy
    learner: Learner

    def plays(self, trajectory: Trajectory) -> bool:
        """Whether the second set sampled ``trajectory``."""
        return trajectory.info.get("role") in self.roles

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimiser and version, for the checkpoint.

        Raises:
            Diverged: the weights, or the logits that they give, are not finite.
        """
        # Before anything is written: a run that resumed from such weights could never recover.
        refuse_diverged(self.policy.model, "the second set of weights")
        return {
            "weights": on_host(trained_state(self.policy.model)),
            "optimizer": on_host(self.learner.optimizer.state_dict()),
            "version": self.policy.version,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood; an empty mapping is the beginning."""
        if state:
            load_weights(self.policy.model, state["weights"])
            self.learner.optimizer.load_state_dict(state["optimizer"])
            self.policy.resumed(state["version"])


def split(
    groups: Sequence[list[Trajectory]], second: SecondPolicy | None
) -> tuple[list[list[Trajectory]], list[list[Trajectory]]]:
    """The groups of the first set of weights and those of the second; a group without members is left out."""
    if second is None:
        return list(groups), []
    first = [[t for t in group if not second.plays(t)] for group in groups]
    theirs = [[t for t in group if second.plays(t)] for group in groups]
    return [group for group in first if group], [group for group in theirs if group]

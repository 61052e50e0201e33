"""An evaluation played with a rollout strategy: one trajectory for each question, as without one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentenv.core.conversation import ConversationFormat
from agentenv.core.protocols import ChatFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.trajectory import Trajectory
from agentenv.errors import ConfigurationError
from agentenv.evaluation.runner import Roll
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import (
    NATIVE,
    RolloutStrategy,
    check_tasks,
    evaluation_conflict,
    get_strategy,
    play_groups,
)


def strategy_roll(name: str, options: Mapping[str, Any]) -> Roll:
    """What plays the episodes of a batch with the strategy ``name``.

    Raises:
        UnknownName: no such strategy, or no such option of it.
        ConfigurationError: a wrong value of an option, or a strategy that makes a group of one start.
    """
    if sentence := evaluation_conflict(name, options):
        raise ConfigurationError(sentence)
    return rollout if name == "plain" else _StrategyRoll(name, get_strategy(name, options))


@dataclass(frozen=True)
class _StrategyRoll:
    """Plays episodes like ``rollout``, with a strategy."""

    name: str
    strategy: RolloutStrategy

    async def __call__(
        self,
        specs: Sequence[EpisodeSpec],
        policy: Any,
        chat: ChatFormat,
        config: RolloutConfig,
        *,
        name: str,
    ) -> list[Trajectory]:
        """One trajectory for each of ``specs``, by a policy with a ``tokenizer``; ``name`` is the prefix of their ids.

        Raises:
            ConfigurationError: the strategy cannot play in this chat format or pose these tasks, or does not give one
                trajectory for each start.
        """
        if isinstance(chat, ConversationFormat) and self.name not in NATIVE:
            raise ConfigurationError(
                f"the strategy {self.name!r} inserts text between turns, which the chat format native cannot: take one of "
                f"{', '.join(NATIVE)}, or the format inline"
            )
        check_tasks(self.strategy, [spec.task for spec in specs])
        context = RolloutContext(policy, chat, config, policy.tokenizer.decode, name=name)
        groups = await play_groups([[spec] for spec in specs], self.strategy, context)
        if any(len(group) != 1 for group in groups):
            raise ConfigurationError(
                f"the strategy {self.name!r} does not give one trajectory for one start, which an evaluation needs; "
                "'rollback' does"
            )
        return [trajectory for group in groups for trajectory in group]

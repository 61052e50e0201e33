"""Adapter for verl: an environment as an agent loop, which takes and returns token ids.

The file of ``agent_loop_config_path`` names the loop and its environment: ``{name: agentenv, _target_:
agentenv.serving.verl.AgentenvLoop, env: agentenv/Calculator-v0, arguments: {}}``. Each row of the data set has
``agent_name="agentenv"`` and the columns of `rows.rows` in ``extra_info``. Sampled text is never tokenized again: verl's own
token builder appends the observations.

After a fault the episode is played again, up to three times in all. The fault is then raised, because verl cannot mark a
sample as having no reward.
"""

import functools
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentenv.core.env import Env
from agentenv.core.episodes import cut_reward
from agentenv.core.types import Step
from agentenv.errors import Fault, needs_extra
from agentenv.serving.rows import DatasetRow, Episodes, as_messages
from agentenv.serving.toolbox import act_by_text

TRIES = 3
_log = logging.getLogger(__name__)


@dataclass
class _Tokens:
    """The tokens of an episode so far."""

    messages: list[dict[str, Any]]
    ids: list[int]
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] | None = None
    rewards: list[float] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)


def __getattr__(name: str) -> Any:
    if name == "AgentenvLoop":
        return _make_loop()
    raise AttributeError(name)


class _LoopParts:
    """The part of the agent loop that does not depend on verl's base class."""

    episodes: Episodes
    server_manager: Any
    tokenizer: Any
    rollout_config: Any
    ct_build_initial_tokens: Any
    ct_merge_assistant_token: Any
    ct_merge_context_msg: Any

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        """Plays until the environment ends the episode or the response has its greatest length.

        Raises:
            ConfigurationError: the row does not describe an episode.
            Fault: the environment broke three times.
        """
        episode = DatasetRow.read(row.get("extra_info") or {})
        for tries in range(1, TRIES + 1):
            # Each try has a fresh environment, because a fault leaves the old one in an unknown state.
            env = self.episodes.make()
            try:
                return self._output(*await self._play_episode(env, episode, sampling_params))
            except Fault as error:
                _log.warning("try %d of %d ended in a fault: %s", tries, TRIES, error)
                if tries == TRIES:
                    raise
            finally:
                env.close()
        raise AssertionError("unreachable")

    async def _play_episode(
        self, env: Env[Any], episode: DatasetRow, sampling_params: dict[str, Any]
    ) -> tuple[_Tokens, Step | None]:
        opening, _ = await env.areset(seed=episode.seed, options=self.episodes.options(env, episode))
        messages = as_messages(opening)
        record = _Tokens(messages, await self.ct_build_initial_tokens(messages))
        request, room, step = uuid.uuid4().hex, self.rollout_config.response_length, None
        while len(record.mask) < room:
            text = await self._sample(record, request, sampling_params)
            step = await act_by_text(env, text)
            record.rewards.append(float(step.reward))
            if step.terminated or step.truncated:
                return record, step
            await self._observe(record, text, step)
        if step is not None:  # the episode was cut: the last turn gets the cut reward
            record.rewards[-1] += cut_reward(env)
        return record, step

    async def _sample(self, record: _Tokens, request: str, sampling_params: dict[str, Any]) -> str:
        """Samples a turn, appends it to ``record`` and returns its text."""
        sampled = await self.server_manager.generate(
            request_id=request, prompt_ids=record.ids, sampling_params=sampling_params
        )
        # The first answer decides whether the episode is recorded with log-probs.
        before = record.logprobs if record.mask else ([] if sampled.log_probs else None)
        merged, record.mask, record.logprobs = await self.ct_merge_assistant_token(
            record.ids,
            sampled.token_ids,
            record.mask,
            before,
            assistant_logprobs=sampled.log_probs or None,
        )
        record.ids, record.fields = list(merged.token_ids), dict(sampled.extra_fields)
        return str(self.tokenizer.decode(sampled.token_ids, skip_special_tokens=True))

    async def _observe(self, record: _Tokens, text: str, step: Step) -> None:
        """Appends the observation with mask 0."""
        said = [*record.messages, {"role": "assistant", "content": text}]
        updated = said + as_messages(step.observation)
        merged, record.mask, record.logprobs = await self.ct_merge_context_msg(
            said, updated, record.ids, record.mask, record.logprobs
        )
        record.ids, record.messages = list(merged.token_ids), updated

    def _output(self, record: _Tokens, step: Step | None) -> Any:
        from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

        room, info = self.rollout_config.response_length, step.info if step else {}
        # The last observation may exceed the response length, so ids, mask and log-probs are cut alike.
        start = len(record.ids) - len(record.mask)
        return AgentLoopOutput(
            prompt_ids=record.ids[:start],
            response_ids=record.ids[start:][:room],
            response_mask=record.mask[:room],
            response_logprobs=record.logprobs[:room] if record.logprobs else None,
            reward_score=sum(record.rewards),
            num_turns=2 * len(record.rewards),
            metrics={},
            extra_fields={
                **record.fields,
                "turn_scores": record.rewards,
                "tool_rewards": [],
                "end_reason": str(info.get("end_reason", "token_limit")),
            },
        )


@functools.cache
def _make_loop() -> type:
    with needs_extra("verl"):
        from verl.experimental.agent_loop.agent_loop import AgentLoopBase

    class AgentenvLoop(_LoopParts, AgentLoopBase):  # type: ignore[misc,unused-ignore]
        """Plays the episode that the row describes, in the environment that the configuration names.

        verl's own decorator would replace the entry of the configuration file by the class without its arguments.
        """

        def __init__(
            self, *given: Any, env: str, arguments: Mapping[str, Any] | None = None, **named: Any
        ) -> None:
            super().__init__(*given, **named)
            self.episodes = Episodes(env, arguments)

    AgentenvLoop.__qualname__ = "AgentenvLoop"  # verl imports the class by this name
    return AgentenvLoop

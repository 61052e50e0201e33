"""Measures what a policy knows without search: it has a single turn, in which it has to answer.

A policy that was trained to search would search, and would then have no answer. So if the policy samples ids, its turn
begins with the opening tag of an answer. For a model behind an endpoint, which accepts only whole messages, and for one that
calls tools natively, the prompt says that there is no search.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentenv.core.protocols import Policy
from agentenv.core.registry import env_class
from agentenv.core.types import Completion, Sampling
from agentenv.evaluation.task_env import TaskEnv, takes
from agentenv.policies.wrapper import PolicyWrapper

PROMPT = """\
Answer the question below from what you know; nothing can be searched. If you are not sure, give the answer that you think \
most likely. Write it between <answer> and </answer>, short and without explanation, as in <answer> Beijing </answer>.
Question: {question}
"""

NATIVE_PROMPT = """\
Answer the question below from what you know; nothing can be searched. If you are not sure, give the answer that you think \
most likely. Give it with the tool answer, short and without explanation.
Question: {question}
"""


def closed_book(task_env: TaskEnv, policy: Policy, *, native: bool = False) -> tuple[TaskEnv, Policy] | str:
    """Returns the questions of ``task_env`` without search, and ``policy`` made to answer; a sentence if this is impossible.

    ``native`` says that the policy answers by a native tool call.
    """
    tag = getattr(env_class(task_env.env.id), "final_tag", None)
    if tag is None or not takes(task_env.env.id, "max_turns"):
        return f"{task_env.env.id} cannot be asked without a search: it takes no max_turns or has no tag for an answer"
    if native or hasattr(policy, "chat"):  # the policy accepts messages only
        asked = (
            task_env.varied(prompt=NATIVE_PROMPT if native else PROMPT)
            if takes(task_env.env.id, "prompt")
            else task_env
        )
        return asked.varied(max_turns=0), policy
    return task_env.varied(max_turns=0), AnsweringPolicy(policy, f"<{tag}>")


class AnsweringPolicy(PolicyWrapper):
    """A policy all of whose turns begin with a given text.

    Args:
        policy: The policy that samples the rest of the turn.
        opening: The text at the beginning of each turn.
    """

    def __init__(self, policy: Policy, opening: str) -> None:
        super().__init__(policy)
        self._opening = opening
        self._ids: list[int] = self.tokenizer.encode(opening, add_special_tokens=False)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None, **images: Any
    ) -> Completion:
        """Samples the rest of the turn after the opening. The log-probs of the opening are 0.

        Raises:
            PolicyFault: the policy failed.
            ContextTooSmall: the prompt alone fills the context.
        """
        ids, room = self._ids, max(1, sampling.max_tokens - len(self._ids))
        done = await self.policy.generate(
            [*prompt_ids, *ids], replace(sampling, max_tokens=room), episode=episode, **images
        )
        given = (done.version,) * len(ids) if done.versions else ()
        return replace(
            done,
            ids=(*ids, *done.ids),
            text=self._opening + done.text,
            logprobs=((0.0,) * len(ids) + done.logprobs),
            versions=(*given, *done.versions),
        )

"""What a policy knows without any search: its first turn is the last one, and it has to answer in it.

A policy that was trained to search would search, and that would count as no answer. So the turn of a policy that samples
ids begins with the tag of an answer already written; to a model behind an endpoint, which takes whole messages only, and to
one that calls tools natively, the prompt says that nothing can be searched.
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
    """The questions of ``task_env`` without a search, and ``policy`` made to answer; a sentence where that cannot be.

    ``native`` says that the policy answers by calling a tool.
    """
    tag = getattr(env_class(task_env.env.id), "final_tag", None)
    if tag is None or not takes(task_env.env.id, "max_turns"):
        return f"{task_env.env.id} cannot be asked without a search: it takes no max_turns or has no tag for an answer"
    if native or hasattr(policy, "chat"):  # it takes messages
        asked = (
            task_env.varied(prompt=NATIVE_PROMPT if native else PROMPT)
            if takes(task_env.env.id, "prompt")
            else task_env
        )
        return asked.varied(max_turns=0), policy
    return task_env.varied(max_turns=0), AnsweringPolicy(policy, f"<{tag}>")


class AnsweringPolicy(PolicyWrapper):
    """A policy every turn of which begins with a given text.

    Args:
        policy: samples the rest.
        opening: what stands before it.
    """

    def __init__(self, policy: Policy, opening: str) -> None:
        super().__init__(policy)
        self._opening = opening
        self._ids: list[int] = self.tokenizer.encode(opening, add_special_tokens=False)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None, **images: Any
    ) -> Completion:
        """What the policy writes after the opening; log-probs of the opening are 0.

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

"""Reflectors by name: the trained policy, a verifier, or another policy."""

from collections.abc import Sequence
from functools import lru_cache

from agentenv.core.chat import InlineFormat
from agentenv.core.io.digests import PathState
from agentenv.core.protocols import ChatFormat, Policy
from agentenv.core.types import Task
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.policies.policy_spec import (
    check_reached,
    is_endpoint,
    is_program,
    make_endpoint_policy,
    make_policy,
    make_program_policy,
    policy_state,
)
from agentenv.trainers.strategies.reflection import PolicyReflector, Reflector, VerifierReflector
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.step_verifiers import VERIFIERS, ChecksTasks, find_verifier

SELF = "self"


def check_reflector(name: str, tokens: int) -> None:
    """Refuses what ``make_reflector`` could not make, before anything is loaded.

    Raises:
        UnknownName: no such reflector; carries the nearest.
        ConfigurationError: no token for a reflection.
    """
    kind, _, rest = name.partition(":")
    if name not in (SELF, "tiny", *VERIFIERS) and not (
        kind in ("process", "hf", "openai", "anyllm") and rest
    ):
        known = (
            SELF,
            *VERIFIERS,
            "process:FILE",
            "tiny",
            "hf:PATH",
            "openai:MODEL@URL",
            "anyllm:PROVIDER/MODEL",
        )
        raise UnknownName.among("reflector", name, known)
    if tokens < 1:
        raise ConfigurationError(f"reflection_tokens must be at least 1, not {tokens}")


def check_reflected_tasks(name: str, tasks: Sequence[Task]) -> None:
    """Refuses tasks on which the reflector ``name`` cannot reflect.

    Raises:
        ConfigurationError: there is one.
    """
    verifier = find_verifier(name)
    if isinstance(verifier, ChecksTasks):
        verifier.check_tasks(tasks)


def make_reflector(name: str, tokens: int, context: RolloutContext) -> Reflector:
    """The reflector ``name`` for the episodes of ``context``.

    Args:
        name: ``self``, a row of ``VERIFIERS``, ``process:FILE``, or a policy.
        tokens: Most tokens of one reflection.
        context: Whose policy ``self`` is; its temperature and deadline hold for reflections too.
    """
    if (verifier := find_verifier(name)) is not None:
        return VerifierReflector(verifier)
    policy, chat = (context.policy, context.chat) if name == SELF else other_policy(name)
    config = context.config
    return PolicyReflector(policy, chat, name == SELF, tokens, config.temperature, config.deadline_s)


def other_policy(spec: str) -> tuple[Policy, ChatFormat]:
    """A policy that this run does not train, and the format that it is asked in.

    It is loaded once a process, and again where its files have changed since: the folder may be another run's.
    """
    if is_program(spec):
        program = make_program_policy(spec)
        return program, program.chat
    return _loaded(spec, () if is_endpoint(spec) else policy_state(spec))


@lru_cache(maxsize=2)
def _loaded(spec: str, state: PathState) -> tuple[Policy, ChatFormat]:
    if is_endpoint(spec):
        check_reached(spec)
        endpoint = make_endpoint_policy(spec)
        return endpoint, endpoint.chat
    policy = make_policy(spec)
    return policy, InlineFormat(policy.tokenizer)

"""``agentenv/AgentProgram-v0``: the user's own agent program works on tasks, and the policy serves as its model.

The program needs no changes. It sends requests in the form of OpenAI's chat completions to an endpoint. Each of its requests
becomes an observation, and each action of the policy becomes a reply.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentenv.core.assistant_turns import (
    AssistantTurn,
    DeclaredTool,
    NativeCall,
    ToolForm,
    call_text,
)
from agentenv.core.env import AsyncEnv
from agentenv.core.scoring.scorers import load_scorer
from agentenv.core.tools import called_text, calls_prompt, read_calls, response_text
from agentenv.core.types import (
    EndReason,
    Info,
    Message,
    Observation,
    StateCapability,
    Step,
    Task,
    ToolResult,
    TurnTokens,
)
from agentenv.envs.agent_program.program import Program, known_errors
from agentenv.envs.agent_program.requests import NOTHING_ASKED, ChatRequest, Reply
from agentenv.envs.agent_program.session import AgentSession, Ended
from agentenv.errors import ConfigurationError, EnvFault

AgentState = Literal["replayed", "kept"]
_NEW_CONTEXT = Message("system", "")


@dataclass
class ProgramState:
    """All that changes within an episode."""

    task: Task
    session: AgentSession
    request: ChatRequest = NOTHING_ASKED
    """The request that waits for the policy's reply."""
    turns: int = 0


class AgentProgram(AsyncEnv[ProgramState]):
    """Gives tasks to an agent program; the policy answers its model requests, and the program's answer is scored.

    A program that fails counts as an infrastructure failure unless ``policy_errors`` names its error.
    """

    refuses_half_escapes = True
    call_markers = ("<tool_call>",)
    no_expert = "what the agent asks its model is not known beforehand"

    def __init__(
        self,
        *,
        agent: str = "",
        agent_state: AgentState = "replayed",
        scorer: str = "em_squad",
        max_turns: int = 16,
        timeout_s: float = 120.0,
        policy_errors: Sequence[str] = (),
        variables: Sequence[str] = (),
        render_mode: str | None = None,
    ) -> None:
        """Finds the agent program, which ``reset`` starts.

        Args:
            agent: ``python:MODULE:FUNCTION``, called as ``function(task, base_url=..., api_key=...)``, or ``stdio:COMMAND``,
                which reads the question from stdin, writes its answer to stdout, and gets URL and key in ``OPENAI_BASE_URL``
                and ``OPENAI_API_KEY``.
            agent_state: With ``replayed``, a snapshot is restored by starting the agent again and giving it the same
                replies. With ``kept``, the agent must not run twice, so snapshots are refused after the first reply.
            scorer: The name of the scorer that gives the reward.
            max_turns: The number of replies of the policy after which the episode is cut.
            timeout_s: The time limit of the agent between two requests, in seconds.
            policy_errors: Names of exceptions, or exit codes such as ``exit 3``, with which the agent ends because of a bad
                reply of the policy. Such an episode has the reward 0.
            variables: Environment variables that are passed to a command.
            render_mode: As in Gymnasium.

        Raises:
            ConfigurationError: an argument is wrong, or the agent cannot be found.
        """
        super().__init__(render_mode=render_mode)
        if max_turns < 1 or not timeout_s > 0:
            raise ConfigurationError(
                f"max_turns is {max_turns} and timeout_s {timeout_s}; both have to be above 0"
            )
        self.program = Program(agent, tuple(variables), known_errors(policy_errors))
        self.agent_state = agent_state
        if agent_state == "kept":
            # With another capability, strategies that rewind would repeat the actions after a refused snapshot.
            self.capability = StateCapability.NONE  # type: ignore[misc]
        self.scorer = load_scorer(scorer)
        self.max_turns, self.timeout_s = max_turns, timeout_s

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Starts the agent with ``options["task"]``, by default a sum, and waits for its first request."""
        await super().areset(seed=seed, options=options)
        task: Task = (options or {}).get("task") or Task("sum", "What is 2 + 3?", ("5",))
        replays = self.agent_state == "replayed"
        session = AgentSession(self.program, task, timeout_s=self.timeout_s, replays=replays)
        self.state = ProgramState(task, session)
        event = await session.begin()
        if isinstance(event, Ended):
            raise EnvFault(f"the agent ended before it asked its model: {_ending(event)}")
        self._accept_request(event)
        return self._as_observation(event.messages, opens=True), {"task_id": task.id}

    def turn_stop(self, stop: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the stop strings of the run and those of the agent's request."""
        return (*stop, *self.state.request.stop)

    def native_tools(self) -> Sequence[ToolForm]:
        """Returns the tools that the agent declares to its model in the present context."""
        return tuple(DeclaredTool(tool) for tool in self.state.request.tools)

    def native_action(self, turn: AssistantTurn) -> str:
        """Returns the text of ``turn`` and its calls; with a malformed call it is text only, as services return it."""
        read = [call for call in turn.calls if isinstance(call, NativeCall)]
        if len(read) == len(turn.calls):
            return called_text(turn.content, read)
        return "\n".join(part for part in (turn.content, *map(call_text, turn.calls)) if part)

    async def astep(self, action: str) -> Step:
        """Sends ``action`` to the agent as its model's reply, and waits for its next request or its end.

        Raises:
            EpisodeOver: the episode has ended or was never reset.
            EnvFault: the agent failed.
        """
        self.check_running(action)
        state = self.state
        said = without_stop(action, state.request.stop)
        tokens, self.sampled = self.sampled, TurnTokens()
        turn, valid = _turn_of(said, state.turns)
        if state.request.one_call:
            turn = replace(turn, calls=turn.calls[:1])
        # A reply that ends at a stop string is not truncated, even if the sampler continued after it.
        reply = Reply(turn, replace(tokens, truncated=tokens.truncated and said == action))
        event = await state.session.reply(reply)
        state.turns += 1
        if isinstance(event, Ended):
            return self._final_step(event, valid)
        asked = state.request
        self._accept_request(event)
        new = event.new_after((*asked.messages, turn), asked.tools)
        observation = (
            self._as_observation(new)
            if new
            else (_NEW_CONTEXT, *self._as_observation(event.messages, opens=True))
        )
        over = state.turns >= self.max_turns
        end = EndReason.TURN_LIMIT if over else None
        return self.result(observation, end=end, truncated=over, valid=valid)

    def _accept_request(self, request: ChatRequest) -> None:
        """Makes ``request`` the one that the policy answers next.

        Raises:
            ConfigurationError: it has stop strings, although tokens end the turns of a native policy.
        """
        if self.native and request.stop:
            raise ConfigurationError(
                f"the agent asks to stop at {request.stop[0]!r:.40}, which the format native does not: take template"
            )
        self.state.request = request

    def _final_step(self, event: Ended, valid: bool) -> Step:
        if event.mistake:
            return self.result((), end=EndReason.PARSE_ERROR, valid=False, answer="", error=event.mistake)
        score = self.scorer(event.answer, self.state.task.answers).value
        return self.result((), reward=score, end=EndReason.ANSWERED, valid=valid, answer=event.answer)

    def _as_observation(self, messages: Sequence[Message], *, opens: bool = False) -> Observation:
        """Converts ``messages`` to an observation; without a native form, tools and calls are written into the texts."""
        if self.native:
            return tuple(messages)
        texts = [_with_tags(message) for message in messages]
        if opens and self.state.request.tools:
            declared = calls_prompt(self.state.request.tools)
            texts[0] = replace(texts[0], content=f"{declared}{texts[0].text}")
        return tuple(texts)

    def render(self) -> str:
        """Shows the question, and the number of the policy's replies."""
        return f"{self.state.task.question} [{self.state.turns} answers]"


def without_stop(action: str, stop: Sequence[str]) -> str:
    """Returns ``action`` up to the first of ``stop``, as a service would: not every sampler knows the agent's ones."""
    return action[: min((action.index(text) for text in stop if text in action), default=None)]


def _turn_of(action: str, number: int) -> tuple[Message, bool]:
    """Parses ``action`` as a turn; also returns whether everything in it that looks like a call could be parsed."""
    calls = read_calls(action)
    if not calls or any(isinstance(call, ToolResult) for call in calls):
        return Message("assistant", action), not calls
    made = [call for call in calls if not isinstance(call, ToolResult)]
    # Ids of nine letters and digits, which Mistral's templates require when a later context shows the call again.
    named = tuple(
        NativeCall(call.name, call.arguments, f"c{number:05d}{place:03d}") for place, call in enumerate(made)
    )
    return Message("assistant", action.partition("<tool_call>")[0].strip(), calls=named), True


def _with_tags(message: Message) -> Message:
    if message.role == "tool":
        return Message("tool", response_text(message.text))
    return Message(message.role, called_text(message.text, message.calls))


def _ending(event: Ended) -> str:
    return event.mistake or f"its answer is {event.answer!r:.80}"

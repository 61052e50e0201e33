"""``agentenv/MCP-v0``: questions that a policy answers with the tools of an MCP server."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from agentenv.core.grammar import shortened
from agentenv.core.scoring.scorers import load_scorer
from agentenv.core.tools import Tool, ToolEnv
from agentenv.core.types import (
    EndReason,
    Info,
    Message,
    MessagePart,
    Observation,
    StateCapability,
    Step,
    Task,
    ToolResult,
)
from agentenv.envs.mcp.results import require_pillow
from agentenv.envs.mcp.server import McpServer
from agentenv.envs.mcp.session import McpSession, listed_tools, shared_session
from agentenv.errors import ConfigurationError, EnvFault, check_known

ServerState = Literal["replayed", "kept", "none"]


@dataclass
class McpState:
    """All that changes within an episode."""

    task: Task
    session: McpSession | None
    """The episode's own connection; None if all episodes share one."""
    calls: int = 0


class McpTools(ToolEnv[McpState]):
    """Poses questions. The tools are those of the MCP server, and the final answer is scored.

    A failure reported by a tool is an observation for the policy. A server that fails, has ended or does not answer in time
    is an infrastructure failure.
    """

    def __init__(
        self,
        *,
        server: str = "",
        tools: Sequence[str] = (),
        server_state: ServerState = "replayed",
        scorer: str = "em_squad",
        max_turns: int = 8,
        timeout_s: float = 30.0,
        result_chars: int = 20_000,
        pixels: bool = False,
        token_variable: str = "",
        variables: Sequence[str] = (),
        render_mode: str | None = None,
    ) -> None:
        """Lists the tools of the server, once per process.

        Args:
            server: ``stdio:COMMAND`` or the URL of a streamable HTTP endpoint.
            tools: Names of the tools that the policy may call; empty allows all.
            server_state: How the server's memory of an episode is handled. With ``replayed``, each episode has its own
                connection (for a command, its own process), and a snapshot is restored by repeating the calls. With ``kept``
                it does too, but calls must not be repeated, so snapshots are refused after the first call. With ``none`` the
                server remembers nothing, and all episodes share a connection.
            scorer: The name of the scorer that gives the reward.
            max_turns: Number of turns of an episode.
            timeout_s: Time limit of a call in seconds.
            result_chars: Number of characters of a result that are shown; the middle of a longer one is left out.
            pixels: Whether images in results are shown, which requires a policy that reads images. Otherwise a text says
                that there is one.
            token_variable: The environment variable with the bearer token of a URL.
            variables: Environment variables that are passed to a command.
            render_mode: As in Gymnasium.

        Raises:
            ConfigurationError: an argument is wrong, or a tool cannot be declared.
            EnvFault: the server cannot be used.
            MissingExtra: the SDK of MCP, or with ``pixels`` pillow, is not installed.
        """
        if max_turns < 1 or result_chars < 1:
            raise ConfigurationError(
                f"max_turns is {max_turns} and result_chars {result_chars}; both are at least 1"
            )
        self.server = McpServer(server, token_variable, tuple(variables), timeout_s)
        self.server_state = server_state
        if server_state == "kept":
            # With another capability, strategies that rewind would repeat the calls after a refused snapshot.
            self.capability = StateCapability.NONE  # type: ignore[misc]
        if pixels:
            require_pillow()
        self.scorer = load_scorer(scorer)
        self.max_turns = max_turns  # type: ignore[misc]
        self.result_chars = result_chars
        listed = {tool.name: tool for tool in listed_tools(self.server)}
        for name in tools:
            check_known(f"tool of {self.server.name}:", name, listed)
        wanted = [listed[name] for name in tools or listed]
        if not wanted:
            raise ConfigurationError(f"{self.server.name} has no tools")
        super().__init__(tools=[_as_tool(one) for one in wanted], pixels=pixels, render_mode=render_mode)

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        """Poses ``options["task"]``; without one, the question is which tools there are."""
        await super().areset(seed=seed, options=options)
        own = Task("tools", "What is the name of one of your tools?", tuple(self.tools))
        task: Task = (options or {}).get("task") or own
        session = None
        if self.server_state != "none":
            session = McpSession(self.server, replays=self.server_state == "replayed", pixels=self.pixels)
        self.state = McpState(task, session)
        if session is not None:
            await session.open()
        text = f"{self.tool_prompt()}Call tools as you need them. Then reply with the answer alone: {task.question}"
        return (Message("user", text),), {"task_id": task.id}

    async def called(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        """Calls a tool of the server.

        Raises:
            EnvFault: the server failed.
        """
        self.state.calls += 1
        session = self.state.session or await shared_session(self.server, pixels=self.pixels)
        if name not in {listed.name for listed in session.listed}:
            raise EnvFault(f"{self.server.name} has no tool {name!r} any more, which the policy was told of")
        return await session.call(name, arguments)

    def _rendered(self, result: ToolResult) -> tuple[ToolResult, tuple[MessagePart, ...]]:
        told, images = super()._rendered(result)
        return replace(told, text=shortened(told.text, self.result_chars)), images

    def answer(self, text: str) -> Step:
        """Scores ``text``."""
        said = text.strip()
        score = self.scorer(said, self.state.task.answers).value
        return self.result((), reward=score, end=EndReason.ANSWERED, answer=said)

    def render(self) -> str:
        """Shows the question and the number of calls."""
        return f"{self.state.task.question} [{self.state.calls} calls]"


def _as_tool(listed: Any) -> Tool:
    """Makes the environment's tool for one that the server lists.

    Raises:
        ConfigurationError: its name is reserved, or its schema cannot be checked.
    """
    function = partial(_call, listed.name)
    try:
        return Tool(
            listed.name, listed.description or listed.name, listed.input_schema, function, takes_self=True
        )
    except ConfigurationError as error:
        raise ConfigurationError(
            f"{error}; the option 'tools' names those to be used, and leaves out others"
        ) from error


async def _call(name: str, env: McpTools, /, **arguments: Any) -> ToolResult:
    return await env.called(name, arguments)

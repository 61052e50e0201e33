"""The part of the Model Context Protocol that an environment needs, over JSON-RPC 2.0 and without an SDK.

``initialize``, ``ping``, ``tools/list`` and ``tools/call``; ``agentenv/reset`` begins another episode of the same session.
MCP knows no reward and no end: both stand in the result's ``_meta`` under ``agentenv/step``, where the host sees them and
the model does not. A mistake of the policy is a result with ``isError``; an infrastructure failure is a JSON-RPC error and
never a result, so that nobody can take it for a reward of 0.

Source: modelcontextprotocol.io, revision 2025-11-25 (and the three before it, whose differences do not touch this part).
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from agentenv.core.env import Env
from agentenv.core.types import Step, ToolStatus
from agentenv.core.validation import sentence
from agentenv.errors import AgentEnvError, ConfigurationError, EpisodeOver, Fault
from agentenv.serving.toolbox import instructions, observation_text, play, toolbox
from agentenv.serving.wire import VERSION, ResetData, error_out
from agentenv.web.gate import Refusal

if TYPE_CHECKING:
    from agentenv.serving.env_session import EnvSession
    from agentenv.serving.mcp_sessions import McpSession

    Played = EnvSession | McpSession

REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
PARSE_ERROR, INVALID_REQUEST, NO_METHOD, INVALID_PARAMS, SERVER_ERROR = -32700, -32600, -32601, -32602, -32000
STEP = "agentenv/step"


class Call(BaseModel):
    """Parameters of ``tools/call``."""

    name: str
    arguments: dict[str, Any] = {}


def failure(id: Any, code: int, said: str, data: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A JSON-RPC error."""
    error = {"code": code, "message": said} | ({"data": dict(data)} if data else {})
    return {"jsonrpc": "2.0", "id": id, "error": error}


def is_notification(message: Any) -> bool:
    """Whether ``message`` is one that gets no answer."""
    return _is_request(message) and "id" not in message


def complaint(message: Any) -> dict[str, Any] | None:
    """The answer to what is no request, or one of a method that there is not; None where `answer` has to say more."""
    if not _is_request(message):
        return failure(None, INVALID_REQUEST, "this is no JSON-RPC 2.0 request; batches are not taken")
    if (method := message["method"]) not in METHODS:
        said = f"{method[:60]!r} is no method; there are {', '.join(METHODS)}"
        return failure(message.get("id"), NO_METHOD, said)
    return None


def _is_request(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and message.get("jsonrpc") == "2.0"
        and isinstance(message.get("method"), str)
        and isinstance(message.get("params", {}), dict)
        and isinstance(message.get("id"), str | int | None)
    )


async def answer(session: "Played", message: Any) -> dict[str, Any] | None:
    """The answer to one message; None to a notification."""
    if is_notification(message):
        return None
    if (wrong := complaint(message)) is not None:
        return wrong
    id, method = message["id"], message["method"]
    try:
        return {
            "jsonrpc": "2.0",
            "id": id,
            "result": await METHODS[method](session, message.get("params", {})),
        }
    except ValidationError as error:
        return failure(id, INVALID_PARAMS, sentence(error))
    except ConfigurationError as error:
        return failure(id, INVALID_PARAMS, str(error))
    except Exception as error:
        said = error_out(error)
        return failure(id, SERVER_ERROR, said["message"], {"kind": said["kind"], "fault": said["fault"]})


async def _initialize(session: "Played", params: dict[str, Any]) -> dict[str, Any]:
    wanted = params.get("protocolVersion")
    return {
        "protocolVersion": wanted if wanted in REVISIONS else REVISIONS[-1],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "agentenv", "version": VERSION},
        "instructions": instructions(session.env, session.opening),
    }


async def _ping(session: "Played", params: dict[str, Any]) -> dict[str, Any]:
    return {}


async def _list(session: "Played", params: dict[str, Any]) -> dict[str, Any]:
    return {"tools": [tool.to_mcp() for tool in toolbox(session.env).values()]}


async def _reset(session: "Played", params: dict[str, Any]) -> dict[str, Any]:
    return await session.reset(ResetData.model_validate(params))


async def _call(session: "Played", params: dict[str, Any]) -> dict[str, Any]:
    call = Call.model_validate(params)
    steps: list[Step] = []

    async def action(env: Env[Any]) -> Step:
        steps.append(await play(env, call.name, call.arguments))
        return steps[0]

    try:
        # The step is kept beside the reply, which is JSON already: the statuses of its tools are needed below.
        reply = await session.act(action)
    except EpisodeOver as error:
        return _content(f"{error}", wrong=True)
    except (Fault, Refusal):  # there was no slot for the episode, which is nothing that the policy did
        raise
    except AgentEnvError as error:  # the call itself was wrong: the policy is told and may try again
        return _content(f"{error}", wrong=True)
    step = {name: reply[name] for name in ("reward", "done", "metadata")}
    wrong = any(result.status is not ToolStatus.OK for result in steps[0].info["tool_results"])
    return _content(observation_text(session.env, steps[0]), wrong=wrong) | {"_meta": {STEP: step}}


def _content(text: str, *, wrong: bool) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": wrong}


METHODS: dict[str, Callable[["Played", dict[str, Any]], Awaitable[dict[str, Any]]]] = {
    "initialize": _initialize,
    "ping": _ping,
    "tools/list": _list,
    "tools/call": _call,
    "agentenv/reset": _reset,
}
"""Every method by name; a further one is a function and a row."""

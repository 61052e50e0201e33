"""The part of the Model Context Protocol (MCP) that an environment needs, over JSON-RPC 2.0 and without an SDK.

The methods are ``initialize``, ``ping``, ``tools/list`` and ``tools/call``; ``agentenv/reset`` begins another episode in the
same session. MCP has no reward and no end of an episode: both are in ``_meta`` of the result under ``agentenv/step``, where
the host reads them and the model does not. A mistake of the policy is a result with ``isError``. An infrastructure failure
is a JSON-RPC error and never a result, so that it cannot be taken for a reward of 0.

Source: modelcontextprotocol.io, revision 2025-11-25 (and the three before it, which do not differ in this part).
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
    """Returns a JSON-RPC error with the message ``said``."""
    error = {"code": code, "message": said} | ({"data": dict(data)} if data else {})
    return {"jsonrpc": "2.0", "id": id, "error": error}


def is_notification(message: Any) -> bool:
    """Tells whether ``message`` is a notification, which gets no answer."""
    return _is_request(message) and "id" not in message


def complaint(message: Any) -> dict[str, Any] | None:
    """Returns the error for a malformed request or an unknown method; None for a request that `answer` can answer."""
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
    """Returns the answer to one message; None for a notification."""
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
        # The reply is already JSON, so the step is kept beside it: the statuses of its tools are needed below.
        reply = await session.act(action)
    except EpisodeOver as error:
        return _content(f"{error}", wrong=True)
    except (Fault, Refusal):  # no slot was free, which is not a mistake of the policy
        raise
    except AgentEnvError as error:  # the call was wrong: the policy is told so and may try again
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
"""The handler of each method, by name."""

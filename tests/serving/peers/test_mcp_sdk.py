"""Our MCP server as the released SDK's client sees it, whatever revision of the protocol that prefers."""

import asyncio
from typing import Any

import pytest

mcp = pytest.importorskip("mcp", reason="mcp is not installed; .ci/peers tests against it")

from agentenv.envs.calculator import Calculator  # noqa: E402

QUERY = '?options={"task": {"question": "20 * 3", "answers": ["60"]}}'


def test_an_episode_of_the_sdks_client(serving: Any) -> None:
    async def scene(url: str) -> None:
        async with mcp.Client(f"{url}/mcp{QUERY}") as client:
            listed = await client.list_tools()
            assert [tool.name for tool in listed.tools] == ["calculate", "submit"]
            assert "what is 20 * 3?" in client.instructions
            wrong = await client.call_tool("calculate", {"expression": "1 / 0"})
            assert wrong.is_error
            right = await client.call_tool("calculate", {"expression": "20 * 3"})
            assert (right.is_error, right.content[0].text) == (False, "60")
            last = await client.call_tool("submit", {"answer": "60"})
            step = last.model_dump(by_alias=True)["_meta"]["agentenv/step"]
            assert (step["reward"], step["done"]) == (1.0, True)

    with serving(Calculator, client_tasks=True) as served:
        asyncio.run(scene(served.url))
        served.until_open(0)


def test_a_fault_is_an_error_of_the_client(serving: Any, house: Any) -> None:
    async def scene(url: str) -> None:
        async with mcp.Client(f"{url}/mcp") as client:
            with pytest.raises(mcp.MCPError, match="the index is gone"):
                await client.call_tool("act", {"text": "fault"})

    with serving(lambda: house) as served:
        asyncio.run(scene(served.url))

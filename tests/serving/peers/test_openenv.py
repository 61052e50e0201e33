"""Our server as the released OpenEnv client sees it, and OpenEnv's own records of what is on the wire."""

import asyncio
from typing import Any

import httpx
import pytest

openenv = pytest.importorskip("openenv", reason="openenv is not installed; .ci/peers tests against it")

from openenv.core.env_server import types as wire  # noqa: E402

from agentenv.core.tools import RESERVED_NAMES  # noqa: E402
from agentenv.envs.calculator import Calculator  # noqa: E402

CALL = '<tool_call>{"name": "calculate", "arguments": {"expression": "20 * 3"}}</tool_call>'
TASK = {"task": {"question": "20 * 3", "answers": ["60"]}}


def test_an_episode_of_the_generic_client(serving: Any) -> None:
    with (
        serving(Calculator, client_tasks=True) as served,
        openenv.GenericEnvClient(base_url=served.url) as client,
    ):
        opening = client.reset(seed=3, episode_id="e", options=TASK)
        assert "what is 20 * 3?" in opening.observation["text"]
        assert (opening.reward, opening.done) == (None, False)
        first = client.step({"text": CALL})
        assert (first.reward, first.done, first.metadata["info"]["turn"]) == (0.0, False, 1)
        assert client.state()["step_count"] == 1
        last = client.step(openenv.GenericAction(text="60"))
        assert (last.reward, last.done, last.metadata["terminated"]) == (1.0, True, True)
        with pytest.raises(Exception, match="this episode is over"):
            client.step({"text": "60"})
        assert client.reset(seed=4).done is False


def test_a_session_each_and_a_full_house_is_said(serving: Any) -> None:
    async def scene(url: str) -> None:
        async with (
            openenv.GenericEnvClient(base_url=url) as one,
            openenv.GenericEnvClient(base_url=url) as two,
        ):
            await one.reset(seed=1, options=TASK)
            await two.reset(seed=1, options=TASK)
            await one.step({"text": "60"})
            assert (await two.step({"text": CALL})).done is False
            async with openenv.GenericEnvClient(base_url=url) as three:
                with pytest.raises(Exception, match="slots are taken"):
                    await three.reset()

    with serving(Calculator, client_tasks=True, sessions=2, wait_s=0.2) as served:
        asyncio.run(scene(served.url))


def test_a_fault_is_an_error_of_the_client(serving: Any, house: Any) -> None:
    with serving(lambda: house) as served, openenv.GenericEnvClient(base_url=served.url) as client:
        client.reset()
        with pytest.raises(RuntimeError, match="the index is gone"):
            client.step({"text": "fault"})


def test_frames_are_openenvs_own(serving: Any) -> None:
    with serving(Calculator, client_tasks=True) as served, served.call() as line:
        wire.WSObservationResponse.model_validate(line.ask("reset", seed=1))
        wire.WSObservationResponse.model_validate(line.ask("step", text=CALL))
        wire.WSStateResponse.model_validate(line.ask("state"))
        error = wire.WSErrorResponse.model_validate(line.ask("fly"))
        assert wire.WSErrorCode(error.data["code"]) is wire.WSErrorCode.UNKNOWN_TYPE
        for data in (line.ask("reset", seed=1)["data"], line.ask("step", text=CALL)["data"]):
            fields = {name: data[name] for name in ("observation", "reward", "done")}
            wire.StepResponse.model_validate(fields)


def test_health_and_schema_are_openenvs_own(serving: Any) -> None:
    with serving(Calculator, client_tasks=True) as served:
        schema = httpx.get(f"{served.url}/schema", timeout=60).json()
        wire.SchemaResponse.model_validate(schema)
        assert schema["action"]["required"] == ["text"]
        assert (
            httpx.get(f"{served.url}/health", timeout=60).json()["status"] == wire.HealthStatus.HEALTHY.value
        )


def test_openenvs_reserved_names_are_ours_too() -> None:
    from openenv.core.harness.rollout import RESERVED_TOOL_NAMES

    assert RESERVED_TOOL_NAMES <= RESERVED_NAMES

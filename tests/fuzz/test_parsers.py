"""Every parser that reads bytes of somebody else: whatever comes, it gives a value or the error that it documents.

Documents are valid ones with parts replaced, cut or nested, and any bytes at all. ``make fuzz`` tries as many examples a
parser as AGENTENV_FUZZ says; without it a run is short and always the same.
"""

import asyncio
import contextlib
import copy
import json
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from agentenv.core.action_turns import action_text
from agentenv.core.assistant_turns import AssistantTurn
from agentenv.core.io.cassette import Cassette
from agentenv.core.io.model_files import check_adapter_files, check_model_files
from agentenv.core.trust import confirm_file
from agentenv.envs.calculator import Calculator
from agentenv.envs.gui.recordings import load_recordings
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import AgentEnvError, ConfigurationError, DatasetError, EndpointFault, EnvFault, Fault
from agentenv.policies.card import read_card as read_episode_card
from agentenv.policies.chat_server import ChatRequest
from agentenv.policies.endpoint import ChatClient
from agentenv.policies.endpoint_spec import Endpoint
from agentenv.retrievers.cassette import CassetteRetriever
from agentenv.retrievers.remote import RemoteRetriever
from agentenv.retrievers.service.wire import AccessRequest, RetrieveRequest, SearchRequest
from agentenv.retrievers.simulation.simulated import read_documents
from agentenv.retrievers.simulation.simulators import Brief
from agentenv.retrievers.storage.retriever_folder import read_card
from agentenv.sandbox.jail.answers import outcome, read_answer
from agentenv.sandbox.jail.frames import LENGTH, Closed, read_frame
from agentenv.sandbox.jail.plain import NotPlain, decode
from agentenv.serving.client_options import ClientOptions
from agentenv.serving.link import received
from agentenv.serving.mcp import answer, complaint
from agentenv.serving.remote import _decoding
from agentenv.serving.rows import DatasetRow, Episodes
from agentenv.serving.wire import (
    ActionData,
    ExtensionData,
    Frame,
    ResetData,
    info_in,
    observation_in,
    read_json,
    step_in,
)
from agentenv.trainers.config.config_files import load_config
from agentenv.trainers.lab.lab import load_experiment
from agentenv.web.client import Response
from agentenv.web.retries import RetryPolicy

LONG = os.environ.get("AGENTENV_FUZZ")
fuzz = settings(
    max_examples=int(LONG or 60),
    deadline=None,
    derandomize=LONG is None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(2**200), max_value=2**200),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["\ud800", "\x00", "../..", "http://x", "1e999", "NaN", "x" * 500]),
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@st.composite
def changed(draw: st.DrawFn, valid: Any) -> Any:
    """``valid`` with some of its parts replaced, removed, or wrapped."""
    document = copy.deepcopy(valid)
    for _ in range(draw(st.integers(0, 3))):
        holder: Any = None
        key: Any = None
        place = document
        while isinstance(place, dict | list) and place and draw(st.integers(0, 4)):
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            holder, key = place, draw(st.sampled_from(keys))
            place = holder[key]
        if holder is None:
            return draw(values)
        how = draw(st.integers(0, 3))
        if how == 0:
            del holder[key]
        else:
            holder[key] = draw(values) if how == 1 else [place] if how == 2 else {"x": place}
    return document


def written(valid: Any) -> st.SearchStrategy[bytes]:
    """Files and messages that are nearly ``valid``, cut, deeply nested, or nothing of the kind."""
    texts = changed(valid).map(lambda document: json.dumps(document).encode())
    cut = st.tuples(texts, st.integers(0, 200)).map(lambda pair: pair[0][: pair[1]])
    deep = st.sampled_from([b"[" * 9_000, b'{"a":' * 4_000, b"\xff\xfe", b"", b"\n" * 10, b"9" * 5_000])
    return st.one_of(texts, texts, cut, deep, st.binary(max_size=200))


def brief(error: Exception) -> None:
    """An error is a sentence and no page."""
    assert 0 < len(str(error)) < 10_000


def held(content: bytes, name: str, read: Callable[[Path], Any], refused: type[Exception]) -> None:
    """Reads a file of that content; only ``refused`` may be raised, with a message that is no page."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        try:
            read(path)
        except refused as error:
            brief(error)


TASK = {
    "id": "t",
    "question": "q",
    "answers": ["a"],
    "split": "s",
    "data": {"path": [{"query": "q", "answer": "a"}]},
}
OPTIONS = {"task": TASK}
MESSAGE = {"role": "tool", "content": [{"type": "text", "text": "x"}, {"type": "image", "image": "AAAA"}]}
RESULT = {"name": "search", "status": "ok", "text": "t", "error_class": "", "data": {"ids": [["a"]]}}
REPLY = {
    "observation": {"text": "x", "messages": [MESSAGE]},
    "reward": 1.0,
    "done": True,
    "metadata": {
        "terminated": True,
        "truncated": False,
        "anchor_key": "k",
        "info": {"end_reason": "answered", "tool_results": [RESULT]},
    },
}
CARD = {
    "kind": "faiss",
    "rows": 1,
    "corpus": "c",
    "encoder": "e",
    "encoder_spec": "hash",
    "dim": 3,
    "files": {},
}
CHAT = {
    "messages": [{"role": "user", "content": "c"}],
    "max_tokens": 3,
    "temperature": 0.5,
    "stop": ["a"],
    "seed": 1,
}
RPC = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "act", "arguments": {"text": "x"}},
}
STEP = {
    "action_content": {"action": "swipe", "coordinate": [1, 2], "coordinate2": [1, 90]},
    "screen": {
        "width": 100,
        "height": 100,
        "title": "t",
        "elements": [["1", "button", "b", [1, 2, 3, 4], "", ["on"]]],
    },
    "check_options": {"candidate_bbox": [[1, 2, 3, 4]], "direction": "up"},
    "thought": "t",
    "annotation": "GOOD",
}
RECORDING = {"goal": "g", "is_successful": True, "episode_id": "e", "steps": [STEP, STEP]}
MODULES = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
ADAPTER = {"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"], "base_model_name_or_path": "."}
CLIENT = ClientOptions(LocalSearch(), whole_tasks=True)


@pytest.mark.parametrize(
    ("model", "valid"),
    [
        (RetrieveRequest, {"queries": ["a"], "topk": 3, "return_scores": True, "corpus": "c"}),
        (
            SearchRequest,
            {
                "queries": ["a", {"text": "b", "context": {"episode": "e", "answers": ["x"]}}],
                "k": 2,
                "timeout_s": 1.5,
            },
        ),
        (AccessRequest, {"ids": ["a"], "urls": ["http://x/wiki/T"]}),
        (ChatRequest, CHAT),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@fuzz
@given(data=st.data())
def test_bodies_of_requests(model: type[BaseModel], valid: Any, data: st.DataObject) -> None:
    with contextlib.suppress(ValidationError):
        model.model_validate_json(data.draw(written(valid)))


@pytest.mark.parametrize(
    ("model", "valid"),
    [
        (Frame, {"type": "reset", "data": {}}),
        (ResetData, {"seed": 3, "episode_id": "e", "options": OPTIONS}),
        (ActionData, {"text": "a", "metadata": {}}),
        (ExtensionData, {"verb": "fork", "id": "x"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@fuzz
@given(data=st.data())
def test_frames_of_clients(model: type[BaseModel], valid: Any, data: st.DataObject) -> None:
    with contextlib.suppress(ValidationError, ValueError):
        model.model_validate(read_json(data.draw(written(valid)).decode(errors="surrogateescape")))


@fuzz
@given(changed(OPTIONS))
def test_options_of_clients(given_options: Any) -> None:
    if given_options is None or isinstance(given_options, dict):
        try:
            CLIENT.read(given_options)
        except ConfigurationError as error:
            brief(error)


PLAYED = Episodes("agentenv/LocalSearch-v0")
PLAYER = PLAYED.make()


@fuzz
@given(changed({"seed": 3, "task": TASK, "prompt": []}), st.booleans())
def test_rows_of_data_sets(columns: Any, as_text: bool) -> None:
    if not isinstance(columns, dict):
        return
    if as_text and "task" in columns:
        columns["task"] = json.dumps(columns["task"])
    try:
        options = PLAYED.options(PLAYER, DatasetRow.read(columns))
        assert options is None or set(options["task"].data) <= {"path"}
    except ConfigurationError as error:
        brief(error)


@fuzz
@given(changed(RPC))
def test_messages_of_mcp(message: Any) -> None:
    class Playing:
        env, opening = Calculator(), "o"

        async def act(self, action: Any) -> Any:
            raise EnvFault("nobody plays")

        async def reset(self, data: Any) -> Any:
            return {}

    reply = asyncio.run(answer(Playing(), message))  # type: ignore[arg-type]
    json.dumps([reply, complaint(message) if isinstance(message, dict) else None])


@fuzz
@given(changed({"type": "observation", "data": REPLY}))
def test_answers_of_a_server_of_environments(frame: Any) -> None:
    try:
        data = received(frame, "observation", "http://x")
        with _decoding("http://x"):
            step_in(data), observation_in(data["observation"]), info_in(data["metadata"]["info"])
    except AgentEnvError as error:
        brief(error)


@fuzz
@given(
    changed({"type": "error", "data": {"message": "m", "code": "EXECUTION_ERROR", "kind": "RetrieverFault"}})
)
def test_errors_of_a_server_of_environments(frame: Any) -> None:
    with pytest.raises(AgentEnvError):
        received(frame, "state", "http://x")


@fuzz
@given(
    written({"fingerprint": "f", "name": "n", "documents": 1, "contextual": False}),
    written(
        {"index": "f", "missing": [], "results": [[{"id": "a", "title": "t", "text": "x", "score": 1.0}]]}
    ),
)
def test_answers_of_a_retrieval_server(card: bytes, results: bytes) -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=card if request.url.path == "/v1/info" else results)

    retriever = RemoteRetriever(
        "http://x", timeouts=RetryPolicy(tries=1), transport=httpx.MockTransport(reply)
    )
    try:
        (found,) = asyncio.run(retriever.search(["q"], 3))
        assert all(isinstance(passage.text, str) for passage in found)
    except Fault:
        pass


CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
DELTA = {"content": "t", "reasoning": "r", "tool_calls": [CALL | {"index": 0}]}
USED = {"prompt_tokens": 3, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 1}}
CHAT_ANSWER = {
    "choices": [
        {
            "message": {"content": "t", "reasoning_content": "r", "refusal": None, "tool_calls": [CALL]},
            "finish_reason": "stop",
            "delta": DELTA,
        }
    ],
    "usage": USED,
    "error": None,
}
OUTPUT = [
    {
        "type": "reasoning",
        "id": "r",
        "summary": [{"type": "summary_text", "text": "r"}],
        "encrypted_content": "e",
    },
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "t"}]},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
]
RESPONSES_ANSWER = {
    "status": "incomplete",
    "output": OUTPUT,
    "incomplete_details": {"reason": "x"},
    "usage": USED,
}
EVENT = {"type": "response.completed", "response": RESPONSES_ANSWER}
REFUSAL = {"error": {"message": "m", "code": "c", "param": "temperature", "metadata": {"flagged_input": "x"}}}


@pytest.mark.parametrize(
    ("wire", "status", "head", "valid"),
    [
        ("chat", 200, b"", CHAT_ANSWER),
        ("chat", 200, b"data: ", CHAT_ANSWER),
        ("responses", 200, b"", RESPONSES_ANSWER),
        ("responses", 200, b"data: ", EVENT),
        ("chat", 400, b"", REFUSAL),
    ],
    ids=["chat", "chat stream", "responses", "responses stream", "refusal"],
)
@fuzz
@given(data=st.data())
def test_answers_of_a_model_behind_an_endpoint(
    wire: Any, status: int, head: bytes, valid: Any, data: st.DataObject
) -> None:
    """What is read can be written to a file, and goes back in the next request."""
    content = data.draw(written(valid))

    class Stub:
        async def send(self, body: Any) -> Response:
            json.dumps(body, ensure_ascii=False).encode()  # as httpx does
            return Response(status, {}, head + content)

    client = ChatClient(Endpoint("m", "http://x", wire=wire, retries=0))
    client._backend = Stub()
    asked: list[Any] = [{"role": "user", "content": "q"}]
    try:
        for _ in range(2):
            reply = asyncio.run(client.complete(asked, max_tokens=9))
            action_text(AssistantTurn(reply.reasoning, reply.text, reply.calls)).encode()
            asked += [] if reply.message is None else [reply.message]
    except (EndpointFault, ConfigurationError) as error:
        brief(error)


@fuzz
@given(st.binary(max_size=100), st.integers(0, 2**33), st.integers(0, 2**64 - 1))
def test_frames_of_a_sandbox(body: bytes, size: int, channel: int) -> None:
    stream = [(size % 2**32).to_bytes(4, "big") + channel.to_bytes(8, "big") + body]

    def read(most: int) -> bytes:
        part, stream[0] = stream[0][:most], stream[0][most:]
        return part

    with contextlib.suppress(Closed):
        assert read_frame(read)[1] == body[: size % 2**32]


@fuzz
@given(
    written(
        {
            "ok": True,
            "value": "1",
            "folder": "/",
            "digest": "",
            "error": {"type": "T", "message": "m", "line": 1},
        }
    )
)
def test_answers_of_an_interpreter(body: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(LENGTH.pack(len(body)) + body)
        theirs.shutdown(socket.SHUT_WR)
        with contextlib.suppress(Closed):
            told = outcome("ready", read_answer(ours))
            json.dumps(told)
            assert told["status"] in ("ok", "error", "oom")


@fuzz
@given(written({"l": [1, {"s": ["a"]}, {"i": "0x1"}]}))
def test_lines_of_a_program(line: bytes) -> None:
    with contextlib.suppress(NotPlain):
        decode(line.decode(errors="replace"))


@fuzz
@given(
    written({"cassette": 1, "about": {"retriever": {"name": "n", "documents": 1, "fingerprint": "f"}}}),
    written(
        {"request": {"query": "q", "k": 1}, "reply": [{"id": "a", "title": "t", "text": "x", "score": 1}]}
    ),
)
def test_cassettes(head: bytes, line: bytes) -> None:
    def play(path: Path) -> None:
        Cassette.replay(path)
        with contextlib.suppress(Fault):
            asyncio.run(CassetteRetriever(path).search(["q"], 1))

    held(head + b"\n" + line + b"\n", "tape", play, ConfigurationError)


@pytest.mark.parametrize(
    ("name", "valid", "read"),
    [
        ("retriever.json", CARD, lambda path: read_card(path.parent)),
        (
            "episode.json",
            {"env": "e", "k": 3, "prompt": "p", "options": {"tools": ["a"]}},
            lambda path: read_episode_card(path.parent),
        ),
        ("modules.json", MODULES, lambda path: check_model_files(path.parent)),
        (
            "config.json",
            {"model_type": "bert", "a": {"attn_implementation": "sdpa"}},
            lambda path: check_model_files(path.parent),
        ),
        ("adapter_config.json", ADAPTER, lambda path: check_adapter_files(path.parent)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@fuzz
@given(data=st.data())
def test_cards_and_settings(name: str, valid: Any, read: Any, data: st.DataObject) -> None:
    held(data.draw(written(valid)), name, read, ConfigurationError)


@pytest.mark.parametrize(
    "load", [load_config, load_experiment, lambda name: confirm_file(Path(name), trusted=False)]
)
@fuzz
@given(data=st.data())
def test_toml(load: Any, data: st.DataObject) -> None:
    import tomli_w

    valid = {
        "base": "laptop-search",
        "name": "n",
        "env": {"id": "agentenv/LocalSearch-v0", "options": {"k": 3}},
        "arms": {"a": {"seed": 1}},
    }

    def as_toml(document: Any) -> bytes:
        try:
            return tomli_w.dumps(document).encode(errors="surrogateescape")
        except (TypeError, AttributeError, ValueError):
            return b"x = "

    content = data.draw(
        st.one_of(
            changed(valid).map(as_toml),
            st.binary(max_size=100),
            st.sampled_from([b"a = " + b"[" * 9_000, b".".join([b"a"] * 9_000) + b" = 1"]),
        )
    )
    held(content, "theirs.toml", lambda path: load(str(path)), ConfigurationError)


@fuzz
@given(written(RECORDING))
def test_recordings(content: bytes) -> None:
    held(content, "recordings.jsonl", lambda path: load_recordings(path, semantics="finger"), DatasetError)


@fuzz
@given(st.text(st.sampled_from("Doc 12(Title:)\n.ab \u2028"), max_size=400))
def test_pages_of_a_simulator(page: str) -> None:
    for passage in read_documents(page, Brief("q", 3)):
        assert passage.text

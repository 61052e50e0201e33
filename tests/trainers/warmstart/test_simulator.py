"""A simulator from its examples to a served model: what it learns from, its report, and a run against it over HTTP.

The model is a small one that learns two pages by heart in seconds; what is proved is the machinery around it.
"""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from agentenv.cli.main import main
from agentenv.core.chat import InlineFormat
from agentenv.core.env import run_sync
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.trajectory import to_record
from agentenv.core.types import Document, EndReason, Task
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.simulated_search import SimulatedSearch
from agentenv.errors import ConfigurationError, DatasetError
from agentenv.policies.chat_server import ChatRequest, chat_completion, make_chat_app
from agentenv.policies.endpoint_spec import KEY_VARIABLE
from agentenv.policies.fake_endpoint import Answer, FakeEndpoint
from agentenv.policies.fakes import random_policy
from agentenv.policies.hf import HFPolicy
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.progress import SilentDisplay
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.retrievers.retriever_spec import make_retriever
from agentenv.retrievers.simulation.simulation_data import (
    Example,
    collect_examples,
    measure_quality,
    read_examples,
    write_examples,
)
from agentenv.retrievers.simulation.simulators import Brief, read_form
from agentenv.trainers.warmstart.simulator import SimulatorConfig, train_simulator

EXAMPLES = [
    Example(
        f"Halvik {n}",
        "Where is Halvik?",
        "Norland",
        ("Norland",),
        (("Halvik", "In Norland."),),
        (("Halvik", "In Rome."),),
    )
    for n in range(20)
]
TASK = Task("q", "Where is Halvik?", ("Norland",), "train")


def small_model(folder: Path) -> HFPolicy:
    import torch

    torch.set_num_threads(1)
    texts = [
        "useful noisy user assistant Question Answer Query Where is Halvik?",
        "In Norland. Rome. Doc 1(Title:",
    ]
    return HFPolicy(*random_policy(folder, texts, layers=2, width=48, context=256))


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a simulator that has learned its two pages."""
    out = tmp_path_factory.mktemp("simulator") / "small"
    config = SimulatorConfig(steps=60, episodes=8, rate=1.0, held_out=2)
    train_simulator(small_model(out.parent / "base"), EXAMPLES, config, SilentDisplay(), out)
    return out


def test_a_trained_simulator_writes_the_page_of_its_mode(simulator: Path) -> None:
    figures = json.loads((simulator / "simulator.json").read_text())
    assert (figures["useful_contains"], figures["noisy_contains"], figures["unreadable"]) == (1.0, 0.0, 0.0)
    assert (figures["n"], figures["examples"], figures["copy_rate"]) == (2, 18, 1.0)
    assert (figures["words"], figures["real_words"]) == (2.0, 2.0)
    assert read_form(simulator) == "compact"
    useful, noisy = (
        make_retriever(f"simulated:temperature=0,noise_start={share}@hf:{simulator}") for share in (0, 1)
    )
    env = SimulatedSearch(tasks=[TASK], retriever=useful, k=1)
    for retriever, text in ((useful, "In Norland."), (noisy, "In Rome.")):
        env = SimulatedSearch(tasks=[TASK], retriever=retriever, k=1)
        env.reset(seed=0)
        step = env.step("<search>Halvik 3</search>\n<search>Halvik 4</search>")
        assert step.observation[0].text == f"\n\n<information>Doc 1(Title: Halvik) {text}</information>\n\n"


def test_too_few_examples_and_too_long_ones_are_refused(tmp_path: Path) -> None:
    config = SimulatorConfig(steps=1)
    with pytest.raises(ConfigurationError, match=r"\b9\b"):
        train_simulator(small_model(tmp_path), EXAMPLES[:9], config, SilentDisplay(), tmp_path / "out")
    long = [replace(example, useful=(("T", "word " * 300),)) for example in EXAMPLES]
    with pytest.raises(ConfigurationError, match=r"\b256\b"):
        train_simulator(small_model(tmp_path), long, config, SilentDisplay(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_examples_are_labelled_by_the_answer_and_by_the_hop_where_it_is_known() -> None:
    documents = [
        Document("a", "Ketterby", "The lighthouse of Ketterby was built by Orla Venn."),
        Document("b", "Orla Venn", "Orla Venn was born in Halvik."),
        *(Document(f"n{n}", f"Ketterby {n}", "Built by nobody, born nowhere.") for n in range(3)),
    ]
    path = (
        {"query": "Ketterby built by", "answer": "Orla Venn"},
        {"query": "Orla Venn born", "answer": "Halvik"},
    )
    task = Task("t", "Where was the builder of Ketterby born?", ("Halvik",), "train", {"path": path})
    plain = replace(task, data={})
    first, second = collect_examples([task], InMemoryRetriever(documents), 2)
    assert (first.wanted, first.is_direct, second.is_direct) == (("Orla Venn",), False, True)
    assert (first.answer, first.question) == ("Halvik", task.question)
    assert first.useful[0][0] == "Ketterby"
    assert all("Orla Venn" not in text for _, text in first.noisy)
    assert [len(page) for page in (second.useful, second.noisy)] == [2, 2]
    (asked,) = collect_examples([plain], InMemoryRetriever(documents), 2)
    assert (asked.query, asked.wanted) == (task.question, ("Halvik",))


def test_a_simulator_never_learns_from_an_evaluation() -> None:
    world = FictionalWorld.generate(WorldConfig(documents=200, questions=1, split="test"))
    with pytest.raises(ConfigurationError, match="'test-0-q0'"):
        next(collect_examples(world.questions, InMemoryRetriever(world.documents), 2))


def test_examples_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    assert write_examples(path, EXAMPLES) == 20
    assert read_examples(path) == EXAMPLES
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(DatasetError, match=r"\b21\b"):
        read_examples(path)
    odd = {"query": "q", "question": "q", "answer": "a", "wanted": ["a"], "useful": [["t", 5]], "noisy": []}
    for line in (json.dumps(odd), json.dumps(odd | {"useful": [], "answer": None}), "[" * 100_000):
        path.write_text(line + "\n")
        with pytest.raises(DatasetError, match=r"\b1\b"):
            read_examples(path)
    path.write_text("")
    with pytest.raises(DatasetError, match=r"examples\.jsonl"):
        read_examples(path)
    with pytest.raises(DatasetError, match="absent"):
        read_examples(tmp_path / "absent")


def test_the_quality_report_by_hand() -> None:
    class Written:
        """Useful pages: the gold, a copy; noisy pages: the gold by mistake, one that cannot be read."""

        id = "written"
        pages = ("Doc 1: far Norland", "Doc 1: In Rome.", "Doc 1: a Norland indeed", "nothing")

        async def write(self, briefs: Sequence[Brief]) -> list[str]:
            assert [brief.useful for brief in briefs] == [True, True, False, False]
            return list(self.pages)

    quality = measure_quality(Written(), EXAMPLES[:2], EXAMPLES[2:])
    assert quality == {
        "n": 2,
        "useful_contains": 0.5,
        "noisy_contains": 0.5,
        "unreadable": 0.25,
        "copy_rate": 1 / 3,
        "words": 7 / 3,
        "real_words": 2.0,
    }
    hop = [replace(example, wanted=("elsewhere",)) for example in EXAMPLES[:2]]
    assert measure_quality(Written(), hop, [])["useful_contains"] is None


def over_http(simulator: Path) -> Any:
    """Answers chat requests with the simulator's own model."""
    policy = HFPolicy.load(simulator)

    def answer(body: Any) -> Answer:
        return Answer(
            raw=json.dumps(run_sync(chat_completion(policy, "small", ChatRequest.model_validate(body))))
        )

    return answer


def episodes(retriever: Any, count: int) -> list[Any]:
    specs = [
        EpisodeSpec(SimulatedSearch(tasks=[TASK], retriever=retriever, k=1), TASK, seed)
        for seed in range(count)
    ]
    policy = ScriptedPolicy(
        {
            f"e-{n}": ["<search>Halvik 1</search>", "<search>Halvik 2</search>", "<answer>Norland</answer>"]
            for n in range(count)
        }
    )
    config = RolloutConfig(deterministic=False, turn_tokens=500, context_tokens=9999)
    return asyncio.run(rollout(specs, policy, InlineFormat(policy.tokenizer), config, name="e"))


def test_a_run_over_http_survives_delays_errors_malformed_replies_and_rate_limits(simulator: Path) -> None:
    """Every episode ends typed; what can be repeated is, within bounds; the budget of requests is kept to."""
    model = over_http(simulator)
    faults = {
        1: Answer(status=500, raw="oops"),
        2: Answer(status=429, headers={"Retry-After": "0"}, raw="{}"),
        3: Answer(raw="no JSON"),
        4: Answer("I would rather not."),
        6: Answer(status=503, raw=""),
        7: Answer(delay_s=3.0),
        9: Answer(raw='{"choices": []}'),
    }
    limits = "concurrency=2&retries=2&backoff_s=0.001&deadline_s=2&max_requests=25"
    with FakeEndpoint(lambda body: faults.get(len(server.bodies)) or model(body)) as server:
        spec = (
            f"simulated:form=compact,temperature=0,noise_end=0,tokens=64@openai:small@{server.url}#{limits}"
        )
        played = episodes(make_retriever(spec), 12)
        assert len(server.bodies) == 25
    good = [t for t in played if t.valid]
    bad = [t for t in played if not t.valid]
    assert {t.end_reason for t in good} == {EndReason.ANSWERED}
    assert {t.end_reason for t in bad} == {EndReason.ENV_FAULT}
    assert len(good) >= 4
    assert all("In Norland." in t.turns[0].observation[0].text and t.reward == 1.0 for t in good)
    assert all(t.error.startswith("RetrieverFault: simulator: ") for t in bad)
    assert any("25 requests" in t.error for t in bad)


def test_a_cost_cap_ends_a_run(simulator: Path) -> None:
    with FakeEndpoint(over_http(simulator)) as server:
        limits = "concurrency=1&prompt_price=1e6&reply_price=2e6&max_cost=500"
        spec = f"simulated:form=compact,noise_end=0,tokens=64@openai:small@{server.url}#{limits}"
        played = episodes(make_retriever(spec), 6)
    assert 0 < len(server.bodies) < 12
    assert any("500" in t.error for t in played)


def test_the_key_stands_in_no_cassette_record_or_message(
    simulator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    key = "sk-a-secret-of-this-test"
    monkeypatch.setenv(KEY_VARIABLE, key)
    model = over_http(simulator)
    refusal = Answer(status=400, raw=json.dumps({"error": {"message": f"bad key {key}"}}))
    with FakeEndpoint(lambda body: refusal if len(server.bodies) == 3 else model(body)) as server:
        tape = tmp_path / "tape"
        spec = f"simulated:form=compact,temperature=0@cassette:{tape}@openai:small@{server.url}#concurrency=1"
        retriever = make_retriever(spec)
        played = episodes(retriever, 3)
        assert {header["authorization"] for header in server.headers} == {f"Bearer {key}"}
    assert sum(not t.valid for t in played) == 1
    assert "bad key ***" in next(t.error for t in played if not t.valid)
    written = (
        tape.read_text() + json.dumps([to_record(t) for t in played]) + caplog.text + repr(retriever.info())
    )
    assert "In Norland." in written
    assert key not in written


def test_the_chat_server_speaks_the_documented_format(simulator: Path) -> None:
    app = make_chat_app(HFPolicy.load(simulator), "small")
    asked = {
        "role": "user",
        "content": "useful\nQuestion: Where is Halvik?\nAnswer: Norland\nQuery: Halvik 3",
    }

    async def talk() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://local") as client:
            bodies: list[Any] = [
                {"messages": [asked], "temperature": 0, "stop": ["land."]},
                {"messages": [asked], "temperature": 0, "max_tokens": 2},
                {"messages": []},
                {"messages": [asked | {"content": "word " * 400}]},
            ]
            replies = [await client.post("/v1/chat/completions", json=body) for body in bodies]
            return [*replies, await client.get("/v1/models"), await client.get("/health")]

    stopped, cut, empty, long, models, health = asyncio.run(talk())
    choice = stopped.json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": "Doc 1(Title: Halvik) In Nor"}
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", "land.")
    assert cut.json()["choices"][0]["finish_reason"] == "length"
    assert cut.json()["usage"]["completion_tokens"] == 2
    assert (empty.status_code, empty.json()["error"]["code"]) == (400, "bad_request")
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert models.json()["data"][0]["id"] == "small"
    assert health.json() == {"status": "ok"}


@pytest.mark.parametrize(
    "field",
    [
        {"n": 2},
        {"stream": True},
        {"logprobs": True},
        {"tools": [{"type": "function", "function": {}}]},
        {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"logit_bias": {"5": -100}},
        {"presence_penalty": 0.5},
        {"frequency_penalty": -1},
        {"stop": ""},
        {"stop": ["x", ""]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]},
    ],
    ids=str,
)
def test_what_would_change_the_reply_and_is_not_served_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(field))):
        ChatRequest.model_validate({"messages": [{"role": "user", "content": "Who?"}]} | field)


def test_a_request_as_the_library_of_openai_sends_it_is_answered_and_read_by_it(simulator: Path) -> None:
    openai = pytest.importorskip("openai", reason="comes with the providers extra")
    app = make_chat_app(HFPolicy.load(simulator), "small")

    async def talk() -> Any:
        http = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))
        async with openai.AsyncOpenAI(api_key="none", base_url="http://local/v1", http_client=http) as client:
            asked = [
                {"role": "developer", "content": "useful"},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Question: "}, {"type": "text", "text": "Who?"}],
                },
            ]
            nothing: dict[str, Any] = {
                "n": 1,
                "stop": None,
                "tools": None,
                "logit_bias": {},
                "presence_penalty": 0,
            }
            return await client.chat.completions.create(
                model="small", messages=asked, temperature=0, max_tokens=3, stream=False, **nothing
            )

    reply = asyncio.run(talk())
    assert reply.id
    assert reply.created > 0
    assert (reply.object, reply.model, reply.choices[0].finish_reason) == (
        "chat.completion",
        "small",
        "length",
    )
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 3


def test_a_served_simulator_answers_until_it_is_told_to_stop(simulator: Path) -> None:
    command = [sys.executable, "-m", "agentenv.cli.main", "simulator", "serve", str(simulator), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server:
        try:
            assert server.stderr is not None
            line = next(line for line in server.stderr if "answers at" in line)
            address = line.split()[-1]
            body = {"messages": [{"role": "user", "content": "Halvik"}], "max_tokens": 1}
            reply = httpx.post(f"{address}/chat/completions", json=body, timeout=60)
            assert reply.json()["model"] == simulator.name
            server.send_signal(signal.SIGINT)
            server.wait(60)
        finally:
            server.kill()


def test_the_commands_build_train_and_call_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data and training by their defaults, small; no socket is opened."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a default command opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    data, out = tmp_path / "examples.jsonl", tmp_path / "out"
    words = [
        "simulator",
        "data",
        "--worlds",
        "1",
        "--limit",
        "12",
        "--encoder",
        "hash",
        "--out",
        str(data),
        "--json",
    ]
    assert main(words) == 0
    count = json.loads(capsys.readouterr().out)["examples"]
    assert count >= 10
    assert main(["simulator", "train", str(data), "--steps", "1", "--out", str(out), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["steps"] == 1
    assert figures["examples"] == count - figures["n"]
    assert (out / "model.safetensors").is_file()
    assert main(words) == 1  # nothing is overwritten
    assert str(data) in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize("flags", ["--steps 0", "--rate nan", "--rate inf", "--rate -1"])
def test_steps_and_rates_without_meaning_are_refused_first(
    flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "simulator",
        "train",
        str(tmp_path / "absent.jsonl"),
        "--out",
        str(tmp_path / "out"),
        *flags.split(),
    ]
    assert main(words) == 1
    assert flags.split()[0] in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

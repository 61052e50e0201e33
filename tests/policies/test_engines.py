"""VLLMPolicy over engines that are written here: cuts, replicas, versions, deadlines, ends. No vLLM is needed."""

import asyncio
import io
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from agentenv.core.images import PlacedImage
from agentenv.core.io.temporary import temporary_folder
from agentenv.core.types import Completion, FinishReason, Sampling
from agentenv.errors import ConfigurationError, ContextTooSmall, PolicyFault
from agentenv.policies.engine import Engine, EngineConfig, EngineRequest, Sampled
from agentenv.policies.fakes import ByteTokenizer, random_policy
from agentenv.policies.policy_spec import make_policy, policy_folder
from agentenv.policies.vllm import VLLMPolicy, _read
from agentenv.policies.vllm_local import (
    LocalEngine,
    prompt_of,
    sampled,
    sampling_fields,
    scoring_fields,
    tempered,
)
from agentenv.policies.vllm_remote import RemoteEngine
from agentenv.trainers.config.config_files import override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.loop.parts import open_policy

END = ByteTokenizer.eos_token_id


class WrittenEngine:
    """Samples ``text`` and, as engines may, one token more than a stop string needs."""

    def __init__(self, text: str, *, versions: tuple[int, ...] = (), end: bool = False) -> None:
        self.ids = [*text.encode(), *([END] if end else [])]
        self.versions = versions
        self.requests: list[EngineRequest] = []
        self.scored: list[tuple[Any, ...]] = []
        self.loaded: list[tuple[bool, int]] = []
        self.hangs = self.dead = False
        self.cancelled = threading.Event()
        self.closed = False

    async def open(self) -> Engine:
        return self

    async def sample(self, request: EngineRequest) -> Sampled:
        self.requests.append(request)
        if self.hangs:
            try:
                await asyncio.sleep(60)
            finally:
                self.cancelled.set()
        ids = tuple(self.ids[: request.sampling.max_tokens])
        versions = self.versions or (len(self.loaded),) * len(ids)
        return Sampled(ids, tuple(-0.1 * place for place in range(len(ids))), versions[: len(ids)])

    async def logprobs(
        self,
        ids: tuple[int, ...],
        temperature: float,
        images: tuple[PlacedImage, ...] = (),
        *,
        fed: tuple[int, ...] | None = None,
    ) -> tuple[float, ...]:
        self.scored.append((ids, fed, images))
        return tuple(-float(i) / temperature for i in ids[1:])

    async def load(self, folder: Path, version: int) -> None:
        self.loaded.append(((folder / "weights").is_file(), version))

    async def close(self) -> None:
        self.closed = True


class WrittenModel:
    """Writes a file where a model would write its weights."""

    device = torch.device("cpu")

    def save_pretrained(self, folder: Path, **_: Any) -> None:
        (folder / "weights").write_text("w")


def policy_of(*engines: WrittenEngine, **settings: Any) -> VLLMPolicy:
    config = EngineConfig(kind="vllm", **settings)
    opens = [engine.open for engine in engines]
    return VLLMPolicy(ByteTokenizer(), 32, config, opens, WrittenModel())


def ask(policy: VLLMPolicy, sampling: Sampling, episode: str | None = None, prompt: str = "hi") -> Completion:
    return asyncio.run(policy.generate(tuple(prompt.encode()), sampling, episode=episode))


def test_a_sample_ends_with_the_token_that_completes_its_stop() -> None:
    with policy_of(WrittenEngine("a </s> b")) as policy:
        done = ask(policy, Sampling(20, stop=("</s>",)))
    assert (done.text, done.finish, len(done.ids)) == ("a </s>", FinishReason.STOP, 6)
    assert len(done.logprobs) == 6


@pytest.mark.parametrize(
    ("engine", "finish", "text"),
    [
        (WrittenEngine("done", end=True), FinishReason.EOS, "done"),
        (WrittenEngine("never done"), FinishReason.LENGTH, "never"),
    ],
)
def test_other_ends(engine: WrittenEngine, finish: FinishReason, text: str) -> None:
    with policy_of(engine) as policy:
        done = ask(policy, Sampling(5))
    assert (done.finish, done.text) == (finish, text)


def test_every_end_of_a_turn_is_asked_for_and_ends_it() -> None:
    engine = WrittenEngine("done!")
    with VLLMPolicy(
        ByteTokenizer(), 32, EngineConfig(kind="vllm"), [engine.open], ends=(END, ord("!"))
    ) as policy:
        done = ask(policy, Sampling(9))
    assert (done.finish, done.text, done.ids[-1]) == (FinishReason.EOS, "done", ord("!"))
    assert engine.requests[0].ends == (END, ord("!"))
    assert sampling_fields(engine.requests[0])["stop_token_ids"] == [END, ord("!")]


def test_the_ends_are_read_from_the_files_of_the_model(tmp_path: Path) -> None:
    model, tokenizer = random_policy(tmp_path, ["a question"])
    assert _read(tmp_path)[2] == (tokenizer.eos_token_id,)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, 5, 6]
    model.save_pretrained(tmp_path)
    assert _read(tmp_path)[2] == make_policy(f"hf:{tmp_path}").ends == (tokenizer.eos_token_id, 5, 6)
    (tmp_path / "generation_config.json").unlink()
    assert _read(tmp_path)[2] == (tokenizer.eos_token_id,)


def test_no_more_is_asked_for_than_the_context_holds() -> None:
    engine = WrittenEngine("x" * 40)
    with policy_of(engine) as policy:
        assert len(ask(policy, Sampling(30), prompt="p" * 25).ids) == 7
        with pytest.raises(ContextTooSmall, match=r"\b32\b.*\b32\b"):
            ask(policy, Sampling(1), prompt="p" * 32)
        with pytest.raises(ContextTooSmall):
            asyncio.run(policy.score(range(32)))


def test_an_episode_stays_with_its_engine_and_new_ones_go_where_the_fewest_are() -> None:
    engines = [WrittenEngine("a"), WrittenEngine("b")]
    with policy_of(*engines) as policy:
        for episode in ("one", "two", "one", "two", "three", "one"):
            ask(policy, Sampling(1), episode)
        assert [len(engine.requests) for engine in engines] == [4, 2]
        policy.release("one")
        policy.release("three")
        ask(policy, Sampling(1), "four")
        assert [len(engine.requests) for engine in engines] == [5, 2]


def test_a_policy_with_a_dead_engine_says_so() -> None:
    engines = [WrittenEngine("a"), WrittenEngine("b")]
    with policy_of(*engines) as policy:
        assert not policy.broken
        engines[1].dead = True
        assert policy.broken


def test_new_weights_reach_every_engine_and_leave_nothing_behind(tmp_path: Path) -> None:
    engines = [WrittenEngine("a"), WrittenEngine("b")]
    with policy_of(*engines, weights_dir=tmp_path) as policy:
        policy.set_weights()
        policy.resumed(7)
        assert policy.version == 7
    assert [engine.loaded for engine in engines] == [[(True, 1), (True, 7)]] * 2
    assert not list(tmp_path.iterdir())
    assert all(engine.closed for engine in engines)


def test_a_sample_of_two_versions_says_which_token_is_whose() -> None:
    with policy_of(WrittenEngine("abcd", versions=(3, 3, 4, 4)), WrittenEngine("abcd")) as policy:
        done = ask(policy, Sampling(4), "one")
        assert (done.version, done.versions) == (3, (3, 3, 4, 4))
        done = ask(policy, Sampling(2), "one")
        assert (done.version, done.versions) == (3, ())


def test_an_engine_that_hangs_is_a_fault_and_its_request_ends() -> None:
    engine = WrittenEngine("a")
    engine.hangs = True
    with (
        policy_of(engine, deadline_s=0.05) as policy,
        pytest.raises(PolicyFault, match=r"\b0\.05\b"),
    ):
        ask(policy, Sampling(1))
    assert engine.cancelled.is_set()


def test_a_caller_that_gives_up_ends_its_request() -> None:
    engine = WrittenEngine("a")
    engine.hangs = True

    async def impatient() -> None:
        async with asyncio.timeout(0.05):
            await policy.generate((1,), Sampling(1))

    with policy_of(engine) as policy:
        with pytest.raises(TimeoutError):
            asyncio.run(impatient())
        assert engine.cancelled.wait(10)


class DeadEngine(WrittenEngine):
    """A server that has died: every request fails at once."""

    def __init__(self) -> None:
        super().__init__("dead")
        self.is_dead = True

    async def sample(self, request: EngineRequest) -> Sampled:
        done = await super().sample(request)
        if self.is_dead:
            raise PolicyFault("http://one:8000 does not answer")
        return done


def test_episodes_go_on_with_another_engine_where_theirs_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead engine has the fewest episodes, since they end at once; it must not get all new ones for that."""
    dead, well = DeadEngine(), WrittenEngine("fine")
    with policy_of(dead, well) as policy:
        for number in range(20):
            assert ask(policy, Sampling(4), episode=f"e{number}").text == "fine"
            if number % 2:
                policy.release(f"e{number}")
        assert len(dead.requests) == 1
        assert len(well.requests) == 20
        monkeypatch.setattr("agentenv.policies.replicas._REST_S", 0.0)
        dead.is_dead = False
        assert ask(policy, Sampling(4), episode="later").text == "dead"  # it is back, and less crowded


class RestartedEngine(WrittenEngine):
    """A server whose updates fail with ``fault`` or hang, and that may be started again with the weights of its start."""

    fault: Exception | None = None
    stuck = False
    version = 0

    async def load(self, folder: Path, version: int) -> None:
        if self.fault is not None:
            raise self.fault
        given_up = False
        while self.stuck:  # and does not heed that it is cancelled, as one that waits to resume its requests
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                given_up = True
        if given_up:  # else it could take up these weights after those of a later update
            raise asyncio.CancelledError
        self.version = version
        await super().load(folder, version)

    async def sample(self, request: EngineRequest) -> Sampled:
        self.versions = (self.version,) * 9
        return await super().sample(request)


@pytest.mark.parametrize(
    "fault", [PolicyFault("http://one:8000 does not answer"), RuntimeError("EngineDead"), None]
)
def test_an_engine_that_takes_up_no_weights_is_left_out_until_it_does(fault: Exception | None) -> None:
    first, second = RestartedEngine("gone"), RestartedEngine("well")
    with policy_of(first, second, deadline_s=60 if fault else 1) as policy:
        said: list[str] = []
        policy.replicas.warn = said.append
        assert {ask(policy, Sampling(4), name).text for name in ("a", "b")} == {"gone", "well"}
        first.fault, first.stuck = fault, fault is None
        for version in (1, 2):
            policy.set_weights()
            assert {ask(policy, Sampling(4), name).text for name in ("a", "b", f"c{version}")} == {"well"}
        assert policy.version == 2
        assert len(said) == 1
        assert str(fault or "longer than 1 s") in said[0]
        assert "engine 1 of 2" in said[0]
        first.fault, first.stuck = None, False
        policy.set_weights()
        assert ask(policy, Sampling(4), "d").text == "gone"
        assert [engine.version for engine in (first, second)] == [3, 3]
        assert len(said) == 2
        assert "version 3" in said[1]


def test_where_no_engine_takes_up_weights_the_update_fails() -> None:
    engines = [RestartedEngine("a"), RestartedEngine("b")]
    with policy_of(*engines) as policy:
        for number, engine in enumerate(engines):
            engine.fault = PolicyFault(f"http://h{number}:8000 does not answer")
        with pytest.raises(PolicyFault, match="h0:8000"):
            policy.set_weights()
        assert policy.version == 0


def test_an_engine_that_was_started_again_serves_no_old_weights() -> None:
    first, second = RestartedEngine("gone"), RestartedEngine("well")
    with policy_of(first, second) as policy:
        policy.set_weights()
        assert ask(policy, Sampling(4), "a").version == 1
        first.version = 0
        for name in ("a", "b", "c"):
            done = ask(policy, Sampling(4), name)
            assert (done.text, done.version) == ("well", 1)
        assert len(first.requests) == 2
        second.version = 0
        for _ in range(2):
            with pytest.raises(PolicyFault, match="version 0 and was given 1"):
                ask(policy, Sampling(4), "a")
        policy.set_weights()
        assert {ask(policy, Sampling(4), name).version for name in ("d", "e", "f")} == {2}


def test_where_every_engine_fails_the_episode_does() -> None:
    first, second = DeadEngine(), DeadEngine()
    with policy_of(first, second) as policy:
        for _ in range(2):
            with pytest.raises(PolicyFault, match="does not answer"):
                ask(policy, Sampling(4))
    assert len(first.requests) + len(second.requests) == 3  # two of the first episode, one of the second


def test_weights_that_do_not_fit_name_their_place_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Safetensors says in words of its own that the memory is full. Folders of killed processes go, others stay."""
    with temporary_folder("weights", tmp_path) as left:
        pass

    def full(*_: Any) -> None:
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("agentenv.policies.vllm._SHARED_MEMORY", tmp_path)
    with policy_of(WrittenEngine("a")) as policy, temporary_folder("weights", tmp_path) as used:
        left.mkdir()
        with monkeypatch.context() as patch:
            patch.setattr("agentenv.policies.vllm.write_weights", full)
            with pytest.raises(OSError, match=r"No space left.*engine\.weights_dir") as caught:
                policy.set_weights()
        assert caught.value.filename == str(tmp_path)
        assert policy.version == 0
        assert list(tmp_path.iterdir()) == [used]


def test_weights_on_a_disk_that_other_machines_may_use_stay(tmp_path: Path) -> None:
    """There the lock of a run on another machine may not be seen: NFS keeps those of folders to each machine."""
    other = tmp_path / "agentenv-weights-12345678-abcdefgh"  # begins with the start of a machine that made it
    other.mkdir()
    with policy_of(WrittenEngine("a"), weights_dir=tmp_path) as policy:
        policy.set_weights()
    assert list(tmp_path.iterdir()) == [other]


def test_engines_that_came_up_are_closed_when_a_later_one_does_not() -> None:
    first = WrittenEngine("a")

    def late() -> Coroutine[Any, Any, Engine]:
        async def wait() -> Engine:
            await asyncio.sleep(60)
            return first

        return wait()

    config = EngineConfig(kind="vllm", start_s=0.05)
    with pytest.raises(PolicyFault, match=r"\b0\.05\b"):
        VLLMPolicy(ByteTokenizer(), 32, config, [first.open, late])
    assert first.closed


class FailingLLM:
    """Comes up and then fails, or never answers."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.hangs = hangs
        self.ended = False

    async def collective_rpc(self, method: str, *, args: tuple[int, ...]) -> None:
        if self.hangs:
            await asyncio.sleep(60)
        raise ValueError("no such method\nand a trace")

    def shutdown(self, *, timeout: float) -> None:
        self.ended = True


class Processes:
    """What an engine started."""

    ended = False

    def end(self) -> None:
        self.ended = True


@pytest.mark.parametrize("hangs", [False, True])
def test_an_engine_that_fails_on_coming_up_leaves_no_process(hangs: bool) -> None:
    llm, processes = FailingLLM(hangs=hangs), Processes()
    engine = LocalEngine(llm, None, processes)  # type: ignore[arg-type]
    if hangs:
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(engine.bound(), 0.05))
    else:
        with pytest.raises(PolicyFault, match=r"no such method$"):
            asyncio.run(engine.bound())
    assert llm.ended
    assert processes.ended


@pytest.mark.parametrize(
    ("words", "opened"),
    [
        ([], 513),
        (["--rollout.strategy", "rollback", "--loss.correction.off_context", "rescore"], 1024),
        (["--rollout.context_tokens", "1024"], 1024),
    ],
)
def test_engines_of_a_run_are_opened_for_its_budget(
    monkeypatch: pytest.MonkeyPatch, words: list[str], opened: int
) -> None:
    """With a strategy that asks beyond the budget of an episode, for all that the model reads."""
    lengths: list[int] = []

    async def open_written(folder: Path, config: EngineConfig, context_tokens: int) -> WrittenEngine:
        lengths.append(context_tokens)
        return WrittenEngine("a")

    monkeypatch.setattr(LocalEngine, "open", open_written)
    engine = ["--engine.kind", "vllm", "--rollout.deterministic", "false"]
    with open_policy(override(TrainConfig(), [*engine, *words])) as policy:  # type: ignore[union-attr]
        assert policy.context_tokens == opened
    assert lengths == [opened]


def test_log_probs_at_another_temperature_are_normalised_anew() -> None:
    """Of p = (.5, .25, .25) at T = 1/2: squares .25, .0625, .0625 of sum .375, so 2/3 and 1/6."""
    table = {0: -0.6931471805599453, 1: -1.3862943611198906, 2: -1.3862943611198906}
    first, second = tempered((9, 0, 1), [table, table], 0.5)
    assert first == pytest.approx(-0.4054651081081644)
    assert second == pytest.approx(-1.791759469228055)
    assert tempered((9, 1), [{1: -1.5}], 1.0) == (-1.5,)


def test_versions_come_from_spans_and_log_probs_are_never_above_zero() -> None:
    done = sampled((5, 6, 7), (-1.0, 1e-7, -2.0), [("default", 0, 1), ("4", 1, 3)])
    assert done == Sampled((5, 6, 7), (-1.0, 0.0, -2.0), (0, 4, 4))
    with pytest.raises(PolicyFault, match="vLLM"):
        sampled((), (), [])


def test_what_vllm_is_asked_for() -> None:
    fields = sampling_fields(EngineRequest((1,), Sampling(5, stop=("x",), seed=2**64 + 3), ends=(2,)))
    assert (fields["seed"], fields["stop"], fields["stop_token_ids"]) == (3, ["x"], [2])
    assert fields["detokenize"]
    assert [scoring_fields(t)["prompt_logprobs"] for t in (1.0, 0.5)] == [0, -1]
    assert scoring_fields(1.0, other=True)["prompt_logprobs"] == -1


def test_the_grammar() -> None:
    assert policy_folder("vllm:some/where@http://a:1,http://b:2") == Path("some/where")
    with pytest.raises(ConfigurationError, match=r"hf:PATH.*engine\.kind.*'vllm'"):
        make_policy("vllm:some/where")


class Mark:
    """Who reads images, whose placeholder is the id 7."""

    placeholder = 7


def png(size: tuple[int, int]) -> bytes:
    held = io.BytesIO()
    Image.new("RGB", size).save(held, "PNG")
    return held.getvalue()


def test_images_go_to_an_engine_with_a_prompt_free_of_sampled_placeholders() -> None:
    images = (PlacedImage(png((4, 6)), 1, 1, 2), PlacedImage(png((2, 2)), 5, 1, 1))
    ids = [5, 7, 7, 9, 7, 7, 3]
    engine = WrittenEngine("a", end=True)
    reader: Any = Mark()
    config = EngineConfig(kind="vllm")
    with VLLMPolicy(ByteTokenizer(), 32, config, [engine.open], image_reader=reader) as policy:
        asyncio.run(policy.generate(ids, Sampling(4), images=images))
        asyncio.run(policy.score(ids, images=images))
    fed = (5, 7, 7, 9, 0, 7, 3)
    assert (engine.requests[0].ids, engine.requests[0].images) == (fed, images)
    assert engine.scored == [(tuple(ids), fed, images)]
    asked = prompt_of(fed, images)
    assert asked["prompt_token_ids"] == [5, 7, 9, 0, 7, 3]
    assert [picture.size for picture in asked["multi_modal_data"]["image"]] == [(4, 6), (2, 2)]
    assert prompt_of(fed, ()) == {"prompt_token_ids": list(fed)}


def test_a_sampled_placeholder_is_read_as_the_learner_reads_it() -> None:
    image = PlacedImage(png((4, 6)), 1, 1, 2)

    class Placing(WrittenEngine):
        """Ends a sample at the placeholder, as an engine does at an end of turn."""

        async def sample(self, request: EngineRequest) -> Sampled:
            done = await super().sample(request)
            size = done.ids.index(7) + 1 if 7 in request.ends and 7 in done.ids else len(done.ids)
            self.ids = self.ids[size:]
            return Sampled(done.ids[:size], done.logprobs[:size], done.versions[:size])

    engine = Placing("")
    engine.ids = [97, 7, 98, 7, 7, 99, END]
    reader: Any = Mark()
    config = EngineConfig(kind="vllm")
    with VLLMPolicy(ByteTokenizer(), 64, config, [engine.open], ends=(END,), image_reader=reader) as policy:
        done = asyncio.run(policy.generate([5, 7, 7, 9], Sampling(16, seed=3), images=(image,)))
    assert done.ids == (97, 7, 98, 7, 7, 99, END)
    assert done.finish is FinishReason.EOS
    assert done.logprobs == (0.0, -0.1, 0.0, -0.1, 0.0, 0.0, -0.1)
    assert [
        (request.ids[4:], request.sampling.max_tokens, request.sampling.seed) for request in engine.requests
    ] == [
        ((), 16, 3),
        ((97, 0), 14, 5),
        ((97, 0, 98, 0), 12, 7),
        ((97, 0, 98, 0, 0), 11, 8),
    ]
    assert {request.images for request in engine.requests} == {(image,)}


def test_a_sample_that_ends_with_a_placeholder_is_no_longer_than_asked() -> None:
    engine = WrittenEngine("")
    engine.ids = [97, 7]
    reader: Any = Mark()
    with VLLMPolicy(
        ByteTokenizer(), 64, EngineConfig(kind="vllm"), [engine.open], image_reader=reader
    ) as policy:
        done = asyncio.run(policy.generate([5], Sampling(2)))
    assert (done.ids, done.finish, len(engine.requests)) == ((97, 7), FinishReason.LENGTH, 1)


def test_an_engine_of_text_refuses_images() -> None:
    images = (PlacedImage(png((4, 6)), 1, 1, 2),)
    policy = policy_of(WrittenEngine("a"))
    with policy, pytest.raises(ConfigurationError, match="image"):
        asyncio.run(policy.generate([1, 7, 7], Sampling(4), images=images))
    server = RemoteEngine("http://127.0.0.1:9")
    for asked in (
        server.sample(EngineRequest((1,), Sampling(1), (2,), images)),
        server.logprobs((1,), 1.0, images),
    ):
        with pytest.raises(ConfigurationError, match="127"):
            asyncio.run(asked)


class ExpandingLLM:
    """Answers with one token, and says that the prompt had ``length`` tokens."""

    def __init__(self, length: int) -> None:
        self.length, self.prompts = length, list[Any]()

    async def generate(self, prompt: Any, *_: Any, **__: Any) -> AsyncIterator[Any]:
        self.prompts.append(prompt)
        done = SimpleNamespace(
            token_ids=[3], logprobs=[{3: SimpleNamespace(logprob=-1.0)}], weight_versions=None
        )
        yield SimpleNamespace(prompt_token_ids=[5, *[7] * (self.length - 2), 3], outputs=[done])


def test_an_engine_that_makes_other_tokens_of_an_image_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm", "vllm.sampling_params"):
        module: Any = ModuleType(name)
        module.SamplingParams = lambda **fields: fields
        module.RequestOutputKind = SimpleNamespace(FINAL_ONLY=1)
        monkeypatch.setitem(sys.modules, name, module)
    request = EngineRequest((5, 7, 7, 3), Sampling(1), (2,), (PlacedImage(png((4, 6)), 1, 1, 2),))
    for length, good in ((4, True), (5, False)):
        llm = ExpandingLLM(length)
        engine = LocalEngine(llm, None, None)  # type: ignore[arg-type]
        with nullcontext() if good else pytest.raises(PolicyFault, match=r"5 tokens.*4"):
            assert asyncio.run(engine.sample(request)).ids == (3,)
        assert llm.prompts[0]["prompt_token_ids"] == [5, 7, 3]

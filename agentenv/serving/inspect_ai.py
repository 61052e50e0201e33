"""inspect_ai: the benchmarks of this package as a task of Inspect, answered by any model that Inspect can ask.

Inspect finds the task by its name, ``agentenv/benchmark``::

    inspect eval agentenv/benchmark -T dataset=hotpotqa -T retriever=bm25 --model openai/gpt-5-mini

An episode is played as ``agentenv eval`` plays it: the model is given the tools of the environment and what the environment
shows, and the scorers are those of this package. Sampling, retries, limits and logs are Inspect's. An infrastructure failure
ends the sample with an error, so that it has no score.
"""

import functools
import site
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

from agentenv.core.assistant_turns import Call, MalformedCall, NativeCall
from agentenv.core.registry import env_class
from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.errors import (
    AgentEnvError,
    ConfigurationError,
    ContextTooSmall,
    EndpointRefusal,
    EnvFault,
    needs_extra,
)
from agentenv.evaluation.benchmark import Benchmark, BenchmarkParts, check_names, open_benchmark_env
from agentenv.evaluation.eval_agent import EvalAgent, make_eval_agent
from agentenv.evaluation.results import score_of
from agentenv.evaluation.runner import first_seed, play_batch, to_record
from agentenv.policies.card import EpisodeCard
from agentenv.policies.endpoint import ChatClient, ChatOptions
from agentenv.policies.endpoint_formats import MessageFormat, ToolFormat
from agentenv.policies.openai import OpenAIPolicy
from agentenv.policies.wires import ChatMessage, Reply
from agentenv.progress import SilentDisplay
from agentenv.serving.inspect_schemas import plain_schema

if TYPE_CHECKING:
    from inspect_ai import Task as InspectTask
    from inspect_ai.model import ChatMessage as InspectMessage
    from inspect_ai.model import ModelOutput
    from inspect_ai.scorer import Scorer
    from inspect_ai.solver import Solver, TaskState
    from inspect_ai.tool import ToolCall, ToolInfo

__all__ = ["benchmark"]  # noqa: F822  # made on demand: inspect_ai is optional

_POLICY = "inspect_ai"  # the name of the policy: Inspect chooses the model
_CARD = EpisodeCard(turn_tokens=32_768, context_tokens=131_072)
_RESULT = "agentenv"  # the entry in the store of a sample
_MESSAGE = (
    "message"  # the entry of a turn that holds the message of Inspect, which goes back to the model unchanged
)
_MOST_FAILURES = 0.5  # a share of the samples: one bad episode ends no evaluation, and a wrong key does


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _task()
    raise AttributeError(name)


@functools.cache
def _task() -> Callable[..., Any]:
    with needs_extra("inspect"):
        import inspect_ai
    # Inspect itself puts the package before the name where the package is installed otherwise than as a working copy.
    installed = any(map(Path(__file__).is_relative_to, (*site.getsitepackages(), site.getusersitepackages())))
    named = inspect_ai.task(name="benchmark" if installed else "agentenv/benchmark")
    return cast(Callable[..., Any], named(_benchmark))


def _benchmark(
    dataset: str = "",
    env: str = "",
    retriever: str = "",
    corpus: str = "",
    split: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    data: str | None = None,
    k: int | None = None,
    max_turns: int | None = None,
    scorers: str | list[str] | None = None,
    options: dict[str, Any] | None = None,
    task_options: dict[str, Any] | None = None,
    native: bool = True,
) -> "InspectTask":
    """A question set in an environment, or an environment's own tasks. The parameters are the fields of `Benchmark`.

    ``native`` says whether the tools of the environment are declared to the model. Otherwise it writes its actions as text,
    in the way that the opening message describes.

    Raises:
        PrerequisiteError: an unknown name, unreadable questions, a corpus that is not there, or a sealed set. Inspect shows
            its sentence alone.
    """
    from inspect_ai._util.error import PrerequisiteError

    named = [scorers] if isinstance(scorers, str) else scorers or ()
    try:
        asked = Benchmark(
            dataset=dataset,
            policy=_POLICY,
            scorers=tuple(named),
            env=env,
            options=options or {},
            data=None if data is None else Path(data),
            split=split,
            retriever=retriever,
            corpus=corpus,
            limit=limit,
            seed=seed,
            k=k,
            max_turns=max_turns,
            task_options=task_options or {},
        )
        return _inspect_task(_Player(asked, native=native))
    except AgentEnvError as error:
        raise PrerequisiteError(str(error)) from error


def _inspect_task(player: "_Player") -> "InspectTask":
    from inspect_ai import Task
    from inspect_ai.dataset import MemoryDataset, Sample

    samples = [
        Sample(id=task.id, input=task.question, target=list(task.answers)) for task in player.tasks.values()
    ]
    questions = MemoryDataset(samples, name=player.name)
    return Task(dataset=questions, solver=_solver(player), scorer=_scorer(), fail_on_error=_MOST_FAILURES)


class _Player:
    """Plays the episodes of a benchmark.

    Args:
        asked: What is evaluated.
        native: Whether tools are declared.

    Raises:
        AgentEnvError: an unknown name, unreadable questions, or a corpus that is not there.
        ConfigurationError: the questions are sealed.
    """

    def __init__(self, asked: Benchmark, *, native: bool) -> None:
        self._asked, self._native = asked, native
        _, agent = self._agent()
        check_names(asked, BenchmarkParts(policy=agent.policy))
        self._opened = open_benchmark_env(asked, agent, SilentDisplay())
        source = self._opened.source
        if any("canary" in task.data for task in source.tasks):
            raise ConfigurationError(
                f"{source.name} is sealed, and a log of Inspect would hold its questions in plain text: use agentenv eval"
            )
        self.name = source.name
        self.tasks: dict[str, Task] = {task.id: task for task in source.tasks}
        self._places = {task_id: place for place, task_id in enumerate(self.tasks)}

    def _agent(self) -> tuple["_InspectModel", EvalAgent]:
        model = _InspectModel()
        policy = _InspectPolicy(model, ToolFormat(sends_reasoning=True) if self._native else MessageFormat())
        stop = env_class(self._asked.env).stop
        return model, make_eval_agent(policy, _POLICY, 1, stop)

    async def play(self, state: "TaskState") -> None:
        """Plays the episode of a sample and puts its result into the store of the sample.

        Where a limit of Inspect ends the sample, its result is that of the episode so far; where it is a limit of time, that
        of no answer.

        Raises:
            EnvFault: the environment failed; there is no result then.
            Exception: what Inspect raised when the model was asked, such as a limit that was reached.
        """
        from inspect_ai.util import LimitExceededError

        model, agent = self._agent()
        assert agent.policy is not None
        task, place = self.tasks[str(state.sample_id)], self._places[str(state.sample_id)]
        model.state = state
        state.store.set(_RESULT, self._result(Trajectory(task, (), (), 0.0, EndReason.TIME_LIMIT)))
        (played,) = await play_batch(
            agent.policy,
            agent.chat,
            self._opened.make_env,
            [task],
            agent.config,
            place,
            seed=first_seed(self._asked.seed, state.epoch - 1),
            name=_POLICY,
        )
        if played.valid:
            state.store.set(_RESULT, self._result(played))
        elif not isinstance(model.raised, LimitExceededError):
            state.store.delete(_RESULT)
        if model.raised is not None:
            raise model.raised
        if not played.valid:
            raise EnvFault(played.error)

    def _result(self, played: Trajectory) -> dict[str, Any]:
        record = to_record(played, counted=False)
        return {
            "scores": {scorer: score_of(record, scorer) for scorer in self._asked.scorers},
            "answer": record["prediction"],
            "reward": played.reward,
            "end_reason": record["end_reason"],
            "turns": len(record["turns"]),
            "invalid_turns": sum(not turn["valid"] for turn in record["turns"]),
            "searches": record["searches"],
        }


class _InspectPolicy(OpenAIPolicy):
    """A model that Inspect asks, in place of an endpoint of this package."""

    def __init__(self, model: "_InspectModel", chat: MessageFormat | ToolFormat) -> None:
        super().__init__(cast(ChatClient, model), chat)

    @property
    def card(self) -> EpisodeCard:
        """Wide budgets, as Inspect has limits of its own."""
        return _CARD

    @property
    def context_tokens(self) -> int:
        """The bound of an episode."""
        return _CARD.context_tokens


class _InspectModel:
    """Asks the model of the running evaluation for one sample, whose state shows what the model saw last."""

    def __init__(self) -> None:
        self.model = _POLICY
        self.state: TaskState | None = None
        self.raised: Exception | None = None
        """What Inspect raised when it was asked last."""

    async def complete(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        template_options: Mapping[str, Any] | None = None,
        **options: Unpack[ChatOptions],
    ) -> Reply:
        """One reply. Of the options the strings that end a turn alone are sent; sampling is Inspect's to set.

        Raises:
            EndpointRefusal: a content filter refused.
            ContextTooSmall: the context of the model is full, or a limit of the sample is reached.
            Exception: what Inspect raises.
        """
        from inspect_ai.model import GenerateConfig, get_model
        from inspect_ai.util import LimitExceededError

        assert self.state is not None
        shown = [_shown(message) for message in messages]
        self.state.messages = [*shown]
        config = GenerateConfig(stop_seqs=list(options.get("stop") or ()) or None)
        try:
            output = await get_model().generate(shown, [_tool(tool) for tool in tools], config=config)
            self.state.output = output
            if not output.empty:
                self.state.messages.append(output.message)
        except LimitExceededError as error:
            self.raised = error
            raise ContextTooSmall(str(error)) from error
        except Exception as error:
            self.raised = error
            raise
        return _reply(output)


def _reply(output: "ModelOutput") -> Reply:
    """What the model said.

    Raises:
        EndpointRefusal: a content filter refused.
        ContextTooSmall: the context of the model is full.
    """
    if output.stop_reason == "model_length":
        raise ContextTooSmall("the conversation does not fit the context of the model")
    if output.stop_reason == "content_filter":
        raise EndpointRefusal("a content filter refused")
    said = output.message
    parts = [] if isinstance(said.content, str) else said.content
    thinking = "\n".join(part.reasoning for part in parts if part.type == "reasoning")
    return Reply(
        said.text,
        "length" if output.stop_reason == "max_tokens" else "stop",
        reasoning=thinking,
        calls=tuple(map(_call, said.tool_calls or ())),
        message={"role": "assistant", _MESSAGE: said},
    )


def _call(call: "ToolCall") -> Call:
    if call.parse_error:
        return MalformedCall(f"{call.function} {call.arguments}", call.parse_error, call.id)
    return NativeCall(call.function, call.arguments, call.id)


def _tool(declared: Mapping[str, Any]) -> "ToolInfo":
    from inspect_ai.tool import ToolInfo

    function = declared["function"]
    schema = plain_schema(function.get("parameters") or {})
    return ToolInfo.model_validate(
        {"name": function["name"], "description": function.get("description", ""), "parameters": schema}
    )


def _shown(message: ChatMessage) -> "InspectMessage":
    """A message as Inspect sends it."""
    from inspect_ai.model import ChatMessageAssistant, ChatMessageSystem, ChatMessageTool, ChatMessageUser

    if message.get(_MESSAGE) is not None:
        return cast("InspectMessage", message[_MESSAGE])
    role, content = message["role"], _content(message["content"])
    if role == "tool":
        return ChatMessageTool(content=content, tool_call_id=message["tool_call_id"])
    kinds: dict[str, Any] = {
        "system": ChatMessageSystem,
        "user": ChatMessageUser,
        "assistant": ChatMessageAssistant,
    }
    return cast("InspectMessage", kinds[role](content=content))


def _content(content: Any) -> Any:
    from inspect_ai.model import ContentImage, ContentText

    if isinstance(content, str):
        return content
    return [
        ContentText(text=part["text"])
        if part["type"] == "text"
        else ContentImage(image=part["image_url"]["url"])
        for part in content
    ]


def _solver(player: _Player) -> "Solver":
    from inspect_ai.solver import solver

    @solver(name="episode")  # type: ignore[untyped-decorator,unused-ignore]
    def episode() -> Any:
        async def solve(state: "TaskState", generate: Any) -> "TaskState":
            await player.play(state)
            return state

        return solve

    return cast("Solver", episode())


def _scorer() -> "Scorer":
    from inspect_ai.scorer import Score, mean, scorer, stderr

    @scorer(metrics={"*": [mean(), stderr()]}, name="agentenv")  # type: ignore[untyped-decorator,unused-ignore]
    def scores() -> Any:
        async def score(state: "TaskState", target: Any) -> Score | None:
            result = state.store.get(_RESULT)
            if result is None:
                return None
            rest = {name: value for name, value in result.items() if name not in ("scores", "answer")}
            return Score(value=result["scores"], answer=result["answer"], metadata=rest)

        return score

    return cast("Scorer", scores())

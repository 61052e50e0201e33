"""Reflect and retry by script: what joins which group, what is trained, what faults do, and that nothing leaks."""

import asyncio
import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentenv.core.chat import InlineFormat, TemplateFormat
from agentenv.core.protocols import ChatFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.snapshot import Snapshot
from agentenv.core.trajectory import Origin, SegmentKind, Trajectory, to_record
from agentenv.core.types import Completion, Document, EndReason, Sampling, StateCapability, Step, Task
from agentenv.data.code_tasks import generate_code_tasks
from agentenv.envs.calculator import Calculator
from agentenv.envs.code import Code
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import ConfigurationError, PolicyFault, RetrieverFault, UnknownName
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.sandbox.backends import make_executor, unavailable
from agentenv.sandbox.fakes import FakeExecutor
from agentenv.trainers.credit.estimators import get_estimator
from agentenv.trainers.loop.metrics import rollout_metrics
from agentenv.trainers.strategies.retry import improved
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import by_group, get_strategy, play_groups

TOKENIZER = ByteTokenizer()
DOCUMENTS = [
    Document("1", "Iria", "Iria was built by Tomas Vell."),
    Document("2", "Tomas Vell", "Tomas Vell was born in Orun."),
]
TASK = Task("t", "Where was the builder of Iria born?", ("Orun",))
IRIA, VELL, NOISE = (f"<search>{q}</search>" for q in ("Iria built", "Tomas Vell born", "weather"))
RIGHT, WRONG = "<answer>Orun</answer>", "<answer>Iria</answer>"

CONFIG = RolloutConfig(turn_tokens=500, context_tokens=6000, stop=("</search>", "</answer>"))


def report(pivot: Any = 1, outcome: str = "failure") -> str:
    return json.dumps(
        {
            "trajectory_outcome": outcome,
            "improvement_suggestion": "FOLLOW THE PERSON",
            "retry_from_step": pivot,
        }
    )


class Sampled(ScriptedPolicy):
    """A script with log-probs of its own for every token, so that a wrong one is seen."""

    def __init__(self, actions: dict[str, Sequence[str]]) -> None:
        super().__init__(actions)
        self.prompts: list[tuple[str | None, str]] = []
        self.seeds: list[int] = []
        self.released: list[str] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.prompts.append((episode, TOKENIZER.decode(list(prompt_ids))))
        self.seeds.append(sampling.seed)
        made = await super().generate(prompt_ids, sampling, episode=episode)
        return replace(made, logprobs=tuple(-0.01 * (i % 97 + 1) for i in made.ids))

    def release(self, episode: str) -> None:
        super().release(episode)
        self.released.append(episode)


def search_env() -> LocalSearch:
    return LocalSearch(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1, max_turns=3)


def retried(
    *first_lane: str,
    reflection: str | None = None,
    env: Any = search_env,
    task: Task = TASK,
    chat: ChatFormat | None = None,
    policy: Sampled | None = None,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> list[Trajectory]:
    """What comes of two starts, so of one episode, its reflection and its retry."""
    script: dict[str, Sequence[str]] = {"e-0": first_lane}
    if reflection is not None:
        script["e-0-reflection"] = [reflection]
    policy = policy or Sampled(script)
    policy.actions = script
    settings = CONFIG.model_copy(update=config or {})
    context = RolloutContext(policy, chat or InlineFormat(TOKENIZER), settings, TOKENIZER.decode)
    specs = [EpisodeSpec(env(), task, seed, "g") for seed in (11, 12)]
    strategy = get_strategy("reflect_retry", options)
    try:
        (played,) = asyncio.run(play_groups([specs], strategy, context))
    finally:
        for spec in specs:
            spec.env.close()
    assert len({t.id for t in played}) == len(played)
    return played


def groups(played: Sequence[Trajectory]) -> list[list[str]]:
    return [[t.id for t in group] for group in by_group(played)]


def counts(played: Sequence[Trajectory]) -> list[int]:
    found = played[0].info["strategy"]
    return [
        found.get(name, 0) for name in ("reflections", "reflections_valid", "retries", "retries_improved")
    ]


@pytest.mark.parametrize(("starts", "expected"), [(1, ["e-0"]), (3, ["e-0", "e-0-retry", "e-2"])])
def test_the_last_of_an_odd_number_is_played_without_a_retry(starts: int, expected: list[str]) -> None:
    """A sampler may ask for a single further episode of a group, which was not played at all."""
    policy = Sampled(
        {"e-0": [IRIA, WRONG, VELL, WRONG], f"e-{starts - 1}": [WRONG]} if starts > 1 else {"e-0": [WRONG]}
    )
    context = RolloutContext(policy, InlineFormat(TOKENIZER), CONFIG, TOKENIZER.decode)
    specs = [EpisodeSpec(search_env(), TASK, seed, "g") for seed in range(starts)]
    strategy = get_strategy("reflect_retry", {"reflector": "rule"})
    (played,) = asyncio.run(play_groups([specs], strategy, context))
    for spec in specs:
        spec.env.close()
    assert [t.id for t in played] == expected
    assert played[-1].reward == 0.0


SAVED = (IRIA, WRONG, VELL, RIGHT)  # the base is IRIA, WRONG; its retry from step 1 is IRIA, VELL, RIGHT


def test_a_failure_that_its_retry_repairs_gives_three_groups() -> None:
    played = retried(*SAVED, reflection=report())
    assert groups(played) == [["e-0", "e-0-retry"], ["e-0-reflection"], ["e-0-guided"]]
    base, retry, dialogue, guided = played
    assert [t.reward for t in played] == [0.0, 1.0, 1.0, 1.0]
    assert [turn.action for turn in retry.turns] == [IRIA, VELL, RIGHT]
    assert [t.origin for t in played] == [Origin.BASE, Origin.RETRY, Origin.REFLECTION, Origin.RETRY]
    assert [(t.parent_id, t.fork_turn) for t in played] == [
        (None, None), ("e-0", 1), ("e-0", None), ("e-0", 1)
    ]  # fmt: skip
    assert counts(played) == [1, 1, 1, 1]
    assert base.info["strategy"]["reflection_tokens"] == len(report()) + 1
    assert base.info["strategy"]["retry_tokens"] == len(VELL + RIGHT)
    assert base.info["strategy"]["sampled_tokens"] == len("".join(SAVED)) + len(report()) + 1
    assert TOKENIZER.decode(dialogue.ids[dialogue.loss_mask].tolist()) == report() + "<|im_end|>"
    assert guided.group_id == "g/e-0-guided"


def test_the_trained_rows_hold_no_guidance_and_no_reflection() -> None:
    """The retry's row is the row of an episode in which nobody ever said anything."""
    for chat in (InlineFormat(TOKENIZER), TemplateFormat(ByteTokenizer(chat=True))):
        policy = Sampled({})
        base, retry, _, guided = retried(*SAVED, reflection=report(), chat=chat, policy=policy)
        (alone, *_) = retried(IRIA, VELL, RIGHT, reflection="nothing", chat=chat)
        assert retry.ids.tolist() == alone.ids.tolist()
        for row in (base, retry):
            assert "FOLLOW" not in TOKENIZER.decode(row.ids.tolist())
            assert all(s.kind is not SegmentKind.INJECTED for s in row.segments)
        told = TOKENIZER.decode(guided.ids.tolist())
        assert "FOLLOW THE PERSON" in told
        assert "FOLLOW" not in TOKENIZER.decode(guided.ids[guided.loss_mask].tolist())
        # The policy was asked with the guidance, in the place where the record of the guided retry has it.
        assert told.startswith(policy.prompts[3][1])
        assert policy.prompts[3][1] != policy.prompts[1][1]


def test_the_pivot_mask_is_data_in_base_retry_and_guided_retry() -> None:
    base, retry, _, guided = retried(*SAVED, reflection=report())

    def trained(t: Trajectory) -> str:
        return TOKENIZER.decode(t.ids[t.loss_mask].tolist())

    assert [trained(t) for t in (base, retry, guided)] == [WRONG, VELL + RIGHT, VELL + RIGHT]
    whole, _, _, _ = retried(NOISE, WRONG, IRIA, VELL, RIGHT, reflection=report(0))
    assert trained(whole) == NOISE + WRONG
    base, retry, _, _ = retried(*SAVED, reflection=report(), pivotal=False)
    assert [trained(base), trained(retry)] == [SAVED[0] + WRONG, SAVED[0] + VELL + RIGHT]


def test_without_pivotal_credit_what_came_before_the_pivot_is_trained_and_credited() -> None:
    """Both options together; a mask that is open over tokens that the estimator gives 0 removes nothing."""
    explore = by_group(retried(*SAVED, reflection=report(), pivotal=False))[0]

    def credits(**options: Any) -> list[list[float]]:
        """The values on the trained tokens of the first turn and of the last, of base and retry."""
        values = get_estimator("pivotal", options)(explore)
        turns = [t.turn_index for t in explore]
        return [
            [*{*v[t.loss_mask & (at == 0)].tolist()}, *{*v[t.loss_mask & (at == at.max())].tolist()}]
            for v, t, at in zip(values, explore, turns, strict=True)
        ]

    assert credits() == [[0.0, -0.5], [0.0, 1.5]]
    assert credits(from_pivot=False) == [[-0.5, -0.5], [1.5, 1.5]]


def test_flags_mark_what_was_sampled_under_guidance() -> None:
    base, retry, dialogue, guided = retried(*SAVED, reflection=report())
    for t in (base, dialogue, guided):
        assert not t.context_mismatch.any()
    assert retry.context_mismatch.tolist() == retry.loss_mask.tolist()
    assert (retry.logprobs[retry.loss_mask] < 0).all()  # kept, for whoever weighs each token by itself


def test_credit_is_that_of_the_published_method() -> None:
    explore, dialogue, guided = by_group(retried(*SAVED, reflection=report()))
    paper, repo = (get_estimator("pivotal", {"amplify": mode}) for mode in ("paper", "repo"))

    def values(estimate: Any, group: list[Trajectory]) -> list[float]:
        """The one value that each trajectory has on its trained tokens."""
        found = [set(v[t.loss_mask].tolist()) for t, v in zip(group, estimate(group), strict=True)]
        assert all(len(one) == 1 for one in found)
        return [one.pop() for one in found]

    assert values(paper, explore) == [-0.5, 1.5]  # b = 1/2, alpha = 3
    assert values(repo, explore) == [-0.5, 1.0]
    for alone in (dialogue, guided):  # b = 0
        assert values(paper, alone) == [3.0]
        assert values(repo, alone) == [1.0]
    for group in (dialogue, guided):  # every other estimator has nothing to compare with
        assert not np.concatenate(get_estimator("group_relative")(group)).any()


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        # E9: rewards and numbers of turns of base and retry
        ((0.5, 3), (1.0, 3), True),
        ((1.0, 3), (1.0, 2), True),
        ((1.0, 3), (1.0, 3), False),
        ((0.2, 3), (0.9, 3), False),
        ((1.0, 3), (0.9, 1), False),
    ],
)
def test_which_retries_are_worth_learning_from(
    turns: Any, before: tuple[float, int], after: tuple[float, int], expected: bool
) -> None:
    base, retry = (turns([0.0] * n, reward=reward) for reward, n in (before, after))
    assert improved(base, retry, 1.0) is expected


def test_a_retry_that_fails_again_joins_the_group_alone() -> None:
    played = retried(IRIA, WRONG, WRONG, reflection=report())
    assert groups(played) == [["e-0", "e-0-retry"]]
    assert [t.reward for t in played] == [0.0, 0.0]
    assert counts(played) == [1, 1, 1, 0]


def test_a_success_found_wasteful_is_retried_and_a_shorter_one_is_learned() -> None:
    wasteful = (IRIA, NOISE, VELL, RIGHT)
    played = retried(*wasteful, VELL, RIGHT, reflection=report(1, "success_but_inefficient"))
    assert groups(played) == [["e-0", "e-0-retry"], ["e-0-reflection"], ["e-0-guided"]]
    same = retried(*wasteful, NOISE, VELL, RIGHT, reflection=report(1, "success_but_inefficient"))
    assert groups(same) == [["e-0", "e-0-retry"]]


def test_a_reflection_that_rightly_finds_nothing_is_learned() -> None:
    perfect = report(None, "success")
    played = retried(IRIA, VELL, RIGHT, reflection=perfect)
    assert groups(played) == [["e-0"], ["e-0-reflection"]]
    assert counts(played) == [1, 1, 0, 0]
    assert played[0].loss_mask.sum() == len(IRIA + VELL + RIGHT)
    # ... and one that praises a failure is not
    assert groups(retried(IRIA, WRONG, reflection=perfect)) == [["e-0"]]


def test_a_report_that_cannot_be_used_changes_nothing() -> None:
    for text in ("no idea", report(2), report(-1)):
        played = retried(IRIA, WRONG, reflection=text)
        assert groups(played) == [["e-0"]]
        assert counts(played) == [1, 0, 0, 0]
        assert played[0].loss_mask.sum() == len(IRIA + WRONG)


def test_a_pivot_in_quotes_is_used_as_a_number() -> None:
    assert retried(*SAVED, reflection=report("1"))[1].fork_turn == 1


def test_without_guidance_the_retry_is_on_policy() -> None:
    policy = Sampled({})
    played = retried(*SAVED, reflection=report(), guidance=False, policy=policy)
    assert groups(played) == [["e-0", "e-0-retry"], ["e-0-reflection"]]
    assert not played[1].context_mismatch.any()
    assert policy.prompts[3][1] == policy.prompts[1][1]


def test_every_sample_has_a_seed_of_its_own() -> None:
    policy = Sampled({})
    retried(*SAVED, reflection=report(), policy=policy)
    assert len(set(policy.seeds)) == len(policy.seeds) == 5


def test_the_rule_samples_no_reflection() -> None:
    played = retried(IRIA, NOISE, WRONG, VELL, RIGHT, reflector="rule")
    # The second search changes nothing that is known, so the rule goes back to it.
    base, retry, _ = played
    assert groups(played) == [["e-0", "e-0-retry"], ["e-0-guided"]]
    assert (retry.fork_turn, base.info["strategy"]["reflection_tokens"]) == (1, 0)
    assert retry.reward == 1.0


def test_evidence_finds_the_pivot_and_only_mostly_right_episodes_are_retried() -> None:
    """IRIA finds the first of two passages, the answer comes before the second: of two turns one was right."""
    known = replace(TASK, data={"supporting_ids": ("1", "2")})
    options: dict[str, Any] = {"reflector": "evidence", "guidance": False, "task": known}
    saved = retried(*SAVED, **options)
    assert [(t.fork_turn, t.reward) for t in saved] == [(None, 0.0), (1, 1.0)]
    assert counts(retried(*SAVED, min_progress=0.5, **options)) == [1, 1, 1, 1]
    assert counts(retried(*SAVED, min_progress=0.51, **options)) == [1, 1, 0, 0]


def test_a_tool_that_failed_is_the_rule_s_pivot() -> None:
    task = Task("sum", "2 * 3 - 1", ("5",))
    calls = [
        f'<tool_call>{{"name": "calculate", "arguments": {{"expression": "{e}"}}}}</tool_call>'
        for e in ("2 * 3", "6 / 0", "6 - 1")
    ]
    played = retried(calls[0], calls[1], "7", calls[2], "5", env=Calculator, task=task, reflector="rule")
    base, retry, guided = played
    assert (base.reward, retry.reward, retry.fork_turn) == (0.0, 1.0, 1)
    assert "A call of calculate failed (ValueError)" in TOKENIZER.decode(guided.ids.tolist())


def check_interpreter(executor: Any) -> None:
    """The names of a live interpreter are again those of the pivot, and every snapshot of it is released."""
    (task,) = generate_code_tasks(1)
    found, spoilt, looked = (
        f"<python>{code}</python>" for code in ("x = [1]", "x.append(2); 1 / 0", "print(len(x))")
    )
    right = f"<submit>{task.data['solution']}</submit>"

    def env() -> Code:
        return Code(tasks=[task], executor=executor)

    script = (found, spoilt, "<submit>pass</submit>", looked, right)
    stops = {"stop": ("</python>", "</submit>"), "context_tokens": 20_000}
    base, retry, _ = retried(*script, env=env, task=task, reflector="rule", config=stops)
    assert (base.reward, retry.reward, retry.fork_turn) == (0.0, 1.0, 1)
    assert "1" in retry.turns[1].observation[0].text
    assert "2" not in retry.turns[1].observation[0].text


def test_a_live_interpreter_goes_back_with_its_names() -> None:
    check_interpreter(FakeExecutor())


def test_a_live_interpreter_in_a_jail_goes_back_with_its_names() -> None:
    if reason := unavailable("bwrap"):
        pytest.skip(f"bwrap: {reason}")
    with contextlib.closing(make_executor("bwrap", size=1)) as executor:
        check_interpreter(executor)


def test_the_retry_may_be_as_long_as_an_episode_without_guidance() -> None:
    full = retried(*SAVED, reflection=report())[1]
    size = len(full.ids)
    tight = retried(*SAVED, reflection=report(), config={"context_tokens": size})[1]
    assert tight.ids.tolist() == full.ids.tolist()
    short = retried(*SAVED, reflection=report(), config={"context_tokens": size - 1})[1]
    assert len(short.ids) == size - 1


def test_guidance_that_fills_the_policy_s_context_is_no_retry() -> None:
    class Small(Sampled):
        async def generate(
            self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
        ) -> Completion:
            from agentenv.errors import ContextTooSmall

            if "FOLLOW" in TOKENIZER.decode(list(prompt_ids)):
                raise ContextTooSmall("full")
            return await super().generate(prompt_ids, sampling, episode=episode)

    assert groups(retried(WRONG, reflection=report(0), policy=Small({}))) == [["e-0"]]


class Broken(LocalSearch):
    """Fails in the search for Vell."""

    async def astep(self, action: str) -> Step:
        if "Vell" in action:
            raise RetrieverFault("down")
        return await super().astep(action)


def broken() -> Broken:
    return Broken(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1, max_turns=3)


def test_a_fault_in_the_retry_masks_the_retry_and_leaves_the_base_whole() -> None:
    base, retry = retried(*SAVED, reflection=report(), env=broken)
    assert (retry.valid, retry.end_reason, retry.error) == (
        False, EndReason.ENV_FAULT, "RetrieverFault: down"
    )  # fmt: skip
    assert base.valid
    assert base.loss_mask.sum() == len(IRIA + WRONG)
    assert rollout_metrics(by_group([base, retry]))["faults"] == 1


def test_a_fault_in_the_base_is_neither_reflected_on_nor_retried() -> None:
    (base,) = retried(VELL, reflection=report(), env=broken)
    assert (base.valid, base.end_reason) == (False, EndReason.ENV_FAULT)


def test_a_fault_in_the_reflection_is_counted_and_the_base_stays() -> None:
    base, dialogue = retried(IRIA, WRONG)  # no script for the reflection: the engine fails
    assert (base.valid, dialogue.valid, dialogue.origin) == (True, False, Origin.REFLECTION)
    assert dialogue.error.startswith("PolicyFault: the script")
    metrics = rollout_metrics(by_group([base, dialogue]))
    assert (metrics["faults"], metrics["reward_mean"]) == (1, 0.0)


def test_bad_configuration_of_the_reflector_stops_the_run() -> None:
    class Refused(Sampled):
        async def generate(
            self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
        ) -> Completion:
            if episode == "e-0-reflection":
                raise ConfigurationError("wrong key")
            return await super().generate(prompt_ids, sampling, episode=episode)

    with pytest.raises(ConfigurationError, match="wrong key"):
        retried(IRIA, WRONG, policy=Refused({}))


class Replayed(LocalSearch):
    """Memory that cannot be copied; ``drifting`` shows something new in every search."""

    capability = StateCapability.REPLAY
    drifting = False
    searches = 0

    def snapshot(self) -> Snapshot:
        raise AssertionError("never captured")

    async def astep(self, action: str) -> Step:
        step = await super().astep(action)
        self.searches += 1
        if not self.drifting or not step.observation:
            return step
        return step._replace(observation=(replace(step.observation[0], content=str(self.searches)),))


class Drifting(Replayed):
    drifting = True


def test_replay_gives_the_same_retry_as_a_snapshot() -> None:
    def env() -> Replayed:
        return Replayed(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1, max_turns=3)

    by_replay = retried(*SAVED, reflection=report(), env=env)
    by_snapshot = retried(*SAVED, reflection=report())
    assert [to_record(t) for t in by_replay] == [to_record(t) for t in by_snapshot]


def test_a_replay_that_diverges_is_a_fault_and_no_reward() -> None:
    def env() -> Drifting:
        return Drifting(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1, max_turns=3)

    base, retry = retried(*SAVED, reflection=report(), env=env)
    assert (retry.valid, retry.end_reason) == (False, EndReason.ENV_FAULT)
    assert retry.error.startswith("ReplayDivergence: ")
    assert "turn 0" in retry.error
    assert base.loss_mask.sum() == len(IRIA + WRONG)


def test_snapshots_and_caches_are_freed_however_a_lane_ends() -> None:
    taken: list[Snapshot] = []

    class Counting(LocalSearch):
        def snapshot(self) -> Snapshot:
            taken.append(super().snapshot())
            return taken[-1]

        async def astep(self, action: str) -> Step:
            if "weather" in action:
                raise RetrieverFault("down")
            return await super().astep(action)

    def env() -> Counting:
        return Counting(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1, max_turns=3)

    for script in (SAVED, (IRIA, WRONG, NOISE), (IRIA, NOISE)):
        policy = Sampled({})
        retried(*script, reflection=report(), env=env, policy=policy)
        assert taken
        assert all(snapshot.released for snapshot in taken)
        assert "e-0" in policy.released
        taken.clear()


def test_lanes_share_their_batches_and_equal_seeds_give_equal_records() -> None:
    """Four slots that end differently, twice."""
    script = {
        "e-0": SAVED,
        "e-1": (IRIA, VELL, RIGHT),
        "e-2": (WRONG, WRONG),
        "e-3": (NOISE, WRONG, VELL, RIGHT),
        "e-0-reflection": [report()],
        "e-1-reflection": [report(None, "success")],
        "e-2-reflection": [report(0)],
        "e-3-reflection": ["no idea"],
    }

    def play(deterministic: bool) -> list[dict[str, Any]]:
        config = CONFIG.model_copy(update={"deterministic": deterministic})
        context = RolloutContext(Sampled(dict(script)), InlineFormat(TOKENIZER), config, TOKENIZER.decode)
        specs = [EpisodeSpec(search_env(), TASK, seed, "g") for seed in range(8)]
        (played,) = asyncio.run(play_groups([specs], get_strategy("reflect_retry"), context))
        return [to_record(t) for t in played]

    first = play(True)
    assert [record["id"] for record in first if record["group_id"] == "g"] == [
        "e-0", "e-0-retry", "e-1", "e-2", "e-2-retry", "e-3"
    ]  # fmt: skip
    assert play(True) == first == play(False)


def test_the_figures_of_a_step_show_the_policy_unaided_and_what_was_spent() -> None:
    metrics = rollout_metrics(by_group(retried(*SAVED, reflection=report())))
    assert (metrics["reward_mean"], metrics["answer_rate"], metrics["faults"]) == (0.0, 1.0, 0)
    assert metrics["zero_variance_share"] == 0.0  # the group learns: its retry has another reward
    assert (metrics["reflections"], metrics["retries_improved"]) == (1, 1)
    assert metrics["response_tokens"] == len(IRIA + WRONG)
    assert metrics["sampled_tokens"] == len("".join(SAVED)) + len(report()) + 1
    assert "end_submitted" not in metrics


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"reflector": "slf"}, UnknownName, "No reflector 'slf'. Did you mean 'self'?"),
        ({"reflector": "hf:"}, UnknownName, "No reflector 'hf:'"),
        ({"reflection_tokens": 0}, ConfigurationError, "reflection_tokens must be at least 1, not 0"),
        ({"guidance": "perhaps"}, ConfigurationError, "option 'guidance'"),
    ],
)
def test_wrong_options_are_one_sentence(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        get_strategy("reflect_retry", options)
    assert words in str(caught.value)


def test_an_environment_that_cannot_go_back_is_refused() -> None:
    class Nothing(LocalSearch):
        capability = StateCapability.NONE

    with pytest.raises(ConfigurationError, match="Nothing"):
        retried(WRONG, env=lambda: Nothing(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS)))


def test_a_dialogue_of_the_engine_s_fault_is_typed() -> None:
    class Down(Sampled):
        async def generate(
            self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
        ) -> Completion:
            if len(self.prompts) == 3:  # the first turn of the retry
                raise PolicyFault("out of memory")
            return await super().generate(prompt_ids, sampling, episode=episode)

    base, retry = retried(*SAVED, reflection=report(), policy=Down({}))
    assert (base.valid, retry.end_reason) == (True, EndReason.POLICY_FAULT)

"""Guided rescue by script: when a hint is given, how long it is, what is recorded, critiques, demonstrations, rounds."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentenv.core.chat import InlineFormat
from agentenv.core.env import Env
from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import Origin, SegmentKind, Trajectory, to_record
from agentenv.core.types import Completion, Document, EndReason, Sampling, Step, Task
from agentenv.envs.search.local_search import LocalSearch
from agentenv.errors import ConfigurationError, ContextTooSmall, RetrieverFault
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.trainers.loop.metrics import rollout_metrics
from agentenv.trainers.strategies.rollout_context import RolloutContext, run_rounds
from agentenv.trainers.strategies.strategies import by_group, check_expert, get_strategy, play_groups

TOKENIZER = ByteTokenizer()
DOCUMENTS = [
    Document("1", "Iria", "Iria was built by Tomas Vell."),
    Document("2", "Tomas Vell", "Tomas Vell was born in Orun."),
]
IRIA, VELL = "<search> Iria built </search>", "<search> Tomas Vell born </search>"
RIGHT, WRONG = "<answer> Orun </answer>", "<answer> Iria </answer>"
PATH = ({"query": "Iria built"}, {"query": "Tomas Vell born"})
TASK = Task("t", "Where was the builder of Iria born?", ("Orun",), data={"path": PATH})
CONFIG = RolloutConfig(context_tokens=4000, turn_tokens=60, stop=("</search>", "</answer>"))


class Noting(ScriptedPolicy):
    """A script that remembers what it was shown."""

    def __init__(self, actions: dict[str, Sequence[str]]) -> None:
        super().__init__(actions)
        self.shown: dict[str, str] = {}
        self.seeds: list[int] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
    ) -> Completion:
        self.shown.setdefault(episode or "", TOKENIZER.decode(list(prompt_ids)))
        self.seeds.append(sampling.seed)
        return await super().generate(prompt_ids, sampling, episode=episode)


def search_env() -> LocalSearch:
    return LocalSearch(
        tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1, max_turns=3, prompt="{question}"
    )


def played(
    name: str,
    policy: ScriptedPolicy,
    n: int,
    *,
    task: Task = TASK,
    config: RolloutConfig = CONFIG,
    env: Any = search_env,
    **options: Any,
) -> list[Trajectory]:
    context = RolloutContext(policy, InlineFormat(TOKENIZER), config, TOKENIZER.decode)
    specs = [EpisodeSpec(env(), task, seed, "g") for seed in range(n)]
    (found,) = asyncio.run(play_groups([specs], get_strategy(name, options), context))
    assert len({t.id for t in found}) == len(found)
    return found


def test_guide_hints_only_where_all_fail() -> None:
    policy = Noting({"e-0": [WRONG], "e-1": [IRIA, VELL, RIGHT]})
    assert [t.id for t in played("guide", policy, 2)] == ["e-0", "e-1"]


def test_guide_s_hinted_episodes_join_the_group_without_their_hint() -> None:
    policy = Noting(
        {"e-0": [WRONG], "e-1": [IRIA, WRONG], "e-0-hinted": [IRIA, VELL, RIGHT], "e-1-hinted": [WRONG]}
    )
    group = played("guide", policy, 2)
    assert [(t.id, t.reward, t.origin) for t in group] == [
        ("e-0", 0.0, Origin.BASE),
        ("e-1", 0.0, Origin.BASE),
        ("e-0-hinted", 1.0, Origin.RETRY),
        ("e-1-hinted", 0.0, Origin.RETRY),
    ]
    assert len(by_group(group)) == 1
    hint = f"A solution begins like this:\n{IRIA}\n{VELL}\n"  # not the answer
    assert policy.shown["e-0-hinted"] == f"{TASK.question}\n{hint}"
    clean = group[2]
    assert (clean.parent_id, clean.fork_turn) == ("e-0", 0)
    assert TOKENIZER.decode(clean.ids.tolist()).startswith(f"{TASK.question}\n{IRIA}")
    assert clean.context_mismatch.tolist() == clean.loss_mask.tolist()
    assert all(s.kind is not SegmentKind.INJECTED for s in clean.segments)
    assert len(set(policy.seeds)) == len(policy.seeds)
    figures = rollout_metrics([group])
    assert (figures["reward_mean"], figures["hinted"], figures["hinted_solved"]) == (0.0, 2, 1)
    assert figures["sampled_tokens"] == sum(t.response_tokens for t in group)


def test_the_task_s_own_hint_comes_first_and_no_hint_is_no_second_try() -> None:
    own = replace(TASK, data={"hint": "Look up who built it."})
    script = {"e-0": [WRONG], "e-1": [WRONG], "e-0-hinted": [WRONG], "e-1-hinted": [WRONG]}
    policy = Noting(dict(script))
    played("guide", policy, 2, task=own)
    assert policy.shown["e-0-hinted"] == f"{TASK.question}\nLook up who built it.\n"
    # The expert knows only the answer, which is no hint.
    bare = replace(TASK, data={})
    assert [t.id for t in played("guide", Noting(dict(script)), 2, task=bare)] == ["e-0", "e-1"]


def test_a_hint_that_fills_the_policy_s_context_is_no_episode() -> None:
    class Small(Noting):
        async def generate(
            self, prompt_ids: Sequence[int], sampling: Sampling, *, episode: str | None = None
        ) -> Completion:
            if episode and episode.endswith("hinted"):
                raise ContextTooSmall("full")
            return await super().generate(prompt_ids, sampling, episode=episode)

    assert len(played("guide", Small({"e-0": [WRONG], "e-1": [WRONG]}), 2)) == 2


def test_an_episode_with_guidance_of_its_own_is_recorded_without_it() -> None:
    """What a sampler shows (XRPO's examples) stands behind the question while the policy samples."""
    policy = Noting({"e-0": [WRONG], "e-1-seeded": [IRIA, VELL, RIGHT]})
    context = RolloutContext(policy, InlineFormat(TOKENIZER), CONFIG, TOKENIZER.decode)
    specs = [
        EpisodeSpec(search_env(), TASK, seed, "g", guidance=told)
        for seed, told in ((0, ""), (1, "Like this"))
    ]
    ((plain, seeded),) = asyncio.run(play_groups([specs], get_strategy("plain"), context))
    assert (plain.id, plain.origin, bool(plain.context_mismatch.any())) == ("e-0", Origin.BASE, False)
    assert (seeded.id, seeded.origin, seeded.reward, seeded.guided) == ("e-1-seeded", Origin.RETRY, 1.0, True)
    assert policy.shown["e-1-seeded"] == f"{TASK.question}\nLike this\n"
    assert TOKENIZER.decode(seeded.ids.tolist()).startswith(f"{TASK.question}\n{IRIA}")
    assert seeded.context_mismatch.tolist() == seeded.loss_mask.tolist()
    assert len(set(policy.seeds)) == len(policy.seeds)


class Broken(LocalSearch):
    async def astep(self, action: str) -> Step:
        if action == RIGHT:
            raise RetrieverFault("down")
        return await super().astep(action)


def broken() -> Broken:
    return Broken(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), k=1, prompt="{question}")


def test_faults_decide_nothing() -> None:
    """A group whose valid members fail is lost; one without valid members says nothing."""
    script = {"e-0": [RIGHT], "e-1": [WRONG], "e-0-hinted": [WRONG], "e-1-hinted": [RIGHT]}
    group = played("guide", Noting(dict(script)), 2, env=broken)
    assert [t.valid for t in group] == [False, True, True, False]
    assert group[3].reward == 0.0
    assert len(played("guide", Noting({"e-0": [RIGHT], "e-1": [RIGHT]}), 2, env=broken)) == 2


def graded() -> LocalSearch:
    """Outcomes are F1: `Orun city` has 2/3 of the accepted answer, `Iria` 0."""
    return LocalSearch(
        tasks=[TASK],
        retriever=InMemoryRetriever(DOCUMENTS),
        k=1,
        max_turns=3,
        prompt="{question}",
        scorer="f1_squad",
    )


@pytest.mark.parametrize("name", ["guide", "demonstrate"])
def test_a_group_with_a_partly_right_answer_is_not_lost(name: str) -> None:
    """Rescue is for groups whose every outcome is the fail value, and 2/3 is not 0."""
    half = "<answer> Orun city </answer>"
    script: dict[str, Sequence[str]] = {name: [WRONG] for name in ("e-1", "e-0-hinted", "e-1-hinted")}
    script |= {"e-0": [half]}
    group = played(name, Noting(dict(script)), 2, env=graded)
    assert [t.reward for t in group] == pytest.approx([2 / 3, 0.0])
    assert len(played(name, Noting(dict(script)), 2, env=graded, fail=0.7)) > 2
    script |= {"e-0": [WRONG]}
    assert len(played(name, Noting(script), 2, env=graded)) > 2


def test_a_critique_makes_one_refinement_of_the_first_episode() -> None:
    policy = Noting({"e-0": [IRIA, WRONG], "e-1": [WRONG], "e-0-refined": [IRIA, VELL, RIGHT]})
    group = played("critique", policy, 3)
    assert [(t.id, t.reward) for t in group] == [("e-0", 0.0), ("e-1", 0.0), ("e-0-refined", 1.0)]
    assert (group[2].parent_id, group[2].fork_turn, group[2].origin) == ("e-0", 0, Origin.RETRY)
    told = policy.shown["e-0-refined"]
    assert f"action: {WRONG}" in told
    assert "reward 0 of 1 after 2 steps" in told
    assert "Critique" not in told
    assert "earlier try" not in TOKENIZER.decode(group[2].ids.tolist())


def test_a_single_start_is_played_without_a_refinement() -> None:
    assert [t.id for t in played("critique", Noting({"e-0": [WRONG]}), 1)] == ["e-0"]


def test_a_critique_by_rule_or_by_the_policy_says_more() -> None:
    script: dict[str, Sequence[str]] = {"e-0": [WRONG], "e-0-refined": [RIGHT]}
    policy = Noting(dict(script))
    played("critique", policy, 2, critic="rule")
    assert f"Critique: This was wrong: {WRONG}" in policy.shown["e-0-refined"]
    report = '{"trajectory_outcome": "failure", "improvement_suggestion": "SEARCH", "retry_from_step": 0}'
    policy = Noting(script | {"e-0-critique": [report]})
    roomy = CONFIG.model_copy(update={"context_tokens": 9000})
    base, _ = played("critique", policy, 2, critic="self", config=roomy, reflection_tokens=500)
    assert "SEARCH" in policy.shown["e-0-refined"]
    assert base.info["strategy"]["reflection_tokens"] == len(report) + 1


def test_a_fault_in_base_or_critic_leaves_no_refinement() -> None:
    (base,) = played("critique", Noting({"e-0": [RIGHT]}), 2, env=broken)
    assert not base.valid
    base, failed = played("critique", Noting({"e-0": [WRONG]}), 2, critic="self")
    assert (base.valid, failed.valid, failed.origin) == (True, False, Origin.REFLECTION)


def test_hints_grow_until_enough_succeed_and_shrink_again() -> None:
    """Three rounds of two; the expert has three actions. The model asks for .525 of them, then for .3."""
    script = {f"e-{i}": [WRONG] for i in range(2)}
    script |= {"e-0-round-1": [RIGHT], "e-1-round-1": [RIGHT], "e-0-round-2": [RIGHT], "e-1-round-2": [WRONG]}
    policy = Noting(dict(script))
    group = played("adaptive_hint", policy, 6, rounds=3)
    assert [t.reward for t in group] == [0.0, 0.0, 1.0, 1.0, 1.0, 0.0]
    # .525 of three actions is two, .3 is one
    assert policy.shown["e-0-round-1"].endswith(f"like this:\n{IRIA}\n{VELL}\n")
    assert policy.shown["e-0-round-2"].endswith(f"like this:\n{IRIA}\n")
    assert [t.context_mismatch.any() for t in group] == [False, False, True, True, True, True]


def test_a_round_that_was_lost_to_faults_says_nothing_about_the_hint() -> None:
    """Both episodes of the first round meet a fault, so the hint of the second round is that of the priors, .45."""
    policy = Noting({"e-0": [RIGHT], "e-1": [RIGHT], "e-0-round-1": [WRONG], "e-1-round-1": [WRONG]})
    group = played("adaptive_hint", policy, 4, rounds=2, env=broken)
    assert [t.valid for t in group] == [False, False, True, True]
    assert policy.shown["e-0-round-1"].endswith(f"like this:\n{IRIA}\n{VELL}\n")


def test_where_no_hint_is_needed_none_is_given() -> None:
    policy = Noting({"e-0": [RIGHT], "e-0-round-1": [RIGHT]})
    group = played("adaptive_hint", policy, 2, rounds=2)
    assert [t.origin for t in group] == [Origin.BASE, Origin.BASE]
    assert not group[1].context_mismatch.any()


def test_what_the_expert_does_is_recorded_in_the_policy_s_tokens_where_all_fail() -> None:
    group = played("demonstrate", Noting({"e-0": [WRONG], "e-1": [WRONG]}), 2)
    shown = group[2]
    assert (shown.origin, shown.reward, shown.group_id) == (
        Origin.DEMONSTRATION, 1.0, "g/e-0-demonstration"
    )  # fmt: skip
    assert TOKENIZER.decode(shown.ids[shown.loss_mask].tolist()) == IRIA + VELL + RIGHT
    assert shown.context_mismatch.tolist() == shown.loss_mask.tolist()
    figures = rollout_metrics(by_group(group))
    assert (figures["demonstrations"], figures["sampled_tokens"]) == (1, 2 * len(WRONG))
    assert len(played("demonstrate", Noting({"e-0": [WRONG], "e-1": [RIGHT]}), 2)) == 2


def test_a_demonstration_that_does_not_fit_the_budgets_is_left_out() -> None:
    short = CONFIG.model_copy(update={"turn_tokens": 10})
    assert len(played("demonstrate", Noting({"e-0": [WRONG], "e-1": [WRONG]}), 2, config=short)) == 2


def test_without_an_expert_there_is_nothing_to_show() -> None:
    class Lost(LocalSearch):
        no_expert = "nobody knows"

        def expert(self) -> None:
            return None

    def lost() -> Lost:
        return Lost(tasks=[TASK], retriever=InMemoryRetriever(DOCUMENTS), prompt="{question}")

    for name in ("guide", "demonstrate"):
        with pytest.raises(ConfigurationError, match=r"Lost.*'t'.*nobody knows"):
            played(name, Noting({"e-0": [WRONG], "e-1": [WRONG]}), 2, env=lost)


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("critique", {"critic": "outcom:"}, "'outcom:'"),
        ("adaptive_hint", {"rounds": 0}, r"\b0 and 0\.5"),
        ("adaptive_hint", {"target": 0}, r"\b4 and 0\.0"),
    ],
)
def test_wrong_options_are_one_sentence(name: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        get_strategy(name, options)


def test_a_small_group_has_fewer_rounds() -> None:
    policy = Noting({"e-0": [WRONG], "e-0-round-1": [RIGHT]})
    assert [t.id for t in played("adaptive_hint", policy, 2, rounds=4)] == ["e-0", "e-0-round-1"]


def test_what_a_round_raises_comes_out() -> None:
    async def fails(place: int) -> None:
        raise ConfigurationError(f"slot {place}")

    context = RolloutContext(ScriptedPolicy({}), InlineFormat(TOKENIZER), CONFIG, TOKENIZER.decode)
    with pytest.raises(ConfigurationError, match="slot 0"):
        asyncio.run(run_rounds(context, 2, fails, lambda rounds: None))


def test_equal_seeds_give_equal_records() -> None:
    script = {"e-0": [WRONG], "e-1": [IRIA, WRONG], "e-0-hinted": [RIGHT], "e-1-hinted": [IRIA, VELL, WRONG]}

    def once(deterministic: bool) -> list[dict[str, Any]]:
        config = CONFIG.model_copy(update={"deterministic": deterministic})
        return [to_record(t) for t in played("guide", Noting(dict(script)), 2, config=config)]

    assert once(True) == once(True) == once(False)
    assert once(True)[3]["end_reason"] == EndReason.ANSWERED


class Expertless(LocalSearch):
    """Has no expert at all."""

    expert = Env.expert


@pytest.mark.parametrize("name", ["guide", "adaptive_hint", "demonstrate"])
def test_an_environment_without_an_expert_is_refused_before_a_run_begins(name: str) -> None:
    """And not by the first group that fails, which may be late."""
    hinted = replace(TASK, data={**TASK.data, "hint": "Look it up."})
    strategy = get_strategy(name)
    check_expert(strategy, LocalSearch, [TASK])
    check_expert(get_strategy("plain"), Expertless, [TASK])
    with pytest.raises(ConfigurationError, match=f"Expertless has none for task '{TASK.id}'"):
        check_expert(strategy, Expertless, [hinted, TASK])
    if name == "guide":
        check_expert(strategy, Expertless, [hinted])

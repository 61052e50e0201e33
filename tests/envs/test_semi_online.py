"""SemiOnlineGUI: algorithm 1 by hand, patches and budgets, rewards, what is trained, SOP, and equal traces."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from agentenv.core.chat import InlineFormat, TemplateFormat
from agentenv.core.rollout import EpisodeSpec, RolloutConfig, rollout
from agentenv.core.trajectory import SegmentKind, Trajectory, to_record
from agentenv.core.types import EndReason, Task
from agentenv.envs.gui.actions import Action, ActionKind, ParsedAction, action_text
from agentenv.envs.gui.matching import Gold, MatchResult
from agentenv.envs.gui.recordings import RecordedStep, Recording, write_recordings
from agentenv.envs.gui.rewards import step_reward
from agentenv.envs.gui.screen import Box, Element, Screen
from agentenv.envs.gui.thoughts import policy_thoughts, spoken
from agentenv.envs.semi_online import UNLIMITED, SemiOnlineGUI
from agentenv.errors import ConfigurationError, DatasetError, EnvFault
from agentenv.evaluation.results import score_of
from agentenv.evaluation.runner import to_record as eval_record
from agentenv.evaluation.sop import Sop, measure_sop, sop
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy

SIZE = (560, 560)
RIGHT = [action_text(Action(ActionKind.CLICK, id=str(i)), f"own thought {i}") for i in range(1, 5)]
OTHER_KIND = action_text(Action(ActionKind.WAIT), "own wait")
OTHER_PLACE = action_text(Action(ActionKind.CLICK, point=(550, 550)), "own miss")
NOTHING = "no action at all"


def recording(length: int = 4, annotation: str = "GOOD") -> Recording:
    """The expert clicks the first element, then the second, and so on."""
    boxes = [Box(0, 100 * i, 80, 100 * i + 40) for i in range(length)]
    elements = tuple(Element(str(i), "button", f"b{i}", box) for i, box in enumerate(boxes, 1))
    steps = [
        RecordedStep(
            Screen(*SIZE, f"page {i}", elements),
            Gold(Action(ActionKind.CLICK, point=box.centre), SIZE, (box,)),
            thought=f"recorded {i}",
            annotation=annotation,  # type: ignore[arg-type]
        )
        for i, box in enumerate(boxes, 1)
    ]
    return Recording("r", "Click them all.", tuple(steps))


TASK = recording().task()


def play(actions: Sequence[str], task: Task = TASK, **options: object) -> list[dict[str, object]]:
    """The infos of an episode, with reward and observation."""
    env = SemiOnlineGUI(tasks=[task], **options)  # type: ignore[arg-type]
    env.reset(seed=0)
    told = []
    for action in actions:
        step = env.step(action)
        told.append(
            {**step.info, "reward": step.reward, "observation": step.observation, "over": step.terminated}
        )
        if step.terminated:
            break
    return told


def words(observation: object) -> str:
    return "\n".join(message.text for message in observation)  # type: ignore[attr-defined]


def test_the_expert_follows_to_the_end() -> None:
    told = play(RIGHT)
    assert [row["reward"] for row in told] == [1.0] * 4
    assert [row["segment_id"] for row in told] == [0] * 4
    assert [row["step_reward"] for row in told] == [0.25] * 4
    assert told[-1]["end_reason"] is EndReason.SUBMITTED
    assert not any(row["patched"] for row in told)


@pytest.mark.parametrize(
    ("budget", "turns", "end"),
    [
        (0, 1, EndReason.PATCH_BUDGET),
        (1, 3, EndReason.PATCH_BUDGET),
        (2, 4, EndReason.SUBMITTED),
        (UNLIMITED, 4, EndReason.SUBMITTED),
    ],
)
def test_the_budget_counts_patches(budget: int, turns: int, end: EndReason) -> None:
    # wrong, right, wrong, right
    told = play([OTHER_PLACE, RIGHT[1], OTHER_KIND, RIGHT[3]], patch_budget=budget)
    assert len(told) == turns
    assert told[-1]["end_reason"] is end
    assert [row["segment_id"] for row in told] == [0, 1, 1, 2][:turns]
    assert [row["patches_used"] for row in told] == [min(n, budget % 5) for n in (1, 1, 2, 2)][:turns]
    assert [row["valid"] for row in told] == [False, True, False, True][:turns]


def test_a_reset_may_set_the_budget() -> None:
    env = SemiOnlineGUI(tasks=[TASK])
    env.reset(seed=0, options={"patch_budget": 0})
    assert env.step(OTHER_KIND).info["end_reason"] is EndReason.PATCH_BUDGET
    with pytest.raises(ConfigurationError, match="patch_budget=-2"):
        env.reset(seed=0, options={"patch_budget": -2})


def test_a_reset_may_set_the_kind_of_patch_of_its_episode() -> None:
    env = SemiOnlineGUI(tasks=[TASK])
    for variant, thought in (("off_policy", "recorded 1"), (None, "")):
        env.reset(seed=0, options={"patch_variant": variant} if variant else {})
        assert f"<think>{thought}</think>" in words(env.step(OTHER_KIND).observation)
    with pytest.raises(ConfigurationError, match="'offpolicy'"):
        env.reset(seed=0, options={"patch_variant": "offpolicy"})
    env.reset(seed=0, options={"patch_variant": "on_policy"})
    with pytest.raises(ConfigurationError, match="policy_thoughts"):
        env.step(OTHER_KIND)


def test_a_text_without_an_action_ends_or_is_patched() -> None:
    assert play([NOTHING], patch_budget=0)[-1]["end_reason"] is EndReason.PARSE_ERROR
    told = play([NOTHING, RIGHT[1]], patch_budget=1)
    assert (told[0]["reward"], told[0]["parse_ok"], told[1]["exact"]) == (0.0, False, True)


def test_what_is_typed_without_a_target_goes_to_the_focused_field() -> None:
    name = Element("1", "textbox", "Name", Box(100, 100, 300, 140), states=("focused",))
    town = Element("2", "textbox", "Town", Box(100, 200, 300, 240))
    for gold, told in ((name, ""), (town, "other place")):
        typed = Gold(Action(ActionKind.TYPE, text="Ann", point=gold.box.centre), SIZE, (gold.box,))
        task = Recording("f", "Fill in.", (RecordedStep(Screen(*SIZE, "form", (name, town)), typed),)).task()
        (info,) = play([action_text(Action(ActionKind.TYPE, text="Ann"), "own")], task)
        assert info["reason"] == told


@pytest.mark.parametrize(("id", "reason"), [(None, ""), ("1", ""), ("2", "other place")])
def test_what_the_expert_types_without_a_target_goes_to_the_focused_field(
    id: str | None, reason: str
) -> None:
    name = Element("1", "textbox", "Name", Box(100, 100, 300, 140), states=("focused",))
    town = Element("2", "textbox", "Town", Box(100, 200, 300, 240))
    typed = Gold(Action(ActionKind.TYPE, text="Ann"), SIZE)
    step = RecordedStep(Screen(*SIZE, "form", (name, town)), typed)
    (info,) = play(
        [action_text(Action(ActionKind.TYPE, text="Ann", id=id), "own")],
        Recording("f", "Fill in.", (step,)).task(),
    )
    assert info["reason"] == reason
    # Where no field is known to have the focus, the text alone is compared.
    blurred = replace(step, screen=Screen(*SIZE, "form", (town,)))
    assert blurred.gold_at_caret == typed


def test_the_history_is_the_policy_s_own_words_except_where_patched() -> None:
    told = play([RIGHT[0], OTHER_PLACE, RIGHT[2]], patch_budget=1)
    later = words(told[2]["observation"])
    assert "own thought 1" in later
    assert "own miss" not in later
    assert '<think></think><action>{"action": "click", "id": "2"}</action>' in later
    assert "recorded" not in later
    roles = [message.role for message in told[2]["observation"]]  # type: ignore[attr-defined]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user", "assistant", "user"]


def test_only_the_newest_screens_stay() -> None:
    observation = play(RIGHT[:3], window=2)[2]["observation"]
    shown = [message.text.partition("\n")[0] for message in observation if message.role == "user"]  # type: ignore[attr-defined]
    assert shown == ["[an earlier screen]"] * 2 + ["Screen 560x560: page 3", "Screen 560x560: page 4"]


def test_the_three_kinds_of_patch() -> None:
    asked: list[str] = []

    def writer(prompt: str) -> str:
        asked.append(prompt)
        return " because "

    wrong = [OTHER_KIND]
    assert "<think></think>" in words(play(wrong)[0]["observation"])
    assert "<think>recorded 1</think>" in words(play(wrong, patch="off_policy")[0]["observation"])
    assert "<think>because</think>" in words(
        play(wrong, patch="off_policy", thoughts=writer)[0]["observation"]
    )
    assert "<think>because</think>" in words(
        play(wrong, patch="on_policy", thoughts=writer)[0]["observation"]
    )
    off, on = asked
    assert '{"action": "click", "id": "1"}' in off
    assert "A hint, for you alone" in on
    with pytest.raises(ConfigurationError, match="pixels"):
        SemiOnlineGUI(patch="on_policy", pixels=True)


def test_on_policy_thoughts_come_from_the_policy() -> None:
    tokenizer = ByteTokenizer()
    policy = ScriptedPolicy({"": ["<think>It is the first.</think> more"]}, tokenizer)
    writer = policy_thoughts(policy, InlineFormat(tokenizer))
    told = play([OTHER_KIND], patch="on_policy", thoughts=writer)
    assert "<think>It is the first.</think>" in words(told[0]["observation"])
    assert spoken("I click.<|im_end|>") == "I click."


def test_the_episode_loop_lets_its_policy_write_the_thoughts_of_on_policy_patches() -> None:
    tokenizer = ByteTokenizer()
    scripts = {"e-0": [RIGHT[0], OTHER_KIND, *RIGHT[2:]], "": ["<think>It is the second.</think> more"]}
    spec = EpisodeSpec(SemiOnlineGUI(patch="on_policy"), TASK, 0, "g")
    config = RolloutConfig(context_tokens=20_000, turn_tokens=300, stop=SemiOnlineGUI.stop)
    policy = ScriptedPolicy(scripts, tokenizer)
    (trajectory,) = asyncio.run(rollout([spec], policy, InlineFormat(tokenizer), config, name="e"))
    assert "<think>It is the second.</think>" in tokenizer.decode(trajectory.ids.tolist())
    assert "It is the second." not in tokenizer.decode(trajectory.ids[trajectory.loss_mask].tolist())


def test_a_writer_that_fails_is_a_fault_and_no_reward() -> None:
    def writer(prompt: str) -> str:
        raise EnvFault("the model is down")

    (trajectory,) = played([[OTHER_KIND]], patch="off_policy", thoughts=writer)
    assert (trajectory.valid, trajectory.end_reason) == (False, EndReason.ENV_FAULT)


# (format, type, exact) -> published 0.1 f + 0.4 [f] t + 0.5 [f t] e; released 0.1 f + 0.9 (1 | 0.5 | 0.1)
@pytest.mark.parametrize(
    ("format_ok", "type_ok", "exact", "published", "released"),
    [
        (True, True, True, 1.0, 1.0),
        (True, True, False, 0.5, 0.55),
        (True, False, False, 0.1, 0.19),
        (False, True, True, 0.0, 0.9),
        (False, True, False, 0.0, 0.45),
        (False, False, False, 0.0, 0.09),
    ],
)
def test_rewards_by_hand(
    format_ok: bool, type_ok: bool, exact: bool, published: float, released: float
) -> None:
    reply = ParsedAction(Action(ActionKind.WAIT), format_ok, "t" if format_ok else "")
    verdict = MatchResult(type_ok, exact)
    assert step_reward(reply, verdict) == pytest.approx(published)
    assert step_reward(reply, verdict, weights="released") == pytest.approx(released)
    assert step_reward(replace(reply, action=None), verdict, weights="released") == 0


def test_annotations_change_the_released_reward_alone() -> None:
    reply, verdict = ParsedAction(Action(ActionKind.WAIT), True, "t"), MatchResult(True, True)
    assert step_reward(reply, verdict, weights="released", annotation="HARMFUL") == pytest.approx(0.1)
    assert step_reward(reply, verdict, weights="released", annotation="NEUTRAL") == pytest.approx(0.55)
    assert step_reward(reply, verdict, annotation="HARMFUL") == 1
    task = recording(annotation="HARMFUL").task()
    assert play(RIGHT, task, weights="released")[0]["reward"] == pytest.approx(0.1)


def test_gold_is_revealed_where_asked() -> None:
    assert "gold_action" not in play(RIGHT[:1])[0]
    assert play(RIGHT[:1], reveal_gold=True)[0]["gold_action"] == TASK.data["recording"].steps[0].gold.action


def test_options_and_tasks_that_cannot_work() -> None:
    for options in ({"prompt": "go"}, {"window": 0}, {"patch_budget": -2}):
        with pytest.raises(ConfigurationError):
            SemiOnlineGUI(**options)
    with pytest.raises(DatasetError, match="'t'"):
        SemiOnlineGUI(tasks=[Task("t", "q")]).reset(seed=0)


def played(scripts: Sequence[Sequence[str]], chat: bool = False, **options: object) -> list[Trajectory]:
    """The episodes of scripts through the episode loop."""
    tokenizer = ByteTokenizer(chat=chat)
    policy = ScriptedPolicy({f"e-{i}": script for i, script in enumerate(scripts)}, tokenizer)
    specs = [EpisodeSpec(SemiOnlineGUI(**options), TASK, 0, "g") for _ in scripts]  # type: ignore[arg-type]
    format_ = TemplateFormat(tokenizer) if chat else InlineFormat(tokenizer)
    config = RolloutConfig(context_tokens=20_000, turn_tokens=300, stop=SemiOnlineGUI.stop)
    return asyncio.run(rollout(specs, policy, format_, config, name="e"))


@pytest.mark.parametrize("chat", [False, True], ids=["inline", "template"])
def test_what_a_patch_put_in_is_never_trained(chat: bool) -> None:
    (trajectory,) = played([[RIGHT[0], OTHER_PLACE, RIGHT[2], RIGHT[3]]], chat=chat, patch="off_policy")
    decode = ByteTokenizer().decode
    trained = decode(trajectory.ids[trajectory.loss_mask].tolist())
    everything = decode(trajectory.ids.tolist())
    assert "recorded 2" in everything
    assert "recorded" not in trained
    for text in (RIGHT[0], OTHER_PLACE, RIGHT[2], RIGHT[3]):  # the failing turn is trained as it was sampled
        assert trained.count(text) == 1
    assert len(trained) == sum(map(len, (RIGHT[0], OTHER_PLACE, RIGHT[2], RIGHT[3])))
    # a context that goes on from the row as it stands is appended to it: here the second, under the template
    assert len(trajectory.row_slices) == (3 if chat else 4)
    kinds = [segment.kind for segment in trajectory.segments if segment.row > 0]
    assert kinds == [SegmentKind.PROMPT, SegmentKind.POLICY] * (2 if chat else 3)
    assert [turn.valid for turn in trajectory.turns] == [True, False, True, True]


def test_equal_seeds_give_equal_traces() -> None:
    script = [RIGHT[0], OTHER_PLACE, RIGHT[2], RIGHT[3]]
    one, other = (played([script])[0] for _ in range(2))
    assert to_record(one) == to_record(other)


def test_sop_of_the_expert_and_of_one_that_stops_following() -> None:
    assert sop(played([RIGHT], patch_budget=0)) == Sop(1.0, 1.0, 1, 0)
    # 3 of 4 and 1 of 4 steps before the first mismatch, one text that is no action after 2 of 4
    stop = [[*RIGHT[:3], OTHER_KIND], [RIGHT[0], OTHER_PLACE], [*RIGHT[:2], NOTHING], RIGHT]
    measured = sop(played(stop, patch_budget=0))
    assert measured == Sop((0.75 + 0.25 + 0.5 + 1) / 4, 0.25, 4, 0)
    assert measured.score == pytest.approx((0.625 + 0.25) / 2)
    # patches do not lengthen what counts
    assert sop(played([[OTHER_KIND, *RIGHT[1:]]], patch_budget=UNLIMITED)).progress == 0


def test_evaluations_of_the_environment_give_sop_whatever_the_patches() -> None:
    scripts = [[*RIGHT[:3], OTHER_KIND], [RIGHT[0], OTHER_PLACE, *RIGHT[2:]], [NOTHING, *RIGHT[1:]], RIGHT]
    for budget in (0, 1, UNLIMITED):
        records = [eval_record(episode) for episode in played(scripts, patch_budget=budget)]
        assert [record["followed_share"] for record in records] == [0.75, 0.25, 0.0, 1.0]
        measured = sop(played(scripts, patch_budget=budget))
        for name, value in (
            ("sop", measured.score),
            ("sop_pg", measured.progress),
            ("sop_tsr", measured.success),
        ):
            assert fmean(score_of(record, name) for record in records) == pytest.approx(value)
    assert SemiOnlineGUI.scorers == ("sop", "sop_pg", "sop_tsr", "reward")


def test_faults_count_nowhere_in_sop() -> None:
    # The second script is exhausted: a fault of the policy's engine.
    episodes = played([RIGHT, RIGHT[:2]], patch_budget=0)
    measured = sop(episodes)
    assert measured == Sop(1.0, 1.0, 1, 1)
    assert measured.void
    assert not Sop(1.0, 1.0, 199, 1).void
    with pytest.raises(ConfigurationError, match=r"\b1\b"):
        sop(episodes[1:])


def test_sop_is_measured_without_patches() -> None:
    tokenizer = ByteTokenizer()
    policy = ScriptedPolicy({"sop-0": RIGHT, "sop-1": [OTHER_KIND]}, tokenizer)
    config = RolloutConfig(context_tokens=20_000, turn_tokens=300, stop=SemiOnlineGUI.stop)
    measured = asyncio.run(measure_sop([TASK, TASK], policy, InlineFormat(tokenizer), config))
    assert measured == Sop(0.5, 0.5, 2, 0)
    with pytest.raises(TypeError, match="unheard_of"):
        asyncio.run(measure_sop([TASK], policy, InlineFormat(tokenizer), config, unheard_of=1))


def test_its_own_tasks_are_domsim_s_or_a_file_s(tmp_path: Path) -> None:
    own = SemiOnlineGUI.make_tasks(2, templates=["mail-star"])
    env = SemiOnlineGUI(tasks=own)
    env.reset(seed=0)
    assert [env.step(action).reward for action in env.expert()] == [1.0] * 4
    path = tmp_path / "some.jsonl"
    write_recordings([Recording(f"r{i}", "g", recording().steps) for i in range(20)], path)
    splits = [
        SemiOnlineGUI.make_tasks(20, split=split, recordings=str(path)) for split in ("train", "dev", "test")
    ]
    assert sum(map(len, splits)) == 20
    assert len({task.id for tasks in splits for task in tasks}) == 20

"""The warm start on an environment's expert in miniature: who is imitated, what is learned, what is kept."""

from pathlib import Path
from typing import Any

import pytest

from agentenv.core.trajectory import Segment, SegmentKind, Trajectory, Turn
from agentenv.core.types import EndReason, Task, ToolResult, ToolStatus
from agentenv.errors import ConfigurationError
from agentenv.evaluation.task_env import open_task_env
from agentenv.policies.card import read_card
from agentenv.policies.fakes import random_model, random_policy
from agentenv.policies.policy_spec import make_policy
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import config_of, merged
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.loop.evaluate import score_under
from agentenv.trainers.warmstart.expert_pool import found_its_sources
from agentenv.trainers.warmstart.expert_warmstart import demonstrations, expert_warmstart, training_examples
from agentenv.trainers.warmstart.learning import LearningSettings
from tests.core.test_native_episodes import tokenizer_of


def run(**changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "base": "lab-search",
        "env": {"id": "agentenv/JudgedSearch-v0", "options": {"prompt": "{question}"}},
        "train": {"limit": 6, "world": {"documents": 200, "questions": 6, "families": ["lookup"]}},
    }
    return config_of(merged(values, changes), "test")


def searched(supporting: tuple[str, ...], *found: str) -> Trajectory:
    task = Task("t", "Who?", ("A",), data={"supporting_ids": supporting})
    results = (ToolResult("search", ToolStatus.OK, "q", data={"ids": [list(found)]}),) if found else ()
    return Trajectory(task, (), (Turn("a", tool_results=results),), 1.0, EndReason.ANSWERED)


@pytest.mark.parametrize(
    ("episode", "counts"),
    [
        (searched(("a",), "a", "b"), True),
        (searched(("a", "c"), "a", "b"), False),
        (searched((), "a"), True),
        (searched(("a",)), True),  # it asked its memory
    ],
)
def test_an_answer_that_was_not_read_is_not_imitated(episode: Trajectory, counts: bool) -> None:
    assert found_its_sources(episode) is counts


def test_each_row_is_a_lesson() -> None:
    segments = (
        Segment(SegmentKind.PROMPT, (1, 2), 0),
        Segment(SegmentKind.POLICY, (3,), 0, logprobs=(0.0,)),
        Segment(SegmentKind.PROMPT, (1, 4), 1, row=1),
        Segment(SegmentKind.POLICY, (5, 6), 1, logprobs=(0.0, 0.0), row=1),
    )
    episode = Trajectory(Task("t", "q"), segments, (), 1.0, EndReason.ANSWERED)
    assert training_examples([episode]) == [
        ([1, 2, 3], [False, False, True]),
        ([1, 4, 5, 6], [False, False, True, True]),
    ]


def test_a_turn_that_leads_back_is_no_lesson_where_that_is_asked_for() -> None:
    segments = (
        Segment(SegmentKind.PROMPT, (1, 2), 0),
        Segment(SegmentKind.POLICY, (3,), 0, logprobs=(0.0,)),
        Segment(SegmentKind.ENV, (4,), 0),
        Segment(SegmentKind.POLICY, (5,), 1, logprobs=(0.0,)),
    )
    turns = (Turn("press", anchor_key="A"), Turn("go", anchor_key="A"))
    episode = Trajectory(Task("t", "q"), segments, turns, 1.0, EndReason.ANSWERED)
    assert training_examples([episode]) == [([1, 2, 3, 4, 5], [False, False, True, False, True])]
    masked = training_examples([episode], mask_redundant=True)
    assert masked == [([1, 2, 3, 4, 5], [False, False, False, False, True])]


def test_the_policy_comes_with_the_card_of_its_run(tmp_path: Path) -> None:
    figures = expert_warmstart(
        [run(environments={"sums": {"share": 0.5}}), run(seed=1)],
        SilentDisplay(),
        tmp_path / "policy",
        learning=LearningSettings(steps=2, batch=2),
    )
    assert 0 < figures["demonstrations"] <= 12
    assert figures["tokens"] > 0
    card = read_card(tmp_path / "policy")
    assert (card.env, card.prompt, card.turn_tokens) == ("agentenv/JudgedSearch-v0", "{question}", 32)
    # The expert of the run's own environment has shown everything.
    assert card.environments == ()
    shipped, made = make_policy("tiny"), make_policy(f"hf:{tmp_path / 'policy'}")
    assert any(
        (a != b).any() for a, b in zip(shipped.model.parameters(), made.model.parameters(), strict=True)
    )
    assert "JudgedSearch" in (tmp_path / "policy" / "README.md").read_text()


def test_an_expert_that_never_succeeds_teaches_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"JudgedSearch-v0.*best earned .*turn_tokens = 1 "):
        expert_warmstart(
            [
                run(
                    env={"options": {"max_turns": 0, "scorer": "em_squad"}},
                    rollout={"context_tokens": 40, "turn_tokens": 1},
                )
            ],
            SilentDisplay(),
            tmp_path / "policy",
            learning=LearningSettings(steps=1),
        )
    assert not (tmp_path / "policy").exists()


def test_the_tags_of_an_expert_become_calls_in_the_native_form(tmp_path: Path) -> None:
    """The expert of a search writes ``<search>``; natively it is seen to call the tools as the model does."""
    tokenizer = tokenizer_of()
    random_model(len(tokenizer), eos=tokenizer.eos_token_id, context=4096).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    native = run(
        env={"id": "agentenv/LocalSearch-v0", "options": {"prompt": "{question}"}},
        format="native",
        policy=f"hf:{tmp_path / 'model'}",
        rollout={"strategy": "plain", "turn_tokens": 100, "context_tokens": 4000},
    )
    shown = demonstrations(native)
    assert len(shown) == 5  # the documents of the sixth are not found
    for one in shown:
        texts = [tokenizer.decode(s.ids) for s in one.segments if s.kind is SegmentKind.POLICY]
        assert len(texts) == len(one.turns)
        assert all(text.startswith("<tool_call>") for text in texts)
        assert all(text.endswith("</tool_call><|im_end|>") for text in texts)
        assert f'{{"answer": "{one.task.answers[0]}"}}' in texts[-1]


def test_an_environment_without_an_expert_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="PlannedSearch"):
        expert_warmstart([run(env={"id": "agentenv/PlannedSearch-v0"})], SilentDisplay(), tmp_path / "policy")


def test_what_was_learned_by_heart_is_found_by_self_search(tmp_path: Path) -> None:
    world = {"documents": 200, "questions": 2, "families": ["lookup"]}
    small = {"limit": 2, "world": world}
    given = run(
        env={"id": "agentenv/SelfSearch-v0"},
        rollout={"strategy": "self_search", "turn_tokens": 128},
        train=small,
        test=small | {"world": world | {"seed": 1, "split": "train"}},
    )
    questions = open_task_env(given.train, given.search, given.env, len).source.tasks
    told = [
        question
        for task in questions
        for question in (task.question, *task.answers, task.data["path"][0]["query"])
    ]
    random_policy(
        tmp_path / "small", ["user assistant What comes next? I know it.", *told], layers=2, width=48
    )
    given = given.model_copy(update={"policy": f"hf:{tmp_path / 'small'}"})
    assert score_under(given) == 0
    expert_warmstart(
        [given], SilentDisplay(), tmp_path / "made", learning=LearningSettings(steps=80, batch=4, scale=1.0)
    )
    assert score_under(given.model_copy(update={"policy": f"hf:{tmp_path / 'made'}"})) == 1

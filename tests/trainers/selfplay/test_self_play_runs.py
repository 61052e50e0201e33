"""Whole runs of self-play: through trainer and report, resumed, with a league; and over a real corpus by an endpoint.

Proposers are endpoints on this machine that ask what follows some words of a passage: any corpus can be asked that.
"""

import asyncio
import html
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

from agentenv.core.rollout import EpisodeSpec, RolloutConfig
from agentenv.core.trajectory import SegmentKind, Trajectory
from agentenv.data.sources import SourceConfig
from agentenv.envs.search.local_search import STOP
from agentenv.errors import ConfigurationError
from agentenv.evaluation.report.report import write_report
from agentenv.evaluation.task_env import EnvConfig, SearchConfig, open_task_env, topics_of
from agentenv.policies.fake_endpoint import Answer, Body, FakeEndpoint
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.hf import HFPolicy
from agentenv.policies.policy_spec import make_endpoint_policy
from agentenv.progress import SilentDisplay
from agentenv.trainers.config.config_files import parse_config
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.learner.learner import Learner, Objective, rows_of
from agentenv.trainers.learner.second_policy import SecondPolicy, split
from agentenv.trainers.run_folder.folder import RunFolder
from agentenv.trainers.strategies.rollout_context import RolloutContext
from agentenv.trainers.strategies.strategies import get_strategy, play_groups
from tests.file_contents import contents_of

LINE = re.compile(r"Doc \d+\(Title: .*?\) (\S+ \S+ \S+ \S+) (\S+ \S+)")
ASKED = re.compile(r"follows the words \[(.*?)\]")


def cloze(body: Body) -> Answer:
    """A proposer that asks what follows the first words of a passage, and a solver and verifier that look it up."""
    last, first = body["messages"][-1]["content"], body["messages"][0]["content"]
    if asked := ASKED.search(first):  # solver or verifier
        seen = re.search(re.escape(asked[1]) + r" (\S+ \S+)", last.replace(asked[0], ""))
        if seen:
            return Answer(f"<answer>{seen[1]}</answer>", says_stop=True)
        return Answer(f"<search>{asked[1]}</search>", says_stop=True)
    topic = re.search(r"about (.*?) that can only", first)
    if line := LINE.search(last):
        return Answer(
            f"<question>What follows the words [{line[1]}]?</question><answer>{line[2]}</answer>",
            says_stop=True,
        )
    return Answer(f"<search>{topic[1] if topic else 'x'}</search>", says_stop=True)


@pytest.mark.skipif("AGENTENV_DATA" not in os.environ, reason="needs real corpora: AGENTENV_DATA")
def test_the_game_on_a_real_corpus_by_an_endpoint() -> None:
    source = SourceConfig(dataset="2wiki_hippo", topics=True, limit=40)
    env = EnvConfig(id="agentenv/SearchSolver-v0", options={"observation_tokens": 2000})
    task_env = open_task_env(source, SearchConfig(retriever="bm25"), env, lambda text: len(text.split()))

    def run() -> list[Any]:
        with FakeEndpoint(cloze) as server:
            policy = make_endpoint_policy(f"openai:cloze@{server.url}#concurrency=4")
            config = RolloutConfig(context_tokens=40_000, turn_tokens=400, stop=STOP)
            context = RolloutContext(policy, policy.chat, config, policy.tokenizer.decode, name="real")
            topics = task_env.source.tasks[:8]
            starts = [
                [EpisodeSpec(task_env.make_env(), t, 10 * i + j, t.id) for j in range(2)]
                for i, t in enumerate(topics)
            ]
            strategy = get_strategy("self_play", {"searches": (1, 1), "checks": ("verify", "compete")})
            groups = asyncio.run(play_groups(starts, strategy, context))
        return [[(t.info["role"], t.reward, t.valid, t.info.get("game")) for t in group] for group in groups]

    played = run()
    stories = [group[0][3] for group in played]
    accepted = [story for story in stories if story["task"] is not None]
    assert len(accepted) >= 4
    assert all(story["rate"] is not None for story in accepted)
    assert all(valid for group in played for _, _, valid, _ in group)
    assert run() == played


def settings(proposer: str) -> dict[str, Any]:
    """Two steps of three games over a small world; the shipped policy solves what an endpoint poses."""
    world = {"documents": 200, "families": ["lookup"], "hops": [1, 1], "seed": 2, "split": "dev"}
    return {
        "threads": 1,
        "checkpoint_every": 1,
        "trajectories_every": 1,
        "env": {
            "id": "agentenv/SearchSolver-v0",
            "options": {"k": 1, "max_turns": 1, "observation_tokens": 96, "prompt": "{question}"},
        },
        "search": {"encoder": "hash"},
        "train": {"topics": True, "world": world | {"seed": 1, "questions": 0, "split": "train"}},
        "dev": {"world": world | {"questions": 4}},
        "test": {"limit": 1, "world": world | {"questions": 4}},
        "rollout": {
            "questions": 3,
            "group_size": 2,
            "turn_tokens": 60,
            "context_tokens": 512,
            "strategy": "self_play",
            "strategy_options": {"checks": [], "searches": [1, 1], "role_policies": {"proposer": proposer}},
            "sampler": "self_play",
        },
        "optimizer": {"steps": 2},
        "loss": {"estimator": "role_wise"},
        "second": {"roles": ["solver"]},
        "league": {"every": 2, "games": 2},
        "evaluation": {"every": 0, "bounds": False},
    }


def test_a_run_of_self_play_is_logged_resumed_to_the_same_bytes_and_ends_with_a_league(
    tmp_path: Path,
) -> None:
    with FakeEndpoint(cloze) as server:
        run = tmp_path / "run"
        config = parse_config(settings(f"openai:cloze@{server.url}"), "test")
        results = train(RunFolder.create(run, config), SilentDisplay())
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        assert [(line["games"], line["accepted"], line["valid_share"]) for line in lines] == [(3, 3, 1.0)] * 2
        assert all(
            {"pool", "frame_entropy", "solved_mean", "searches_mean", "overlap"} <= line.keys()
            for line in lines
        )
        assert lines[1]["pool"] == lines[0]["pool_added"] + lines[1]["pool_added"]
        assert all({"loss", "second_loss"} <= line.keys() for line in lines)
        assert (
            lines[0]["trained_tokens"] == 0 < lines[0]["second_trained_tokens"] + lines[0]["sampled_tokens"]
        )
        assert (run / "policy-second" / "model.safetensors").is_file()
        league = results["league"]
        assert league["versions"] == ["start", "step-000002"]
        assert league["questions"] == [2, 2]
        assert all(0.0 <= share <= 1.0 for row in league["solved"] for share in row)
        asked = [json.loads(line) for line in (run / "questions.jsonl").read_text().splitlines()]
        assert [(row["step"], row["outcome"]) for row in asked] == [(1, "accepted")] * 3 + [
            (2, "accepted")
        ] * 3
        assert fmean(row["solve_rate"] for row in asked[:3]) == pytest.approx(lines[0]["solved_mean"])
        page = write_report(run).read_text()
        assert "League: share" in page
        assert "Questions of self-play: the last 6 of 6" in page
        assert html.escape(asked[0]["question"]) in page
        assert "step-000002" in page

        before = contents_of(run, ["metrics.jsonl", "questions.jsonl"])
        shutil.rmtree(run / "checkpoints" / "step-000002")
        shutil.rmtree(run / "evaluation" / "after")
        (run / "results.json").unlink()
        assert train(RunFolder.open(run), SilentDisplay())["league"] == league
        assert contents_of(run, ["metrics.jsonl", "questions.jsonl"]) == before


def test_a_league_needs_a_game() -> None:
    with pytest.raises(
        ConfigurationError, match=r"league\.every.*second\.roles.*rollout\.strategy.*'self_play'"
    ):
        parse_config({"league": {"every": 1}}, "test")
    with pytest.raises(ConfigurationError, match=r"search\.corpus"):
        topics_of(None, SourceConfig(topics=True))
    assert TrainConfig().league.every == 0
    game = {"rollout": {"strategy": "self_play", "sampler": "self_play"}, "second": {"roles": ["proposer"]}}
    with pytest.raises(ConfigurationError, match=r"asynchronous\.staleness"):
        parse_config(game | {"asynchronous": {"staleness": 1}}, "test")


def test_each_set_of_weights_gets_what_it_sampled_and_its_state_comes_back(
    qwen: Callable[..., Any], episode: Callable[..., Trajectory]
) -> None:
    def second(seed: int) -> SecondPolicy:
        model = qwen(seed=seed)
        learner = Learner(model, Objective(), learning_rate=0.1)
        return SecondPolicy(("proposer",), HFPolicy(model, ByteTokenizer()), learner)

    one, other = second(0), second(1)
    parts = [(SegmentKind.PROMPT, (1, 2)), (SegmentKind.POLICY, (3,))]
    posed, solved = (replace(episode(parts), info={"role": role}) for role in ("proposer", "solver"))
    assert split([[posed, solved], [solved]], one) == ([[solved], [solved]], [[posed]])
    assert split([[posed, solved]], None) == ([[posed, solved]], [])
    one.learner.step(rows_of([posed], [np.ones(3)]))
    one.policy.set_weights()
    other.load_state_dict(one.state_dict())
    assert other.policy.version == 1
    mine, theirs = (torch.cat([p.flatten() for p in s.policy.model.parameters()]) for s in (one, other))
    assert torch.equal(mine, theirs)

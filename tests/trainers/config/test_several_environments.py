"""Several environments in the configuration of a run: what goes there and back, and one sentence for each mistake."""

from pathlib import Path
from typing import Any

import pytest

from agentenv.core.trust import needs_trust
from agentenv.errors import ConfigurationError, UnknownName
from agentenv.trainers.config.config_files import config_of, dump_config, load_config, override
from agentenv.trainers.config.identity import Identity, flatten_config, named_parts, refuse_changes
from agentenv.trainers.config.train_config import TrainConfig

SUMS = {
    "share": 0.25,
    "env": {"id": "agentenv/Calculator-v0", "options": {"digits": 2}},
    "train": {"dataset": "env", "options": {"low": 1}},
}
OTHER = {"share": 0.25, "train": {"dataset": "nq,hotpotqa", "weights": {"nq": 3, "hotpotqa": 1}}}


def run(**changes: Any) -> TrainConfig:
    values = {"base": "laptop-search", "environments": {"sums": SUMS, "other": OTHER}}
    return config_of(values | changes, "test")


def test_several_environments_come_back_from_toml_and_the_command_line(tmp_path: Path) -> None:
    config = run()
    assert config.shares == {"env": 0.5, "sums": 0.25, "other": 0.25}
    (tmp_path / "own.toml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "own.toml")) == config
    changed = override(config, ["--environments.sums.share", "0.125"])
    assert changed.shares == {"env": 0.625, "sums": 0.125, "other": 0.25}
    assert changed.environments["other"] == config.environments["other"]


def test_each_environment_has_its_own_sections_and_shares_all_others() -> None:
    config = run(evaluation={"judge": "openai:m@http://127.0.0.1:1/v1", "scorers": ["f1_squad"]})
    own, other, sums = config.by_environment.values()
    assert own == config.model_copy(update={"environments": {}})
    assert (sums.env.id, sums.train.dataset) == ("agentenv/Calculator-v0", "env")
    assert (other.train.dataset, other.search.retriever) == ("nq,hotpotqa", "")
    assert [one.test.world.split for one in (own, sums, other)] == ["test"] * 3
    assert sums.rollout == other.rollout == config.rollout
    # Named scorers and judges are those of the run's own environment.
    assert (own.evaluation.scorers, sums.evaluation.scorers) == (("f1_squad",), ())
    assert (own.evaluation.judge != "", sums.evaluation.judge) == (True, "")


def test_a_run_of_one_environment_has_the_configuration_that_it_had_before_there_were_more() -> None:
    assert not any("environments" in key for key in flatten_config(TrainConfig()))
    assert list(TrainConfig().by_environment) == ["env"]


def test_the_order_of_the_tables_changes_nothing() -> None:
    """A resumed run finds its tasks at the places of before, whatever has become of its file."""
    there, back = (
        run(environments=tables)
        for tables in ({"sums": SUMS, "other": OTHER}, {"other": OTHER, "sums": SUMS})
    )
    assert list(there.by_environment) == list(back.by_environment) == ["env", "other", "sums"]
    assert list(there.shares) == list(back.shares)


def test_another_environment_of_the_same_name_leaves_the_options_of_the_first_out() -> None:
    other = override(run(), ["--environments.sums.env.id", "agentenv/LocalSearch-v0"]).environments["sums"]
    assert (other.env.options, other.train.options) == ({}, {})
    kept = override(run(), ["--environments.sums.env.options.digits", "3"]).environments["sums"]
    assert (kept.env.options, kept.train.options) == ({"digits": 3}, {"low": 1})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"environments": {"env": SUMS}}, r"environments\.env: the name of a further environment"),
        ({"environments": {"a/b": SUMS}}, r"environments\.a/b: the name of a further environment"),
        (
            {"environments": {"rollback": SUMS}, "evaluation": {"strategy": "rollback"}},
            r"environments\.rollback: .* nor the strategy of the evaluation",
        ),
        ({"environments": {"a": SUMS | {"share": 0.6}, "b": SUMS | {"share": 0.4}}}, r"add up to 1\b"),
        (
            {"environments": {f"a{i}": SUMS | {"share": share} for i, share in enumerate((0.7, 0.2, 0.1))}},
            r"add up to 1\b",
        ),
        (
            {"train": {"dataset": "nq,hotpotqa"}, "environments": {"nq": SUMS}},
            r"the environment 'nq' is called as one of several sets",
        ),
        (
            {"dev": {"dataset": "nq,hotpotqa"}, "environments": {"nq": SUMS}},
            r"the environment 'nq' is called as one of several sets",
        ),
        (
            {"train": {"dataset": "sets/env.jsonl,sets/b.jsonl"}},
            r"the environment 'env' is called as one of several sets",
        ),
        (
            {"environments": {"a": SUMS | {"scorers": ["em_squadd"]}}},
            r"environments\.a\.scorers: .*'em_squad'",
        ),
        ({"rollout": {"strategy": "critical_step"}}, r"test: the configuration: rollout\.strategy"),
        (
            {"environments": {"a": SUMS | {"share": 0}}},
            r"environments\.a\.share: Input should be greater than 0",
        ),
        ({"environments": {"a": {"train": {}}}}, r"environments\.a\.share: Field required"),
        (
            {"environments": {"a": SUMS | {"train": {"dataset": "nqq"}}}},
            r"environments\.a\.train: No dataset 'nqq'\. Did you mean 'nq'",
        ),
        (
            {"environments": {"a": SUMS | {"search": {"retriever": "fais:x"}}}},
            r"environments\.a\.search: .*'fais'",
        ),
        (
            {"environments": {"a": OTHER | {"train": {"dataset": "nq", "weights": {"nq": 1}}}}},
            r"environments\.a\.train: weights are for several sets",
        ),
        (
            {"rollout": {"sampler": "hard_focus"}},
            r"rollout\.sampler='hard_focus' chooses tasks by a rule of its own",
        ),
        ({"rollout": {"strategy": "self_play"}}, r"rollout\.strategy='self_play' is for one environment"),
    ],
)
def test_what_does_not_fit_is_one_sentence(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        run(**changes)


def test_a_misspelt_key_of_an_environment_has_its_nearest() -> None:
    with pytest.raises(
        UnknownName, match=r"'environments\.a\.trian'\. Did you mean 'environments\.a\.train'"
    ):
        run(environments={"a": {"share": 0.1, "trian": {}}})


def test_what_a_further_environment_runs_or_contacts_is_confirmed_and_compared(tmp_path: Path) -> None:
    entry = {"share": 0.1, "env": {"id": "own_module:Env"}}
    (tmp_path / "own.toml").write_text(dump_config(run(environments={"a": entry})))
    assert needs_trust(tmp_path / "own.toml")
    assert "environments.a.env.id" not in named_parts(
        run(environments={"a": entry})
    )  # it has a digest of its own


def test_a_resumed_run_may_find_its_questions_elsewhere_and_keeps_its_shares() -> None:
    begun = Identity(flatten_config(run()), {})
    moved = override(run(), ["--environments.other.train.data", "elsewhere"])
    assert [one.key for one in refuse_changes(begun, moved, Path("run"))] == ["environments.other.train.data"]
    with pytest.raises(ConfigurationError, match=r"environments\.sums\.share = 0\.25"):
        refuse_changes(begun, override(run(), ["--environments.sums.share", "0.2"]), Path("run"))

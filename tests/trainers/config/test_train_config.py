"""The configuration: every shipped preset, TOML there and back, overrides, and one sentence for each mistake."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from agentenv.errors import ConfigurationError, UnknownName
from agentenv.trainers.config.config_files import (
    changed,
    config_of,
    dump_config,
    load_config,
    override,
    presets,
    resume_command,
    resume_config,
)
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.credit.estimators import ESTIMATORS
from agentenv.trainers.learner.learner import Objective
from agentenv.trainers.learner.settings import CorrectionSettings
from agentenv.trainers.loop.parts import make_objective


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_shipped_preset_loads_and_comes_back_from_toml(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    assert config.name == name
    assert config.loss.estimator in ESTIMATORS
    sources = (config.train, config.dev, config.test)
    assert len({source.split or source.world.split for source in sources}) == 3
    (tmp_path / "again.toml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "again.toml")) == config


def test_there_is_a_preset() -> None:
    assert "laptop-search" in presets()


def test_overrides_reach_every_kind_of_value() -> None:
    base = load_config("laptop-search")
    words = (
        "--seed 5 --name 7 --rollout.group-size=4 --optimizer.learning_rate 3e-5 --evaluation.bounds False "
        "--evaluation.scorers em_squad f1_squad em_cover --test.limit 9 --test.dataset hotpotqa --test.split dev "
        "--test.data a/b "
        "--test.world.hops [1,1] --test.world.families lookup --env.options.k 5 --env.options.snippet_words 8"
    )
    config = override(base, words.split())
    assert (config.seed, config.name, config.rollout.group_size) == (5, "7", 4)
    assert config.optimizer.learning_rate == 3e-5
    assert config.evaluation.bounds is False
    assert config.evaluation.scorers == ("em_squad", "f1_squad", "em_cover")
    assert (config.test.limit, config.test.split, config.test.data) == (9, "dev", Path("a/b"))
    assert (config.test.world.hops, config.test.world.families) == ((1, 1), ("lookup",))
    assert config.env.options == base.env.options | {"k": 5, "snippet_words": 8}
    assert config.train == base.train
    assert override(base, []) == base
    assert override(base, ["--env.options.prompt", "Q: {question}"]).env.options["prompt"] == "Q: {question}"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--rollout.group_siz 4", "'rollout.group_siz'.*'rollout.group_size'"),
        ("--train.world.documets 400", "'train.world.documents'"),
        ("--optimiser.steps 4", "'optimizer'"),
        ("--optimization.steps 4", "'optimizer'"),
        ("--rollout.group_size 1", r"rollout.group_size.*\b2\b.*\b1\b"),
        ("--optimizer.steps many", "optimizer.steps.*'many'"),
        (
            "--rollout.turn_tokens 9 --rollout.context_tokens 8",
            "turn_tokens=9.*context_tokens=8",
        ),
        ("--test.world.documents 10", r"test.world.*documents.*\b10\b"),
        ("--seed.deep 1", r"seed"),
        ("--rollout.sampler das", "'das'.*'dars'"),
        ("--rollout.sampler dapo --rollout.sampler_options.keep 2", r"'keep'.*\b2\b"),
        ("--loss.estimator tre", "'tree'"),
        ("--loss.estimator_options.epsilo 1", "'epsilo'.*'epsilon'"),
        (
            "--loss.correction.mode truncate",
            "loss.correction.*loss.proximal",
        ),
        ("--monitor.action halt", "monitor.action.*'halt'"),
        ("--seed", "--seed"),
        ("--pln", r"'pln'"),
        ("--optimizer.step", "'optimizer.steps'"),
        ("--rollout.strategy tre", "'tree'"),
        (
            "--rollout.strategy reflect_retry --rollout.strategy_options.pivotal false --loss.estimator pivotal",
            r"pivotal=False.*from_pivot=True",
        ),
        (
            "--rollout.strategy reflect_retry --loss.estimator pivotal --loss.estimator_options.from_pivot false",
            r"pivotal=True.*from_pivot=False",
        ),
        ("5", "'5'"),
        (
            "--evaluation.scorers em_squad,f1_squad",
            "'em_squad,f1_squad'.*--evaluation.scorers em_squad f1_squad$",
        ),
        ("--train.world.families lookup, bridge", "--train.world.families lookup bridge$"),
        ("--simulation.real 0,1", "'0,1'.*--simulation.real 0 1$"),
        ("--evaluation.scorers em_squad,f1_squad --optimizer.steps 0", "optimizer.steps"),
    ],
)
def test_a_wrong_override_is_one_sentence(words: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        override(load_config("laptop-search"), words.split())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[rollout]\ngroup_siz = 4", r"a\.toml.*'rollout.group_siz'.*'rollout.group_size'"),
        ("[train.world]\ndocumets = 400", "'train.world.documets'.*'train.world.documents'"),
        ("[rollout]\ngroup_size = 1", r"a\.toml.*rollout.group_size.*\b1\b"),
        ("[rollout", r"a\.toml"),
        ("rollout = 3", r"a\.toml.*rollout"),
    ],
)
def test_a_wrong_file_is_one_sentence(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=named):
        load_config(str(path))


def test_options_of_what_is_registered_are_free_tables(tmp_path: Path) -> None:
    words = (
        "--loss.estimator anchor_state --loss.estimator_options.population step "
        "--loss.estimator_options.turn_weight 0.5 --loss.objective gspo "
        "--loss.objective_options.clip_high 5e-4 --loss.aggregation token_sum "
        "--rollout.sampler curriculum --rollout.sampler_options.hops [[1,1],[20,2]]"
    )
    config = override(load_config("laptop-search"), words.split())
    assert config.loss.estimator_options == {"population": "step", "turn_weight": 0.5}
    assert config.loss.objective_options == {"clip_high": 5e-4}
    assert config.rollout.sampler_options == {"hops": [[1, 1], [20, 2]]}
    (tmp_path / "again.toml").write_text(dump_config(config))
    assert load_config(str(tmp_path / "again.toml")) == config


def test_a_configuration_becomes_what_is_minimised() -> None:
    """Bounds of their own keys and options meet; nothing asked for is the published default."""

    def objective_of(run: TrainConfig) -> Objective:
        return make_objective(run.resolved_loss, run.memory, run.rollout)

    assert objective_of(TrainConfig()) == Objective(length=512).resolved(mismatch=False)
    words = (
        "--loss.clip_low 0.1 --loss.objective_options.dual_clip 3 --loss.proximal recompute "
        "--loss.correction.mode mask --loss.correction.low 0.5 --loss.kl k2 "
        "--loss.ace_alpha 1 --rollout.temperature 0.7"
    )
    goal = objective_of(override(TrainConfig(), words.split()))
    assert goal.surrogate_options == {"clip_low": 0.1, "dual_clip": 3}
    assert goal.correction == CorrectionSettings(mode="mask", low=0.5, off_context="weight")
    assert (goal.proximal, goal.kl, goal.ace_alpha, goal.temperature) == ("recompute", "k2", 1.0, 0.7)
    wrong = ["--loss.objective", "opmd", "--loss.objective_options.clip_low", "0.1"]
    with pytest.raises(UnknownName, match=r"'opmd'.*'clip_low'"):
        objective_of(override(TrainConfig(), wrong))


def test_an_unknown_preset_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"'laptop-serch'.*'laptop-search'"):
        load_config("laptop-serch")


def test_the_defaults_are_a_configuration() -> None:
    assert TrainConfig().rollout.turn_tokens < TrainConfig().rollout.context_tokens


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["--evaluation.scorers", "em_squad", "em_squat"], "em_squat"),
        (["--tracker", "tensorbord"], "tensorbord"),
        (["--search.retriever", "fais:x"], "fais"),
        (["--search.retriever", "cassette:x@fais:y"], "fais"),
        (["--simulation.retriever", "simulatd:hf:x"], "simulatd"),
        (["--test.dataset", "hotpot"], "hotpotqa"),
        (["--dev.dataset", "hotpotqa,musiqe"], "musique"),
        (["--test.dataset", "hotpotqa", "--test.split", "devv"], "devv"),
    ],
)
def test_a_name_is_checked_when_the_configuration_is_read(words: list[str], name: str) -> None:
    """Not after the first evaluation, nor after an index was built."""
    with pytest.raises(ConfigurationError, match=name):
        override(load_config("laptop-search"), words)


def test_the_questions_of_a_run_are_held_out_where_nothing_is_said_of_them() -> None:
    for config in (TrainConfig(), override(TrainConfig(), ["--test.world.documents", "300"])):
        assert [getattr(config, name).world.split for name in ("train", "dev", "test")] == [
            "train",
            "dev",
            "test",
        ]
    named = TrainConfig.model_validate({"train": {"world": {"split": "test", "seed": 4}}})
    assert (named.train.world.split, named.train.world.seed) == ("test", 4)


def test_options_of_the_environment_of_a_base_are_not_those_of_another_one(tmp_path: Path) -> None:
    other = ["--env.id", "agentenv/Code-v0"]
    base = load_config("laptop-search")
    assert base.env.options
    assert override(base, other).env.options == {}
    assert override(base, ["--env.options.max_turns", "2", *other]).env.options == {"max_turns": 2}
    assert override(base, ["--env.id", base.env.id]).env.options == base.env.options
    file = tmp_path / "own.toml"
    file.write_text('base = "laptop-search"\nenv = { id = "agentenv/Code-v0", options = { attempts = 2 } }\n')
    assert load_config(str(file)).env.options == {"attempts": 2}
    file.write_text('base = "laptop-search"\n[env.options]\nk = 5\n')
    assert load_config(str(file)).env.options == {**base.env.options, "k": 5}


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--train.split nope", "nope"),
        ("--dev.limit 0", "0"),
        ("--test.limit -3", "-3"),
        ("--seed -1", "-1"),
        ("--seed 99999999999999999999", "99999999999999999999"),
        ("--threads 99999999999999999999", "99999999999999999999"),
        ("--train.seed -1", "-1"),
        ("--cluster.address nowhere", "nowhere"),
        ("--cluster.address http://x:6379", "http://x:6379"),
        ("--evaluation.strategy guide", "'guide'.*one for each question.*rollback"),
        ("--format native --evaluation.strategy rollback", "evaluation.strategy='rollback'.*native"),
    ],
)
def test_what_the_run_could_not_use_is_refused_when_the_configuration_is_read(words: str, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        override(load_config("laptop-search"), words.split())
    assert override(load_config("laptop-search"), ["--cluster.address", "10.0.0.1:6379"]).cluster.address


FINITE = (
    "rollout.temperature",
    "rollout.deadline_s",
    "optimizer.learning_rate",
    "optimizer.weight_decay",
    "reward_shaping.answer_penalty",
    "loss.kl_coefficient",
    "loss.clip_low",
    "loss.correction.low",
    "cluster.cpus",
    "engine.kv_gib",
    "loss.estimator_options.gamma",
    "train.world.distractors",
)


@pytest.mark.parametrize("key", FINITE)
@pytest.mark.parametrize("value", ["nan", "inf", "1e400", "-inf"])
def test_a_number_that_is_not_finite_is_refused_when_the_configuration_is_read(key: str, value: str) -> None:
    base = override(load_config("laptop-search"), ["--loss.estimator", "return_to_go"])
    with pytest.raises(ConfigurationError, match=key.rpartition(".")[2]):
        override(base, [f"--{key}", value])


@pytest.mark.parametrize("key", ["optimizer.max_grad_norm", "loss.clip_high", "loss.correction.high"])
def test_where_infinity_means_no_bound_it_may_be_given_and_nan_never(key: str) -> None:
    base = load_config("laptop-search")
    section, name = key.rpartition(".")[::2]
    found: Any = override(base, [f"--{key}", "inf"])
    for part in (*section.split("."), name):
        found = getattr(found, part)
    assert found == float("inf")
    with pytest.raises(ConfigurationError, match=name):
        override(base, [f"--{key}", "nan"])


OTHER_ENV = 'base = "laptop-search"\n[env]\nid = "agentenv/Calculator-v0"\n'


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ("", {}),
        ('[env.options]\nrender_mode = "ansi"', {"render_mode": "ansi"}),
    ],
)
def test_another_environment_does_not_inherit_the_options_of_the_base(
    changes: str, kept: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "other.toml"
    path.write_text(OTHER_ENV + changes)
    config = load_config(path)
    assert config.env.options == kept
    assert config.rollout == load_config("laptop-search").rollout


def test_options_stay_where_the_name_stays() -> None:
    base = load_config("laptop-search")
    same = {"env": {"id": "agentenv/LocalSearch-v0", "options": {"k": 7}}}
    assert config_of({"base": "laptop-search", **same}, "test").env.options == base.env.options | {"k": 7}
    assert override(base, ["--env.id", "agentenv/LocalSearch-v0"]) == base


def test_on_the_command_line_and_in_python_options_go_with_their_name_too() -> None:
    base = load_config("laptop-search")
    words = ["--env.id", "agentenv/Calculator-v0", "--env.options.render_mode", "ansi"]
    assert override(base, words).env.options == {"render_mode": "ansi"}
    assert override(base, [*words[2:], *words[:2]]).env.options == {"render_mode": "ansi"}
    overrides = {"env.id": "agentenv/Calculator-v0", "env.options.render_mode": "ansi"}
    assert changed(base, overrides).env.options == {"render_mode": "ansi"}


@pytest.mark.parametrize(
    ("name", "options", "new"),
    [
        ("rollout.strategy", {"depth": 1}, "plain"),
        ("rollout.sampler", {"pool": 3}, "uniform"),
        ("loss.estimator", {"population": "step"}, "group_relative"),
    ],
)
def test_options_of_a_strategy_sampler_or_estimator_go_with_it(
    name: str, options: dict[str, Any], new: str
) -> None:
    old = {"rollout.strategy": "tree", "rollout.sampler": "dapo", "loss.estimator": "anchor_state"}
    known = {} if name == "rollout.sampler" else options
    base = changed(load_config("laptop-search"), {name: old[name], f"{name}_options": known})
    later = override(base, [f"--{name}", new])
    assert changed(base, {name: new}) == later
    table, key = name.split(".")
    assert getattr(getattr(later, table), f"{key}_options") == {}


def test_options_of_own_tasks_go_with_their_environment() -> None:
    tasks = {"train.dataset": "env", "train.options": {"n": 3}, "dev.dataset": "env", "test.dataset": "env"}
    base = changed(load_config("laptop-search"), tasks)
    assert override(base, ["--env.id", "agentenv/Calculator-v0"]).train.options == {}
    assert base.train.options == {"n": 3}


def test_values_in_python_are_checked_like_those_of_a_file() -> None:
    base = load_config("laptop-search")
    assert changed(base, {"optimizer": {"steps": 7}, "seed": 3}).optimizer.steps == 7
    assert changed(base, {"optimizer": {"steps": 7}}).rollout == base.rollout
    assert changed(base, {}) == base
    with pytest.raises(UnknownName, match="optimisation"):
        changed(base, {"optimisation.steps": 7})
    with pytest.raises(ConfigurationError, match=r"optimizer\.steps.*'many'"):
        changed(base, {"optimizer.steps": "many"})


@pytest.mark.parametrize("key", ["rollout.temperature", "evaluation.temperature"])
@pytest.mark.parametrize("temperature", [0.001, 2.5])
def test_a_temperature_that_vllm_does_not_sample_at_is_refused(key: str, temperature: float) -> None:
    words = ["--engine.kind", "vllm", "--rollout.deterministic", "false", f"--{key}"]
    override(TrainConfig(), [*words, "2.0"])
    with pytest.raises(ConfigurationError, match=f"{key} is {temperature:g}"):
        override(TrainConfig(), [*words, str(temperature)])


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ('env.id = "mine:Env"', " --trust-config"),
        ('env.id = "agentenv/Calculator-v0"', ""),
        ("= nonsense", ""),
    ],
)
def test_the_command_that_goes_on_with_a_run_can_be_typed_as_it_stands(
    settings: str, flag: str, tmp_path: Path
) -> None:
    folder = tmp_path / "my run"
    folder.mkdir()
    (folder / "config.toml").write_text(settings)
    command = resume_command(folder)
    assert command == f"agentenv train --resume '{folder}'{flag}"
    assert shlex.split(command)[3] == str(folder)


def test_the_folder_of_an_evaluation_is_no_run_to_resume(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[benchmark]\nenv = "agentenv/Calculator-v0"\n', encoding="utf-8")
    with pytest.raises(ConfigurationError, match="no training run"):
        resume_config(tmp_path)

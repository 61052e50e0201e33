"""Searching an organisation: channels and times, the reward by hand, and the command that writes one."""

import json
from pathlib import Path

import pytest

from agentenv.cli.main import main
from agentenv.core.types import Passage, ToolStatus
from agentenv.data.datasets import load_dataset
from agentenv.envs.search.organisation_search import OrganisationSearch, Restriction
from agentenv.errors import ConfigurationError


@pytest.mark.parametrize(
    ("query", "read"),
    [
        ("INC-2", Restriction("INC-2")),
        ("mail: INC-2", Restriction("INC-2", "mail")),
        ("tickets before day 5: INC-2", Restriction("INC-2", "tickets", (5, 0))),
        ("before day 12, 10:05: INC-2", Restriction("INC-2", None, (12, 605))),
        ("why: INC-2", Restriction("why: INC-2")),
        (": INC-2", Restriction(": INC-2")),
        ("mail", Restriction("mail")),
        ("  mail  before day 5 :  INC-2 ", Restriction("INC-2", "mail", (5, 0))),
        (f"before day {'9' * 5000}: x", Restriction(f"before day {'9' * 5000}: x")),
        (f"{' ' * 20_000}mail{' ' * 20_000}x", Restriction(f"mail{' ' * 20_000}x")),
    ],
    ids=[*"abcdefg", "spaces", "a day of too many digits", "many spaces"],
)
def test_a_channel_and_a_time_may_stand_before_a_query(query: str, read: Restriction) -> None:
    assert Restriction.of(query) == read


@pytest.mark.parametrize(
    ("query", "admitted"),
    [
        ("x", True),
        ("mail: x", True),
        ("chat: x", False),
        ("before day 3, 10:24: x", False),
        ("before day 3, 10:25: x", True),
    ],
)
def test_a_search_shows_what_is_of_the_channel_and_earlier(query: str, admitted: bool) -> None:
    passage = Passage("1", "[mail] day 3, 10:24: Plan", "x", 1.0)
    assert Restriction.of(query).admits(passage) is admitted
    assert Restriction.of(query).admits(Passage("1", "Plan", "x", 1.0)) is (query == "x")


def test_a_right_answer_earns_more_with_its_evidence_and_evidence_alone_earns_nothing() -> None:
    env = OrganisationSearch(evidence_reward=0.2)
    (task,) = [task for task in env.tasks if task.data["family"] == "fact"][:1]
    assert len(task.data["supporting_ids"]) == 1

    def earned(*actions: str) -> float:
        env.reset(seed=0, options={"task": task})
        return sum(env.step(action).reward for action in actions)

    env.reset(seed=0, options={"task": task})
    search, answer = env.expert() or ()
    assert earned(search, answer) == pytest.approx(1.2)
    assert earned(answer) == pytest.approx(1.0)
    assert earned(search, "<answer>Somebody Else</answer>") == 0
    assert earned(search, "<answer>nobody</answer>") == 0


def test_what_a_guess_by_the_form_of_a_question_is_worth() -> None:
    """Half of the questions with two answers, and half of those that may have none; .36 of 1,500 tasks of the preset."""
    tasks = OrganisationSearch.make_tasks(200, seed=3, split="train", followups=3, social=True)
    guesses = {"Who wrote": "nobody", "Who reported": "nobody", "Which earlier": "nobody"}
    right = [
        task.answers[0]
        == guesses.get(
            " ".join(task.question.split()[:2]),
            "yes" if task.question.split()[0] in ("On", "By", "Would") else "",
        )
        for task in tasks
    ]
    assert 0.3 < sum(right) / len(right) < 0.42


def test_an_artefact_is_opened_by_its_id_and_counts_as_evidence() -> None:
    env = OrganisationSearch(snippet_words=2)
    (task,) = [task for task in env.tasks if task.data["family"] == "fact"][:1]
    env.reset(seed=0, options={"task": task})
    page = env.step((env.expert() or ())[0]).observation[0].text
    (id,) = task.data["supporting_ids"]
    assert f"]({id}): [chat] day" in page
    assert "I have fixed" not in page
    whole = env.step(f"<open>{id}</open>").observation[0].text
    assert "I have fixed the service" in whole
    missing = env.step("<open>INC-1</open>")
    assert "'INC-1'" in missing.observation[0].text
    assert missing.info["tool_results"][0].error_class == "UnknownId"
    assert env.step("<open></open>").info["tool_results"][0].status is ToolStatus.FORMAT_ERROR
    env.reset(seed=0, options={"task": task})
    env.step(f"<open>{id}</open>")
    assert env.step(f"<answer>{task.answers[0]}</answer>").reward == pytest.approx(1.2)


def test_a_search_in_the_wrong_channel_does_not_show_it() -> None:
    env = OrganisationSearch()
    (task,) = [task for task in env.tasks if task.data["family"] == "fact"][:1]
    env.reset(seed=0, options={"task": task})
    env.step(f"<search>mail: {task.data['path'][0]['query'].partition(': ')[2]}</search>")
    assert set(task.data["supporting_ids"]).isdisjoint(env.state.by_id)
    assert all("-mail-" in one for one in env.state.by_id)


def test_the_expert_finds_most_of_what_the_answers_stand_on() -> None:
    env = OrganisationSearch(tasks=OrganisationSearch.make_tasks(40, seed=3, split="test"))
    found = 0
    for task in env.tasks:
        env.reset(seed=0, options={"task": task})
        rewards = [env.step(action).reward for action in env.expert() or ()]
        assert rewards[-1] >= 1
        found += set(task.data["supporting_ids"]) <= set(env.state.by_id)
    assert found >= 30


def test_a_negative_reward_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="-1"):
        OrganisationSearch(evidence_reward=-1)


def test_the_command_writes_a_corpus_and_questions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["synthesize", "organisation", "--seed", "2", "--out", str(tmp_path / "a"), "--json"]
    assert main(words) == 0
    card = json.loads(capsys.readouterr().out)
    dataset = load_dataset("jsonl", tmp_path / "a" / "questions.jsonl")
    assert len(dataset.tasks) == card["questions"] > 10
    ids = {json.loads(line)["id"] for line in (tmp_path / "a" / "corpus.jsonl").read_text().splitlines()}
    assert len(ids) == card["documents"]
    assert all(set(task.data["supporting_ids"]) <= ids for task in dataset.tasks)
    assert main(words) == 1

"""Search tools of one's own: what they find is counted where they say it, and left out everywhere where they do not."""

import json
from pathlib import Path
from typing import Any

import pytest

from agentenv.cli.main import main
from agentenv.core.chat import InlineFormat
from agentenv.core.env import Env, run_sync
from agentenv.core.rollout import RolloutConfig
from agentenv.core.tool_results import passage_lines
from agentenv.core.tools import ToolEnv, tool
from agentenv.core.types import EndReason, Message, Passage, Step, Task, ToolResult, ToolStatus
from agentenv.data.world import FictionalWorld, WorldConfig
from agentenv.envs.search.local_search import LocalSearch
from agentenv.evaluation.compare import compare
from agentenv.evaluation.pipeline import _RunningMetrics
from agentenv.evaluation.records import EpisodeRecord, write_evaluation
from agentenv.evaluation.report.report import write_report
from agentenv.evaluation.report.tables import suite_tables, tables
from agentenv.evaluation.results import summarize
from agentenv.evaluation.runner import play, to_record
from agentenv.evaluation.suite import summarize_suite
from agentenv.policies.fakes import ByteTokenizer
from agentenv.policies.scripted import ScriptedPolicy
from agentenv.retrievers.fakes import InMemoryRetriever
from agentenv.trainers.loop.metrics import rollout_metrics

WORLD = FictionalWorld.generate(
    WorldConfig(seed=4, documents=200, questions=20, families=("lookup", "bridge"))
)
TASKS = WORLD.questions[:6]
RETRIEVER = InMemoryRetriever(WORLD.documents)
CONFIG = RolloutConfig(context_tokens=1 << 16, turn_tokens=1 << 12, temperature=0.0)


class Library(ToolEnv[Task]):
    """Every question is searched by a tool that is not called ``search`` and answers with text."""

    async def areset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        await super().areset(seed=seed)
        assert options
        self.state = options["task"]
        return (Message("user", self.state.question),), {"task_id": self.state.id}

    @tool
    async def lookup(self, query: str) -> str:
        """Looks something up.

        Args:
            query: what to look up.
        """
        return "".join(passage.text for passage in await self.found(query))

    async def found(self, query: str) -> list[Passage]:
        (found,) = await RETRIEVER.search([query], 3)
        return found

    def answer(self, text: str) -> Step:
        right = text in self.state.answers
        return self.result((), reward=float(right), end=EndReason.ANSWERED, answer=text)


class TypedLibrary(Library):
    """The same with passages."""

    @tool
    async def lookup(self, query: str) -> list[Passage]:  # type: ignore[override]
        """Looks something up.

        Args:
            query: what to look up.
        """
        return await self.found(query)


def episodes(make: type[Library]) -> list[Any]:
    """Every question is searched for; every other one is answered right."""
    scripts = {}
    for i, task in enumerate(TASKS):
        call = json.dumps({"name": "lookup", "arguments": {"query": task.question}})
        right = task.answers[0] if i % 2 else "nonsense"
        scripts[f"eval-0-{i}"] = [f"<tool_call>{call}</tool_call>", right]
    return play(ScriptedPolicy(scripts), InlineFormat(ByteTokenizer()), make, TASKS, CONFIG)


def results_of(records: list[EpisodeRecord]) -> dict[str, Any]:
    found = summarize(
        records,
        ["em_squad"],
        dataset="w",
        split="test",
        policy="p",
        retriever="bm25",
        k=3,
        token_unit="bytes",
    )
    return found | {"index_recall": {}, "answer_in_corpus": {"share": None, "n": 0}, "seconds": {}}


def records_of(make: type[Library]) -> list[EpisodeRecord]:
    return [to_record(trajectory) for trajectory in episodes(make)]


def test_passages_of_a_tool_of_any_name_are_searches() -> None:
    records = records_of(TypedLibrary)
    assert [record["searches"] for record in records] == [1] * 6
    found = results_of(records)
    assert found["searches_per_question"] == 1.0
    assert found["retrieval"]["support_recall"] > 0
    assert found["errors"]["retrieval_miss"] + found["errors"]["read_miss"] == 3
    assert rollout_metrics([episodes(TypedLibrary)])["searches_per_episode"] == 1.0


def test_what_no_tool_said_is_left_out_and_never_zero() -> None:
    records = records_of(Library)
    assert all(record["searches"] is None and "retrieved_ids" not in record for record in records)
    found = results_of(records)
    assert found["searches_per_question"] is None
    assert set(found["retrieval"]) == {"answer_shown", "answer_shown_n"}
    assert found["errors"] == {"scorer": "em_squad", "correct": 3}
    assert found["capabilities"] == []
    assert "searches_per_episode" not in rollout_metrics([episodes(Library)])
    assert not {"recall", "searches", "evidence"} & set(
        " ".join(str(row[0]) for table in tables([("", found)], "em_squad") for row in table["rows"]).split()
    )


def test_an_episode_without_a_search_among_others_that_name_their_documents_did_not_search() -> None:
    records = records_of(TypedLibrary)
    counting: EpisodeRecord = {**records[0], "id": "c", "searches": None}
    del counting["retrieved_ids"]
    found = results_of([*records, counting])
    assert found["searches_per_question"] == pytest.approx(6 / 7)
    assert found["retrieval"]["n"] == 7


def test_terminal_report_comparison_and_suite_show_no_zero(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.console import Console

    from agentenv.cli.eval import _show

    for name, make in (("text", Library), ("typed", TypedLibrary)):
        records = records_of(make)
        write_evaluation(tmp_path / "suite" / name, results_of(records), records)
    text = json.loads((tmp_path / "suite" / "text" / "results.json").read_text())
    _show(text, Console(width=200))
    shown = capsys.readouterr().out
    assert "not measured" in shown
    assert not any(word in shown for word in ("recall@3", "support_recall", "evidence"))
    page = write_report(tmp_path / "suite" / "text").read_text()
    assert "searches per question" not in page
    assert "without the evidence" not in page
    assert compare(tmp_path / "suite" / "text", tmp_path / "suite" / "typed")["n"] == 6
    summary = summarize_suite(tmp_path / "suite", ["text", "typed"])
    parts = {
        name: json.loads((tmp_path / "suite" / name / "results.json").read_text()) for name in summary["sets"]
    }
    suite, _, errors = suite_tables(parts, summary, "em_squad")
    head, row = suite["head"], suite["rows"][0][1:]
    assert [row[head.index(name)] for name in ("support recall", "all support", "searches")] == ["", "", ""]
    assert errors["rows"][0] == ["text", "3", "", "", "", "", "", ""]
    assert main(["report", str(tmp_path / "suite")]) == 0


class OwnSearch(Env[Task]):
    """A plain environment that asks its retriever itself, and says nothing about it."""

    def __init__(self, *, retriever: Any = RETRIEVER, tasks: Any = TASKS) -> None:
        super().__init__()
        self._retriever, self._tasks = retriever, tasks

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.state = (options or {}).get("task") or self._tasks[0]
        return (Message("user", self.state.question),), {"task_id": self.state.id}

    def step(self, action: str) -> Step:
        self.check_running()
        if action in ("nonsense", *self.state.answers):
            right = action in self.state.answers
            return self.result((), reward=float(right), end=EndReason.ANSWERED, answer=action)
        (found,) = run_sync(self._retriever.search([action], 3))
        return self.result(
            (Message("tool", passage_lines(found)),), tool_results=self.told([[p.id for p in found]])
        )

    def told(self, ids: list[list[str]]) -> list[ToolResult]:
        return []


class OwnSearchTold(OwnSearch):
    """The same, which names what it found."""

    def told(self, ids: list[list[str]]) -> list[ToolResult]:
        return [ToolResult("lookup", ToolStatus.OK, "", data={"ids": ids})]


def own_episodes(make: type[OwnSearch]) -> list[Any]:
    scripts = {
        f"eval-0-{i}": [task.question, task.answers[0] if i % 2 else "nonsense"]
        for i, task in enumerate(TASKS)
    }
    return play(ScriptedPolicy(scripts), InlineFormat(ByteTokenizer()), make, TASKS, CONFIG)


def test_a_plain_environment_that_searches_by_itself_is_not_said_to_have_made_no_search() -> None:
    played = own_episodes(OwnSearch)
    records = [to_record(trajectory) for trajectory in played]
    assert all(record["searches"] is None and "retrieved_ids" not in record for record in records)
    found = results_of(records)
    assert found["searches_per_question"] is None
    assert set(found["retrieval"]) == {"answer_shown", "answer_shown_n"}
    assert found["errors"] == {"scorer": "em_squad", "correct": 3}
    assert "searches_per_episode" not in rollout_metrics([played])


def test_a_plain_environment_that_names_what_it_found_is_counted() -> None:
    played = own_episodes(OwnSearchTold)
    found = results_of([to_record(trajectory) for trajectory in played])
    assert found["searches_per_question"] == 1.0
    assert found["retrieval"]["support_recall"] > 0


def test_an_environment_that_reports_its_searches_and_made_none_has_made_none() -> None:
    scripts = {f"eval-0-{i}": ["<answer>nonsense</answer>"] for i in range(len(TASKS))}
    policy = ScriptedPolicy(scripts)

    def make() -> LocalSearch:
        return LocalSearch(tasks=TASKS, retriever=RETRIEVER)

    played = play(policy, InlineFormat(ByteTokenizer()), make, TASKS, CONFIG)
    assert results_of([to_record(t) for t in played])["searches_per_question"] == 0
    assert rollout_metrics([played])["searches_per_episode"] == 0


@pytest.mark.parametrize(
    ("searched", "counted", "shown"), [(True, 3, 3.0), (True, None, None), (False, 3, None)]
)
def test_searches_are_shown_while_a_run_goes_on_only_where_they_are_measured(
    searched: bool, counted: int | None, shown: float | None
) -> None:
    record: Any = {"valid": True, "searches": counted, "reward": 1.0, "scores": {"reward": 1.0}}
    metrics = _RunningMetrics("reward", searched=searched)([record])
    assert metrics == {"score": 1.0, "faults": 0} | ({} if shown is None else {"searches": shown})

"""One benchmark: a policy, a question set, a retriever, and the folder with what came out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentenv.core.chat import InlineFormat, TemplateFormat
from agentenv.core.env import run_sync
from agentenv.core.protocols import ChatFormat
from agentenv.core.rollout import RolloutConfig
from agentenv.core.scorers import get_scorer
from agentenv.core.trajectory import Trajectory
from agentenv.data.sources import SourceConfig
from agentenv.envs.local_search import STOP
from agentenv.evaluation.bounds import measure_bounds
from agentenv.evaluation.ground import EnvConfig, Ground, SearchConfig, open_ground
from agentenv.evaluation.records import write_evaluation
from agentenv.evaluation.report import write_report
from agentenv.evaluation.results import summarize
from agentenv.evaluation.runner import play, play_expert, to_record
from agentenv.policies.card import EpisodeCard, read_card
from agentenv.policies.spec import make_policy, policy_folder
from agentenv.retrievers.metrics import recall_at_k

_RECALL_AT = (2, 3, 5)
EXPERT = "scripted"


class Display(Protocol):
    """Who is told how far the work is."""

    def phase(self, name: str, total: int) -> None:
        """A phase of ``total`` units begins; 0 where the number is not known."""

    def advance(self, done: int, figures: dict[str, Any]) -> None:
        """So many units of the phase are done."""


@dataclass(frozen=True)
class Benchmark:
    """What is evaluated on what; the fields are those of ``agentenv eval``."""

    dataset: str
    policy: str
    scorers: tuple[str, ...]
    data: Path | None = None
    split: str | None = None
    retriever: str = ""
    limit: int | None = None
    seed: int = 0
    k: int | None = None
    max_turns: int | None = None


def run_benchmark(benchmark: Benchmark, out: Path, display: Display) -> dict[str, Any]:
    """Answers every question once, greedily, and writes ``results.json``, ``episodes.jsonl`` and ``report.html``.

    Returns:
        The content of ``results.json``.

    Raises:
        AgentEnvError: an unknown name, unreadable questions, a policy that cannot be loaded.
    """
    for scorer in benchmark.scorers:
        get_scorer(scorer)  # an unknown one is refused before any work
    card = read_card(policy_folder(benchmark.policy)) if benchmark.policy != EXPERT else EpisodeCard()
    k = benchmark.k or card.k
    max_turns = benchmark.max_turns if benchmark.max_turns is not None else card.max_turns
    policy = None if benchmark.policy == EXPERT else make_policy(benchmark.policy)

    def count(text: str) -> int:
        return len(policy.tokenizer.encode(text, add_special_tokens=False)) if policy else len(text.split())

    ground = _open(benchmark, card, k, max_turns, count, display)
    context_tokens = min(card.context_tokens, policy.context_tokens) if policy else card.context_tokens
    config = RolloutConfig(
        context_tokens=context_tokens, turn_tokens=card.turn_tokens, temperature=0.0, stop=STOP
    )
    tasks = ground.source.tasks
    display.phase(benchmark.dataset, len(tasks))
    bounds: dict[str, Any] = {}
    if policy is None:
        played = play_expert(ground.make_env, tasks, config, seed=benchmark.seed)
    else:
        chat: ChatFormat = (InlineFormat if card.format == "inline" else TemplateFormat)(policy.tokenizer)
        played = play(
            policy,
            chat,
            ground.make_env,
            tasks,
            config,
            seed=benchmark.seed,
            progress=lambda done: display.advance(done, {}),
        )
        bounds = measure_bounds(policy, chat, ground, config, benchmark.scorers[0], seed=benchmark.seed)
    results = _summary(benchmark, ground, played, bounds, k, max_turns)
    write_evaluation(out, results, map(to_record, played))
    write_report(out)
    return results


def _open(
    benchmark: Benchmark,
    card: EpisodeCard,
    k: int,
    max_turns: int,
    count: Callable[[str], int],
    display: Display,
) -> Ground:
    display.phase("questions and index", 0)
    options = {"k": k, "max_turns": max_turns, "observation_tokens": card.observation_tokens}
    return open_ground(
        SourceConfig(
            dataset=benchmark.dataset,
            data=benchmark.data,
            split=benchmark.split,
            limit=benchmark.limit,
            seed=benchmark.seed,
        ),
        SearchConfig(retriever=benchmark.retriever),
        EnvConfig(options=options | ({"prompt": card.prompt} if card.prompt else {})),
        count,
        progress=lambda done, total: display.advance(done, {}),
    )


def _summary(
    benchmark: Benchmark,
    ground: Ground,
    played: Sequence[Trajectory],
    bounds: dict[str, Any],
    k: int,
    max_turns: int,
) -> dict[str, Any]:
    info = ground.retriever.info()
    summary = summarize(
        [to_record(trajectory) for trajectory in played],
        benchmark.scorers,
        dataset=ground.source.name,
        split=ground.source.split,
        policy=benchmark.policy,
        retriever=benchmark.retriever or info.name,
        k=k,
        seed=benchmark.seed,
        bounds=bounds,
        settings={
            "documents": info.documents,
            "retriever_fingerprint": info.fingerprint,
            "max_turns": max_turns,
            "decoding": "greedy",
            "notes": ground.source.notes,
        },
    )
    return summary | {"index_recall": index_recall(ground)}


def index_recall(ground: Ground) -> dict[str, float]:
    """recall@k of the retriever itself, asked the bare questions; empty where no supporting documents are known."""
    known = [task for task in ground.source.tasks if task.data.get("supporting_ids")]
    if not known:
        return {}
    found = run_sync(ground.retriever.search([task.question for task in known], max(_RECALL_AT)))
    ranked = [[passage.id for passage in passages] for passages in found]
    gold = [task.data["supporting_ids"] for task in known]
    return {f"recall@{k}": recall_at_k(ranked, gold, k) for k in _RECALL_AT}

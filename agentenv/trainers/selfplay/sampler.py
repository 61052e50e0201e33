"""The sampler of self-play: gives each game a spare question, a reference and what is known, and keeps the pool."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agentenv.trainers.selfplay.game_state import outcomes
from agentenv.trainers.selfplay.question_checks import signature
from agentenv.trainers.selfplay.question_pool import (
    PooledQuestion,
    QuestionPool,
    depth,
    difficulty,
    diversity,
)
from agentenv.trainers.selfplay.weaknesses import Rule, Weakness, failed_kinds
from agentenv.trainers.task_sampling.step_budget import Selection, StepBudget, TaskDraw, require

_MEMORY = 2000  # most questions whose solve rates are remembered
_EPOCHS = 8  # most solve rates of one question that are


@dataclass(kw_only=True)
class SelfPlaySampler:
    """Draws fresh topics at every step, and reuses accepted questions from a pool.

    Search Self-Play, Lu et al. 2025, arXiv:2510.18821; references: Multi-Agent Evolve, Chen et al. 2025, arXiv:2510.23595;
    weak kinds of questions: SwS, Liang et al. 2025, arXiv:2506.08989. A question of the pool replaces a proposal that was
    refused, or is shown to the proposer as an example of what to ask for.
    """

    clear_every: int = 10
    """Steps between two clearings of the pool; 0 lets it grow (MAE)."""
    keep_ratio: float = 0.0
    """Share of the pool that a clearing leaves."""
    similar: float = 0.9
    """Word overlap from which a question is a duplicate of one in the pool."""
    threshold: float = 1.0
    """Highest solve rate of a spare question (SSP: 1 in its script, .5 in its configuration)."""
    reference_share: float = 0.0
    """Share of the games that are dealt a reference (MAE: .5)."""
    references: Literal["pool", "weak"] = "pool"
    """``weak`` takes questions of the kinds that are failed most, in shares of their failures (SwS), and of the pool while
    no kind is failed; ``weak_kinds`` in the metrics counts these kinds after each step."""
    failed: Rule = "mean"
    """When a question counts as failed, for ``weak``: ``slope`` (SwS: never half solved, and getting worse), ``flat`` (or
    staying as it is), ``test`` (below one half by a test); ``mean`` goes by the mean of its kind."""
    seeds: tuple[str, ...] = ()
    """Questions that the pool starts with (MAE)."""
    pool: QuestionPool = field(init=False)
    rates: dict[str, list[float]] = field(init=False, default_factory=dict)
    """Solve rates of the questions played lately, the earliest first."""
    attempts: int = field(init=False, default=1)
    """The most attempts that have stood behind a rate; failures of the infrastructure leave some rates with fewer."""
    replays = False
    chooses = True
    known: dict[str, None] = field(init=False, default_factory=dict)
    """``signature`` of every question accepted so far."""

    def __post_init__(self) -> None:
        require("reference_share", self.reference_share, 0 <= self.reference_share <= 1, "within 0 to 1")
        self.pool = QuestionPool(self.clear_every, self.keep_ratio, self.similar)
        for question in self.seeds:
            self.pool.add(PooledQuestion(question, "", -1.0))

    def draw(self, step_budget: StepBudget) -> Sequence[TaskDraw]:
        """One round of games about seeds not yet played in this step."""
        if step_budget.rounds:
            return []
        places = step_budget.draw_unplayed(step_budget.questions)
        return [
            TaskDraw(place, step_budget.group_size, env={"setup": self._setup(step_budget)})
            for place in places
        ]

    def _setup(self, step_budget: StepBudget) -> dict[str, Any]:
        """The fields of a ``GameSetup``, in plain values: checkpoints of asynchronous runs hold draws."""
        spare = self.pool.draw(step_budget.rng, self.threshold, gold=True)
        referred = step_budget.rng.random() < self.reference_share
        return {
            "spare": (spare.question, spare.answer) if spare else None,
            "reference": self._reference(step_budget) if referred else "",
            "known": tuple(self.known),
        }

    def _weak(self) -> list[Weakness]:
        """The kinds of questions that are failed now; none where references are not chosen by them."""
        if self.references != "weak":
            return []
        return failed_kinds(self.rates, self.failed, attempts=self.attempts)

    def _reference(self, step_budget: StepBudget) -> str:
        if weak := self._weak():
            drawn = int(step_budget.rng.choice(len(weak), p=[weakness.share for weakness in weak]))
            return weak[drawn].example
        entry = self.pool.draw(step_budget.rng)
        return entry.question if entry else ""

    def select(self, step_budget: StepBudget) -> Selection:
        """Takes the accepted questions in, and says how varied and how hard they were."""
        games = outcomes(group.members for group in step_budget.groups)
        asked = [outcome for outcome in games if outcome["task"] is not None and not outcome["pooled"]]
        added = 0
        for outcome in games:
            if outcome["task"] is None or outcome["rate"] is None:
                continue
            task = outcome["task"]
            self._remember(task.question, outcome["rate"])
            self.attempts = max(self.attempts, outcome["attempts"])
            if outcome["admitted"] or outcome["pooled"]:
                entry = PooledQuestion(task.question, next(iter(task.answers), ""), outcome["rate"])
                added += self.pool.add(entry) and not outcome["pooled"]
        admitted = [outcome for outcome in asked if outcome["admitted"]]
        self.known |= {signature(outcome["task"].question): None for outcome in admitted}
        cleared = self.pool.clear(step_budget.step)
        rates = [outcome["rate"] for outcome in asked if outcome["rate"] is not None]
        return Selection(
            step_budget.groups,
            metrics={"pool": len(self.pool.entries), "pool_added": added, "pool_cleared": cleared}
            | ({"weak_kinds": len(self._weak())} if self.references == "weak" else {})
            | {"valid_share": len(asked) / len(games) if games else 0.0}
            | diversity([outcome["task"].question for outcome in asked])
            | difficulty(rates)
            | depth([outcome["task"].data["searches"] for outcome in asked]),
        )

    def _remember(self, question: str, rate: float) -> None:
        known = self.rates.pop(question, [])
        self.rates[question] = [*known, rate][-_EPOCHS:]
        for old in list(self.rates)[:-_MEMORY]:
            del self.rates[old]

    def state_dict(self) -> dict[str, Any]:
        """The pool, the solve rates and what is known."""
        return {
            "pool": self.pool.state_dict(),
            "rates": dict(self.rates),
            "attempts": self.attempts,
            "known": list(self.known),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up where ``state_dict`` stood; an empty mapping is the beginning."""
        if state:
            self.pool.load_state_dict(state["pool"])
            held = state["rates"].items()  # a number where a checkpoint knows the latest one alone
            self.rates = {question: rate if isinstance(rate, list) else [rate] for question, rate in held}
            self.attempts = int(state.get("attempts", 1))
            self.known = dict.fromkeys(state["known"])

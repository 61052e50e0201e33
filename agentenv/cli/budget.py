"""``agentenv budget``: scores of evaluations under budgets of turns, searches and tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from agentenv.errors import ConfigurationError
from agentenv.evaluation.budget_curve import BUDGETS, Budget, budget_table
from agentenv.evaluation.compare import check_same_questions
from agentenv.evaluation.records import Evaluation, read_evaluation
from agentenv.evaluation.results import load_measure


@dataclass(frozen=True)
class BudgetCurve:
    """Compares evaluations by the area under the curve of score and budget, as HybridDeepSearcher does.

    An answer counts from the budget of turns, of queries or of tokens at which its episode had finished. Intervals are of
    each evaluation by itself. Evaluations of other questions than the first one are named, because areas over other
    questions say nothing of the agents.

    Example: agentenv budget runs/sequential runs/hybrid
    """

    run_folders: Annotated[
        tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER [FOLDER ...]")
    ]
    """Folders that `agentenv eval` has written."""
    scorer: str = "f1_plain"
    """Scorer of answers; by default the F1 of HybridDeepSearcher, which keeps articles and punctuation."""
    turns: tuple[int, int] = (BUDGETS["turns"].low, BUDGETS["turns"].high)
    """Least and greatest number of turns."""
    searches: tuple[int, int] = (BUDGETS["searches"].low, BUDGETS["searches"].high)
    """Least and greatest number of queries."""
    tokens: tuple[int, int] = (BUDGETS["tokens"].low, BUDGETS["tokens"].high)
    """Least and greatest number of tokens that the policy writes."""

    def run(self) -> dict[str, Any]:
        """Reads the folders and computes the areas."""
        if not self.run_folders:
            raise ConfigurationError("name at least one folder of an evaluation")
        load_measure(self.scorer)
        budgets = {
            "turns": Budget(*self.turns),
            "searches": Budget(*self.searches),
            "tokens": Budget(*self.tokens),
        }
        read = {str(folder): read_evaluation(folder) for folder in self.run_folders}
        return {
            "scorer": self.scorer,
            "runs": {name: budget_table(one.records, self.scorer, budgets) for name, one in read.items()},
            "other_questions": _of_other_questions([*read.values()]),
        }

    def show(self, result: dict[str, Any], console: Console) -> None:
        """The area of each run under each budget."""
        console.print(f"Area under the curve of {result['scorer']} and budget")
        for name, table in result["runs"].items():
            console.print(name, markup=False)
            for kind, row in table.items():
                if row["area"] is None:
                    console.print(f"  {kind:<9} not recorded")
                    continue
                ends = "(no interval)" if row["ci95"] is None else "[{:.3f}, {:.3f}]".format(*row["ci95"])
                low, high = row["curve"][0][0], row["curve"][-1][0]
                console.print(
                    f"  {kind:<9} {row['area']:.3f} {ends}  {low} to {high}, n {row['n']}",
                    markup=False,
                )
        for name, why in result["other_questions"].items():
            console.print(f"not to be compared with the first: {name} ({why})", markup=False)


def _of_other_questions(read: Sequence[Evaluation]) -> dict[str, str]:
    """Which evaluations are not over the questions of the first one, and why not."""
    found = {}
    for other in read[1:]:
        try:
            check_same_questions(read[0], other)
        except ConfigurationError as error:
            found[str(other.directory)] = str(error)
    return found

"""Intervals, paired tests and sequential comparisons."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.evaluation.statistics.equivalence import equivalence_p
    from agentenv.evaluation.statistics.power import detectable_difference
    from agentenv.evaluation.statistics.sequential import compare_sequentially
    from agentenv.evaluation.statistics.significance import (
        Estimate,
        bootstrap_ci,
        estimate,
        holm,
        mcnemar_clustered,
        mcnemar_exact,
        paired_bootstrap,
        wilson_interval,
    )

__all__ = [
    "Estimate",
    "bootstrap_ci",
    "compare_sequentially",
    "detectable_difference",
    "equivalence_p",
    "estimate",
    "holm",
    "mcnemar_clustered",
    "mcnemar_exact",
    "paired_bootstrap",
    "wilson_interval",
]

__getattr__, __dir__ = lazy_exports(__name__)

"""Self-contained HTML pages, charts and tables."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.evaluation.report.report import write_report

__all__ = [
    "write_report",
]

__getattr__, __dir__ = lazy_exports(__name__)

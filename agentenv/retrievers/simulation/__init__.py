"""Language models in the role of a search engine."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.retrievers.simulation.lossy import LossyRetriever
    from agentenv.retrievers.simulation.simulated import SimulatedRetriever
    from agentenv.retrievers.simulation.simulators import make_simulator

__all__ = [
    "LossyRetriever",
    "SimulatedRetriever",
    "make_simulator",
]

__getattr__, __dir__ = lazy_exports(__name__)

"""Environments in which a policy answers questions by searching."""

from typing import TYPE_CHECKING

from agentenv.lazy import lazy_exports

if TYPE_CHECKING:
    from agentenv.envs.search.agent_search import AgentSearch
    from agentenv.envs.search.hierarchical_search import HierarchicalSearch
    from agentenv.envs.search.hybrid_search import HybridSearch
    from agentenv.envs.search.judged_search import JudgedSearch
    from agentenv.envs.search.local_search import LocalSearch
    from agentenv.envs.search.long_search import LongSearch
    from agentenv.envs.search.organisation_search import OrganisationSearch
    from agentenv.envs.search.outcomes import OUTCOMES, Reward, answer_reward
    from agentenv.envs.search.page_format import PageFormat, QuestionPrompt
    from agentenv.envs.search.planned_search import PlannedSearch
    from agentenv.envs.search.rewrite import Rewrite
    from agentenv.envs.search.search_env import SearchEnv, SearchParts
    from agentenv.envs.search.search_state import SearchState, TagCall, ToolReply
    from agentenv.envs.search.search_tools import ReadTool, SearchTool, TagParser, submit_answer
    from agentenv.envs.search.self_play import SearchProposer, SearchSolver
    from agentenv.envs.search.self_search import SelfSearch
    from agentenv.envs.search.simulated_search import SimulatedSearch

__all__ = [
    "OUTCOMES",
    "AgentSearch",
    "HierarchicalSearch",
    "HybridSearch",
    "JudgedSearch",
    "LocalSearch",
    "LongSearch",
    "OrganisationSearch",
    "PageFormat",
    "PlannedSearch",
    "QuestionPrompt",
    "ReadTool",
    "Reward",
    "Rewrite",
    "SearchEnv",
    "SearchParts",
    "SearchProposer",
    "SearchSolver",
    "SearchState",
    "SearchTool",
    "SelfSearch",
    "SimulatedSearch",
    "TagCall",
    "TagParser",
    "ToolReply",
    "answer_reward",
    "submit_answer",
]

__getattr__, __dir__ = lazy_exports(__name__)

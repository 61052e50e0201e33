"""The environments that come with agentenv: one file a family, one line each here."""

from agentenv.core.registry import register

register("agentenv/LocalSearch-v0", "agentenv.envs.search.local_search:LocalSearch")
register("agentenv/SimulatedSearch-v0", "agentenv.envs.search.simulated_search:SimulatedSearch")
register("agentenv/SelfSearch-v0", "agentenv.envs.search.self_search:SelfSearch")
register("agentenv/JudgedSearch-v0", "agentenv.envs.search.judged_search:JudgedSearch")
register("agentenv/Rewrite-v0", "agentenv.envs.search.rewrite:Rewrite")
register("agentenv/LongSearch-v0", "agentenv.envs.search.long_search:LongSearch")
register("agentenv/CapabilitySearch-v0", "agentenv.envs.search.capability_search:CapabilitySearch")
register("agentenv/PlannedSearch-v0", "agentenv.envs.search.planned_search:PlannedSearch")
register("agentenv/HierarchicalSearch-v0", "agentenv.envs.search.hierarchical_search:HierarchicalSearch")
register("agentenv/OrganisationSearch-v0", "agentenv.envs.search.organisation_search:OrganisationSearch")
register("agentenv/SearchProposer-v0", "agentenv.envs.search.self_play:SearchProposer")
register("agentenv/SearchSolver-v0", "agentenv.envs.search.self_play:SearchSolver")
register("agentenv/Calculator-v0", "agentenv.envs.calculator:Calculator")
register("agentenv/Code-v0", "agentenv.envs.code:Code")
register("agentenv/TraceCode-v0", "agentenv.envs.trace_code:TraceCode")
register("agentenv/SQL-v0", "agentenv.envs.sql:Sql")
register("agentenv/ReExSQL-v0", "agentenv.envs.reex_sql:ReExSQL")
register("agentenv/DomSim-v0", "agentenv.envs.domsim.env:DomSim", extra="gui")
register("agentenv/SemiOnlineGUI-v0", "agentenv.envs.semi_online:SemiOnlineGUI", extra="gui")
register("agentenv/Browser-v0", "agentenv.envs.browser.env:Browser", extra="gui")

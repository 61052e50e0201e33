"""What probes of a reward earn in every registered environment, and in the variants of a reward that can be chosen.

A probe does not try to solve the task: it says nothing, repeats itself, floods, answers at once or with everything it saw.
The table shows what the best of them earns beside the expert and beside an honest attempt that goes wrong.
"""

from functools import partial
from typing import Any

from common import common_arguments, finish, run_script

from agentenv.core.probes import HONEST, ProbeRow, probe_env
from agentenv.core.registry import make, registered
from agentenv.errors import UnknownName

VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("agentenv/LocalSearch-v0", {"outcome": "knowledge_boundary"}),
    ("agentenv/LocalSearch-v0", {"outcome": "deliberative"}),
    ("agentenv/LocalSearch-v0", {"outcome": "graded_format"}),
    ("agentenv/LocalSearch-v0", {"outcome": "flawed_positive"}),
    ("agentenv/LocalSearch-v0", {"found_reward": 0.5}),
    ("agentenv/LocalSearch-v0", {"scorer": "f1_squad"}),
    ("agentenv/LocalSearch-v0", {"scorer": "em_cover"}),
    ("agentenv/LongSearch-v0", {"kept_chars": 100}),
    ("agentenv/LongSearch-v0", {"ends_without_action": True}),
    ("agentenv/CapabilitySearch-v0", {"capability": "chain"}),
    ("agentenv/CapabilitySearch-v0", {"capability": "find"}),
    ("agentenv/CapabilitySearch-v0", {"capability": "read"}),
    ("agentenv/CapabilitySearch-v0", {"capability": "form"}),
    ("agentenv/CapabilitySearch-v0", {"capability": "stop"}),
    ("agentenv/SemiOnlineGUI-v0", {"patch_budget": 2}),
    ("agentenv/AgentSearch-v0", {"tools": ["chunk_search", "graph_search"], "facts": "titles"}),
    ("agentenv/HierarchicalSearch-v0", {"local_first": True}),
    ("agentenv/PlannedSearch-v0", {"gain": True}),
    ("agentenv/PlannedSearch-v0", {"process": "coverage", "process_weight": 0.5}),
    ("agentenv/PlannedSearch-v0", {"gain": True, "process": "coverage"}),
    ("agentenv/PlannedSearch-v0", {"cost": "turns", "search_cost": 0.1}),
    ("agentenv/JudgedSearch-v0", {"search_again": True}),
    ("agentenv/JudgedSearch-v0", {"verdicts": "sum"}),
    ("agentenv/Rewrite-v0", {"reward": "curriculum"}),
    ("agentenv/Code-v0", {"reward": "fraction"}),
    ("agentenv/SQL-v0", {"reward": "ex"}),
    ("agentenv/SQL-v0", {"reward": "think2sql"}),
    ("agentenv/SQL-v0", {"reward": "qatch"}),
    ("agentenv/SQL-v0", {"reward": "dense"}),
    ("agentenv/SQL-v0", {"reward": "bucketed"}),
    ("agentenv/SQL-v0", {"reward": "arctic"}),
    ("agentenv/SQL-v0", {"reward": "sql_r1"}),
    ("agentenv/SQL-v0", {"reward": "sql_r1_length"}),
    ("agentenv/TraceCode-v0", {"reward": "progress"}),
    ("agentenv/ReasoningGym-v0", {"partial_credit": True}),
    ("agentenv/TextArena-v0", {"partial_reward": True}),
)
"""Rewards that are not the default of their environment."""

_WITH_ARGUMENTS = ("agentenv/MCP-v0", "agentenv/AgentProgram-v0", "agentenv/Terminal-v0")
"""Environments that cannot be made without arguments."""


def main() -> None:
    """Probes one environment after the other and writes what was earned."""
    parser = common_arguments(__doc__)
    parser.add_argument("--only", nargs="*", help="ids of environments; all by default")
    args = parser.parse_args()
    cases = probed_cases()
    probed = {name for name, _ in cases}
    for name in args.only or ():
        if name not in probed:
            raise UnknownName.among("environment that is probed", name, probed)
    found = {}
    for name, options in cases:
        if not args.only or name in args.only:
            found[_named(name, options)] = [_row(row) for row in probe_env(partial(make, name, **options))]
    finish("reward_probes", args, {"environments": found}, _table(found))


def probed_cases() -> list[tuple[str, dict[str, Any]]]:
    """Every environment that comes with agentenv and can be made without arguments, and then the variants."""
    own = [name for name in registered() if name.startswith("agentenv/")]
    return [(name, {}) for name in own if name not in _WITH_ARGUMENTS] + list(VARIANTS)


def _named(name: str, options: dict[str, Any]) -> str:
    given = ", ".join(f"{key} = {value!r}" for key, value in options.items())
    return name.removeprefix("agentenv/") + (f" ({given})" if given else "")


def _row(row: ProbeRow) -> dict[str, Any]:
    kept = ("probe", "reward", "expert", "episodes", "masked", "cut", "fault")
    return {key: getattr(row, key) for key in kept} | {"farm": row.is_farm}


def _table(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Rows of Markdown: the best probe of each environment."""
    lines = [
        "| environment | expert | honest, but wrong | best probe | earns | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in found.items():
        honest = next(row for row in rows if row["probe"] == HONEST)
        probes = [row for row in rows if row["probe"] != HONEST and row["reward"] is not None]
        best = max(probes, key=lambda row: row["reward"] - row["expert"])
        farms = "can be farmed" if any(row["farm"] for row in rows) else ""
        cells = (
            name,
            _short(best["expert"]),
            _short(honest["reward"]),
            best["probe"],
            _short(best["reward"]),
            farms,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    run_script(main)

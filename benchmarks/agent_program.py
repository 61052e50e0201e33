"""Does a policy learn inside an agent that is no environment?

Trains the shipped policy by the preset `laptop-search` inside the agent of `examples/train_inside_an_agent.py`, which
asks an endpoint and searches with BM25 by itself. A run that is finished in the folder of the run is not repeated.
"""

import sys
from argparse import ArgumentParser
from pathlib import Path

import torch
from common import Silent, common_arguments, finish, load, run_script

import agentenv
from agentenv.evaluation.records import RESULTS, read_json

AGENT = Path(__file__).resolve().parents[1] / "examples" / "train_inside_an_agent.py"


def main() -> None:
    """Trains and writes."""
    parser: ArgumentParser = common_arguments(__doc__ or "")
    parser.add_argument("--run", type=Path, default=Path("runs/inside-an-agent"), help="folder of the run")
    parser.add_argument("--steps", type=int, default=60, help="steps of training")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sys.path.insert(0, str(AGENT.parent))  # where the agent is looked for
    before = load()
    if not (args.run / RESULTS).exists():
        changes = {
            "optimizer.steps": args.steps,
            "search.retriever": "",
            "env.id": "agentenv/AgentProgram-v0",
            "env.options": {"agent": f"python:{AGENT.stem}:solve", "max_turns": 3},
        }
        agentenv.train("laptop-search", out=args.run, overrides=changes, display=Silent())
    results = read_json(args.run / RESULTS)
    figures = {name: results[name] for name in ("steps", "before", "after", "faults", "seconds")}
    low, high = figures["after"]["ci95"]
    line = f"{figures['before']['mean']:.3f} -> {figures['after']['mean']:.3f} [{low:.3f}, {high:.3f}]"
    finish("agent_program", args, before | figures, [line])


if __name__ == "__main__":
    run_script(main)

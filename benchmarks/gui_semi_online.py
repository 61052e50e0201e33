"""Semi-online, offline and online training of a small transformer on DomSim, and whether SOP tells true success.

Every way trains the same policy on the same tasks for equally many steps of equally many episodes; only what an episode is
differs:

- semi-online: `agentenv/SemiOnlineGUI-v0` over recordings of the expert, with a patch budget of 0, 1, 2 or without end, and
  UI-S1's dual-level credit;
- offline: the same without end of patches, but each turn is judged on its own: neither discounted return nor
  the episode's score;
- online: `agentenv/DomSim-v0` itself, reward at the end, GRPO.

Each result is judged greedily on unseen tasks twice: SOP on their recordings, and success on the live desktop. What is
correlated are all results and the start: one checkpoint for each way and seed.

    agentenv warmstart --env desktop --out runs/tiny-desktop
    python benchmarks/gui_semi_online.py --policy hf:runs/tiny-desktop --runs runs/semi-online
"""

import argparse
import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Silent, arguments, finish, interval, run_script

from agentenv.core.chat import TemplateFormat
from agentenv.envs.domsim.env import DomSim
from agentenv.envs.semi_online import UNLIMITED, SemiOnlineGUI
from agentenv.evaluation.records import RESULTS
from agentenv.evaluation.runner import play
from agentenv.evaluation.sop import measure_sop
from agentenv.policies.policy_spec import make_policy
from agentenv.trainers.config.config_files import changed, load_config, override
from agentenv.trainers.config.train_config import TrainConfig
from agentenv.trainers.grpo import train
from agentenv.trainers.loop.parts import rollout_config
from agentenv.trainers.run_folder.folder import RunFolder

WAYS = {
    "offline": UNLIMITED,
    "semi-online-0": 0,
    "semi-online-1": 1,
    "semi-online-2": 2,
    "semi-online-unlimited": UNLIMITED,
    "online": None,
}
"""The patch budget of each way; none where the desktop is live."""
OFFLINE = [
    "--loss.estimator_options.gamma",
    "0",
    "--loss.estimator_options.episode_weight",
    "0",
]


def config_of(args: argparse.Namespace, way: str, seed: int) -> TrainConfig:
    """The run of a way under a seed; what it is judged by comes afterwards."""
    words = (
        f"--name {way}-{seed} --seed {seed} --policy {args.policy} --threads {args.threads} --test.limit 1 "
        f"--optimizer.steps {args.steps} --rollout.questions {args.batch} --evaluation.every 0"
    ).split()
    if (budget := WAYS[way]) is not None:
        words += ["--env.id", "agentenv/SemiOnlineGUI-v0", "--env.options.patch_budget", str(budget)]
        words += ["--loss.estimator", "dual_level"]
    preset = load_config("lab-desktop")
    config = override(preset, words + (OFFLINE if way == "offline" else []))
    if budget is not None:  # recordings end where the expert did, and are shown as the desktop itself is
        shared = {name: value for name, value in preset.env.options.items() if name != "max_steps"}
        tasks = {"train.options": preset.train.options, "dev.options": preset.dev.options}
        config = changed(config, {"env.options": shared, **tasks, "test.options": preset.test.options})
    return config


def trained(config: TrainConfig, folder: Path) -> RunFolder:
    """The finished run; one that is finished is not repeated."""
    begun = (folder / "config.toml").is_file()
    run = RunFolder.open(folder) if begun else RunFolder.create(folder, config)
    if not (folder / RESULTS).is_file():
        train(run, Silent())
    return run


def judged(policy_spec: str, args: argparse.Namespace) -> dict[str, float]:
    """SOP's score, and the share of the same tasks that are truly solved, both greedy."""
    base = load_config("lab-desktop")
    templates, options = base.test.options["templates"], base.env.options
    policy = make_policy(policy_spec)
    chat, greedy = TemplateFormat(policy.tokenizer), rollout_config(base.rollout, base.env, temperature=0.0)
    drawn: dict[str, Any] = {"seed": base.test.seed, "split": "test", "templates": templates}
    recorded = SemiOnlineGUI.make_tasks(args.tests, **drawn)
    shown = {name: options[name] for name in ("prompt", "places", "window")}
    followed = asyncio.run(measure_sop(recorded, policy, chat, greedy, **shown))
    tasks = DomSim.make_tasks(args.tests, **drawn)
    played = play(policy, chat, lambda: DomSim(**options), tasks, greedy)
    return {"sop": followed.score, "solved": float(np.mean([episode.reward for episode in played]))}


def tokens_of(run: RunFolder) -> int:
    """Tokens that the policy sampled in training."""
    return int(sum(line["sampled_tokens"] for line in run.history()))


def r_squared(pairs: list[tuple[float, float]]) -> float | None:
    """Share of the variance of the second that a line through the first explains; None where either is constant."""
    table = np.array(pairs).T
    if min(np.ptp(table[0]), np.ptp(table[1])) == 0:
        return None
    return float(np.corrcoef(table)[0, 1] ** 2)


def main() -> None:
    """Trains, judges and reports."""
    parser = arguments(__doc__ or "", steps=30)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each way")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--batch", type=int, default=4, help="tasks a step, eight episodes each")
    parser.add_argument("--tests", type=int, default=60, help="unseen tasks")
    parser.add_argument("--runs", type=Path, required=True, help="folder of the runs, which are continued")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    start = judged(args.policy, args)
    results: dict[str, Any] = {}
    for way in args.ways:
        scores, tokens = [], []
        for seed in range(args.seeds):
            run = trained(config_of(args, way, seed), args.runs / way / f"seed-{seed}")
            scores.append(judged(f"hf:{run.path / 'policy'}", args))
            tokens.append(tokens_of(run))
        results[way] = {name: interval([score[name] for score in scores]) for name in ("sop", "solved")}
        results[way] |= {"seeds": scores, "sampled_tokens": tokens}
    seeds = [score for row in results.values() for score in row["seeds"]]
    checkpoints = [(score["sop"], score["solved"]) for score in [start, *seeds]]
    figures = {
        "steps": args.steps, "episodes_a_step": 8 * args.batch, "tests": args.tests, "start": start, "ways": results,
        "checkpoints": checkpoints, "r2": r_squared(checkpoints),
    }  # fmt: skip
    finish("gui_semi_online", args, figures, _lines(figures))


def _lines(figures: dict[str, Any]) -> list[str]:
    start = figures["start"]
    lines = [f"{'the start':<24}SOP {start['sop']:.3f}   solved {start['solved']:.3f}"]
    for way, row in figures["ways"].items():
        cells = (f"{label} {_shown(row[name])}" for label, name in (("SOP", "sop"), ("solved", "solved")))
        lines.append(f"{way:<24}{'   '.join(cells)}")
    r2 = "not defined" if figures["r2"] is None else f"{figures['r2']:.3f}"
    return [*lines, f"R2 of SOP and success over {len(figures['checkpoints'])} checkpoints: {r2}"]


def _shown(found: dict[str, Any]) -> str:
    interval = found.get("ci95")
    return f"{found['mean']:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


if __name__ == "__main__":
    run_script(main)

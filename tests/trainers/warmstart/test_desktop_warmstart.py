"""The warm start on the desktop in miniature: what the demonstrators do, how it becomes rows, what is kept."""

from pathlib import Path

from agentenv.envs.domsim.env import DomSim
from agentenv.envs.gui.actions import ActionKind, parse_reply
from agentenv.envs.semi_online import SemiOnlineGUI
from agentenv.policies.card import read_card
from agentenv.policies.policy_spec import make_policy
from agentenv.policies.tiny import build_tokenizer
from agentenv.progress import SilentDisplay
from agentenv.trainers.warmstart.desktop_warmstart import (
    MIXTURE,
    OPTIONS,
    Demonstrator,
    DesktopWarmstartConfig,
    astray,
    careful,
    demonstrations,
    desktop_warmstart,
    hasty,
    training_example,
)

TINY = DesktopWarmstartConfig(tasks=40, steps=2, mixture_share=0.5, episodes=4, layers=1, heads=1, judged=2)


def test_who_errs_and_how() -> None:
    env = DomSim(**OPTIONS)
    tasks = DomSim.make_tasks(TINY.tasks, seed=TINY.seed, split="train", templates=TINY.templates)
    seen: set[Demonstrator] = set()
    for task, (who, demo) in zip(tasks, demonstrations(MIXTURE, TINY), strict=True):
        env.reset(seed=0, options={"task": task})
        right = list(env.expert())
        rewards = [env.step(action).reward for action in demo.actions]
        seen.add(who)
        last = parse_reply(demo.actions[-1]).action
        assert last is not None
        assert last.kind is ActionKind.TERMINATE
        if who is careful:
            assert list(demo.actions) == right
            assert rewards[-1] == 1
        elif who is hasty:
            assert list(demo.actions[:-1]) == right[:-2]
            assert rewards[-1] == 0
        else:
            assert list(demo.actions[:-2]) == right[: len(demo.actions) - 2]
    assert seen == {careful, hasty, astray}


def test_a_row_is_what_was_seen_and_what_was_written() -> None:
    (_, demo), *_ = demonstrations({careful: 1.0}, TINY)
    texts = [message.text for context in demo.contexts for message in context]
    tokenizer = build_tokenizer(texts, ("think", "action"))
    ids, own = training_example(demo, tokenizer)
    written = [id for id, mine in zip(ids, own, strict=True) if mine]
    assert tokenizer.decode(written) == "".join(demo.actions)
    assert tokenizer.decode(ids).count("[1] button") == len(demo.contexts)


def test_the_desktop_and_its_recordings_are_shown_alike() -> None:
    (live,) = DomSim.make_tasks(1, split="test", templates=["mail-star"])
    (recorded,) = SemiOnlineGUI.make_tasks(1, split="test", templates=["mail-star"])
    desktop, recording = DomSim(**OPTIONS), SemiOnlineGUI(**OPTIONS)
    shown, _ = desktop.reset(seed=0, options={"task": live})
    followed, _ = recording.reset(seed=0, options={"task": recorded})
    for action in desktop.expert():
        assert shown == followed
        shown, followed = desktop.step(action).observation, recording.step(action).observation


def test_the_policy_comes_with_its_card(tmp_path: Path) -> None:
    figures = desktop_warmstart(TINY, SilentDisplay(), tmp_path / "policy")
    assert all(0 <= figures[name] <= 1 for name in ("skill", "greedy", "sampled"))
    card = read_card(tmp_path / "policy")
    assert (card.env, card.prompt, card.format) == ("agentenv/DomSim-v0", "{goal}\n", "template")
    policy = make_policy(f"hf:{tmp_path / 'policy'}")
    assert [len(policy.tokenizer.encode(f"<{tag}>")) for tag in ("think", "action")] == [1, 1]
    assert "--env desktop" in (tmp_path / "policy" / "README.md").read_text()

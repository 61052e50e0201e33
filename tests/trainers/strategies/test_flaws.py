"""Members of a group whose environment could not be closed are masked: their own, and those that go back to it."""

from dataclasses import replace

from agentenv.core.trajectory import Trajectory
from agentenv.core.types import EndReason, Task
from agentenv.trainers.workers.group_runner import with_flaws


def member(id: str, parent: str | None = None) -> Trajectory:
    return Trajectory(Task("t", "?", ()), (), (), 1.0, EndReason.ANSWERED, id=id, parent_id=parent)


def masked_of(*members: Trajectory, flaws: dict[str, str]) -> list[str]:
    found = with_flaws(members, flaws)
    assert [one.id for one in found] == [one.id for one in members]
    for one in found:
        assert (one.reward, one.end_reason) == (
            (1.0, EndReason.ANSWERED) if one.valid else (0.0, EndReason.ENV_FAULT)
        )
    return [one.error for one in found]


def test_a_flaw_masks_the_episode_of_its_lane_and_no_other() -> None:
    members = [member("step-1-1"), member("step-1-10"), member("step-1-2")]
    assert masked_of(*members, flaws={"step-1-1": "cannot close"}) == ["cannot close", "", ""]
    assert masked_of(*members, flaws={}) == ["", "", ""]


def test_what_was_played_in_the_same_lane_or_forked_from_it_is_masked_too() -> None:
    first, retry = member("step-1-0"), member("step-1-0-retry")
    fork, leaf = member("step-1-7", "step-1-0"), member("step-1-8", "step-1-7")
    other = member("step-1-3")
    found = masked_of(first, retry, fork, leaf, other, flaws={"step-1-0": "cannot close"})
    assert found == ["cannot close"] * 4 + [""]
    assert masked_of(leaf, fork, flaws={"step-1-0": "gone"}) == ["gone", "gone"]  # the root is no member


def test_a_member_that_is_masked_already_keeps_its_reason() -> None:
    failed = replace(
        member("step-1-0"), valid=False, reward=0.0, end_reason=EndReason.ENV_FAULT, error="hung"
    )
    assert masked_of(failed, flaws={"step-1-0": "cannot close"}) == ["hung"]

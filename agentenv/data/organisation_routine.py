"""What happens in an organisation beside its work: meetings, talks and thanks, which leave traces and answer no question.

They are noise for a search, and most of them are proposed more often than the rules of the engine let them happen.
"""

from agentenv.data.organisation_days import everybody, present, team_of
from agentenv.data.organisation_engine import Engine

_SHARE = 0.3
"""Chance that one of these events is proposed on a day."""
_NOVEL = ("fire-drill", "mail-digest")
"""Kinds that the engine does not know: the name of the second one tells what would be left of it."""


def routine(engine: Engine) -> None:
    """Some of the meetings, talks and other events of a day, each by chance."""
    for happening in (_leaders_meet, _talk, _meet_vendor, _hackathon, _encourage, _something_new):
        if engine.rng.random() < _SHARE:
            happening(engine)


def _leaders_meet(engine: Engine) -> None:
    leads = [present(engine, team)[0] for team in engine.teams]
    text = f"{leads[0]} has written down what the leads agreed on."
    engine.happen(
        "leadership-sync", leads, {"person": leads[0]}, [("mail", "Meeting of the leads", text, leads)]
    )


def _talk(engine: Engine) -> None:
    person = engine.rng.choice(everybody(engine))
    lead = present(engine, team_of(engine, person))[0]
    text = f"{lead} has asked {person} how the work is going."
    pair = list(dict.fromkeys([lead, person]))
    engine.happen("hr-checkin", pair, {"person": person}, [("chat", "talk", text, pair)])


def _meet_vendor(engine: Engine) -> None:
    person = engine.rng.choice(everybody(engine))
    text = f"{person} has met a vendor and sends the notes."
    staff = present(engine, team_of(engine, person))
    engine.happen("vendor-meeting", [person], {"person": person}, [("mail", "Vendor", text, staff)])


def _hackathon(engine: Engine) -> None:
    host = engine.rng.choice(everybody(engine))
    text = f"{host} invites everybody to a hackathon."
    engine.happen("hackathon", [host], {"person": host}, [("chat", "hackathon", text, everybody(engine))])


def _encourage(engine: Engine) -> None:
    """A lead writes to a team that has had too much of it."""
    team = engine.rng.choice(sorted(engine.teams))
    lead, *members = present(engine, team)
    text = f"{lead} thanks team {team} for bearing with so many incidents."
    facts = {"team": team, "person": lead}
    done = engine.happen(
        "morale-intervention", [lead], facts, [("mail", "Thank you", text, [lead, *members])]
    )
    if done is not None:
        engine.feel(0.3)


def _something_new(engine: Engine) -> None:
    """Something of a kind that the engine does not know, as a language model would propose it in OrgForge."""
    kind, person = engine.rng.choice(_NOVEL), engine.rng.choice(everybody(engine))
    text = f"{person} sends a digest of the week's mail."
    engine.happen(kind, [person], {"person": person}, [("mail", "Digest", text, everybody(engine))])

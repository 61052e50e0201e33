"""What happens in an organisation on a day: each function proposes events, which the engine's rules may refuse."""

from collections.abc import Sequence

from agentenv.data.organisation_engine import Engine
from agentenv.data.organisation_log import Event
from agentenv.data.organisation_social import centrality, escalate, exhaust, on_call, recognise, symptom

INCIDENT, ASYNCHRONOUS, SYSTEM = (1, 4), (10, 35), (2, 5)
"""Least and most minutes that a message takes: about an incident, one that nobody waits for, and a note of the ticket system
(OrgForge). Any other takes 3 to 12."""
REPAIR = (20, 90)
"""Minutes in which an incident is repaired; ours."""


def present(engine: Engine, team: str) -> list[str]:
    """The people of a team who have not left, its lead first."""
    return [person for person in engine.teams[team] if person not in engine.left]


def everybody(engine: Engine) -> list[str]:
    """All people who have not left."""
    return [person for team in engine.teams for person in present(engine, team)]


def plan_sprint(engine: Engine, team: str) -> None:
    """The lead plans the week by mail, and a ticket is opened for everybody else."""
    lead, *members = present(engine, team)
    text = f"{lead} has planned the week of team {team}. Each of {', '.join(members)} gets a ticket."
    plan = engine.happen(
        "sprint", [lead], {"team": team}, [("mail", f"Plan of team {team}", text, [lead, *members])]
    )
    for member in members:
        if plan is not None:
            _open_ticket(engine, lead, member, team, plan)


def _open_ticket(engine: Engine, lead: str, person: str, team: str, cause: Event) -> None:
    number = f"TASK-{len(engine.tickets) + 1}"
    service = engine.rng.choice([name for name, owner in engine.services.items() if owner == team])
    text = f"{lead} has opened ticket {number} for {person}: improve the service {service}."
    made = engine.happen(
        "ticket",
        [lead],
        {"ticket": number, "person": person, "service": service},
        [("tickets", f"{number} opened", text, present(engine, team))],
        cause=cause.id,
    )
    if made is not None:
        engine.tickets[number] = (person, made.id)


def progress(engine: Engine) -> None:
    """Some people note progress on their tickets; what somebody who has left would note is proposed too, and refused."""
    for number, (person, opened) in sorted(engine.tickets.items()):
        if engine.rng.random() < 0.35:
            team = team_of(engine, person)
            done = engine.rng.randint(1, 9) * 10
            text = f"{person} notes on ticket {number}: {done} percent of the work is done."
            engine.happen(
                "progress",
                [person],
                {"ticket": number, "person": person, "percent": str(done)},
                [("tickets", f"{number} progress", text, present(engine, team))],
                cause=opened,
                minutes=ASYNCHRONOUS,
            )


def team_of(engine: Engine, person: str) -> str:
    """The team that somebody is or was in."""
    return next(team for team, people in engine.teams.items() if person in people)


def incident(engine: Engine, behind: Event | None = None, depth: int = 0) -> None:
    """A service fails: it is detected, investigated, fixed and, now and then, described afterwards or complained about.

    Args:
        engine: Of the organisation.
        behind: The repair of another incident that has caused this one; None where nothing has.
        depth: Incidents that led to this one.
    """
    number = f"INC-{sum(event.kind == 'detected' for event in engine.events) + 1}"
    service = engine.rng.choice(sorted(engine.services))
    team = engine.services[service]
    staff = present(engine, team)
    finder, fixer = _finder_and_fixer(engine, staff)
    facts = {"incident": number, "service": service, "team": team}
    text = f"{finder}: the service {service} has failed. This is incident {number}."
    earlier = {"symptom": symptom(engine)} if engine.config.social else {}
    text += "".join(f" What is seen: {seen}." for seen in earlier.values())
    if behind is not None:
        earlier |= {"behind": behind.facts["incident"]}
        text += f" The change that fixed {earlier['behind']} has caused it."
    detected = engine.happen(
        "detected",
        [finder],
        facts | earlier,
        [("chat", f"team {team}", text, staff)],
        cause=behind.id if behind is not None else None,
        minutes=INCIDENT,
    )
    if detected is None:
        return
    if engine.config.social:
        recognise(engine, detected, staff)
    engine.health -= 25
    engine.feel(-0.15)
    text = f"{number} is assigned to {fixer}, who investigates the service {service}."
    looked = engine.happen(
        "investigating",
        [finder, fixer],
        facts | {"person": fixer},
        [("tickets", f"{number} opened", text, staff)],
        cause=detected.id,
        minutes=INCIDENT,
    )
    if looked and engine.config.social:
        exhaust(engine, looked, staff)
    text = f"{fixer}: I have fixed the service {service}, {number} can be closed."
    fixed = looked and engine.happen(
        "fixed",
        [fixer],
        facts | {"person": fixer},
        [("chat", f"team {team}", text, staff)],
        cause=looked.id,
        minutes=REPAIR,
    )
    if fixed:
        engine.health = min(100, engine.health + 20)
        _afterwards(engine, number, service, team, (staff, fixer), (detected, fixed))
        if depth < engine.config.followups and engine.rng.random() < 0.6:
            incident(engine, fixed, depth + 1)


def _finder_and_fixer(engine: Engine, staff: Sequence[str]) -> list[str]:
    if not engine.config.social:
        return engine.rng.sample(staff, 2)
    fixer = on_call(engine, staff)
    return [engine.rng.choice([person for person in staff if person != fixer]), fixer]


def _afterwards(
    engine: Engine,
    number: str,
    service: str,
    team: str,
    people: tuple[Sequence[str], str],
    events: tuple[Event, Event],
) -> None:
    (staff, fixer), (detected, fixed) = people, events
    lead, facts = staff[0], {"incident": number, "service": service}
    text = f"{number} of the service {service} is resolved; {fixer} has fixed it."
    engine.happen(
        "resolved",
        [lead],
        facts | {"person": fixer},
        [("tickets", f"{number} resolved", text, staff)],
        cause=fixed.id,
        minutes=SYSTEM,
    )
    if engine.rng.random() < 0.3:
        text = f"{lead} tells everybody that {number} of the service {service} was fixed."
        engine.happen(
            "stability-update",
            [lead],
            facts | {"person": lead},
            [("mail", f"State of {service}", text, everybody(engine))],
            cause=fixed.id,
            minutes=ASYNCHRONOUS,
        )
    if engine.rng.random() < 0.5:
        author = engine.rng.choice(staff)
        text = f"{author} has written the post-mortem of {number}: why the service {service} failed, and what follows."
        engine.happen(
            "post-mortem",
            [author],
            facts | {"person": author},
            [("mail", f"Post-mortem of {number}", text, staff)],
            cause=fixed.id,
            minutes=ASYNCHRONOUS,
        )
    if engine.rng.random() < 0.4:
        other = engine.rng.choice(everybody(engine))
        text = f"{other} reports that a customer complains about {number} of the service {service}."
        complaint = engine.happen(
            "escalation",
            [other],
            facts | {"person": other},
            [("mail", f"Complaint about {number}", text, [other, lead])],
            cause=detected.id,
        )
        if complaint and engine.config.social:
            escalate(engine, complaint, lead)


def retrospective(engine: Engine) -> None:
    """A team looks back; all its people are there at the same time."""
    team = engine.rng.choice(sorted(engine.teams))
    staff = present(engine, team)
    text = f"Team {team} has looked back on its work; {staff[0]} took the notes."
    facts = {"team": team, "person": staff[0]}
    engine.happen("retrospective", staff, facts, [("mail", f"Retrospective of team {team}", text, staff)])


def celebrate(engine: Engine) -> None:
    """Somebody invites everybody to celebrate."""
    host = engine.rng.choice(everybody(engine))
    text = f"{host} invites everybody to celebrate the week."
    engine.happen("celebration", [host], {"person": host}, [("mail", "Celebration", text, everybody(engine))])


def leave(engine: Engine) -> None:
    """Somebody who leads no team leaves, and the tickets go to a colleague.

    All clocks come to the latest of them first, so that nothing which is already written lies after the farewell. With
    ``social`` the farewell comes last, as in OrgForge; without it first, and who leaves sees nothing of what follows.
    """
    engine.cursors = dict.fromkeys(engine.cursors, max(engine.cursors.values()))
    team = engine.rng.choice(sorted(team for team in engine.teams if len(present(engine, team)) > 3))
    lead, *members = present(engine, team)
    gone = engine.rng.choice(members)
    heir = engine.rng.choice([person for person in members if person != gone])
    if not engine.config.social:
        notice = _farewell(engine, gone, heir, lead, None)
        if notice is not None:
            _hand_over(engine, gone, heir, lead, notice)
        return
    text = f"{gone} will leave us and hands over to {heir}."
    facts = {"person": gone, "heir": heir}
    staff = present(engine, team)
    notice = engine.happen("handover", [lead], facts, [("mail", f"{gone} hands over", text, staff)])
    if notice is not None:
        _hand_over(engine, gone, heir, lead, notice)
        engine.cursors = dict.fromkeys(engine.cursors, max(engine.cursors.values()))
        _farewell(engine, gone, heir, lead, notice.id)


def _farewell(engine: Engine, gone: str, heir: str, lead: str, cause: str | None) -> Event | None:
    text = f"{gone} leaves us today. The tickets of {gone} go to {heir}."
    notice = engine.happen(
        "departure",
        [lead],
        {"person": gone, "heir": heir},
        [("mail", f"{gone} leaves", text, everybody(engine))],
        cause=cause,
    )
    if notice is not None:
        engine.left[gone] = notice.time
    return notice


def _hand_over(engine: Engine, gone: str, heir: str, lead: str, notice: Event) -> None:
    """The tickets go to the heir, and the team learns what only the leaver knew."""
    team = team_of(engine, gone)
    for number in [number for number, (person, _) in sorted(engine.tickets.items()) if person == gone]:
        text = f"{lead} has given ticket {number} of {gone} to {heir}."
        moved = engine.happen(
            "reassigned",
            [lead],
            {"ticket": number, "person": heir},
            [("tickets", f"{number} reassigned", text, present(engine, team))],
            cause=notice.id,
        )
        if moved is not None:
            engine.tickets[number] = (heir, moved.id)
    if engine.config.social:
        centrality(engine, gone, lead, notice)
    _knowledge_gap(engine, gone, lead, notice)


def _knowledge_gap(engine: Engine, gone: str, lead: str, notice: Event) -> None:
    """What somebody who leaves has repaired and nobody has described: the team, which saw every repair, is told the share.

    The mail names no incident that is described, so that nobody learns from it that a post-mortem was written.
    """
    done = [e.facts["incident"] for e in engine.events if e.kind == "fixed" and e.facts["person"] == gone]
    described = {e.facts["incident"] for e in engine.events if e.kind == "post-mortem"}
    missing = [number for number in done if number not in described]
    if missing:
        share = f"{len(missing)} of {len(done)}"
        text = f"No post-mortem was written of {share} incidents that {gone} has fixed: {', '.join(missing)}."
        engine.happen(
            "knowledge-gap",
            [lead],
            {"person": gone, "share": share, "missing": ", ".join(missing)},
            [("mail", f"What {gone} knew", text, present(engine, team_of(engine, gone)))],
            cause=notice.id,
        )

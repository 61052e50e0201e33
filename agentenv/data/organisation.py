"""An invented organisation with mail, chat and tickets, after OrgForge: an engine makes events, templates write them down.

`agentenv.data.organisation_questions` asks about it; every answer comes from the log and none from a model.
"""

from functools import lru_cache
from random import Random

from agentenv.data.organisation_days import celebrate, incident, leave, plan_sprint, progress, retrospective
from agentenv.data.organisation_engine import Engine
from agentenv.data.organisation_log import OPENS, Organisation, OrganisationConfig
from agentenv.data.organisation_routine import routine
from agentenv.data.world_names import NameGenerator


@lru_cache(maxsize=16)
def invent_organisation(config: OrganisationConfig) -> Organisation:
    """The organisation that ``config`` describes."""
    rng = Random(f"organisation {config.seed} {config.split}")
    namer = NameGenerator(rng, config.split)
    people = [namer.name("person") for _ in range(config.people)]
    count = max(1, config.people // 6)
    teams = {namer.word(): tuple(people[i::count]) for i in range(count)}
    services = {namer.word(): team for team in teams for _ in range(2)}
    engine = Engine(config, rng, teams, services, dict.fromkeys(people, (1, OPENS)))
    leaving = rng.randint(config.days // 2, config.days - 3)
    for day in range(1, config.days + 1):
        engine.cursors = {person: max(time, (day, OPENS)) for person, time in engine.cursors.items()}
        _live(engine, day, leaving=day == leaving)
    events = tuple(sorted(engine.events, key=lambda event: event.time))
    artefacts = tuple(sorted(engine.artefacts, key=lambda artefact: artefact.time))
    name = namer.name("organisation")
    return Organisation(config, name, teams, engine.left, events, artefacts, dict(engine.refused))


def _live(engine: Engine, day: int, *, leaving: bool) -> None:
    """What happens on one day."""
    if day % 5 == 1:
        for team in engine.teams:
            plan_sprint(engine, team)
    progress(engine)
    if engine.rng.random() < 0.45:
        incident(engine)
    if engine.rng.random() < 0.3:
        retrospective(engine)
    if engine.rng.random() < 0.2:
        celebrate(engine)
    routine(engine)
    if leaving:
        leave(engine)
    engine.feel(0.03)

"""The prose of an invented organisation by a language model, as in OrgForge: the engine has decided every fact before.

A wording is taken only if it holds every name and number of the template, none besides, and if a judge says that both state
the same. Otherwise an error says why and the template stays, so that no text contradicts the log from which the answers
come.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from agentenv.core.grammar import shortened
from agentenv.core.scoring.evidence import contains_phrase
from agentenv.data.organisation_log import Artefact, Event, Organisation
from agentenv.data.synthesis.model_replies import ModelWriter, is_yes
from agentenv.errors import DatasetError

WORDING = """\
This stands in the {channel} of an organisation, under the subject {subject}. Write it again as somebody who works there \
would write it, in one to four sentences. Every fact stays and nothing is added: no person, number, cause or result. These \
stay letter by letter: {needed}
{text}

Reply with one JSON object and nothing after it: {{"text": "the new wording"}}
"""
SAME = """\
First text: {text}
Second text: {wording}

Do both texts state the same facts, the second one not one fact more or less than the first? Reply with one JSON object and \
nothing after it: {{"same": "yes or no"}}
"""
_NUMBER = re.compile(r"\w*-?\d+")
_RECIPIENTS = " To: "


def names_of(organisation: Organisation) -> frozenset[str]:
    """The people, teams and services of an organisation."""
    people = [person for team in organisation.teams.values() for person in team]
    services = [event.facts["service"] for event in organisation.events if "service" in event.facts]
    return frozenset((*people, *organisation.teams, *services))


def needed_in(text: str, facts: Mapping[str, str], names: Collection[str]) -> list[str]:
    """What a wording of ``text`` has to hold: the names and numbers in it, and the facts of its event that it states."""
    stated = [value for value in facts.values() if value in text]
    named = [name for name in sorted(names) if contains_phrase(name, text)]
    return list(dict.fromkeys((*named, *_NUMBER.findall(text), *stated)))


def wording_flaw(wording: str, text: str, needed: Sequence[str], names: Collection[str]) -> str:
    """What is wrong with a wording, as far as a program sees it; empty where nothing is.

    Args:
        wording: The other words.
        text: Those of the template.
        needed: What must stand in it, see `needed_in`.
        names: Of the organisation; those that are not needed may not come in, and no number either.
    """
    if wording == text:
        return "it repeats the template"
    held = " ".join(needed)
    wanted, numbers = set(_NUMBER.findall(held)), set(_NUMBER.findall(wording))
    missing = [one for one in needed if one not in wording] + sorted(wanted - numbers)
    if missing:
        return f"it lacks {missing[0]!r}"
    added = [
        name for name in sorted(names) if contains_phrase(name, wording) and not contains_phrase(name, held)
    ]
    added += sorted(numbers - wanted)
    return f"it adds {added[0]!r}" if added else ""


@dataclass(frozen=True)
class ProseWriter:
    """Puts the artefacts of an organisation into other words."""

    writer: ModelWriter
    judge: ModelWriter
    organisation: Organisation
    names: frozenset[str]
    """Of `names_of` the organisation."""
    seed: int = 0

    async def write(self, artefact: Artefact) -> Artefact:
        """The artefact in other words; who gets a mail stays at its end.

        Raises:
            DatasetError: the wording cannot be taken; says why.
            SynthesisFault: no reply can be read.
            Fault: a model failed.
            ContextTooSmall: the artefact does not fit the context of a model.
        """
        event: Event = self.organisation.by_id[artefact.event]
        body, to, people = artefact.document.text.partition(_RECIPIENTS)
        needed = needed_in(body, event.facts, self.names)
        asked = WORDING.format(
            channel=artefact.channel,
            subject=artefact.document.title.partition(": ")[2],
            needed="; ".join(needed),
            text=body,
        )
        wording = str((await self.writer.write(asked, {"text": str}, self.seed))["text"])
        flaw = wording_flaw(wording, body, needed, self.names)
        if not flaw:
            said = await self.judge.write(SAME.format(text=body, wording=wording), {"same": str}, 0)
            flaw = "" if is_yes(said["same"]) else "the judge says that it states something else"
        if flaw:
            raise DatasetError(f"the wording {shortened(wording, 200)!r} is refused: {flaw}")
        return replace(artefact, document=replace(artefact.document, text=f"{wording}{to}{people}"))

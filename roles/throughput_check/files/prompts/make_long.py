#!/usr/bin/env python3
"""Write the long prompts of prompts.jsonl again: about 6000 tokens each, from a fixed seed.

    python3 make_long.py

Each is a document of another kind (journal of a service, minutes, a ledger, ...) whose sentences are put together
from word lists, followed by a task about it. They are long reading, not literature: what counts is that they fill
the window with text whose next word is neither random nor always the same.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

LENGTH = 24_000  # characters

PEOPLE = [
    "Anna",
    "Boris",
    "Chioma",
    "Dagny",
    "Elif",
    "Farid",
    "Greta",
    "Hiro",
    "Ines",
    "Jonas",
    "Kofi",
    "Lena",
]
PLACES = [
    "the north hall",
    "the pump house",
    "the archive",
    "bay four",
    "the glasshouse",
    "the jetty",
    "the attic",
]
THINGS = [
    "valve",
    "ledger",
    "lamp",
    "conveyor",
    "sensor",
    "crate",
    "turbine",
    "filter",
    "map",
    "kiln",
    "relay",
    "boat",
]
STATES = [
    "worn",
    "missing",
    "repaired",
    "too warm",
    "in good order",
    "late",
    "mislabelled",
    "spare",
    "borrowed",
]
CAUSES = [
    "because the night had been colder than forecast",
    "since nobody had signed for it",
    "after a delivery went to the wrong gate",
    "although the check of last week had found nothing",
    "as the instruction on the wall still describes the old model",
    "because two people assumed that the other one would do it",
]
VERBS = [
    "inspected",
    "replaced",
    "counted",
    "cleaned",
    "measured",
    "moved",
    "returned",
    "photographed",
    "reported",
]
SERVICES = ["gateway", "scheduler", "billing", "search", "mailer", "archive", "auth", "thumbnails"]
EVENTS = [
    "request served in {n} ms for client {m}",
    "queue length {n}, oldest entry {m} s",
    "retry {k} of 5 after a timeout of {n} ms",
    "configuration reloaded, {k} keys changed",
    "connection pool grew to {n}",
    "cache hit ratio {k}{k} percent over the last {n} requests",
    "certificate valid for {m} more days",
    "slow statement took {n} ms, {m} rows examined",
]


def log(rng: random.Random) -> str:
    hour, minute, second = rng.randrange(24), rng.randrange(60), rng.randrange(60)
    event = rng.choice(EVENTS).format(
        n=rng.randrange(2, 900), m=rng.randrange(10, 9000), k=rng.randrange(1, 6)
    )
    level = rng.choices(["INFO", "INFO", "WARN", "ERROR"], [6, 6, 2, 1])[0]
    return f"{hour:02}:{minute:02}:{second:02} {level} {rng.choice(SERVICES)}-{rng.randrange(1, 5)}: {event}"


def minutes(rng: random.Random) -> str:
    who, other = rng.sample(PEOPLE, 2)
    return (
        f"{who} said that the {rng.choice(THINGS)} in {rng.choice(PLACES)} was {rng.choice(STATES)} "
        f"{rng.choice(CAUSES)}. {other} asked for {rng.randrange(2, 40)} days and was given {rng.randrange(1, 20)}."
    )


def ledger(rng: random.Random) -> str:
    count, price = rng.randrange(1, 60), rng.randrange(150, 9000) / 100
    return (
        f"No. {rng.randrange(1000, 9999)}: {count} of {rng.choice(THINGS)}, {rng.choice(STATES)}, "
        f"from {rng.choice(PLACES)}, at {price:.2f} each, together {count * price:.2f}, by {rng.choice(PEOPLE)}."
    )


def notebook(rng: random.Random) -> str:
    return (
        f"Trial {rng.randrange(1, 400)}: {rng.choice(PEOPLE)} {rng.choice(VERBS)} the {rng.choice(THINGS)} at "
        f"{rng.randrange(-5, 95)} degrees and {rng.randrange(20, 99)} percent humidity; it was {rng.choice(STATES)} "
        f"after {rng.randrange(3, 240)} minutes, {rng.choice(CAUSES)}."
    )


def program(rng: random.Random) -> str:
    name, thing = rng.choice(VERBS), rng.choice(THINGS)
    low, high = sorted(rng.sample(range(1, 500), 2))
    return (
        f"def {name}_{thing}_{rng.randrange(100)}(value: int, limit: int = {high}) -> int:\n"
        f'    """Count what the {thing} still takes, between {low} and the limit."""\n'
        f"    if value < {low}:\n        return {low} - value\n"
        f"    return min(limit, value * {rng.randrange(2, 9)} - {rng.randrange(1, 60)})\n"
    )


def diary(rng: random.Random) -> str:
    return (
        f"Day {rng.randrange(1, 200)}. Walked to {rng.choice(PLACES)} with {rng.choice(PEOPLE)}, who had "
        f"{rng.choice(VERBS)} a {rng.choice(THINGS)} there. It was {rng.choice(STATES)}, {rng.choice(CAUSES)}, "
        f"and we were home before the {rng.choice(['rain', 'dark', 'ferry', 'others'])}."
    )


def rules(rng: random.Random) -> str:
    return (
        f"Paragraph {rng.randrange(1, 90)}, section {rng.randrange(1, 9)}: whoever has {rng.choice(VERBS)} a "
        f"{rng.choice(THINGS)} in {rng.choice(PLACES)} shall within {rng.randrange(2, 30)} days tell the keeper, "
        f"unless the {rng.choice(THINGS)} is {rng.choice(STATES)} or belongs to {rng.choice(PEOPLE)}."
    )


def interview(rng: random.Random) -> str:
    who = rng.choice(PEOPLE)
    return (
        f"Question: what became of the {rng.choice(THINGS)}?\n{who}: It was {rng.choice(VERBS)} in "
        f"{rng.choice(PLACES)}, {rng.choice(CAUSES)}. I remember {rng.randrange(2, 30)} of them, all "
        f"{rng.choice(STATES)}."
    )


DOCUMENTS: list[tuple[Callable[[random.Random], str], str, str]] = [
    (
        log,
        "This is the journal of a small service for one day.",
        "Write a report about its health, by service.",
    ),
    (
        minutes,
        "These are the minutes of a workshop over a year.",
        "Summarise who promised what, and what is open.",
    ),
    (
        ledger,
        "This is the ledger of a store.",
        "Describe what the store holds, and five entries that look odd.",
    ),
    (
        notebook,
        "This is the notebook of a laboratory.",
        "Write up what the trials show, with their weaknesses.",
    ),
    (
        program,
        "This is a module that grew for years.",
        "Review it: structure, names, tests, and what to do first.",
    ),
    (diary, "This is the diary of a long stay abroad.", "Retell it as a story in the third person."),
    (
        rules,
        "These are the rules of an old society.",
        "Explain them to a new member, and point out contradictions.",
    ),
    (
        interview,
        "This is the transcript of many interviews.",
        "Write an article of several paragraphs from it.",
    ),
]


def main() -> None:
    path = Path(__file__).with_name("prompts.jsonl")
    kept = [line for line in path.read_text("utf-8").splitlines() if json.loads(line)["kind"] != "long"]
    for number, (sentence, opening, task) in enumerate(DOCUMENTS, start=1):
        rng = random.Random(number)
        lines = [opening]
        while sum(map(len, lines)) < LENGTH:
            lines.append(sentence(rng))
        text = "\n".join([*lines, "", task])
        kept.append(json.dumps({"id": f"long-{number:02}", "kind": "long", "text": text}))
    path.write_text("\n".join(kept) + "\n", "utf-8")


if __name__ == "__main__":
    main()

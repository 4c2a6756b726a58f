"""Generated encyclopedias: facts about people and towns, and the pages that state them."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass

from llmgym._util.seeding import derive_seed
from llmgym_environments.task_generation import below, draw

ENCYCLOPEDIAS = 64
"""How many there are; their numbers are 0 to 63."""

FIRST_NAMES = (
    *("Ada", "Ben", "Cora", "Dan", "Ella", "Finn", "Gail", "Hugo", "Ida", "Jack"),
    *("Kit", "Lea", "Max", "Nora", "Otis", "Pia", "Rosa", "Sam", "Tess", "Vera"),
)
LAST_NAMES = (
    *("Ash", "Bell", "Cole", "Dale", "Fox", "Gray", "Hill", "King", "Lamb", "Marsh"),
    *("Nash", "Oaks", "Page", "Reed", "Snow", "Stone", "Swan", "Vale", "Wood", "Wren"),
)
TOWNS = (
    *("Alton", "Borth", "Crane", "Dunby", "Elder", "Farle", "Gorse", "Holm"),
    *("Irby", "Kells", "Lorne", "Mere", "Norby", "Orford", "Pell", "Rusk"),
)
RIVERS = ("Avon", "Brue", "Clyde", "Dee", "Exe", "Fal", "Isle", "Kenn")
TRADES = (
    *("baker", "barber", "clerk", "cook", "dyer", "farmer", "glazier", "hatter"),
    *("joiner", "mason", "miller", "potter", "sailor", "smith", "tailor", "weaver"),
)
PEOPLE, TALES = 60, 20


@dataclass(frozen=True)
class Page:
    """One page: its title and its text, of less than 200 characters."""

    title: str
    text: str


@dataclass(frozen=True)
class Encyclopedia:
    """The facts of one world, and pages about them, some of which are false.

    Attributes:
        facts: For the title of each person or town, the value of each relation. A person has a ``birthplace``, a
            ``home`` (towns), a ``teacher`` (a person), a ``trade`` and an ``age``; a town has a ``mayor`` (a person), a
            ``river`` and a ``population``.
        pages: By number, from 1 up. Besides one page for each title of ``facts`` there are tales: pages that tell
            of a real person what is not so. Numbers are in random order.
        numbers: The page of each title of ``facts``.
    """

    facts: Mapping[str, Mapping[str, str]]
    pages: Mapping[int, Page]
    numbers: Mapping[str, int]


@functools.cache
def encyclopedia(number: int) -> Encyclopedia:
    """The encyclopedia with a number, the same on every machine; made once a process and shared."""
    rng = random.Random(derive_seed("DocSearch-v0 encyclopedia", number))
    people = draw(rng, [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES], PEOPLE)
    facts = {name: _person(rng, name, people) for name in people}
    tales = [
        Page(f"Tale of {name}", f"A tale, not a fact: {_told(name, _person(rng, name, people))}")
        for name in draw(rng, people, TALES)
    ]
    pages = [*(Page(name, _told(name, person)) for name, person in facts.items()), *tales]
    for town in TOWNS:
        mayor, river, population = draw(rng, people, 1)[0], draw(rng, RIVERS, 1)[0], str(2 + below(rng, 98))
        facts[town] = {"mayor": mayor, "river": river, "population": population}
        text = f"{town} is a town on the river {river}, with a population of {population} and the mayor {mayor}."
        pages.append(Page(town, text))
    numbered = dict(enumerate(draw(rng, pages, len(pages)), start=1))
    return Encyclopedia(
        facts, numbered, {page.title: number for number, page in numbered.items() if page.title in facts}
    )


def _person(rng: random.Random, name: str, people: list[str]) -> dict[str, str]:
    birthplace, home = draw(rng, TOWNS, 2)
    teacher = draw(rng, [other for other in people if other != name], 1)[0]
    trade = draw(rng, TRADES, 1)[0]
    return {"birthplace": birthplace, "home": home, "teacher": teacher, "trade": trade, "age": str(20 + below(rng, 79))}


def _told(name: str, person: Mapping[str, str]) -> str:
    return (
        f"{name} is a {person['trade']}, {person['age']} years old, born in {person['birthplace']}, "
        f"taught by {person['teacher']}, now living in {person['home']}."
    )

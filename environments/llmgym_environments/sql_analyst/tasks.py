"""The tasks of SqlAnalyst-v0. A hash of the names in the database decides the split.

Targets are computed here from the rows, not by the queries that the expert runs.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from llmgym import Task
from llmgym_environments.task_generation import TaskGenerator, below, draw, split_of

K = TypeVar("K")

LEVELS = (1, 2, 3)
WORDS = (
    *("amber", "apple", "birch", "cedar", "coral", "daisy", "delta", "fern", "flint", "fox"),
    *("ginger", "grape", "gull", "hazel", "iris", "jade", "lemon", "lily", "lion", "maple"),
    *("mint", "moss", "olive", "onyx", "opal", "otter", "pearl", "pine", "plum", "raven"),
    *("reed", "robin", "rose", "sage", "salt", "stone", "tiger", "tulip", "wolf", "wren"),
)
PLACES = ("cairo", "lima", "oslo", "paris", "quito", "rome", "seoul", "tokyo")
SHOPS = ("farm", "garden", "harbor", "kitchen", "market", "museum", "shop", "store")
KEYS = ("item", "label", "name", "title")
MEASURES = ("age", "depth", "height", "price", "score", "speed", "weight", "width")


class Theme(NamedTuple):
    """What the tables of levels 2 and 3 are about: owners in groups have records, each of a kind, which has a sort."""

    owners: str
    owner: str
    group: str
    groups: tuple[str, ...]
    records: str
    kinds: str
    kind: str
    sort: str
    sorts: tuple[str, ...]
    measures: tuple[str, str]


THEMES = (
    Theme("shops", "shop", "city", PLACES, "sales", "products", "product", "color",
          ("black", "blue", "green", "red", "white"), ("amount", "price")),
    Theme("farms", "farm", "region", ("coast", "hills", "north", "south", "valley"), "harvests", "crops", "crop",
          "season", ("autumn", "spring", "summer", "winter"), ("tons", "days")),
    Theme("ships", "ship", "harbor", PLACES, "voyages", "cargos", "cargo", "class",
          ("dry", "fresh", "frozen", "liquid"), ("crates", "nights")),
    Theme("teams", "team", "league", ("east", "first", "second", "west"), "games", "rivals", "rival", "country",
          ("chile", "ghana", "india", "japan", "spain"), ("goals", "fans")),
    Theme("museums", "museum", "town", PLACES, "shows", "painters", "painter", "style",
          ("baroque", "cubist", "gothic", "modern"), ("visitors", "rooms")),
    Theme("clubs", "club", "city", PLACES, "trips", "guides", "guide", "language",
          ("arabic", "english", "french", "hindi"), ("hours", "guests")),
)  # fmt: skip

Question = tuple[str, Any, str]
"""Prompt, target (None when two answers are right), and the query that finds it."""


def _stream(rng: random.Random, split: str, level: int) -> Iterator[Task]:
    make = {1: _level_1, 2: _level_2, 3: _level_3}[level]
    while True:
        database, (prompt, target, query) = make(rng, split)
        if target is not None:
            yield Task(prompt, target, {"level": level, "database": database, "query": query})


def _names(rng: random.Random, split: str, count: int) -> list[str]:
    """The names of a database. What decides is which they are, so that no two splits can share a table."""
    while True:
        names = draw(rng, WORDS, count)
        if split_of(" ".join(sorted(names))) == split:
            return names


def _level_1(rng: random.Random, split: str) -> tuple[str, Question]:
    (table,), (key,), measures = draw(rng, SHOPS, 1), draw(rng, KEYS, 1), draw(rng, MEASURES, 2)
    names = _names(rng, split, 4)
    numbers = [(1 + below(rng, 49), 1 + below(rng, 49)) for _ in names]
    rows: list[list[int | str]] = [[name, *pair] for name, pair in zip(names, numbers, strict=True)]
    script = _table(table, {key: "text", **dict.fromkeys(measures, "integer")}, rows)
    form, which, name = below(rng, 3), below(rng, 2), draw(rng, names, 1)[0]
    measure, values = measures[which], {name: pair[which] for name, pair in zip(names, numbers, strict=True)}
    if form == 0:
        query = f"SELECT {measure} FROM {table} WHERE {key} = '{name}'"
        return script, (f"What is the {measure} of {name}?", values[name], query)
    if form == 1:
        return script, (f"What is the total {measure}?", sum(values.values()), f"SELECT sum({measure}) FROM {table}")
    query = f"SELECT {key} FROM {table} ORDER BY {measure} DESC LIMIT 1"
    return script, (f"Which {key} has the highest {measure}?", _highest(values), query)


class _World:
    """A drawn schema with its rows: owners, records and, at level 3, kinds and an outdated copy of the records."""

    def __init__(self, rng: random.Random, split: str, *, owners: int, kinds: int, records: int) -> None:
        self.rng = rng
        self.theme = theme = draw(rng, THEMES, 1)[0]
        self.key = draw(rng, ("code", "id", "number"), 1)[0]
        self.label = draw(rng, ("label", "name", "title"), 1)[0]
        ending = draw(rng, ("", f"_{self.key}", "_ref"), 1)[0]
        self.owner_link, self.kind_link = theme.owner + ending, theme.kind + ending
        names = _names(rng, split, owners + kinds)
        self.owners = self._named(names[:owners], theme.groups)
        self.kinds = self._named(names[owners:], theme.sorts)
        self.records = self._recorded(records)
        tables = [self._named_table(theme.owners, theme.group, self.owners)]
        if kinds:
            tables.append(self._named_table(theme.kinds, theme.sort, self.kinds))
            tables.append(self._record_table(f"old_{theme.records}", self._recorded(records // 3)))
        self.script = "".join([*tables, self._record_table(theme.records, self.records)])

    def measure(self) -> tuple[str, int]:
        """A measure and its place in a record."""
        which = below(self.rng, 2)
        return self.theme.measures[which], 3 + which

    def group(self, record: list[int]) -> str:
        return self.owners[record[1]][1]

    def sort(self, record: list[int]) -> str:
        return self.kinds[record[2]][1]

    @property
    def joined(self) -> str:
        """FROM clause of the records ``r`` with their owners ``o`` and, when there are any, kinds ``k``."""
        theme = self.theme
        text = f"FROM {theme.records} r JOIN {theme.owners} o ON o.{self.key} = r.{self.owner_link}"
        return f"{text} JOIN {theme.kinds} k ON k.{self.key} = r.{self.kind_link}" if self.kinds else text

    def _named(self, names: list[str], sorts: tuple[str, ...]) -> dict[int, tuple[str, str]]:
        keys = draw(self.rng, range(1, 100), len(names))
        return {key: (name, draw(self.rng, sorts, 1)[0]) for key, name in zip(keys, names, strict=True)}

    def _recorded(self, count: int) -> list[list[int]]:
        """Records: key, owner, kind (0 without kinds), and the two measures."""
        owners, kinds = list(self.owners), list(self.kinds) or [0]
        return [
            [
                key + 1,
                owners[below(self.rng, len(owners))],
                kinds[below(self.rng, len(kinds))],
                1 + below(self.rng, 99),
                1 + below(self.rng, 99),
            ]
            for key in range(count)
        ]

    def _named_table(self, table: str, sort: str, members: dict[int, tuple[str, str]]) -> str:
        columns = {self.key: "integer primary key", self.label: "text", sort: "text"}
        return _table(table, columns, [[key, *rest] for key, rest in sorted(members.items())])

    def _record_table(self, table: str, records: list[list[int]]) -> str:
        theme = self.theme
        columns = {self.key: "integer primary key", self.owner_link: f"integer references {theme.owners}({self.key})"}
        if self.kinds:
            columns[self.kind_link] = f"integer references {theme.kinds}({self.key})"
        else:
            records = [[key, owner, *measures] for key, owner, _, *measures in records]
        return _table(table, {**columns, **dict.fromkeys(theme.measures, "integer")}, records)


def _level_2(rng: random.Random, split: str) -> tuple[str, Question]:
    world = _World(rng, split, owners=5, kinds=0, records=14)
    theme, form, (measure, at) = world.theme, below(rng, 3), world.measure()
    if form == 2:
        totals = _totals(world.records, at, lambda record: world.owners[record[1]][0])
        query = f"SELECT o.{world.label} {world.joined} GROUP BY o.{world.key} ORDER BY sum(r.{measure}) DESC LIMIT 1"
        return world.script, (f"Which {theme.owner} has the highest total {measure}?", _highest(totals), query)
    group = world.group(world.records[below(rng, len(world.records))])
    values = [record[at] for record in world.records if world.group(record) == group]
    word, function, target = (("total", "sum", sum(values)), ("highest", "max", max(values)))[form]
    prompt = f"What is the {word} {measure} of all {theme.records} whose {theme.owner} has {theme.group} {group}?"
    query = f"SELECT {function}(r.{measure}) {world.joined} WHERE o.{theme.group} = '{group}'"
    return world.script, (prompt, target, query)


def _level_3(rng: random.Random, split: str) -> tuple[str, Question]:
    world = _World(rng, split, owners=8, kinds=8, records=60)
    forms = (_total_of_each_group, _owners_above, _total_without, _best_pair)
    return world.script, forms[below(rng, len(forms))](world)


def _total_of_each_group(world: _World) -> Question:
    theme, (measure, at) = world.theme, world.measure()
    sort = world.sort(world.records[below(world.rng, len(world.records))])
    totals = _totals([record for record in world.records if world.sort(record) == sort], at, world.group)
    prompt = (
        f"For each {theme.group}, what is the total {measure} of all {theme.records} whose {theme.kind} has "
        f"{theme.sort} {sort}? Answer with rows {theme.group} | total; "
        f"leave out a {theme.group} without such {theme.records}."
    )
    chosen = f"SELECT o.{theme.group}, sum(r.{measure}) {world.joined} WHERE k.{theme.sort} = '{sort}'"
    return prompt, [list(row) for row in sorted(totals.items())], f"{chosen} GROUP BY o.{theme.group}"


def _owners_above(world: _World) -> Question:
    theme, (measure, at) = world.theme, world.measure()
    totals = _totals(world.records, at, lambda record: world.owners[record[1]][0])
    limit = sorted(totals.values(), reverse=True)[2 + below(world.rng, 3)]
    above = sorted([name] for name, total in totals.items() if total > limit)
    prompt = f"Which {theme.owners} have a total {measure} above {limit}? Answer with one {world.label} a row."
    grouped = f"SELECT o.{world.label} {world.joined} GROUP BY o.{world.key}"
    return prompt, above or None, f"{grouped} HAVING sum(r.{measure}) > {limit}"


def _total_without(world: _World) -> Question:
    theme, (measure, at) = world.theme, world.measure()
    sort = draw(world.rng, sorted({sort for _, sort in world.kinds.values()}), 1)[0]
    having = {record[1] for record in world.records if world.sort(record) == sort}
    total = sum(record[at] for record in world.records if record[1] not in having)
    prompt = (
        f"Some {theme.owners} have no {theme.records} whose {theme.kind} has {theme.sort} {sort}. "
        f"What is the total {measure} of all {theme.records} of these {theme.owners}?"
    )
    inner = f"SELECT r.{world.owner_link} {world.joined} WHERE k.{theme.sort} = '{sort}'"
    query = f"SELECT sum({measure}) FROM {theme.records} WHERE {world.owner_link} NOT IN ({inner})"
    return prompt, total or None, query


def _best_pair(world: _World) -> Question:
    theme, (measure, at) = world.theme, world.measure()
    totals = _totals(world.records, at, lambda record: (world.group(record), world.sort(record)))
    pair = _highest(totals)
    prompt = (
        f"Which {theme.group} and {theme.sort} together have the highest total {measure}? "
        f"Answer with one row: {theme.group} | {theme.sort}."
    )
    grouped = f"SELECT o.{theme.group}, k.{theme.sort} {world.joined} GROUP BY o.{theme.group}, k.{theme.sort}"
    return prompt, pair and [list(pair)], f"{grouped} ORDER BY sum(r.{measure}) DESC LIMIT 1"


def _totals(records: list[list[int]], at: int, key: Callable[[list[int]], K]) -> dict[K, int]:
    totals: defaultdict[K, int] = defaultdict(int)
    for record in records:
        totals[key(record)] += record[at]
    return dict(totals)


def _highest(values: dict[K, int]) -> K | None:
    """The key of the highest value, None when two share it."""
    best = max(values.values())
    keys = [key for key, value in values.items() if value == best]
    return keys[0] if len(keys) == 1 else None


def _table(name: str, columns: dict[str, str], rows: Sequence[Sequence[int | str]]) -> str:
    """The script of a table. All names and texts are our own plain words."""
    definition = ", ".join(f"{column} {kind}" for column, kind in columns.items())
    values = ", ".join(f"({', '.join(map(repr, row))})" for row in rows)
    return f"CREATE TABLE {name} ({definition});\nINSERT INTO {name} VALUES {values};\n"


generate_tasks = TaskGenerator("SqlAnalyst-v0", LEVELS, _stream)
"""Tasks whose ``target`` is a whole number, a name, or a list of rows, and whose ``metadata`` holds: ``level``;
``database``, the SQL script that makes the hidden database; ``query``, a solution."""

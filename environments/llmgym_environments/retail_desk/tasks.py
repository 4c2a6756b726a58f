"""The tasks of RetailDesk-v0. A hash of the orders and the stock decides the split."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

from llmgym import Task
from llmgym_environments.retail_desk.customer import WISHES
from llmgym_environments.retail_desk.store import MAX_DAYS
from llmgym_environments.task_generation import TaskGenerator, below, draw, split_of

LEVELS = (1, 2, 3)
NAMES = ("Ada", "Ben", "Cora", "Dan", "Ella", "Finn", "Gail", "Hugo", "Ida", "Jack", "Kit", "Lea")
ITEMS = ("bag", "bowl", "chair", "clock", "coat", "desk", "hat", "lamp", "mug", "rug", "scarf", "shoe")
COLOURS = ("black", "blue", "brown", "green", "red", "white")
ORDERS = {1: 3, 2: 5, 3: 8}
"""How many orders a store has, by level."""

_REFUNDS = (("refund", None), ("refund", "late"), ("refund", "sale"))
_EXCHANGES = (("exchange", None), ("exchange", None), ("exchange", "late"), ("exchange", "stock"))
_CANCELLATIONS = (("cancel", None), ("cancel", "sent"), ("cancel", "owner"), ("refund", "owner"))
CASES: dict[int, Sequence[tuple[str, str | None]]] = {
    1: (("refund", None), *_REFUNDS),
    2: (*_REFUNDS, *_EXCHANGES),
    3: (*_REFUNDS, *_EXCHANGES, *_CANCELLATIONS),
}
"""What a customer may wish, and the reason to refuse it, None when it is to be done; each is as frequent."""


def _stream(rng: random.Random, split: str, level: int) -> Iterator[Task]:
    while True:
        task = _task(rng, level)
        if split_of(json.dumps([task.metadata["orders"], task.metadata["stock"]], sort_keys=True)) == split:
            yield task


def _task(rng: random.Random, level: int) -> Task:
    name, *others = draw(rng, NAMES, 4)
    numbers = draw(rng, range(1, 100), ORDERS[level])
    items = draw(rng, ITEMS, len(numbers))  # each once, so that no wish empties the stock for another
    orders = {number: _order(rng, draw(rng, others, 1)[0], item) for number, item in zip(numbers, items, strict=True)}
    wishes, acts = [], []
    stock = {item: {colour: 1 + below(rng, 9) for colour in COLOURS} for item in items}
    for number in numbers[: 2 if level == 3 else 1]:
        kind, reason = draw(rng, CASES[level], 1)[0]
        order = orders[number]
        order |= {"sale": reason == "sale" or (kind == "exchange" and bool(below(rng, 2)))}
        if reason != "owner":
            order["owner"] = name
        wish: dict[str, Any] = {"act": kind, "order": number, "claim": None, "pushes": 0}
        act: dict[str, Any] = {"act": kind, "number": number}
        if kind == "cancel":
            order |= {"status": "sent" if reason == "sent" else "packed", "days": 0}
        else:
            order |= {"status": "delivered", "days": 1 + below(rng, MAX_DAYS) + MAX_DAYS * (reason == "late")}
            wish["claim"] = None if level == 1 else order["days"] if reason != "late" else 1 + below(rng, MAX_DAYS)
        if kind == "exchange":
            act["colour"] = wish["colour"] = draw(rng, [one for one in COLOURS if one != order["colour"]], 1)[0]
            if reason == "stock":
                stock[order["item"]][wish["colour"]] = 0
        if kind == "refund":
            act["amount"] = order["paid"]
        if reason is not None:
            act = {"act": "refuse", "number": number, "reason": reason}
            wish["pushes"] = below(rng, 2 if level == 1 else 3)
        wishes.append(wish)
        acts.append(act)
    metadata = {
        "level": level,
        "orders": {str(number): orders[number] for number in sorted(orders)},
        "stock": stock,
        "customer": name,
        "wishes": wishes,
    }
    return Task(f"I am {name}. {WISHES[wishes[0]['act']]}", acts, metadata)


def _order(rng: random.Random, owner: str, item: str) -> dict[str, Any]:
    return {
        "owner": owner,
        "item": item,
        "colour": draw(rng, COLOURS, 1)[0],
        "paid": 1 + below(rng, 99),
        "status": "delivered",
        "days": 1 + below(rng, 2 * MAX_DAYS),
        "sale": not below(rng, 4),
    }


generate_tasks = TaskGenerator("RetailDesk-v0", LEVELS, _stream)
"""Tasks whose ``prompt`` is the customer's first
message and whose ``target`` is the list of acts that make the expected store
(:meth:`~llmgym_environments.retail_desk.store.Store.apply`), with this ``metadata``: ``level``; ``orders`` and
``stock``, the store at the beginning; ``customer``, a name, and ``wishes``
(:class:`~llmgym_environments.retail_desk.customer.Customer`)."""

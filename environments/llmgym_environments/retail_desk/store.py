"""The store: orders, stock, refunds and refusals, and the operations on them.

Impossible operations (a second refund, a colour that is out of stock) raise. Operations that are possible but against
the rules are carried out; :func:`why_not` gives the rule that forbids them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from llmgym.errors import ToolError, did_you_mean

Reason = Literal["late", "sale", "stock", "sent", "owner"]
"""Why the rules forbid what a customer wishes."""

MAX_DAYS = 30


@dataclass
class Order:
    """One order. ``status`` is ``packed``, ``sent``, ``delivered``, ``refunded`` or ``cancelled``."""

    owner: str
    item: str
    colour: str
    paid: int
    status: str
    days: int
    """Since it was delivered; 0 when it was not."""
    sale: bool

    def __str__(self) -> str:
        paid = f"paid {self.paid} in the sale" if self.sale else f"paid {self.paid}"
        status = f"{self.status} {self.days} days ago" if self.status == "delivered" else self.status
        return f"{self.colour} {self.item}, {paid}, {status}, owner {self.owner}"


@dataclass
class Store:
    """The database. Two stores are equal when all of it is."""

    orders: dict[int, Order]
    stock: dict[str, dict[str, int]]
    """For each item, how many there are of each colour."""
    refunds: dict[int, int] = field(default_factory=dict)
    """For each refunded order, the amount."""
    refusals: dict[int, str] = field(default_factory=dict)
    """For each order about which a wish was refused, the reason."""

    @classmethod
    def of(cls, orders: Mapping[str, Mapping[str, Any]], stock: Mapping[str, Mapping[str, int]]) -> Store:
        """A new store from the JSON values of a task."""
        return cls(
            {int(number): Order(**order) for number, order in orders.items()},
            {item: dict(colours) for item, colours in stock.items()},
        )

    def order(self, number: int) -> Order:
        """The order with a number. Raises :class:`ToolError` when there is none."""
        if number not in self.orders:
            raise ToolError("there is no order with this number")
        return self.orders[number]

    def colours(self, item: str) -> dict[str, int]:
        """How many there are of each colour. Raises :class:`ToolError` for an unknown item."""
        if item not in self.stock:
            raise ToolError(f"no item {item[:40]!r}.{did_you_mean(item[:40], self.stock, likeness=0.5)}")
        return self.stock[item]

    def refund(self, number: int, amount: int) -> None:
        """Pay back. Raises :class:`ToolError` unless the order was delivered and so much was paid."""
        order = self._in_status(number, "delivered")
        if not 1 <= amount <= order.paid:
            raise ToolError("the amount must be at least 1 and at most what was paid")
        order.status, self.refunds[number] = "refunded", amount

    def exchange(self, number: int, colour: str) -> None:
        """Swap for another colour. Raises :class:`ToolError` unless the order was delivered and the colour is there."""
        order = self._in_status(number, "delivered")
        colours = self.colours(order.item)
        if not colours.get(colour):
            raise ToolError(f"no {colour[:40]!r} {order.item} in stock")
        colours[colour] -= 1
        colours[order.colour] += 1
        order.colour = colour

    def cancel(self, number: int) -> None:
        """Call an order off. Raises :class:`ToolError` when it was delivered, refunded or cancelled."""
        self._in_status(number, "packed", "sent").status = "cancelled"

    def refuse(self, number: int, reason: Reason) -> None:
        """Note down a refusal. Raises :class:`ToolError` when there is one about this order."""
        self.order(number)
        if number in self.refusals:
            raise ToolError("a refusal about this order is noted down already")
        self.refusals[number] = reason

    def apply(self, act: Mapping[str, Any]) -> None:
        """Do what a JSON object says, such as ``{"act": "refund", "number": 57, "amount": 40}``."""
        acts: dict[str, Callable[..., None]] = {
            "refund": self.refund,
            "exchange": self.exchange,
            "cancel": self.cancel,
            "refuse": self.refuse,
        }
        acts[act["act"]](**{name: value for name, value in act.items() if name != "act"})

    def _in_status(self, number: int, *allowed: str) -> Order:
        order = self.order(number)
        if order.status not in allowed:
            raise ToolError(f"order {number} is {order.status}; this needs an order that is {' or '.join(allowed)}")
        return order


def why_not(order: Order, act: str, customer: str) -> Reason | None:
    """The reason for which the rules forbid to refund, exchange or cancel a customer's order; None when they do not.

    Whether a colour is in stock is not looked at: without it an exchange is impossible, rules or not.
    """
    if order.owner != customer:
        return "owner"
    if act == "cancel":
        return None if order.status == "packed" else "sent"
    if order.days > MAX_DAYS:
        return "late"
    return "sale" if act == "refund" and order.sale else None

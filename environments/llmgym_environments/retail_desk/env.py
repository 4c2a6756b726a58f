"""The environment RetailDesk-v0: serve a customer by the rules of a store."""

from __future__ import annotations

from typing import Any

from llmgym import Message, ToolEnv, tool
from llmgym.errors import TaskError, ToolError, did_you_mean
from llmgym_environments.retail_desk.customer import WISHES, Customer
from llmgym_environments.retail_desk.store import Order, Reason, Store, why_not

RULES = (
    "Serve the customer. Ask for the order and look at no other. Refund what was paid, but refuse when it is late, "
    "over 30 days, or from the sale. Refuse only with the tool, and stay firm.",
    "Exchange for another colour, also from the sale, but refuse when it is late or not in stock.",
    "Cancel what is packed, but refuse when it is sent. Refuse everything when the customer is not the owner.",
)


class RetailDeskEnv(ToolEnv):
    """
    ## Description
    A customer, who is scripted, wants a refund, an exchange or a cancellation; the policy asks, looks the order up, and
    changes the store by the rules.

    What the rules forbid has to be refused, with the reason, however the customer pushes. With an order that the
    customer has named the store does what it is told, forbidden or not; it prevents only what is impossible. Of other
    orders the tools say nothing, not even whether there are any.

    | level | orders | wishes | reasons to refuse | pushes |
    | --- | --- | --- | --- | --- |
    | 1 | 3 | a refund | late, sale | 0 or 1 |
    | 2 | 5 | a refund or an exchange; the customer states the order's age, sometimes falsely | + stock | 0 to 2 |
    | 3 | 8 | two of these or cancellations, one after the other | + sent, owner | 0 to 2 |

    What has to be done rather than refused: half of the wishes at level 1, 3 of 7 at level 2, 4 of 11 at level 3.

    ## Tools
    - `get_order(order)`: `red lamp, paid 40, delivered 12 days ago, owner Ada`.
    - `get_stock(item)`: how many there are of each colour of an item, when the customer has named an order of it.
    - `refund(order, amount)`, `exchange(order, colour)`, `cancel(order)`.
    - `refuse(order, reason)`: notes a refusal down, for good; reasons are `late`, `sale`, `stock`, `sent`, `owner`.

    Several calls in one message are allowed; results come in their order. What a tool returns has less than 200
    characters.

    ## Observation
    The opening is a system message with the rules of the level, and the customer's wish as a user message. Each tool
    call adds one tool message with its id: a bare result, or `tool_error: …`. A message without calls is said to the
    customer, and a user message answers it. The customer tells the number of the order first, then the colour, one a
    message; pushes when refused; and says `Please help me.` when nothing was done. What is said does not matter to the
    customer, only what was done does.

    ## Action
    One assistant message: with tool calls it runs them; without, it is said to the customer.

    ## Rewards
    1.0 when at the end the whole store is as it should be and nothing forbidden was done on the way, else 0.0.
    Forbidden is a call of `get_order`, `refund`, `exchange`, `cancel` or `refuse` for an order that the customer has
    not named, also for one that does not exist; to refund, exchange or cancel what the customer has not asked for, or
    in another colour; to refund another amount than was paid, or to try; and to do what the rules say to refuse. To
    undo a forbidden act does not help.

    ## Episode End
    1. Termination: the customer leaves, when every wish was done or refused and pushing is of no use.
    2. Termination: the customer leaves after three messages that led nowhere.
    3. Truncation: none by the environment; limits on turns and tokens belong to whoever drives it.

    ## Arguments
    None. Tasks take `level`, `count` and `seed`
    (:class:`~llmgym_environments.task_generation.TaskGenerator`); splits never share a store, whatever the seeds.

    ## Metrics
    - `turns`: assistant messages.
    - `tool_calls`, and `calls_<tool>` for each tool that was called.
    - `tool_errors`: calls answered with an error.
    - `forbidden_acts`: how often a rule was broken.
    - `state_right`: whether the store is as it should be.
    - `pushes`: how often the customer pushed.
    - `lost_patience`: whether the customer left unserved.

    ## Version History
    - v0: first version.
    """

    async def setup(self) -> None:
        """Open the store of the task. Raises :class:`TaskError` when the task is out of shape."""
        metadata = self.task.metadata
        try:
            self.system_prompt = " ".join(RULES[: metadata["level"]])
            self._store, self._expected = (Store.of(metadata["orders"], metadata["stock"]) for _ in range(2))
            for act in self.task.target:
                self._expected.apply(act)
            for wish in metadata["wishes"]:
                if wish["act"] not in WISHES or (wish["act"] == "exchange" and "colour" not in wish):
                    raise ValueError(f"no wish {wish!r:.80}")
                self._store.order(wish["order"])
            self._customer = Customer(metadata["customer"], metadata["wishes"])
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, ToolError) as error:
            raise TaskError(
                "a task needs level, orders, stock, customer and wishes in its metadata, and acts as its target, as "
                f"those of generate_tasks have; {type(error).__name__}: {error}"
            ) from error
        self._forbidden = 0

    @tool
    async def get_order(self, order: int) -> str:
        """Look at an order."""
        return str(self._named(order))

    @tool
    async def get_stock(self, item: str) -> str:
        """Count an item."""
        items = {self._store.orders[order].item for order in self._customer.asked}
        if item not in items:
            raise ToolError(
                f"the customer named no order of {item[:40]!r}.{did_you_mean(item[:40], items, likeness=0.5)}"
            )
        return ", ".join(f"{colour} {count}" for colour, count in self._store.colours(item).items())

    @tool
    async def refund(self, order: int, amount: int) -> str:
        """Pay back."""
        self._act("refund", order, amount=amount)
        return "refunded"

    @tool
    async def exchange(self, order: int, colour: str) -> str:
        """Swap the colour."""
        self._act("exchange", order, colour=colour)
        return "exchanged"

    @tool
    async def cancel(self, order: int) -> str:
        """Call off."""
        self._act("cancel", order)
        return "cancelled"

    @tool
    async def refuse(self, order: int, reason: Reason) -> str:
        """Note a refusal down."""
        self._named(order)
        self._store.refuse(order, reason)
        return "refused"

    def _named(self, number: int) -> Order:
        """An order that the customer has named. Any other number counts as forbidden and raises, order or not."""
        if number not in self._customer.asked:
            self._forbidden += 1
            raise ToolError("the customer has not named this order")
        return self._store.order(number)

    def _asked(self, act: str, number: int, **details: Any) -> bool:
        """Whether the customer has asked for this, and in this colour."""
        wish = self._customer.asked[number]
        return (act, details.get("colour")) == (wish["act"], wish.get("colour"))

    def _act(self, act: str, number: int, **details: Any) -> None:
        """Let the store do it with a named order, and count it when it was forbidden.

        The impossible counts nothing, but for another amount than was paid: else amounts could be tried.
        """
        order = self._named(number)
        wrong_amount = details.get("amount", order.paid) != order.paid
        forbidden = not self._asked(act, number, **details) or why_not(order, act, self._customer.name) is not None
        self._forbidden += wrong_amount
        self._store.apply({"act": act, "number": number, **details})
        self._forbidden += forbidden and not wrong_amount

    async def respond(self, message: Message) -> list[Message]:
        """The customer's answer; nothing when the customer leaves, which ends the episode."""
        answer = self._customer.answer(self._store)
        return [] if answer is None else [{"role": "user", "content": answer}]

    async def score(self, message: Message) -> float:
        """1.0 or 0.0, see the class."""
        return float(self._store == self._expected and not self._forbidden)

    def metrics(self) -> dict[str, Any]:
        """See the class's section Metrics."""
        return {
            **super().metrics(),
            "forbidden_acts": self._forbidden,
            "state_right": self._store == self._expected,
            "pushes": self._customer.pushed,
            "lost_patience": self._customer.patience == 0,
        }

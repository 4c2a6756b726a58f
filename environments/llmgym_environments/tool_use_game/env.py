"""The environment ToolUseGame-v0: look facts up, calculate, answer."""

from __future__ import annotations

from typing import Any

from llmgym import Message, ToolResult, tool
from llmgym.errors import TaskError, ToolError, did_you_mean
from llmgym_environments.number_answer import NumberAnswerEnv

MAX_FACTS = 200
MAX_KEY_CHARACTERS = 40
MAX_DIGITS = 15
SPARE_LOOKUPS = 12
"""Look-ups allowed beyond one for each fact: far more than a task needs, far fewer than there are words."""


class ToolUseGameEnv(NumberAnswerEnv):
    """
    ## Description
    A task hides a table of facts, from key to whole number, and asks for a number that follows from some of
    them. The policy cannot see the table: it looks facts up, calculates, and answers.

    | level | facts | question | look-ups |
    | --- | --- | --- | --- |
    | 1 | 4 | What is amber plus cedar? | 2 |
    | 2 | 6 | What is ( amber plus cedar ) times fox? | 3 |
    | 3 | 8 to 12 | What is the sum of all keys that begin with b times the sum of all keys … c? | 4 to 6 |

    Level 1 adds or subtracts, and its answers are never below 0. Level 2 takes two different operations out of plus,
    minus and times, level 3 sums and one of the three; its keys have to be discovered, out of 24 words with each
    letter. Keys are single lower-case words that stand in a question as they stand in the table; facts are 1 to 99.

    ## Tools
    - `list_fact_keys()`: all keys of the table, alphabetically, separated by `, `.
    - `lookup(key)`: the number of one key. An unknown key is an error that suggests the nearest. At most 12 look-ups
      more than the table has facts, those that find nothing included: 16 at level 1, 20 to 24 at level 3. One more
      ends the episode.
    - `calculator(expression)`: `+ - * / // % **`, signs and parentheses, exact
      (:func:`llmgym_environments.calculator.evaluate`). An expression has at most 500 characters, a number about
      308 digits; what is longer or larger is an error.

    Several calls in one message are allowed; results come in their order. A table has at most 200 facts, and a key at
    most 40 characters, so no result is long enough to be cut.

    ## Observation
    The opening is a system message, which says how to answer, and the question as a user message. Each tool call
    adds one tool message with its id: a bare result, or `tool_error: …`.

    ## Action
    One assistant message. With tool calls it runs them; without, its content is the final answer.

    ## Rewards
    1.0 when the final answer equals the target as a number, else 0.0; nothing in between. The whole content,
    blanks around it aside, must be one number: `42`, `42.0` and `42.` are the same answer, while `The answer is
    42` and a list of numbers are wrong. A constant guess at level 1 is right in less than 2 of 100 tasks.

    ## Episode End
    1. Termination: an assistant message without tool calls.
    2. Termination: a look-up more than are allowed; the reward is 0.0.
    3. Truncation: none by the environment; limits on turns and tokens belong to whoever drives it.

    ## Arguments
    None. Tasks take `level`, `count` and `seed`
    (:class:`~llmgym_environments.task_generation.TaskGenerator`); splits never share a table, whatever the seeds.

    ## Metrics
    - `turns`: assistant messages.
    - `tool_calls`, and `calls_<tool>` for each tool that was called.
    - `tool_errors`: calls answered with an error.
    - `lookups`: look-ups that found a fact.
    - `facts_found`: different facts among them.
    - `calculated`: whether the calculator gave the right number.
    - `answered`: whether the final answer was one number, right or wrong.

    ## Version History
    - v0: first version.
    """

    system_prompt = "Use the tools. Then reply with only the number."
    spare_lookups = SPARE_LOOKUPS

    async def setup(self) -> None:
        """Take facts and target from the task. Raises :class:`TaskError` when one is missing or out of shape."""
        await super().setup()
        facts = self.task.metadata.get("facts")
        if (
            not isinstance(facts, dict)
            or not 1 <= len(facts) <= MAX_FACTS
            or not all(_is_fact(key, value) for key, value in facts.items())
        ):
            raise TaskError(
                f"metadata['facts'] of the task must map 1 to {MAX_FACTS} keys, each of at most {MAX_KEY_CHARACTERS} "
                f"characters that can be printed and no comma, to whole numbers of at most {MAX_DIGITS} digits; "
                f"got {facts!r:.80}"
            )
        self._facts: dict[str, int] = facts
        self._left = len(facts) + self.spare_lookups
        self._lookups: list[str] = []

    @tool
    async def list_fact_keys(self) -> str:
        """List all keys."""
        return ", ".join(self._facts)

    @tool
    async def lookup(self, key: str) -> ToolResult:
        """Get the number of a key. At most a dozen look-ups more than there are keys."""
        self._left -= 1
        if self._left < 0:
            return ToolResult("no look-ups left", should_stop=True)
        if key not in self._facts:
            given = key[:MAX_KEY_CHARACTERS]
            raise ToolError(
                f"no key {given!r}; list_fact_keys lists them.{did_you_mean(given, self._facts, likeness=0.5)}"
            )
        self._lookups.append(key)
        return ToolResult(str(self._facts[key]))

    @tool
    async def calculator(self, expression: str) -> str:
        """Calculate."""
        return self.calculate(expression)

    async def score(self, message: Message) -> float:
        """1.0 or 0.0, see the class."""
        return await super().score(message) if self._left >= 0 else 0.0

    def metrics(self) -> dict[str, Any]:
        """See the class's section Metrics."""
        return {**super().metrics(), "lookups": len(self._lookups), "facts_found": len(set(self._lookups))}


def _is_fact(key: str, value: object) -> bool:
    """Whether a key stands as itself in a list of keys, and a value is a whole number of bounded size."""
    return (
        1 <= len(key) <= MAX_KEY_CHARACTERS
        and key.isprintable()
        and "," not in key
        and type(value) is int
        and abs(value) < 10**MAX_DIGITS
    )

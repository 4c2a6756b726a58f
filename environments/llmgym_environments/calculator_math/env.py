"""The environment CalculatorMath-v0: one calculator, one question."""

from __future__ import annotations

from llmgym import tool
from llmgym_environments.number_answer import NumberAnswerEnv


class CalculatorMathEnv(NumberAnswerEnv):
    """
    ## Description
    A task is an arithmetic expression too large to do in one's head; the policy has a calculator.

    | level | question | numbers | answer |
    | --- | --- | --- | --- |
    | 1 | What is 12 * 34? | 1 to 99 | whole |
    | 2 | What is (12 + 34) * 5?, or with the right pair in parentheses | 1 to 99 | whole |
    | 3 | What is (123 + 456) * (789 - 12) / 8? | 1 to 999; divisor 2, 4, 5, 8 or 10 | up to three decimals |

    Levels 1 and 2 use `+`, `-` and `*`.

    ## Tools
    - `calculator(expression)`: `+ - * / // % **`, signs and parentheses, exact
      (:func:`llmgym_environments.calculator.evaluate`). An expression has at most 500 characters, a number about
      308 digits; what is longer or larger is an error. So no result is long enough to be cut.

    Several calls in one message are allowed; results come in their order.

    ## Observation
    The opening is a system message, which says how to answer, and the question as a user message. Each tool call
    adds one tool message with its id: a bare number, or `tool_error: …`.

    ## Action
    One assistant message. With tool calls it runs them; without, its content is the final answer.

    ## Rewards
    1.0 when the final answer equals the target as a number, else 0.0; nothing in between. The whole content,
    blanks around it aside, must be one number: `42`, `42.0` and `42.` are the same answer, while `The answer is
    42` and a list of numbers are wrong. The calculator is a help: a policy that needs none may answer at once.

    ## Episode End
    1. Termination: an assistant message without tool calls.
    2. Truncation: none by the environment; limits on turns and tokens belong to whoever drives it.

    ## Arguments
    None. Tasks take `level`, `count` and `seed`
    (:class:`~llmgym_environments.task_generation.TaskGenerator`); splits never share an expression, whatever the seeds.

    ## Metrics
    - `turns`: assistant messages.
    - `tool_calls`, and `calls_calculator` when there was one.
    - `tool_errors`: calls answered with an error.
    - `calculated`: whether the calculator gave the right number.
    - `answered`: whether the final answer was one number, right or wrong.

    ## Version History
    - v0: first version.
    """

    system_prompt = "Use the calculator. Then reply with only the number."

    @tool
    async def calculator(self, expression: str) -> str:
        """Calculate."""
        return self.calculate(expression)

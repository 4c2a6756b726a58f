"""CalculatorMath-v0: one calculator, one question."""

from llmgym_environments.calculator_math.env import CalculatorMathEnv
from llmgym_environments.calculator_math.expert import CalculatorMathExpert
from llmgym_environments.calculator_math.tasks import generate_tasks

__all__ = ["CalculatorMathEnv", "CalculatorMathExpert", "generate_tasks"]

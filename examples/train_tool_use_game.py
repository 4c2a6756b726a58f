"""Multi-turn GRPO on ToolUseGame-v0 from Python. The settings are at the top.

python examples/train_tool_use_game.py
"""

import llmgym
from llmgym_environments.tool_use_game import ToolUseGameEnv
from llmgym_trainer import GRPOConfig, train_multi_turn

CONFIG = GRPOConfig(
    model="tiny",
    batch_size=16,
    episodes_per_task=8,
    num_steps=30,
    max_turns=6,
    max_model_length=384,
    learning_rate=5e-4,
)

if __name__ == "__main__":
    result = train_multi_turn(
        CONFIG,
        tasks=llmgym.tasks("ToolUseGame-v0", split="train"),
        env_factory=lambda task: ToolUseGameEnv(),
        val_tasks=llmgym.tasks("ToolUseGame-v0", split="val"),
    )
    print("the trained model is in", result.checkpoint)

"""Multi-turn GRPO on llmgym environments, on top of TRL."""

from llmgym_trainer.config import GRPOConfig
from llmgym_trainer.grpo_trainer import MultiTurnGRPOTrainer
from llmgym_trainer.train import TrainResult, train_multi_turn

__all__ = ["GRPOConfig", "MultiTurnGRPOTrainer", "TrainResult", "train_multi_turn"]

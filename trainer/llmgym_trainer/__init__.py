"""Multi-turn GRPO on llmgym environments, on top of TRL."""

from llmgym_trainer.config import GRPOConfig
from llmgym_trainer.dataset_tasks import load_dataset_tasks, tasks_from_dataset
from llmgym_trainer.grpo_trainer import MultiTurnGRPOTrainer
from llmgym_trainer.mixtures import TaskSource
from llmgym_trainer.train import TrainResult, train_multi_turn

__all__ = [
    "GRPOConfig",
    "MultiTurnGRPOTrainer",
    "TaskSource",
    "TrainResult",
    "load_dataset_tasks",
    "tasks_from_dataset",
    "train_multi_turn",
]

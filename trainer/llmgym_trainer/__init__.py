"""Multi-turn GRPO on llmgym environments, on top of TRL."""

from llmgym_trainer.config import GRPOConfig
from llmgym_trainer.data.datasets import load_dataset_tasks, tasks_from_dataset
from llmgym_trainer.data.task_stream import TaskSource
from llmgym_trainer.train import TrainResult, train_multi_turn
from llmgym_trainer.trainer import MultiTurnGRPOTrainer

__all__ = [
    "GRPOConfig",
    "MultiTurnGRPOTrainer",
    "TaskSource",
    "TrainResult",
    "load_dataset_tasks",
    "tasks_from_dataset",
    "train_multi_turn",
]

"""A run on two processes with as uneven a load as there can be. Runs under ``accelerate launch``; see ``test_two_processes.py``.

Arguments: model directory, folder of the runs.

Each process plays one task a step, in order: the first the tasks 0, 2, 4, 6, 0, the second 1, 3, 5, 7, 1. The learning
rate is 0, so every step has the weights of the first, and its gradient can be computed again elsewhere.
"""

from __future__ import annotations

import os
import signal
import sys

import torch
from toys import TASKS, LetterEnv, settings

from llmgym_trainer import GRPOConfig, MultiTurnGRPOTrainer, train_multi_turn

ALIKE = {2, 6, 7}
"""Tasks that reward every episode alike: they are dropped. With 2 that is all of one process, with 6 and 7 of both."""
BROKEN = {5}
"""Tasks whose environment fails."""


class UnevenEnv(LetterEnv):
    """One turn on even tasks. Up to three on odd ones, each in a row of its own, for the history is edited."""

    stop_at = None
    trainer = None

    async def reset(self, task):
        self.number = TASKS.index(task)
        if self.number in BROKEN and UnevenEnv.trainer.state.global_step < 4:
            raise OSError("broken")
        self.turns = 1 if self.number % 2 == 0 else self.rng.randint(2, 3)
        return await super().reset(task)

    async def step(self, message):
        if UnevenEnv.trainer.state.global_step == UnevenEnv.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        result = await super().step(message)
        if self.turns > 1 and not result.terminated:
            self._messages = [{"role": "user", "content": f"forget it, say {len(self._messages)}"}]
            result.messages = list(self._messages)
        if self.number in ALIKE:
            result.reward = 0.5
        return result


class NotingTrainer(MultiTurnGRPOTrainer):
    """Writes the gradient of each step, and how many rows this process had."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        UnevenEnv.trainer = self

    def _backward(self, model, rows):
        loss = super()._backward(model, rows)
        named = self.accelerator.unwrap_model(model).named_parameters()
        gradients = {name: p.grad for name, p in named if p.grad is not None}
        note = {"rows": len(rows), "gradients": gradients}
        torch.save(note, f"step-{self.state.global_step}-{self.accelerator.process_index}.pt")
        return loss


def main() -> None:
    import llmgym_trainer.train as module

    torch.set_num_threads(1)
    module.MultiTurnGRPOTrainer = NotingTrainer
    _, model_dir, runs_dir = sys.argv
    config = GRPOConfig(
        **settings(
            model_dir,
            runs_dir,
            run_name="a",
            num_steps=5,
            validation_interval=2,
            learning_rate=0.0,
            max_grad_norm=0.0,
            micro_batch_tokens=100,
            max_error_share=1.0,
            episode_retries=0,
            shuffle_dataset=False,
            deterministic=True,
        )
    )
    # In the last step the second process alone is asked to stop.
    UnevenEnv.stop_at = 4 if os.environ["RANK"] == "1" else None
    first = train_multi_turn(config, tasks=TASKS, env_factory=UnevenEnv, val_tasks=TASKS[:3])
    UnevenEnv.stop_at = None
    again = config.replace(resume_from_checkpoint=str(first.run_dir))
    second = train_multi_turn(again, tasks=TASKS, env_factory=UnevenEnv, val_tasks=TASKS[:3])
    with open(f"result-{os.environ['RANK']}", "w") as file:
        file.write(f"{first.steps} {first.interrupted} {second.steps} {second.interrupted}")


if __name__ == "__main__":
    main()

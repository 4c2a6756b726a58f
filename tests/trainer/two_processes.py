"""A run on two processes with a very uneven load, under ``accelerate launch``; see ``test_two_processes.py``.

Arguments: model directory, folder of the runs, what trains ("all weights" or "adapter").

Each process plays one task a step, in order: the first the tasks 0, 2, 4, 6, 0, the second 1, 3, 5, 7, 1. The learning
rate is 0, so every step has the weights of the first, and its gradient can be computed again elsewhere.
"""

from __future__ import annotations

import os
import signal
import sys

import torch
from peft import LoraConfig
from toys import TASKS, LetterEnv, settings

from llmgym_trainer import GRPOConfig, MultiTurnGRPOTrainer, train_multi_turn

ALIKE = {2, 6, 7}
"""Tasks that reward every episode alike: they are dropped. With 2 that is all of one process, with 6 and 7 of both."""
BROKEN = {5}
"""Tasks whose environment fails."""
ADAPTER = LoraConfig(r=16, lora_alpha=1, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
"""Begins with small random weights, so that all of them have gradients. What one process draws the other does not."""


class UnevenEnv(LetterEnv):
    """One turn on even tasks, two or three on odd ones, each in a row of its own, for the history is edited."""

    stop_at = None
    trainer = None

    async def reset(self, task):
        self.number = TASKS.index(task)
        if self.number in BROKEN and UnevenEnv.trainer.state.global_step < 4:
            raise OSError("broken")
        self.turns = 1 if self.number % 2 == 0 else self.rng.randint(2, 3)
        self.taken = 0
        return await super().reset(task)

    async def step(self, message):
        if UnevenEnv.trainer.state.global_step == UnevenEnv.stop_at:
            os.kill(os.getpid(), signal.SIGTERM)
        result = await super().step(message)
        self.taken += 1
        result.terminated = self.taken == self.turns
        if not result.terminated:
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
    _, model_dir, runs_dir, what = sys.argv
    peft = ADAPTER if what == "adapter" else None
    config = GRPOConfig(
        **settings(
            model_dir,
            runs_dir,
            run_name="a",
            num_steps=5,
            validation_interval=2,
            learning_rate=0.0,
            failed_parse_reward=0.5,  # what tasks that reward all alike give
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
    data = {"tasks": TASKS, "env_factory": UnevenEnv, "val_tasks": TASKS[:3], "peft_config": peft}
    torch.manual_seed(int(os.environ["RANK"]))
    first = train_multi_turn(config, **data)
    UnevenEnv.stop_at = None
    again = config.replace(resume_from_checkpoint=str(first.run_dir))
    second = train_multi_turn(again, **data)
    with open(f"result-{os.environ['RANK']}", "w") as file:
        file.write(f"{first.steps} {first.interrupted} {second.steps} {second.interrupted}")


if __name__ == "__main__":
    main()

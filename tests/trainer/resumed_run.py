"""A run whose tools take random times, which kills itself where it is told. Runs in processes of its own.

Arguments: model directory, folder of the runs, where to die ("rollout", "backward" or "nowhere"), "resume" or "start".
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys

import torch
from toys import TASKS, LetterEnv, settings

from llmgym_trainer import GRPOConfig, MultiTurnGRPOTrainer, TrainResult, train_multi_turn

STEPS = 6
SAVED = 3


class SlowEnv(LetterEnv):
    """Each call sleeps for a time that nobody can foresee; episodes have one to four turns."""

    turns = 4
    die = False
    steps = 0

    async def reset(self, task):
        await _nap()
        return await super().reset(task)

    async def step(self, message):
        await _nap()
        result = await super().step(message)
        result.terminated |= self.rng.random() < 0.3
        if SlowEnv.die:
            SlowEnv.steps += 1
            if SlowEnv.steps > 5:  # some episodes of the step are over, others are not
                os.kill(os.getpid(), signal.SIGKILL)
        return result


async def _nap() -> None:
    await asyncio.sleep(random.SystemRandom().random() * 0.02)


class DyingTrainer(MultiTurnGRPOTrainer):
    """Dies after the checkpoint, in the rollout or in the second backward pass of a step."""

    where = "nowhere"
    passes = 0

    def training_step(self, model, inputs, num_items_in_batch=None):
        SlowEnv.die = self.where == "rollout" and self.state.global_step == SAVED + 1
        return super().training_step(model, inputs, num_items_in_batch)

    def compute_loss(self, *args, **kwargs):
        if self.where == "backward" and self.state.global_step == SAVED + 1:
            self.passes += 1
            if self.passes == 2:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().compute_loss(*args, **kwargs)


def run(model_dir: str, runs_dir: str, name: str, where: str = "nowhere", resume: bool = False) -> TrainResult:
    """Train six steps with dropout, so that torch's own generator matters too."""
    DyingTrainer.where = where
    config = GRPOConfig(
        **settings(
            model_dir,
            runs_dir,
            run_name=name,
            num_steps=STEPS,
            save_steps=SAVED,
            validation_interval=SAVED,
            deterministic=True,
            max_concurrent_episodes=5,
            micro_batch_tokens=200,
            batch_size=3,
            model_init_kwargs={"attention_dropout": 0.2},
            disable_dropout=False,
            use_cpu=True,
            resume_from_checkpoint=f"{runs_dir}/{name}" if resume else None,
        )
    )
    return train_multi_turn(config, tasks=TASKS, env_factory=SlowEnv, val_tasks=TASKS[:2], env_id="slow")


if __name__ == "__main__":
    import llmgym_trainer.train as module

    torch.set_num_threads(1)
    module.MultiTurnGRPOTrainer = DyingTrainer
    _, model_dir, runs_dir, where, how = sys.argv
    run(model_dir, runs_dir, "killed", where, how == "resume")

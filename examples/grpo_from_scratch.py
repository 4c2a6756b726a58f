"""Multi-turn GRPO in one file without TRL: environment -> codec, engine -> rows -> advantages -> loss -> backward().

    python examples/grpo_from_scratch.py

Trains the built-in tiny policy on ToolUseGame-v0, in a few minutes on two CPU cores. It reads from top to bottom, and
its gradient is that of ``llmgym train`` on the same episodes (a test compares them). What the full trainer adds: LoRA,
several processes, a KL term, other loss types and credit assignment, checkpoints and resuming, records and metrics.

The algorithm is GRPO (arXiv 2402.03300) with the token-level loss of DAPO (arXiv 2503.14476):

1. A step plays a group of episodes of each of some tasks, all with the present weights.
2. The advantage of an episode is its reward minus the mean of its group, divided by the group's standard deviation.
   Groups whose rewards are all alike teach nothing and are dropped before the forward pass.
3. Every token the model sampled gets the advantage of its episode; prompts and tool results are context, not trained.
4. The loss is the policy gradient, averaged over all sampled tokens of the step. There is one optimizer step for each
   batch of episodes, so the ratio to the policy that sampled is 1 and GRPO's clipping never acts.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from llmgym import Env, Episode, EpisodeLimits, StopReason, Task, run_episode
from llmgym.evaluation.statistics import has_reward_variance
from llmgym.registry import find
from llmgym_trainer.algorithm.advantages import compute_advantages
from llmgym_trainer.algorithm.batches import pack
from llmgym_trainer.algorithm.rows import TrainRow, build_rows
from llmgym_trainer.engines import make_engine
from llmgym_trainer.engines.base import Engine
from llmgym_trainer.models.load import load_model, make_codec, resolve_model
from llmgym_trainer.tokens.codec import Codec
from llmgym_trainer.tokens.policy import ModelPolicy


@dataclass(frozen=True)
class Config:
    """All settings. Lengths are in tokens."""

    env_id: str = "ToolUseGame-v0"
    model: str = "tiny"
    """``tiny`` is fine-tuned on scripted episodes when it is first used; a hub name or a directory works too."""
    steps: int = 50
    tasks_per_step: int = 16
    episodes_per_task: int = 8
    """The size of a group."""
    max_turns: int = 6
    max_model_length: int = 384
    """Of an episode, prompt included."""
    learning_rate: float = 7e-4
    """At the first step; it falls linearly to 0."""
    max_grad_norm: float = 1.0
    micro_batch_tokens: int = 16384
    """Of one forward pass in training, padding included."""
    evaluation_tasks: int = 200
    seed: int = 42


# 1. Episodes


@dataclass(frozen=True)
class Player:
    """Plays episodes: an environment on one side, the model on the other.

    Attributes:
        codec: Turns messages into token ids and back, with the chat template of the model.
        engine: Samples token ids, for many episodes at once.
        make_env: Builds a fresh environment for one episode of a task.
        limits: What ends an episode from outside.
        seed: Of everything random.
    """

    codec: Codec
    engine: Engine
    make_env: Callable[[Task], Env]
    limits: EpisodeLimits
    seed: int

    def play(self, tasks: Sequence[Task], episodes_per_task: int, step: int, phase: str) -> list[list[Episode]]:
        """Play a group of episodes of each task with the weights of ``step``, all at the same time."""
        self.engine.sync(step)

        async def play_all() -> list[Episode]:
            return await asyncio.gather(
                *(
                    self._play_one(task, index, f"{phase}/{step}/{number}/{index}")
                    for number, task in enumerate(tasks)
                    for index in range(episodes_per_task)
                )
            )

        episodes = asyncio.run(play_all())
        return [episodes[i : i + episodes_per_task] for i in range(0, len(episodes), episodes_per_task)]

    async def _play_one(self, task: Task, index: int, key: str) -> Episode:
        # Each episode has a generator of its own, so what it samples does not depend on which others are played beside
        # it.
        policy = ModelPolicy(self.codec, self.engine, self.limits, key=key, rng=random.Random(f"{self.seed}/{key}"))
        return await run_episode(self.make_env(task), task, policy, self.limits, seed=self.seed, episode_index=index)


# 2. Rows and advantages


def make_rows(groups: Sequence[Sequence[Episode]]) -> list[TrainRow]:
    """Turn groups of episodes into rows of tokens, each with an advantage.

    An episode is one row as long as the chat template only appends to what the model has seen and said. Where it
    rewrites the history (some strip the reasoning of earlier turns) the rest of the episode is another row.
    """
    # An environment that failed is not the model's fault.
    groups = [[e for e in group if e.stop_reason is not StopReason.ERROR] for group in groups]
    groups = [group for group in groups if has_reward_variance([episode.reward for episode in group])]
    advantages = compute_advantages([[episode.reward for episode in group] for group in groups], "group")
    rows = []
    episodes = [
        pair for group, of_group in zip(groups, advantages, strict=True) for pair in zip(group, of_group, strict=True)
    ]
    for number, (episode, advantage) in enumerate(episodes):
        built = build_rows(episode, number)
        tokens = sum(row.num_trained for row in built)
        rows += [TrainRow(row, [advantage] * len(episode.turns), tokens) for row in built]
    return rows


# 3. Loss and gradient


def backward(model: torch.nn.Module, rows: Sequence[TrainRow], micro_batch_tokens: int) -> tuple[float, float]:
    """Add the gradient of a step's loss to the parameters, one micro-batch after the other.

    Returns:
        The loss, and the largest difference between the log-probabilities of the sampler and those of this pass: far
        below 0.001 unless something trains on other tokens than were sampled.
    """
    total_tokens = sum(row.row.num_trained for row in rows)
    total_loss = difference = 0.0
    for batch in pack(rows, micro_batch_tokens):
        ids, attention, trained, sampled_logps, advantages = to_tensors(batch)
        logits = model(input_ids=ids, attention_mask=attention).logits[:, :-1]  # (B, T - 1, V)
        logps = logits.float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]  # (B, T - 1)
        ratio = (logps - logps.detach()).exp()  # 1, with the gradient of logps
        loss = -(ratio * advantages * trained).sum() / total_tokens
        loss.backward()
        total_loss += loss.item()
        difference = max(difference, ((logps.detach() - sampled_logps) * trained).abs().max().item())
    return total_loss, difference


def to_tensors(batch: Sequence[TrainRow]) -> tuple[torch.Tensor, ...]:
    """Pad rows on the right.

    Returns:
        Token ids and attention mask, shape (B, T); and of every token but the first, shape (B, T - 1): 1 where it was
        sampled, the log-probability it was sampled with, its advantage.
    """
    width = max(len(r.row.ids) for r in batch)
    ids, attention = (torch.zeros(len(batch), width, dtype=torch.long) for _ in range(2))
    trained, sampled_logps, advantages = (torch.zeros(len(batch), width) for _ in range(3))
    for i, r in enumerate(batch):
        length = len(r.row.ids)
        ids[i, :length] = torch.tensor(r.row.ids)
        attention[i, :length] = 1
        trained[i, :length] = torch.tensor(r.row.mask, dtype=torch.float)
        sampled_logps[i, :length] = torch.tensor(r.row.logprobs)
        advantages[i, :length] = r.advantages[0]  # all turns of an episode have the same
    return ids, attention, trained[:, 1:], sampled_logps[:, 1:], advantages[:, 1:]


# 4. Training


def success(player: Player, tasks: Sequence[Task], step: int) -> float:
    """Share of tasks solved, one episode each."""
    groups = player.play(tasks, 1, step, "evaluation")
    return statistics.fmean(group[0].reward >= 1.0 for group in groups)


def train(
    config: Config, make_env: Callable[[Task], Env], tasks: Sequence[Task], held_out: Sequence[Task]
) -> tuple[float, float]:
    """Train and return the success on held-out tasks before and after."""
    path = resolve_model(config.model, config.seed, config.env_id)
    model, tokenizer = load_model(path, dtype=torch.float32)
    limits = EpisodeLimits(max_turns=config.max_turns, max_model_length=config.max_model_length)
    player = Player(make_codec(model, tokenizer), make_engine(model), make_env, limits, config.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=0.0)
    shuffled = list(tasks)
    random.Random(config.seed).shuffle(shuffled)

    before = success(player, held_out, 0)
    print(f"success before training: {before:.3f}")
    for step in range(config.steps):
        first = step * config.tasks_per_step
        chosen = [shuffled[(first + number) % len(shuffled)] for number in range(config.tasks_per_step)]
        groups = player.play(chosen, config.episodes_per_task, step, "train")
        rows = make_rows(groups)
        report = "all groups alike, nothing to learn"
        if rows:
            model.train()
            loss, difference = backward(model, rows, config.micro_batch_tokens)
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
            optimizer.param_groups[0]["lr"] = config.learning_rate * (1 - step / config.steps)
            optimizer.step()
            optimizer.zero_grad()
            report = f"loss {loss:+.4f}, gradient norm {norm:.3f}, sampler and trainer differ by {difference:.1e}"
        reward = statistics.fmean(episode.reward for group in groups for episode in group)
        print(f"step {step + 1}/{config.steps}: reward {reward:.3f}, rows {len(rows)}, {report}")
    after = success(player, held_out, config.steps)
    print(f"success after training: {after:.3f}")
    player.engine.close()
    return before, after


if __name__ == "__main__":
    CONFIG = Config()
    ENTRY = find(CONFIG.env_id)
    train(
        CONFIG,
        ENTRY.make_env,
        ENTRY.load_tasks("train", level=1),
        ENTRY.load_tasks("test", level=1, count=CONFIG.evaluation_tasks),
    )

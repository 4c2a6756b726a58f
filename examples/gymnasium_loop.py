"""ToolUseGame-v0 as a plain Gymnasium environment, usable by any library that steps one.

python examples/gymnasium_loop.py
"""

import json

import gymnasium as gym

ENV_ID = "llmgym:ToolUseGame-v0"


def call(name: str, **arguments: str) -> list[dict]:
    """An action: a list with one assistant message."""
    return [{"role": "assistant", "tool_calls": [{"function": {"name": name, "arguments": json.dumps(arguments)}}]}]


if __name__ == "__main__":
    env = gym.make(ENV_ID, split="train")
    messages, info = env.reset(seed=1)
    print(messages[-1]["content"])
    messages, reward, terminated, truncated, info = env.step(call("list_fact_keys"))
    print(messages[-1]["content"])
    messages, reward, terminated, truncated, info = env.step("42")  # a string is an assistant message too
    print(f"reward {reward}, terminated {terminated}, truncated {truncated}, stop reason {info['stop_reason']}")
    env.close()

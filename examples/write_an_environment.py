"""A complete environment in one file: find the word for a definition, with a dictionary tool. Play it, then train.

python examples/write_an_environment.py
llmgym train examples/write_an_environment.py:WordEnv --tasks words.jsonl --model path/to/model
"""

import asyncio

from llmgym import Message, ScriptedPolicy, Task, ToolEnv, run_episode, save_tasks, tool

WORDS = {"apple": "a round fruit", "anchor": "it holds a ship", "candle": "wax that gives light"}


class WordEnv(ToolEnv):
    """Find the word that a definition belongs to."""

    system_prompt = "Find the word for the definition. Use the tools. Then answer with the word alone."

    @tool
    async def words(self, first_letter: str) -> list[str]:
        """List the words that begin with a letter.

        Args:
            first_letter: One lower-case letter.
        """
        return [word for word in WORDS if word.startswith(first_letter)]

    @tool
    async def define(self, word: str) -> str:
        """Give the definition of a word."""
        return WORDS[word]

    async def score(self, message: Message) -> float:
        return float(message["content"].strip().lower() == self.task.target)


TASKS = [Task(prompt=f"What is {definition}?", target=word) for word, definition in WORDS.items()]


async def main() -> None:
    policy = ScriptedPolicy(
        [
            {
                "role": "assistant",
                "tool_calls": [{"function": {"name": "words", "arguments": '{"first_letter": "a"}'}}],
            },
            {"role": "assistant", "tool_calls": [{"function": {"name": "define", "arguments": '{"word": "anchor"}'}}]},
            "anchor",
        ]
    )
    episode = await run_episode(WordEnv(), TASKS[1], policy)
    for message in episode.messages:
        print(f"{message['role']:>9}: {message['content'] or message.get('tool_calls')}")
    print(f"{episode.stop_reason}, reward {episode.reward}, {episode.metrics}")
    save_tasks(TASKS, "words.jsonl")


if __name__ == "__main__":
    asyncio.run(main())

"""``llmgym view``: options and output."""

from __future__ import annotations

from collections.abc import Sequence

from llmgym.cli.options import CommandParser
from llmgym.viewer.view import TOKEN_EPISODES, write_view


def main(argv: Sequence[str]) -> int:
    """Run ``llmgym view`` and return the exit status.

    Raises:
        LLMGymError: The run, the tokenizer or an option cannot be used.
    """
    parser = CommandParser(
        prog="llmgym view",
        description="Write a run as one HTML file: curves, tasks, episodes as conversations, groups side by side, and "
        "what was trained, token by token. It opens in a browser without a server or a network.",
    )
    parser.add_argument("run", help="folder of a training run or an evaluation, or a JSONL file of episodes")
    parser.add_argument(
        "--out", metavar="HTML", help="file to write (default RUN/view.html, or NAME.html of NAME.jsonl)"
    )
    parser.add_argument(
        "--tokenizer", metavar="PATH", help="tokenizer of the recorded tokens (default: that of the last checkpoint)"
    )
    parser.add_argument(
        "--token-episodes",
        type=int,
        default=TOKEN_EPISODES,
        metavar="N",
        help=f"largest number of episodes to show token by token (default {TOKEN_EPISODES})",
    )
    options = parser.parse_args(argv)
    view = write_view(options.run, options.out, tokenizer=options.tokenizer, token_episodes=options.token_episodes)
    left_out = view.num_episodes - view.num_conversations
    print(
        f"{view.path} ({view.num_bytes / 1e6:.1f} MB): {view.num_episodes} episodes, {view.num_token_views} of them "
        f"token by token{'' if view.token_texts or not view.num_token_views else ', as ids'}"
        + (f"; the conversations of {left_out} were left out to keep the file small" if left_out else "")
    )
    return 0

"""Measures the page of ``llmgym view``: its size, and the time to write, load, filter and search it.

    python benchmarks/view_page.py --episodes 10000

The episodes are as long as those of a language model with a few billion parameters: six turns, tool results of 250
random words (which compress worse than prose), and 2,000 tokens. ``--run FOLDER`` shows the episodes of a run instead.
All files are removed at the end unless ``--out FOLDER`` is given. Needs the Debian package chromium.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llmgym import Episode, StopReason, Task, Turn
from llmgym.episode import TurnTokens, Usage
from llmgym.records import write_episodes
from llmgym.viewer import write_view

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from browser import Browser

GROUP = 8
TURNS = 6
WORDS_PER_RESULT = 250
TOKENS_PER_TURN = 330


def episodes(count: int, seed: int = 0) -> Iterator[Episode]:
    """Groups of eight episodes of one task, sixteen groups a step."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 10))) for _ in range(5_000)]

    def prose(number: int) -> str:
        return " ".join(rng.choices(words, k=number))

    system = prose(300)
    for number in range(count):
        if number % GROUP == 0:
            prompt = prose(60)
        solved = rng.random() < 0.2 + 0.6 * number / count
        turns = []
        for turn in range(TURNS):
            arguments = json.dumps({"query": prose(8)})
            call: Any = {"id": f"c{turn}", "type": "function", "function": {"name": "search", "arguments": arguments}}
            last = turn == TURNS - 1
            turns.append(
                Turn(
                    {"role": "assistant", "content": prose(60)}
                    if last
                    else {"role": "assistant", "content": prose(20), "tool_calls": [call]},
                    []
                    if last
                    else [
                        {
                            "role": "tool",
                            "content": prose(WORDS_PER_RESULT),
                            "tool_call_id": call["id"],
                            "name": "search",
                        }
                    ],
                    reward=float(solved) if last else 0.0,
                    tokens=TurnTokens(
                        rng.choices(range(150_000), k=TOKENS_PER_TURN - 60),
                        rng.choices(range(150_000), k=60),
                        [-rng.expovariate(3) for _ in range(60)],
                        extends=turn > 0,
                        finish_reason="stop",
                    ),
                    usage=Usage(TOKENS_PER_TURN * (turn + 1), 60),
                    policy_s=rng.random(),
                    env_s=rng.random() / 10,
                )
            )
        yield Episode(
            Task(prompt),
            StopReason.TERMINATED if rng.random() < 0.8 else rng.choice(list(StopReason)),
            float(solved),
            turns,
            initial_messages=[{"role": "system", "content": system}, {"role": "user", "content": prompt}],
            episode_index=number % GROUP,
            provenance={
                "phase": "train0",
                "step": number // (GROUP * 16),
                "attempt": 0,
                "advantage": rng.gauss(0, 1),
                "trained": True,
            },
        )


def main() -> None:
    """Write the page, then load it and use it in a browser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000, metavar="N")
    parser.add_argument("--run", metavar="FOLDER", help="show this run instead")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep the episodes and the page here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out: Path = options.out or Path(folder)
        run = Path(options.run) if options.run else out / "episodes.jsonl"
        if not options.run and not run.exists():
            write_episodes(run, episodes(options.episodes))
        start, cpu = time.perf_counter(), time.process_time()
        view = write_view(run, out / "page.html")
        print(f"written in {time.perf_counter() - start:.1f} s ({time.process_time() - cpu:.1f} s of CPU): {view}")
        with Browser(Path(folder) / "profile") as browser:
            use(browser, view.path)


def use(browser: Browser, page: Path) -> None:
    """Load the page, click through it, and measure the times."""

    def timed(name: str, action: Callable[[], Any]) -> None:
        start = time.perf_counter()
        action()
        print(f"{name}: {time.perf_counter() - start:.2f} s")

    def filter_by(name: str, value: str) -> None:
        """Set a filter; returns when the page has drawn the list."""
        browser.evaluate(
            f"(() => {{ const one = document.querySelector('#filter-{name}'); one.value = {value!r};"
            "one.dispatchEvent(new Event('change')); })()"
        )

    def load() -> None:
        browser.open(page)
        browser.wait("document.documentElement.dataset.ready")

    timed("load", load)
    browser.click("#tab-browse")
    browser.wait("document.querySelector('#detail').dataset.shown === 'episode'")
    timed("filter by stop reason", lambda: filter_by("stop", "terminated"))
    timed("order", lambda: filter_by("order", "best first"))
    filter_by("stop", "")

    def search() -> None:
        browser.click("#filter-deep")
        browser.type("#filter-text", "no such words at all")
        browser.wait("document.querySelector('.count').textContent.startsWith('0 episodes')")

    timed("search in all conversations", search)
    load()
    browser.click("#tab-browse")

    def open_group() -> None:
        browser.click(".modes button", "groups")
        browser.click(".row")
        browser.wait("document.querySelector('#detail').dataset.shown === 'group'")

    timed("list groups and open one", open_group)


if __name__ == "__main__":
    main()

"""Writes the HTML file: template, style and scripts of this package around the data of a run.

The page may run its own script and style and nothing else: its Content-Security-Policy names them by their hash and
forbids every request. The data is base64, so nothing in an episode can end a tag; the scripts insert text only as text.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from llmgym._util.versions import install_hint
from llmgym.errors import ConfigError
from llmgym.viewer.collect import collect
from llmgym.viewer.sources import Source, find_source

MAX_FILE_CHARS = 48_000_000
TOKEN_EPISODES = 200

_SCRIPTS = ("elements.js", "data.js", "charts.js", "overview.js", "conversation.js", "tokens.js", "list.js", "main.js")


@dataclass(frozen=True)
class View:
    """What was written.

    Attributes:
        path: The file.
        num_bytes: Its size.
        num_episodes: Episodes in its list.
        num_conversations: Those whose conversation is in the file; fewer only when it would be too large.
        num_token_views: Those that can be viewed token by token.
        token_texts: Whether tokens are shown as text rather than as ids.
    """

    path: Path
    num_bytes: int
    num_episodes: int
    num_conversations: int
    num_token_views: int
    token_texts: bool


def write_view(
    run: str | Path,
    out: str | Path | None = None,
    *,
    tokenizer: str | None = None,
    token_episodes: int = TOKEN_EPISODES,
    max_chars: int = MAX_FILE_CHARS,
) -> View:
    """Write a run as one HTML file that needs no network.

    Args:
        run: Folder of a training run or an evaluation, or a JSONL file of episodes.
        out: The file, which is overwritten; None takes ``view.html`` in the folder, or the JSONL's name with
            ``.html``.
        tokenizer: Directory or hub name of the tokenizer of the token ids. None takes the last checkpoint's; without a
            tokenizer, tokens are shown as ids.
        token_episodes: The largest number of episodes to show token by token.
        max_chars: The largest size of the file; conversations beyond it are left out, evenly over the run.

    Raises:
        ConfigError: There are no episodes, or there is no such tokenizer.
        RecordError: A line is not an episode.
    """
    if token_episodes < 0:
        raise ConfigError(f"token_episodes must be at least 0, got {token_episodes}")
    source = find_source(run)
    if out is None:
        out = source.path.with_suffix(".html") if source.kind == "episodes" else source.path / "view.html"
    texts = _token_texts(source, tokenizer) if token_episodes else None
    data = collect(source, token_episodes, max_chars - 200_000, texts)
    if not data.num_episodes:
        raise ConfigError(f"{str(run)!r} holds no episode yet")
    blocks = [_block("index", data.index)]
    blocks += [_block(f"chunk-{name}", text) for name, text in data.chunks.items()]
    blocks += [_block(f"tokens-{name}", text) for name, text in data.tokens.items()]
    page = _page(source.name, "\n".join(blocks))
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(page)
    return View(out, len(page), data.num_episodes, data.num_conversations, len(data.tokens), texts is not None)


def _page(title: str, data: str) -> bytes:
    folder = resources.files("llmgym.viewer") / "page"
    style = (folder / "page.css").read_text(encoding="utf-8")
    scripts = "\n".join((folder / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    script = f'\n"use strict";\n(() => {{\n{scripts}\n}})();\n'
    parts = {
        "title": html.escape(title),
        "policy": f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'; "
        "form-action 'none'",
        "style": style,
        "script": script,
        "data": data,
    }
    template = (folder / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template).encode("utf-8", "replace")


def _block(id: str, packed: str) -> str:
    return f'<script type="text/plain" id="{id}">{packed}</script>'


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _token_texts(source: Source, name: str | None) -> Callable[[Sequence[int]], list[str]] | None:
    if name is None and source.checkpoint is None:
        return None
    path = name or str(source.checkpoint)
    try:
        from transformers import AutoTokenizer
    except ImportError:
        if name is None:
            return None
        raise ConfigError(
            f"--tokenizer needs transformers: {install_hint('train')}; without it tokens are shown as ids"
        ) from None
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        if name is None:
            return None
        raise ConfigError(f"cannot load the tokenizer {path!r}: {error}") from error

    def texts(ids: Sequence[int]) -> list[str]:
        return [tokenizer.decode([id], clean_up_tokenization_spaces=False) for id in ids]

    return texts

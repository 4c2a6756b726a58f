"""The folder of models built on this machine, one for each recipe. Knows names and files, no model."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def cached_model(
    name: str, recipe: Mapping[str, Any], build: Callable[[Path], None], *, cache_dir: str | Path | None = None
) -> Path:
    """Return the folder of a built model; build it when this recipe was not built before.

    A build that fails or is interrupted leaves nothing behind, and of two processes that build at once both get
    the folder of the first to finish.

    Args:
        name: Start of the folder's name, such as ``"tiny"``.
        recipe: Everything the result depends on, as JSON values; its hash is the rest of the name.
        build: Writes the model into the empty folder it is given.
        cache_dir: Where built models are; None takes ``$LLMGYM_CACHE``, else ``~/.cache/llmgym``.

    Returns:
        The folder, which holds the recipe as ``recipe.json`` beside what ``build`` wrote.
    """
    text = json.dumps(recipe, sort_keys=True)
    root = Path(cache_dir or os.environ.get("LLMGYM_CACHE") or Path.home() / ".cache" / "llmgym")
    folder = root / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=root))
    try:
        build(unfinished)
        (unfinished / "recipe.json").write_text(text)
        try:
            unfinished.rename(folder)
        except OSError:  # another process was faster: its folder is not empty
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder

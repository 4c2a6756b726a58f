"""The folder of the models built on this machine, one model for each recipe."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from llmgym._util.files import whole_folder
from llmgym_trainer.models.builtin import scripted
from llmgym_trainer.sft import sft


def cached_model(
    name: str, recipe: Mapping[str, Any], build: Callable[[Path], None], *, cache_dir: str | Path | None = None
) -> Path:
    """Return the folder of a built model; build it if this recipe was not built before.

    A build that fails or is interrupted leaves nothing behind. Two processes that build at once both get the folder of
    the first to finish.

    Args:
        name: Start of the folder's name, such as ``"tiny"``.
        recipe: Everything the result depends on, as JSON values; its hash completes the name.
        build: Writes the model into the empty folder it is given.
        cache_dir: Where built models are kept; None takes ``$LLMGYM_CACHE``, else ``~/.cache/llmgym``.

    Returns:
        The folder, which holds the recipe as ``recipe.json`` beside what ``build`` wrote.
    """
    text = json.dumps(recipe, sort_keys=True)
    root = Path(cache_dir or os.environ.get("LLMGYM_CACHE") or Path.home() / ".cache" / "llmgym")
    folder = root / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    try:
        with whole_folder(folder) as unfinished:
            build(unfinished)
            (unfinished / "recipe.json").write_text(text)
    except OSError:  # another process may have been faster
        if not folder.is_dir():
            raise
    return folder


def recipe_key(recipe: Any, seed: int, *code: ModuleType) -> dict[str, Any]:
    """Everything a built-in model depends on, to be given to :func:`cached_model`.

    Args:
        recipe: A dataclass with ``env_id`` and ``flawed_share``.
        seed: See :func:`~llmgym_trainer.models.builtin.scripted.scripted_episodes`.
        code: Modules that build the model. A change in one of them or in the scripted episodes makes another model.
    """
    episodes = scripted.scripted_episodes(recipe.env_id, 8, flawed_share=recipe.flawed_share, seed=seed)
    seen = json.dumps([(episode.tool_specs, episode.messages) for episode in episodes], sort_keys=True)
    source = "".join(inspect.getsource(module) for module in (scripted, sft, *code))
    return {"seed": seed, **asdict(recipe), "built_by": hashlib.sha256((seen + source).encode()).hexdigest()[:12]}

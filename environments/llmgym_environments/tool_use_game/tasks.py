"""The tasks of ToolUseGame-v0. A hash of the table of facts decides the split."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from llmgym import Task
from llmgym_environments.calculator import evaluate
from llmgym_environments.task_generation import TaskGenerator, below, draw, split_of

LEVELS = (1, 2, 3)
WORDS = (
    *("acorn", "amber", "anchor", "apple"),
    *("barn", "basil", "birch", "bread"),
    *("candle", "cedar", "cloud", "coral"),
    *("daisy", "delta", "drum", "dune"),
    *("feather", "fern", "flint", "fox"),
    *("garden", "ginger", "grape", "gull"),
    *("lake", "lemon", "lily", "lion"),
    *("maple", "meadow", "mint", "moss"),
    *("pearl", "pepper", "pine", "plum"),
    *("rain", "reed", "river", "rose"),
    *("sage", "salt", "shell", "stone"),
    *("thorn", "tiger", "tulip", "tower"),
)
_MORE_WORDS = """
actor album alley almond alpine angle ankle antler apron arch armor arrow artist aspen aster atlas autumn avocado
award axle badge bagel balloon bamboo basket beach beetle bell bench berry blanket blossom bottle branch bridge
broom bucket bundle butter button cabin cactus camel canoe carpet castle cherry circle clover coffee comet copper
cotton crayon cricket crystal cup curtain cushion cypress dairy dancer dawn desert diamond dinner dish doctor
dolphin donkey door dragon drawer dream dress drift driver duck dust dynamo falcon farm fence ferry field finch fire
flag flame flower flute foam folder forest fork fossil fountain frame frost fruit gallery game garlic gate gazelle
gem giant giraffe glacier glass globe glove goat gold goose grain gravel grove guest guitar ladder lagoon lamp
lantern laurel lava leaf leather letter lettuce library light lime linen lizard lobster lock lotus lunch lynx magnet
mango marble market mask melon metal mill mirror moon morning moth mountain mouse muffin museum mushroom music
mustard myrtle paddle palace palm panda paper parrot peach pebble pencil penguin piano pigeon pillow planet plate
pocket poem pond poppy pumpkin rabbit radio raft rainbow raisin raven ribbon rice ridge ring road robin rocket roof
root rope ruby ruler rust rye saddle sail sand scarf school seed shadow shelf ship silk silver snow soap sofa spider
spoon spring squirrel star sugar table tailor tea temple tent thistle thread thunder ticket timber toast tomato
torch towel trail train tree trumpet tunnel turtle
"""
LEVEL_3_WORDS = (*WORDS, *_MORE_WORDS.split())
"""24 with each letter: two letters have more of them than may be looked up, so the keys have to be listed."""
OPERATORS = {"plus": "+", "minus": "-", "times": "*"}
_KEY = re.compile(r"[a-z]+")


def fill_in(expression: str, facts: Mapping[str, int]) -> str:
    """Replace the keys in an expression by their numbers: ``"amber+cedar"`` becomes ``"12+34"``."""
    return _KEY.sub(lambda key: str(facts[key.group()]), expression)


def keys_of(expression: str) -> list[str]:
    """The keys in an expression, in their order, each once."""
    return list(dict.fromkeys(_KEY.findall(expression)))


def _stream(rng: random.Random, split: str, level: int) -> Iterator[Task]:
    make = _MAKERS[level]
    while True:
        facts, prompt, expression = make(rng)
        if split_of(json.dumps(facts)) == split:
            target = evaluate(fill_in(expression, facts)).numerator
            yield Task(prompt, target, {"level": level, "facts": facts, "expression": expression})


def _level_1(rng: random.Random) -> tuple[dict[str, int], str, str]:
    facts = _facts(rng, draw(rng, WORDS, 4))
    first, second = draw(rng, list(facts), 2)
    word = draw(rng, ["plus", "minus"], 1)[0]
    if word == "minus" and facts[first] < facts[second]:
        first, second = second, first
    return facts, f"What is {first} {word} {second}?", f"{first}{OPERATORS[word]}{second}"


def _level_2(rng: random.Random) -> tuple[dict[str, int], str, str]:
    facts = _facts(rng, draw(rng, WORDS, 6))
    a, b, c = draw(rng, list(facts), 3)
    inner, outer = draw(rng, list(OPERATORS), 2)
    prompt = f"What is ( {a} {inner} {b} ) {outer} {c}?"
    return facts, prompt, f"({a}{OPERATORS[inner]}{b}){OPERATORS[outer]}{c}"


def _level_3(rng: random.Random) -> tuple[dict[str, int], str, str]:
    letters = draw(rng, sorted({word[0] for word in LEVEL_3_WORDS}), 4)
    groups = [draw(rng, [word for word in LEVEL_3_WORDS if word[0] == letter], 2 + below(rng, 2)) for letter in letters]
    facts = _facts(rng, [word for group in groups for word in group])
    word = draw(rng, list(OPERATORS), 1)[0]
    prompt = (
        f"What is the sum of all keys that begin with {letters[0]} {word} "
        f"the sum of all keys that begin with {letters[1]}?"
    )
    left, right = ("+".join(sorted(group)) for group in groups[:2])
    return facts, prompt, f"({left}){OPERATORS[word]}({right})"


_MAKERS: dict[int, Callable[[random.Random], tuple[dict[str, int], str, str]]] = {1: _level_1, 2: _level_2, 3: _level_3}


def _facts(rng: random.Random, keys: Sequence[str]) -> dict[str, int]:
    return {key: 1 + below(rng, 99) for key in sorted(keys)}


generate_tasks = TaskGenerator("ToolUseGame-v0", LEVELS, _stream)
"""Tasks with a whole number as ``target`` and this ``metadata``: ``level``; ``facts``, the hidden table from key to
whole number, 1 to 99; ``expression``, the solution in terms of keys, such as ``"amber+cedar"``."""

TOOL_USE_GAME_TASKS: tuple[Task, ...] = tuple(generate_tasks("train", level=1, count=64))
"""A small bundled list: the first 64 training tasks of level 1."""

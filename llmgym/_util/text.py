"""Text for people: made safe for a terminal, shortened, compared, and messages as text."""

from __future__ import annotations

from llmgym.messages import Message


def printable(text: str) -> str:
    r"""Escape what a terminal or UTF-8 must not get, such as ``\x1b`` and lone surrogates. Line ends and tabs stay."""
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


def shorten(text: str, limit: int) -> str:
    """The text on one line, cut to ``limit`` characters with an ellipsis."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def first_difference(old: str, new: str, width: int = 100) -> tuple[str, str]:
    """What two different texts say around the first character that differs, ``width`` characters of each."""
    same = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    start = max(0, same - width // 4)
    first, second = (
        ("…" if start else "") + text[start : start + width] + ("…" if len(text) > start + width else "")
        for text in (old, new)
    )
    return first, second


def describe_message(message: Message) -> tuple[str, str]:
    """Title (``"tool lookup"``) and text of a message, safe for a terminal; calls are ``name(json)``."""
    title = f"{message['role']} {message.get('name', '')}".rstrip()
    lines = [f"(reasoning) {message['reasoning_content']}"] if message.get("reasoning_content") else []
    lines += [message["content"]] if message.get("content") else []
    lines += [f"{call['function']['name']}({call['function']['arguments']})" for call in message.get("tool_calls", [])]
    return printable(title), printable("\n".join(lines))


def message_text(message: Message) -> str:
    """A message as one text: ``[title] text``."""
    title, text = describe_message(message)
    return f"[{title}] {text}".rstrip()

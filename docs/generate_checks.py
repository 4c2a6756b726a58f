"""The page of codes: every check of `llmgym check` with what it can report, from llmgym/checking/codes.py."""

from llmgym.checking import CHECKS, Check, Code

HEAD = """\
# Codes of `llmgym check`

Every check and every code it can report. How to run a check, and what the hostile actions are, is in
[checking an environment](../checking.md)."""


def pages() -> dict[str, str]:
    """The page, by its path below docs/."""
    return {"reference/check-codes.md": "\n\n".join([HEAD, *map(_check, CHECKS)]) + "\n"}


def _check(check: Check) -> str:
    return "\n\n".join([f"## {check.name}", f"Passes when {check.title}.", *map(_code, check.codes)])


def _code(code: Code) -> str:
    return f"""\
### `{code.name}`

{code.level.capitalize()}: {code.title}.

- **Sent**: {code.sent}
- **Came back, for example**: {code.example.rstrip(".")}.
- **Why it hurts**: {code.why}
- **How to fix it**: {code.fix}"""

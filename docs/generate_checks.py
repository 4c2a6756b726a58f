"""Writes docs/reference/check-codes.md: every check of `llmgym check` with its codes, from llmgym/checking/codes.py.

python docs/generate_checks.py
"""

from pathlib import Path

from llmgym.checking import CHECKS, Check, Code

PAGE = Path(__file__).parent / "reference" / "check-codes.md"
HEAD = """\
# Codes of `llmgym check`

Every check and every code it can report, written by `python docs/generate_checks.py`: do not edit this page. How to run
a check, and what the hostile actions are, is in [checking an environment](../checking.md)."""


def main(path: Path = PAGE) -> None:
    """Write the page."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n\n".join([HEAD, *map(_check, CHECKS)]) + "\n", encoding="utf-8")


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


if __name__ == "__main__":
    main()

"""Seeds that are the same in every process."""

from __future__ import annotations

import hashlib
from typing import Any


def derive_seed(*parts: Any) -> int:
    """A 64-bit seed from any printable parts, the same in every process (``hash`` is not)."""
    return int.from_bytes(
        hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")).digest()[:8], "big"
    )

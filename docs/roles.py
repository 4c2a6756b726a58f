"""Griffe extension for the reference: Sphinx roles in docstrings become plain code."""

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":(?:class|meth|func|data|attr|mod):`~?([^`]+)`")


class PlainRoles(Extension):
    """Write ``:class:`Task``` as code."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Change the docstring of each object that was loaded."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value)

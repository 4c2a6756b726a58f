"""A run as one HTML file."""

from llmgym.viewer.view import View, write_view

__all__ = ["View", "write_view"]

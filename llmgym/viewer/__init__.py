"""A run as one HTML file. Knows records and run folders; runs no episode."""

from llmgym.viewer.view import View, write_view

__all__ = ["View", "write_view"]

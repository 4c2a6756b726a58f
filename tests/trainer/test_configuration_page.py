import dataclasses
import runpy
from pathlib import Path

from llmgym_trainer import GRPOConfig

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_of_all_settings_is_current():
    """After a change of the configuration: python docs/generate_configuration.py."""
    generated = runpy.run_path(str(DOCS / "generate_configuration.py"))["page"]()
    assert (DOCS / "configuration.md").read_text(encoding="utf-8") == generated


def test_every_setting_is_on_the_page():
    page = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert [field.name for field in dataclasses.fields(GRPOConfig) if f"`{field.name}`" not in page] == []

import dataclasses
import runpy
from pathlib import Path

from llmgym import EvalConfig
from llmgym_trainer import GRPOConfig
from llmgym_trainer.sft.config import SFTConfig

GENERATOR = Path(__file__).parents[2] / "docs" / "generate_configuration.py"


def test_every_setting_is_on_the_page():
    page = runpy.run_path(str(GENERATOR))["pages"]()["configuration.md"]
    fields = [*dataclasses.fields(GRPOConfig), *dataclasses.fields(SFTConfig), *dataclasses.fields(EvalConfig)]
    assert [field.name for field in fields if f"`{field.name}`" not in page] == []

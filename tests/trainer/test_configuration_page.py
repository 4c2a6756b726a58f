import dataclasses
import runpy
from pathlib import Path

from llmgym import EvalConfig
from llmgym_trainer import GRPOConfig

GENERATOR = Path(__file__).parents[2] / "docs" / "generate_configuration.py"


def test_every_setting_of_training_and_evaluation_is_on_the_page():
    page = runpy.run_path(str(GENERATOR))["pages"]()["configuration.md"]
    fields = [*dataclasses.fields(GRPOConfig), *dataclasses.fields(EvalConfig)]
    assert [field.name for field in fields if f"`{field.name}`" not in page] == []

import re
import runpy
from pathlib import Path

import pytest
import torch

GPU_CHECK = Path(__file__).parents[2] / "examples" / "gpu_check.py"


@pytest.mark.slow
def test_the_form_for_a_cpu(capsys):
    torch.set_num_threads(1)
    assert runpy.run_path(str(GPU_CHECK))["main"](["--cpu"]) == 0
    printed = capsys.readouterr().out
    for precision in ("fp32", "bf16"):
        assert f"{precision}: fidelity holds" in printed
    speeds = re.findall(r"([\d,]+) sampled tokens/s, ([\d,]+) trained tokens/s, ([\d.]+) s a step of 8 ", printed)
    assert len(speeds) == 2
    assert all(float(number.replace(",", "")) > 0 for run in speeds for number in run)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert runpy.run_path(str(GPU_CHECK))["main"]([]) == 1
    assert "--cpu" in capsys.readouterr().out

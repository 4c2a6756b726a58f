"""What every test runs under: one thread for each numeric library, no hub, and no skips when asked."""

from __future__ import annotations

import os
import signal
from pathlib import Path

# Before anything imports torch: a second torch process with two threads slows everything many times over.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import pytest

# A shell starts its background jobs with Ctrl-C ignored, and programs inherit that; the tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if os.environ.get("LLMGYM_NO_SKIPS") and terminalreporter.stats.get("skipped"):
        terminalreporter.write_line("skipped tests count as failures because LLMGYM_NO_SKIPS is set", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("LLMGYM_NO_SKIPS") and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a two-layer model that says a few letters a turn, with its tokenizer and the compact template."""
    from toys import build_llama, build_tokenizer, teach_to_stop

    path = tmp_path_factory.mktemp("model")
    tokenizer = build_tokenizer()
    model = build_llama(len(tokenizer))
    teach_to_stop(model, tokenizer)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path

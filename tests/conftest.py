"""What every test runs under: one thread for each numeric library, no hub, and no skips when asked."""

from __future__ import annotations

import os
import signal

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

"""Runs a check in a process of its own, so that an environment that ends or freezes its process is a finding too.

The child writes one JSON object a line: that it has started, a sign of life each second, each call before it is made, the report so far at
the start of each check, and the last report. A thread gives the signs of life: they stop when something holds the
interpreter.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from llmgym import errors
from llmgym.checking.checker import Checker
from llmgym.checking.report import CheckReport, Findings, conclude, report_from_json
from llmgym.checking.worker import LIBRARIES
from llmgym.errors import LLMGymError

ALIVE_S = 1.0
SILENCE_S = 20.0
"""A child that gives no sign of life for so long is frozen."""
START_S = 300.0
"""How long Python and llmgym may take to start in the child, on a busy machine."""
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from llmgym.checking.guard import serve; "
    "serve(json.loads(sys.argv[2]))"
)


def check_guarded(options: Mapping[str, Any], progress: Callable[[str], None]) -> CheckReport:
    """Check an environment in a child process.

    Args:
        options: What :class:`Checker` takes, without ``expert`` and the two callbacks, as JSON values.
        progress: Told what is being done.

    Raises:
        LLMGymError: What :func:`llmgym.check_env` raises.
    """
    with tempfile.TemporaryDirectory() as folder:
        traces = Path(folder) / "traces"
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, json.dumps(sys.path), json.dumps({**options, "traces": str(traces)})],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None  # it is a pipe
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=_pump, args=(child.stdout, lines), daemon=True).start()
        sent, report = "the import of the environment", None
        line = _next(lines, START_S)
        try:
            while line:
                told = json.loads(line)
                if "refused" in told:
                    raise getattr(errors, told["kind"])(told["refused"])
                if "failed" in told:
                    raise RuntimeError(f"llmgym check itself failed; please report it:\n{told['failed']}")
                if "report" in told:
                    report = report_from_json(told["report"])
                if "end" in told:
                    assert report is not None  # it came with the end
                    return report
                sent = told.get("sent", sent)
                if "say" in told:
                    progress(told["say"])
                line = _next(lines, SILENCE_S)
            got = _last_words(child, frozen=line is None, traces=traces)
        finally:
            child.kill()
            child.wait()
    return _cut_short(report or CheckReport(str(options["env"])), sent, got)


def serve(options: dict[str, Any]) -> None:
    """The child's side."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the environment prints must not mix with the answers
    trace_file = open(options.pop("traces"), "w")  # noqa: SIM115 - open until the process ends, for its last words
    faulthandler.enable(trace_file)
    if hasattr(faulthandler, "register"):  # not on Windows
        faulthandler.register(signal.SIGUSR1, trace_file)
    lock = threading.Lock()

    def tell(**what: Any) -> None:
        with lock:
            answers.write(json.dumps(what) + "\n")
            answers.flush()

    def live() -> None:
        while True:
            time.sleep(ALIVE_S)
            tell(alive=True)

    def say(text: str) -> None:
        tell(say=text, report=checker.report().to_json())

    tell(started=True)
    threading.Thread(target=live, daemon=True).start()
    try:
        checker = Checker(**options, expert=None, progress=say, on_call=lambda sent: tell(sent=sent))
        report = checker.run()
    except LLMGymError as error:
        tell(refused=str(error), kind=type(error).__name__)
    except Exception:  # noqa: BLE001 - told to whoever waits
        tell(failed=traceback.format_exc())
    else:
        tell(report=report.to_json(), end=True)
    os._exit(0)  # not waiting for threads that the environment left behind


def _pump(pipe: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    for line in pipe:
        lines.put(line)
    lines.put(b"")


def _next(lines: queue.SimpleQueue[bytes], timeout_s: float) -> bytes | None:
    """The next line; empty when the child is gone, None when it is silent."""
    try:
        return lines.get(timeout=timeout_s)
    except queue.Empty:
        return None


def _last_words(child: subprocess.Popen[bytes], *, frozen: bool, traces: Path) -> str:
    if frozen:
        if hasattr(signal, "SIGUSR1"):
            child.send_signal(signal.SIGUSR1)
            time.sleep(ALIVE_S)
        text = f"the process gave no sign of life for {SILENCE_S:g} s"
    else:
        status = child.wait()
        text = f"the process ended with {signal.Signals(-status).name if status < 0 else f'exit status {status}'}"
    found = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', traces.read_text() if traces.is_file() else "")
    own = [frame for frame in found if not frame[0].startswith(LIBRARIES)]
    with contextlib.suppress(IndexError):
        file, line, name = own[0]
        text += f", at {Path(file).name}:{line} in {name}"
    return text


def _cut_short(report: CheckReport, sent: str, got: str) -> CheckReport:
    """The report so far, and the finding that ended it."""
    findings = Findings(report.findings)
    findings.add("kills-process", sent=sent, got=got)
    done = {check.name: check.detail for check in report.checks if check.status == "passed"}
    reason = "the process ended before"
    skipped = {check.name: check.detail or reason for check in report.checks if check.status == "not checked"}
    report.findings = findings.all()
    report.checks = conclude(report.findings, done, skipped)
    return report

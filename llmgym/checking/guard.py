"""Runs a check in a process of its own, so that an environment that ends or freezes its process is a finding too.

The child writes one JSON object a line: that it has started, a heartbeat, each call before it is made, the report so
far whenever it reports progress, and the final report. A thread writes the heartbeat, which stops when something holds
the interpreter lock.
"""

from __future__ import annotations

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
from llmgym.checking.checker import make_context, report_so_far, run_checks
from llmgym.checking.report import CheckReport, Findings, conclude, report_from_json
from llmgym.checking.worker import LIBRARIES
from llmgym.errors import LLMGymError

HEARTBEAT_S = 0.25
SILENCE_S = 20.0
"""A child without a heartbeat for this long is frozen."""
START_S = 300.0
"""How long Python and llmgym may take to start in the child, on a busy machine."""
TRACE_S = 1.0
"""How long a frozen child may take to write where it stands."""
_CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from llmgym.checking.guard import serve; serve()"


def check_guarded(options: Mapping[str, Any], progress: Callable[[str], None]) -> CheckReport:
    """Check an environment in a child process.

    Args:
        options: Arguments of :func:`llmgym.check_env` but for ``expert`` and ``progress``, as JSON values.
        progress: Told what is being done.

    Raises:
        LLMGymError: What :func:`llmgym.check_env` raises.
    """
    with tempfile.TemporaryDirectory() as folder:
        traces = Path(folder) / "traces"
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, json.dumps(sys.path), json.dumps(options), str(traces)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None  # it is a pipe
        lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        threading.Thread(target=_pump, args=(child.stdout, lines), daemon=True).start()
        sent, report = "the import of the environment", CheckReport(str(options["env"]))
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
                    return report
                sent = told.get("sent", sent)
                if "progress" in told:
                    progress(told["progress"])
                line = _next(lines, SILENCE_S)
            got = _last_words(child, frozen=line is None, traces=traces)
        finally:
            child.kill()
            child.wait()
    findings = Findings(report.findings)
    findings.add("kills-process", sent=sent, got=got)
    report.findings = findings.all()
    ran = {check.name: check for check in report.checks if check.detail}
    report.checks = conclude(report.findings, ran, "the process ended first")
    return report


def serve() -> None:
    """The child's side."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the environment prints must not mix with the answers
    options, traces = json.loads(sys.argv[2]), open(sys.argv[3], "w")  # noqa: SIM115 - open until the process ends
    faulthandler.enable(traces)
    if hasattr(faulthandler, "register"):  # not on Windows
        faulthandler.register(signal.SIGUSR1, traces)
    lock = threading.Lock()

    def tell(**what: Any) -> None:
        with lock:
            answers.write(json.dumps(what) + "\n")
            answers.flush()

    def beat() -> None:
        while True:
            time.sleep(HEARTBEAT_S)
            tell(alive=True)

    def report_progress(text: str) -> None:
        tell(progress=text, report=report_so_far(context).to_json())

    tell(started=True)
    threading.Thread(target=beat, daemon=True).start()
    try:
        context = make_context(**options, progress=report_progress, on_call=lambda sent: tell(sent=sent))
        tell(report=run_checks(context).to_json(), end=True)
    except LLMGymError as error:
        tell(refused=str(error), kind=type(error).__name__)
    except Exception:  # noqa: BLE001 - shown by the parent
        tell(failed=traceback.format_exc())
    os._exit(0)  # without waiting for threads that the environment left behind


def _pump(pipe: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    for line in pipe:
        lines.put(line)
    lines.put(b"")


def _next(lines: queue.SimpleQueue[bytes], timeout_s: float) -> bytes | None:
    """The next line; empty when the child has ended, None when it is silent."""
    try:
        return lines.get(timeout=timeout_s)
    except queue.Empty:
        return None


def _last_words(child: subprocess.Popen[bytes], *, frozen: bool, traces: Path) -> str:
    if frozen:
        if hasattr(signal, "SIGUSR1"):
            child.send_signal(signal.SIGUSR1)
            time.sleep(TRACE_S)
        text = f"the process gave no sign of life for {SILENCE_S:g} s"
    else:
        status = child.wait()
        text = f"the process ended with {signal.Signals(-status).name if status < 0 else f'exit status {status}'}"
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', traces.read_text() if traces.is_file() else "")
    for file, line, name in (frame for frame in frames if not frame[0].startswith(LIBRARIES)):
        return f"{text}, at {Path(file).name}:{line} in {name}"
    return text

"""What a report needs of one episode, its tool errors sorted by type. Knows no other episode."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass

from llmgym.episode import TOOL_ERROR_PREFIX, Episode, StopReason, Usage

_UNKNOWN_TOOL = "(no such tool)"
_ARGUMENTS = re.compile(r"^the arguments (are not|must be)|(: |; )(missing argument|unknown argument|argument) '")
_TIMEOUT = re.compile(r"took longer than [\d.]+ s and was stopped$")
_EXCEPTION = re.compile(r"^(\w+(?:Error|Exception|Exit|Interrupt|Iteration|Warning)): ")


@dataclass
class ToolCount:
    """How often a tool was called, and how often the answer was an error."""

    calls: int = 0
    errors: int = 0


@dataclass(frozen=True)
class EpisodeSummary:
    """What the report needs of one episode; the episode itself, with all its messages, need not be kept."""

    task_id: str
    episode_index: int
    reward: float
    stop_reason: StopReason
    stop_detail: str
    turns: int
    tools: dict[str, ToolCount]
    tool_errors: Counter[str]
    usage: Usage
    turns_without_usage: int
    policy_s: float
    env_s: float
    metrics: dict[str, float]
    environment_sha256: str | None

    @property
    def lost(self) -> bool:
        """Whether the episode failed, so that it says nothing about the policy."""
        return self.stop_reason is StopReason.ERROR


def summarize(episode: Episode) -> EpisodeSummary:
    """Read one episode."""
    tools, errors = _tool_counts(episode)
    usages = [turn.usage for turn in episode.turns]
    return EpisodeSummary(
        task_id=episode.task.id,
        episode_index=episode.episode_index,
        reward=episode.reward,
        stop_reason=episode.stop_reason,
        stop_detail=episode.stop_detail,
        turns=len(episode.turns),
        tools=tools,
        tool_errors=errors,
        usage=sum((usage for usage in usages if usage is not None), Usage(0, 0)),
        turns_without_usage=sum(usage is None for usage in usages),
        policy_s=sum(turn.policy_s for turn in episode.turns),
        env_s=episode.env_s,
        metrics={
            name: float(value)
            for name, value in episode.metrics.items()
            if isinstance(value, (int, float)) and math.isfinite(value)
        },
        environment_sha256=episode.provenance.get("environment_sha256"),
    )


def _tool_counts(episode: Episode) -> tuple[dict[str, ToolCount], Counter[str]]:
    """Calls and errors by tool, and errors by type. Names that the model made up are one entry."""
    known = {spec["function"]["name"] for spec in episode.tool_specs}
    tools: dict[str, ToolCount] = defaultdict(ToolCount)
    errors: Counter[str] = Counter()
    for turn in episode.turns:
        calls = turn.message.get("tool_calls", []) if turn.message is not None else []
        names = {call["id"]: call["function"]["name"] for call in calls}
        for name in names.values():
            tools[name if name in known else _UNKNOWN_TOOL].calls += 1
        for message in turn.observation if not turn.history_edited else []:
            text = message.get("content", "")
            if message["role"] != "tool" or not text.startswith(TOOL_ERROR_PREFIX):
                continue
            name = names.get(message.get("tool_call_id", ""), message.get("name", ""))
            unknown = bool(name) and name not in known
            if name:
                tools[_UNKNOWN_TOOL if unknown else name].errors += 1
            errors[_error_type(text.removeprefix(TOOL_ERROR_PREFIX).strip(), unknown=unknown)] += 1
    return dict(tools), errors


def _error_type(text: str, *, unknown: bool) -> str:
    if text.startswith("not run, an earlier call ended"):
        return "not run, the episode had ended"
    if unknown:
        return "no such tool"
    if _ARGUMENTS.search(text):
        return "wrong arguments"
    if _TIMEOUT.search(text):
        return "timeout"
    exception = _EXCEPTION.match(text)
    return exception[1] if exception else "reported by the tool"

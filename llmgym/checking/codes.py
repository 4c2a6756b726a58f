"""What ``llmgym check`` can find: every check and every code, with its reason and its remedy. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """Training or evaluation goes wrong; the exit status is 1."""
    WARNING = "warning"
    """Right for some environments, a mistake in most; fails with ``--strict`` only."""


@dataclass(frozen=True)
class Code:
    """One kind of finding.

    Attributes:
        name: The code.
        level: Error or warning.
        title: What is wrong, in half a sentence.
        why: Why it hurts training.
        mend: How to mend it.
    """

    name: str
    level: Level
    title: str
    why: str
    mend: str


@dataclass(frozen=True)
class Check:
    """One check and the codes it can raise.

    Attributes:
        name: Its name in the report.
        title: What holds when it passes.
        codes: The kinds of findings that make it fail or warn.
    """

    name: str
    title: str
    codes: tuple[Code, ...]


def _error(name: str, title: str, why: str, mend: str) -> Code:
    return Code(name, Level.ERROR, title, why, mend)


def _warning(name: str, title: str, why: str, mend: str) -> Code:
    return Code(name, Level.WARNING, title, why, mend)


CHECKS: tuple[Check, ...] = (
    Check(
        "tasks",
        "tasks load, each has an id of its own, and no two splits share one",
        (
            _error(
                "tasks-fail",
                "the tasks cannot be loaded",
                "Without tasks nothing runs, and a task function that fails for one split stops a run at its first "
                "validation.",
                "Return a list of llmgym.Task for each of train, val and test, or raise TaskError for a split that "
                "does not exist.",
            ),
            _error(
                "duplicate-task-ids",
                "two different tasks have one id",
                "Episodes are grouped by task id: the rewards of two tasks would form one group, and every advantage "
                "in it would be wrong.",
                "Leave the id empty, so that it is a hash of the task, or make it unique.",
            ),
            _error(
                "splits-overlap",
                "two splits share a task",
                "The held-out score counts what was trained on, so it no longer says whether the policy generalises.",
                "Assign each task to a split by a hash of its content, not by chance or by position.",
            ),
        ),
    ),
    Check(
        "episode",
        "an episode begins, takes valid calls and a plain reply, and answers in the right types",
        (
            _error(
                "build-fails",
                "the environment cannot be made",
                "Every episode needs a fresh environment; none would begin.",
                "Make the class constructible without arguments, or give a function task -> Env.",
            ),
            _error(
                "reset-raises",
                "reset raised",
                "The episode is an error: it is dropped, and its group shrinks or vanishes.",
                "Let reset succeed for every task of every split; refuse bad tasks when they are generated.",
            ),
            _error(
                "opening-invalid",
                "reset returned no opening messages",
                "There is nothing to build a prompt from.",
                "Return a list with at least one chat message, such as [{'role': 'user', 'content': task.prompt}].",
            ),
            _error(
                "step-raises",
                "step raised on a valid call or a plain reply",
                "The episode is an error: what the policy did well in it is thrown away.",
                "Answer a failing call with a tool message that begins with 'tool_error:'; ToolEnv does so for "
                "whatever a tool raises.",
            ),
            _error(
                "step-result",
                "step returned something that is no proper StepResult",
                "The episode is an error and is dropped.",
                "Return StepResult(terminated, truncated, messages, reward, metrics): booleans, a list of chat "
                "messages, a number, and a dictionary from names to numbers, booleans or strings.",
            ),
        ),
    ),
    Check(
        "tool-specs",
        "tool specifications are valid and the same through the episode",
        (
            _error(
                "tool-spec-invalid",
                "a tool specification is malformed",
                "Chat templates and hosted endpoints refuse it or render nonsense, and the model cannot know how to "
                "call the tool.",
                "Build it with llmgym.tool_to_spec or the @tool decorator.",
            ),
            _error(
                "tool-spec-unstable",
                "the tool specifications change within the episode",
                "They stand at the front of the prompt: a change breaks the prefix, and the tokens trained are no "
                "longer those that were sampled.",
                "Offer the same tools, in the same order, from reset to the end; refuse a tool that is not allowed "
                "yet with a tool error.",
            ),
        ),
    ),
    Check(
        "hostile-actions",
        "no action a model could write makes step raise",
        (
            _error(
                "hostile-action-raises",
                "step raised on an action that a model could write",
                "An untrained model writes such actions all the time. The episode is dropped as an error instead of "
                "being scored, so the policy never learns not to.",
                "Treat everything in the message as text from a stranger: parse it in a try block and answer with a "
                "tool message that begins with 'tool_error:'.",
            ),
        ),
    ),
    Check(
        "hostile-results",
        "no text a tool could return makes step raise",
        (
            _error(
                "hostile-result-raises",
                "step raised on a text that a tool could return",
                "Results quote what the policy or the world wrote. Such an episode is dropped as an error, and a policy "
                "that can bring it about escapes its low reward.",
                "Pass the text of a result on as it is; do not encode, parse or format it outside of a try block.",
            ),
        ),
    ),
    Check(
        "tool-results",
        "every call of a message is answered, in order, with its id",
        (
            _error(
                "calls-unanswered",
                "tool calls are not answered one for one",
                "The model learns from the result of another call, and hosted endpoints refuse a history with an open "
                "call.",
                "Append one tool message a call, in the order of the calls, with its tool_call_id; key nothing by "
                "the tool's name.",
            ),
        ),
    ),
    Check(
        "history",
        "the history is handed out as copies, keeps the policy's messages, and reads the same everywhere",
        (
            _error(
                "history-aliased",
                "changing a message that was handed out or in changes the environment",
                "A driver that trims, renders or annotates what it got rewrites the conversation that is trained on.",
                "Return copies: [copy_message(message) for message in self._messages], and keep a copy of what step "
                "receives.",
            ),
            _error(
                "history-mismatch",
                "env.messages is not what reset or step returned",
                "The record, the prompt and the environment's own view of the episode then differ.",
                "Keep one list and return copies of it from reset, step and messages.",
            ),
            _warning(
                "history-edited",
                "step changed earlier messages instead of only adding to them",
                "Each edit starts a new training row and a new prefill of the whole prompt, and what the policy wrote "
                "may be missing from what follows.",
                "Only append. When you shorten the history on purpose, ignore this warning.",
            ),
        ),
    ),
    Check(
        "rewards",
        "rewards are finite and come with the step that ends the episode",
        (
            _error(
                "reward-not-finite",
                "the reward is NaN or infinite",
                "One such reward turns the mean, the advantages and then the weights into NaN.",
                "Guard divisions and logarithms in the score; 0.0 is a fine reward for what cannot be scored.",
            ),
            _warning(
                "intermediate-reward",
                "a step that does not end the episode has a reward",
                "The trainer reads the reward of the last step only, unless told to use per-turn rewards: this one "
                "is lost.",
                "Add rewards up and return the sum with the last step, or train with per-turn rewards.",
            ),
        ),
    ),
    Check(
        "time",
        "every call comes back, can be cut, and leaves the event loop free",
        (
            _error(
                "call-hangs",
                "a call of the environment did not come back in time",
                "The episode waits until its time is used up and then scores 0; the whole batch waits with it.",
                "Give everything that waits (network, processes, locks) a timeout of its own and answer with a tool "
                "error.",
            ),
            _error(
                "blocks-event-loop",
                "a call blocks the event loop",
                "All episodes share one event loop: while this call runs, every other episode stands still, and no "
                "timeout can cut it.",
                "Await instead of blocking, or run the blocking part in a thread: a plain (not async) @tool function "
                "gets one, elsewhere use asyncio.to_thread.",
            ),
            _error(
                "ignores-cancellation",
                "a call goes on after it was cancelled",
                "A timeout ends an episode by cancelling it. This one cannot be ended, and the run waits for it for "
                "ever.",
                "Let asyncio.CancelledError pass: catch Exception, never BaseException or everything.",
            ),
            _error(
                "kills-process",
                "the environment killed or froze its whole process",
                "All episodes of the run die with it, and so does the trainer.",
                "Run what may crash, exit or compute without end in a process of its own: @tool(isolated=True).",
            ),
        ),
    ),
    Check(
        "tool-dispatch",
        "a hanging tool is cut by its timeout, and a slow synchronous tool blocks nobody",
        (
            _error(
                "hanging-tool",
                "a hanging tool is not cut",
                "One call that never returns holds its episode until the episode's whole time is gone, and with it "
                "the batch.",
                "Set tool_timeout_s to a number of seconds, and run tools within it.",
            ),
        ),
    ),
    Check(
        "reproducible",
        "the same task, seed and actions give the same episode, also as a replay of its record",
        (
            _error(
                "not-reproducible",
                "the same task, seed and actions gave another episode",
                "A group compares episodes of one task, which are then no longer of one task; a run cannot be "
                "repeated or resumed, and a record cannot be replayed.",
                "Draw chance from self.rng only, keep clocks and ids out of messages, and leave nothing from one "
                "episode to the next.",
            ),
        ),
    ),
    Check(
        "other-process",
        "a record replays in another process",
        (
            _error(
                "process-dependent",
                "the episode comes out differently in another process",
                "Workers, resumed runs and evaluations are other processes: they would see other tasks than were "
                "trained on.",
                "Sort sets before they become text, and use hashlib instead of hash(), which differs from process "
                "to process.",
            ),
        ),
    ),
    Check(
        "interleaved",
        "episodes that run at the same time do not touch each other",
        (
            _error(
                "shared-state",
                "an episode comes out differently when others run beside it",
                "In training all episodes of a batch run at the same time: they would read each other's state, and "
                "rewards would go to the wrong policy turn.",
                "Keep the state of an episode on the object, made new in reset: no class attributes, module globals, "
                "shared files or global seeds.",
            ),
        ),
    ),
    Check(
        "close",
        "close works after every kind of end and frees what the episode opened",
        (
            _error(
                "close-raises",
                "close raised",
                "What it should have freed stays open; after thousands of episodes the machine has no more of it.",
                "Let close work after any end: before reset, after a reset or step that was cut, and in mid-episode.",
            ),
            _warning(
                "close-leaks",
                "something stays open after close",
                "Training closes thousands of episodes; files, threads or background tasks left by each exhaust the "
                "process.",
                "Free in close whatever reset or a tool opened, and wait until it is gone.",
            ),
        ),
    ),
    Check(
        "expert",
        "the scripted expert solves its tasks",
        (
            _error(
                "expert-fails",
                "the scripted expert does not solve a task",
                "Either the task cannot be solved, or the reward does not see that it was: no policy can learn it.",
                "Replay the episode and mend the task, the score or the expert.",
            ),
        ),
    ),
    Check(
        "do-nothing",
        "a policy that does nothing earns nothing",
        (
            _error(
                "do-nothing-scores",
                "an empty reply earns a reward",
                "Doing nothing is the easiest policy to learn: where it pays, it is what training finds.",
                "Compare answers as a whole and after a check that there is one: an empty string is part of every "
                "string and equals an empty target.",
            ),
        ),
    ),
)

CODES: dict[str, Code] = {code.name: code for check in CHECKS for code in check.codes}

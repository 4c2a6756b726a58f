"""Everything ``llmgym check`` can find: each check with its codes, and for each code the reason and the fix.

The report prints these texts, and ``docs/generate_checks.py`` writes the page of codes from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """Training or evaluation goes wrong; the exit status is 1."""
    WARNING = "warning"
    """Intended in some environments, a mistake in most; fails with ``--strict`` only."""


@dataclass(frozen=True)
class Code:
    """One kind of finding.

    Attributes:
        name: The code.
        level: Error or warning.
        title: What is wrong, in half a sentence.
        sent: What the check sends, in Markdown.
        example: What comes back from a faulty environment, in Markdown.
        why: Why it hurts training.
        fix: How to fix it.
    """

    name: str
    level: Level
    title: str
    sent: str
    example: str
    why: str
    fix: str


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


CHECKS: tuple[Check, ...] = (
    Check(
        "tasks",
        "tasks load, every id is unique, and no two splits share a task",
        (
            Code(
                "tasks-fail",
                Level.ERROR,
                "the tasks cannot be loaded",
                sent="A call of the task function for each split, or a task file.",
                example="`ValueError: no network (my_tasks.py:12 in generate)`",
                why="Nothing runs without tasks, and a task function that fails for one split stops a run at its first "
                "validation.",
                fix="Return a list of llmgym.Task for each of train, val and test, or raise TaskError for a split that "
                "does not exist.",
            ),
            Code(
                "duplicate-task-ids",
                Level.ERROR,
                "two different tasks have the same id",
                sent="A call of the task function for each split, or a task file.",
                example="`two different tasks have the id 'x'; leave ids empty or make them unique`",
                why="Episodes are grouped by task id: the rewards of two tasks would form one group, and every "
                "advantage in it would be wrong.",
                fix="Leave the id empty, so that it becomes a hash of the task, or make it unique.",
            ),
            Code(
                "splits-overlap",
                Level.ERROR,
                "two splits share a task",
                sent="Nothing: ids and contents of all splits are compared.",
                example="`200 of 200 tasks of 'val' are also in 'train', such as '48dc3697baf0111b': 'What is 1 + 2?'`",
                why="The held-out score counts tasks that were trained on, so it no longer measures generalisation.",
                fix="Assign each task to a split by a hash of its content, not at random or by position.",
            ),
        ),
    ),
    Check(
        "episode",
        "an episode starts, accepts valid calls and a plain reply, and returns the right types",
        (
            Code(
                "build-fails",
                Level.ERROR,
                "the environment cannot be constructed",
                sent="A request for a fresh environment.",
                example="`OSError: no licence (env.py:9 in __init__)`, or an object that is not an `Env`",
                why="Every episode needs a fresh environment; none would start.",
                fix="Make the class constructible without arguments, or give a function task -> Env.",
            ),
            Code(
                "reset-raises",
                Level.ERROR,
                "reset raised an exception",
                sent="`reset(task)`.",
                example="`KeyError: 'facts' (env.py:21 in setup)`",
                why="The episode counts as an error and is dropped, so its group shrinks or vanishes.",
                fix="Make reset succeed for every task of every split; reject bad tasks when they are generated.",
            ),
            Code(
                "opening-invalid",
                Level.ERROR,
                "reset did not return valid opening messages",
                sent="`reset(task)`.",
                example="an empty list, a string, or dictionaries without a role",
                why="There is nothing to build a prompt from.",
                fix="Return a list of at least one chat message, such as [{'role': 'user', 'content': task.prompt}].",
            ),
            Code(
                "step-raises",
                Level.ERROR,
                "step raised an exception on a valid call or a plain reply",
                sent="A call of each tool with arguments that fit its schema, a message with two calls, then the "
                "reply `0`.",
                example="`ZeroDivisionError: division by zero (env.py:40 in run)`",
                why="The episode counts as an error, and whatever the policy did well in it is thrown away.",
                fix="Answer a failing call with a tool message that starts with 'tool_error:'; ToolEnv does this for "
                "any exception a tool raises.",
            ),
            Code(
                "step-result",
                Level.ERROR,
                "step did not return a valid StepResult",
                sent="A call of each tool with arguments that fit its schema, a message with two calls, then the "
                "reply `0`.",
                example="a tuple, metrics that hold a list, a reward that is a string, or invalid messages",
                why="The episode counts as an error and is dropped.",
                fix="Return StepResult(terminated, truncated, messages, reward, metrics): two booleans, a list of chat "
                "messages, a number, and a dictionary from names to numbers, booleans or strings.",
            ),
        ),
    ),
    Check(
        "tool-specs",
        "tool specifications are valid and stay the same throughout the episode",
        (
            Code(
                "tool-spec-invalid",
                Level.ERROR,
                "a tool specification is malformed",
                sent="Nothing: `tool_specs` is read after `reset` and after each step.",
                example="`the name of entry 0 must be 1 to 64 of a-z A-Z 0-9 _ -, got None`",
                why="Chat templates and hosted endpoints reject it or render nonsense, and the model cannot know how "
                "to call the tool.",
                fix="Build it with llmgym.tool_to_spec or the @tool decorator.",
            ),
            Code(
                "tool-spec-unstable",
                Level.ERROR,
                "the tool specifications change during the episode",
                sent="Nothing: `tool_specs` is read after `reset` and after each step.",
                example='`first [{…"add"…}], then []`',
                why="They stand at the front of the prompt: a change breaks the prefix, and the tokens that are "
                "trained are no longer the ones that were sampled.",
                fix="Offer the same tools in the same order throughout the episode; answer a call that is not allowed "
                "yet with a tool error.",
            ),
        ),
    ),
    Check(
        "hostile-actions",
        "no action that a model could write makes step raise",
        (
            Code(
                "hostile-action-raises",
                Level.ERROR,
                "step raised an exception on an action that a model could write",
                sent='Each hostile action, such as a call with the arguments `{"key": "val`.',
                example="`JSONDecodeError: Unterminated string starting at … (env.py:31 in run)`",
                why="Untrained models write such actions all the time. The episode is dropped as an error instead of "
                "being scored, so the policy never learns to avoid them.",
                fix="Treat everything in the message as untrusted text: parse it in a try block and answer with a tool "
                "message that starts with 'tool_error:'.",
            ),
        ),
    ),
    Check(
        "hostile-results",
        "no text that a tool could return makes step raise",
        (
            Code(
                "hostile-result-raises",
                Level.ERROR,
                "step raised an exception on a text that a tool could return",
                sent="Calls of a tool that the check adds to a `ToolEnv` and that returns each hostile content in "
                "turn, chat-template markers included.",
                example="`UnicodeEncodeError: … surrogates not allowed (env.py:44 in _run)`",
                why="Tool results quote text from the policy or the outside world. Such an episode is dropped as an "
                "error, so a policy that provokes it escapes its low reward.",
                fix="Pass the text of a result on unchanged; do not encode, parse or format it outside a try block.",
            ),
        ),
    ),
    Check(
        "tool-results",
        "every call in a message is answered, in order, with its id",
        (
            Code(
                "calls-unanswered",
                Level.ERROR,
                "tool calls are not answered one for one",
                sent="One message with two calls, with the ids `first` and `second`.",
                example="`calls with the ids ['first', 'second'], results for the ids ['second']`",
                why="The model learns from the result of another call, and hosted endpoints reject a history with an "
                "unanswered call.",
                fix="Append one tool message per call, in the order of the calls, with its tool_call_id; do not use "
                "the tool's name as a key.",
            ),
        ),
    ),
    Check(
        "history",
        "the history is returned as copies, keeps the policy's messages, and reads the same everywhere",
        (
            Code(
                "history-aliased",
                Level.ERROR,
                "changing a message outside the environment changes the environment",
                sent="A change to the list from `env.messages`, `reset` or `step`, to the messages in it, or to the "
                "message that was passed to `step`.",
                example="`message 0 of env.messages changed with it`",
                why="A driver that trims, renders or annotates the messages it received rewrites the conversation that "
                "is trained on.",
                fix="Return copies: [copy_message(message) for message in self._messages], and keep a copy of the "
                "message that step receives.",
            ),
            Code(
                "history-mismatch",
                Level.ERROR,
                "env.messages differs from what reset or step returned",
                sent="Nothing: `env.messages` is read after `reset` and after each step.",
                example="`2 messages, returned were 3`",
                why="The record, the prompt and the environment's own view of the episode disagree.",
                fix="Keep one list and return copies of it from reset, step and messages.",
            ),
            Code(
                "history-edited",
                Level.WARNING,
                "step changed earlier messages instead of only appending",
                sent="Any step.",
                example="`message 1 was {'role': 'assistant', …} and is now {'role': 'tool', …}`",
                why="Each edit starts a new training row and a new prefill of the whole prompt, and what the policy "
                "wrote may be missing from later prompts.",
                fix="Only append. If you shorten the history on purpose, ignore this warning.",
            ),
        ),
    ),
    Check(
        "rewards",
        "rewards are finite and come with the step that ends the episode",
        (
            Code(
                "reward-not-finite",
                Level.ERROR,
                "the reward is NaN or infinite",
                sent="Any step.",
                example="`reward nan`",
                why="One such reward turns the mean, the advantages and then the weights into NaN.",
                fix="Guard divisions and logarithms in the score; 0.0 is a fine reward for an answer that cannot be "
                "scored.",
            ),
            Code(
                "intermediate-reward",
                Level.WARNING,
                "a step that does not end the episode has a reward",
                sent="Any step that does not end the episode.",
                example="`reward 0.1, terminated=False, truncated=False`",
                why="The trainer reads the reward of the last step only, unless per-turn rewards are on: this one is "
                "ignored.",
                fix="Return the sum of the rewards with the last step, or train with per-turn rewards.",
            ),
        ),
    ),
    Check(
        "time",
        "every call returns, can be cancelled, and leaves the event loop free",
        (
            Code(
                "call-hangs",
                Level.ERROR,
                "a call of the environment did not return in time",
                sent="Any call of `reset`, `step` or `close`.",
                example="`nothing within 30 s`",
                why="The episode waits until its time is used up and then scores 0; the whole batch waits with it.",
                fix="Give everything that waits (network, processes, locks) a timeout of its own and answer with a "
                "tool error.",
            ),
            Code(
                "blocks-event-loop",
                Level.ERROR,
                "a call blocks the event loop",
                sent="Any such call, and a synchronous tool of 0.6 s that the check adds to a `ToolEnv`; a clock on "
                "the same loop must keep ticking.",
                example="`the event loop stood still for a quarter of a second or longer, at env.py:52 in search: "
                "time.sleep(2)`",
                why="All episodes share one event loop: while this call runs, every other episode stands still, and no "
                "timeout can interrupt it.",
                fix="Await instead of blocking, or run the blocking part in a thread: a plain (not async) @tool "
                "function gets one automatically, elsewhere use asyncio.to_thread.",
            ),
            Code(
                "ignores-cancellation",
                Level.ERROR,
                "a call continues after it was cancelled",
                sent="A cancellation, once the time limit of a call is over.",
                example="the call continues",
                why="A timeout ends an episode by cancelling it. This one cannot be ended, and the run waits for it "
                "forever.",
                fix="Let asyncio.CancelledError propagate: catch Exception, never BaseException or everything.",
            ),
            Code(
                "kills-process",
                Level.ERROR,
                "the environment killed or froze its whole process",
                sent="Any call; found by the command `llmgym check`, not by `check_env`, which shares the process.",
                example="`the process ended with exit status 3`, `… with SIGSEGV`, or `the process gave no sign of "
                "life for 20 s, at env.py:31 in score`",
                why="All episodes of the run die with it, and so does the trainer.",
                fix="Run whatever may crash, exit or compute without end in a process of its own: "
                "@tool(isolated=True).",
            ),
        ),
    ),
    Check(
        "tool-dispatch",
        "a hanging tool is stopped by its timeout, and a slow synchronous tool does not block the loop",
        (
            Code(
                "hanging-tool",
                Level.ERROR,
                "a hanging tool is not stopped",
                sent="A call of a tool that never returns, which the check adds to a `ToolEnv` with "
                "`tool_timeout_s = 0.2`.",
                example="`nothing within 5 s`, or `None: tools may take forever`",
                why="One call that never returns holds its episode until the episode's whole time is used up, and the "
                "batch with it.",
                fix="Set tool_timeout_s to a number of seconds, and enforce it when tools run.",
            ),
        ),
    ),
    Check(
        "reproducible",
        "the same task, seed and actions give the same episode, and its record replays",
        (
            Code(
                "not-reproducible",
                Level.ERROR,
                "the same task, seed and actions gave a different episode",
                sent="Valid calls, and the expert's actions if there is an expert, twice from one seed, then a replay "
                "of the record.",
                example="`turn 0 observation: recorded …draw 0.71…, replayed …draw 0.13…`",
                why="A group compares episodes that are supposed to share one task; a run cannot be repeated or "
                "resumed, and a record cannot be replayed.",
                fix="Use self.rng as the only source of randomness, keep clock times and random ids out of messages, "
                "and carry nothing over from one episode to the next.",
            ),
        ),
    ),
    Check(
        "other-process",
        "a record replays in another process",
        (
            Code(
                "process-dependent",
                Level.ERROR,
                "the episode is different in another process",
                sent="The same records, to replay in two processes with different `PYTHONHASHSEED`.",
                example="`initial_messages: recorded …{'pear', 'apple'}…, replayed …{'apple', 'pear'}…`",
                why="Workers, resumed runs and evaluations are other processes: their tasks would differ from the ones "
                "that were trained on.",
                fix="Sort sets before they become text, and use hashlib instead of hash(), which differs between "
                "processes.",
            ),
        ),
    ),
    Check(
        "interleaved",
        "episodes that run at the same time do not affect each other",
        (
            Code(
                "shared-state",
                Level.ERROR,
                "an episode is different when others run beside it",
                sent="Three episodes, two of them of one task, one after the other, then the same three step by step "
                "in turn.",
                example="`alone …What is 1 + 2?…; beside others …What is 2 + 2?…`",
                why="In training all episodes of a batch run at the same time: they would read each other's state, and "
                "rewards would go to the wrong policy turn.",
                fix="Keep the state of an episode on the object, created in reset: no class attributes, module "
                "globals, shared files or global seeds.",
            ),
        ),
    ),
    Check(
        "close",
        "close works however the episode ended and frees what the episode opened",
        (
            Code(
                "close-raises",
                Level.ERROR,
                "close raised an exception",
                sent="`close()` before `reset`, after a cancelled `reset`, after `reset`, in mid-episode, after a "
                "cancelled `step`, after the end, and after every call that failed in other checks.",
                example="`AttributeError: session (env.py:60 in close)`",
                why="What it should have freed stays open; after thousands of episodes the machine runs out of it.",
                fix="Make close work at any point: before reset, after a cancelled reset or step, and in mid-episode.",
            ),
            Code(
                "close-leaks",
                Level.WARNING,
                "something stays open after close",
                sent="Eight whole episodes, each closed; open files, threads and tasks are counted before and two "
                "seconds after.",
                example="`8 more open files`",
                why="Training closes thousands of episodes; files, threads or background tasks that each leaves behind "
                "exhaust the process.",
                fix="Free in close whatever reset or a tool opened, and wait until it is gone.",
            ),
        ),
    ),
    Check(
        "expert",
        "the scripted expert solves its tasks",
        (
            Code(
                "expert-fails",
                Level.ERROR,
                "the scripted expert does not solve a task",
                sent="The expert's actions for each task.",
                example="`max_turns '100 assistant turns ran', reward 0`",
                why="Either the task cannot be solved, or the reward does not notice that it was: no policy can "
                "learn it.",
                fix="Replay the episode and fix the task, the score or the expert.",
            ),
        ),
    ),
    Check(
        "do-nothing",
        "a policy that does nothing earns nothing",
        (
            Code(
                "do-nothing-scores",
                Level.ERROR,
                "an empty reply earns a reward",
                sent="Empty messages only, at most eight.",
                example="`reward 1, terminated`",
                why="Doing nothing is the easiest policy to learn: if it pays, training will find it.",
                fix="Compare answers as a whole, and check first that there is one: an empty string is part of every "
                "string and equals an empty target.",
            ),
        ),
    ),
)

CODES: dict[str, Code] = {code.name: code for check in CHECKS for code in check.codes}

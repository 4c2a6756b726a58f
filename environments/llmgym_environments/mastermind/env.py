"""The environment Mastermind-v0: break a code in few guesses."""

from __future__ import annotations

from llmgym import Env, Message, StepResult, Task, ToolSpec, normalize_message
from llmgym.episode import TOOL_ERROR_PREFIX
from llmgym.errors import TaskError
from llmgym.messages import copy_message, tool_message
from llmgym_environments.mastermind.tasks import compare

SYSTEM_PROMPT = (
    "Break the code. Each reply is one guess: its colours in order and nothing else. "
    "exact: right colour, right place. misplaced: right colour, wrong place."
)


class MastermindEnv(Env):
    """
    ## Description
    A task hides a code of colours; the policy guesses, is told how much is right, and guesses again, as few times as
    it can. There are no tools: the text of a message is the action, and what counts is a plan over many turns.

    | level | code | colours | codes | guesses | par |
    | --- | --- | --- | --- | --- | --- |
    | 1 | 2 places, none twice | 4 | 12 | 6 | 3 |
    | 2 | 3 places, none twice | 5 | 60 | 8 | 4 |
    | 3 | 4 places, colours may repeat | 6 | 1296 | 10 | 6 |

    The colours of a task are drawn from 28, in any order; they stand in a guess as they stand in the question.

    ## Tools
    None. A message with tool calls is no guess: each call is answered with `tool_error: …`.

    ## Observation
    The opening is a system message, which says how to play, and a user message with the colours. Each guess adds one
    user message: `1 exact, 0 misplaced, 5 left`. `exact` counts right colours in the right place, `misplaced` further
    right colours in a wrong place, `left` the guesses that are left. A message that is no guess is told what a guess is
    and uses one up.

    ## Action
    One assistant message. Its whole content is a guess: as many of the task's colours as the code has places, separated
    by blanks or commas, in capitals or not. A guess may hold a colour twice, also where the code does not.

    ## Rewards
    Breaking the code within par earns 1.0. Each guess over par costs the same part of it, and the last guess allowed
    still earns that part: at level 1 the reward is 1.0 for 1 to 3 guesses, then 0.75, 0.5 and 0.25. A code that is not
    broken earns 0.0. Par is what the scripted expert needs in the worst case: a lucky guess earns no more.

    ## Episode End
    1. Termination: a guess is the code.
    2. Termination: the guesses are used up.
    3. Truncation: none by the environment; limits on turns and tokens belong to whoever drives it.

    ## Arguments
    None. Tasks take `level`, `count` and `seed` (:class:`~llmgym_environments.task_generation.TaskGenerator`); splits
    never share a set of colours, whatever the seeds.

    ## Metrics
    - `turns`: assistant messages, each of which used up a guess.
    - `broken`: whether the code was broken.
    - `malformed`: messages that were no guess.
    - `wasted`: guesses that an earlier answer had already ruled out.
    - `best_exact`: the largest share of places that one guess had exact, from 0 to 1.

    ## Version History
    - v0: first version.
    """

    async def reset(self, task: Task) -> list[Message]:
        """Begin the episode. Raises :class:`TaskError` when the task is out of shape."""
        colours, code = task.metadata.get("colours"), str(task.target).split()
        if not isinstance(colours, list) or not code or not set(code) <= set(colours):
            raise TaskError(
                "a task needs metadata['colours'], a list of words, and a target of some of them, such as 'red blue'; "
                f"got {colours!r:.80} and {task.target!r:.80}"
            )
        par, allowed = task.metadata.get("par"), task.metadata.get("guesses")
        if not isinstance(allowed, int) or not isinstance(par, int) or not 1 <= par <= allowed:
            raise TaskError(
                "metadata['par'] and metadata['guesses'] must be whole numbers, 1 <= par <= guesses; "
                f"got {par!r:.80} and {allowed!r:.80}"
            )
        self._colours, self._code, self._par, self._allowed = frozenset(colours), code, par, allowed
        self._answers: list[tuple[list[str], tuple[int, int]]] = []
        self._turns = self._wasted = 0
        self._ended = False
        self._messages: list[Message] = [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": task.prompt},
        ]
        return self.messages

    async def step(self, message: Message) -> StepResult:
        """Answer one guess."""
        if self._ended:
            raise RuntimeError("the episode has ended; call reset before the next step")
        message = normalize_message(message, role="assistant", call_id_prefix=f"call_{self._turns}_")
        self._turns += 1
        self._messages.append(message)
        guess = self.read_guess(message)
        left = self._allowed - self._turns
        broken = guess == self._code
        if guess is None:
            said = f"no guess: write {len(self._code)} of the colours and nothing else, {left} left"
            calls = message.get("tool_calls", [])
            self._messages += [tool_message(call, f"{TOOL_ERROR_PREFIX} there are no tools") for call in calls]
        else:
            exact, misplaced = answer = compare(guess, self._code)
            said = f"{exact} exact, {misplaced} misplaced, {left} left"
            self._wasted += any(compare(guess, earlier) != seen for earlier, seen in self._answers)
            self._answers.append((guess, answer))
        self._messages.append({"role": "user", "content": said})
        self._ended = broken or left == 0
        if not self._ended:
            return StepResult(False, False, self.messages)
        reward = min(1.0, (left + 1) / (self._allowed - self._par + 1)) if broken else 0.0
        metrics = {
            "turns": self._turns,
            "broken": broken,
            "malformed": self._turns - len(self._answers),
            "wasted": self._wasted,
            "best_exact": max((exact for _, (exact, _) in self._answers), default=0) / len(self._code),
        }
        return StepResult(True, False, self.messages, reward, metrics)

    def read_guess(self, message: Message) -> list[str] | None:
        """The colours that a message guesses; None when it is no guess."""
        guess = message["content"].lower().replace(",", " ").split()
        if message.get("tool_calls") or len(guess) != len(self._code) or not self._colours.issuperset(guess):
            return None
        return guess

    @property
    def tool_specs(self) -> list[ToolSpec]:
        """None: there are no tools."""
        return []

    @property
    def messages(self) -> list[Message]:
        """A copy of the history."""
        return [copy_message(message) for message in self._messages]

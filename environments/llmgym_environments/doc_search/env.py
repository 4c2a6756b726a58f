"""The environment DocSearch-v0: search an encyclopedia, open pages, answer."""

from __future__ import annotations

from typing import Any

from llmgym import Message, ToolEnv, ToolResult, tool
from llmgym.errors import TaskError, ToolError
from llmgym_environments.doc_search.encyclopedia import ENCYCLOPEDIAS, encyclopedia
from llmgym_environments.doc_search.index import index_of


class DocSearchEnv(ToolEnv):
    """
    ## Description
    A task asks for one fact of a made-up encyclopedia; the policy searches its BM25 index, opens pages, and answers.

    An encyclopedia has 96 pages: 60 people, 16 towns, and 20 tales, which tell of real people what is not so. People
    share first and last names; pages name other people and towns in passing. There are 64 encyclopedias with different
    facts about the same names, each used by one split only, so nothing that was learnt by heart helps.

    | level | question | pages that support the answer |
    | --- | --- | --- |
    | 1 | Find the trade of Ada Fox. | 1, named in the question |
    | 2 | Find the mayor of the home of Ada Fox. | 2, the second named on the first |
    | 3 | Find the age of the teacher of the mayor of the baker born in Mere. | 3, the first only described |

    ## Tools
    - `search(query, skip=0)`: number and title of 5 pages, one a line: first those whose titles share words with the
      query, then the best by BM25; with more hits, a last line such as `5 of 14, skip 5 for more`. A query has at most
      200 characters. At most 6 searches an episode, those for more of the same hits and those for too long a query or a
      negative `skip` included; one more ends the episode with 0. A call that lacks `query`, or whose arguments are of a
      wrong type, is answered with an error and is no search.
    - `open_page(number)`: the text of a page, less than 200 characters. At most 12 pages an episode.

    Several calls in one message are allowed; results come in their order.

    ## Observation
    The opening is a system message, which says how to answer, and the question as a user message. Each tool call
    adds one tool message with its id: a bare result, or `tool_error: …`.

    ## Action
    One assistant message. With tool calls it runs them; without, its content is the final answer.

    ## Rewards
    1.0 when the final answer is the target, else 0.0, also after a seventh search; nothing in between. The whole
    content must be the answer, capitals, blanks around it and a full stop aside: `Ada Fox` and `ada fox.` are the
    same, while `It is Ada Fox` and a list of names are wrong. Whether the supporting pages were opened is a metric
    and no part of the reward; the most frequent answer of a level is right in less than 4 of 100 tasks.

    ## Episode End
    1. Termination: an assistant message without tool calls.
    2. Termination: a seventh search.
    3. Truncation: none by the environment; limits on turns and tokens belong to whoever drives it.

    ## Arguments
    None. Tasks take `level`, `count` and `seed` (:class:`~llmgym_environments.task_generation.TaskGenerator`); splits
    never share an encyclopedia, whatever the seeds.

    ## Metrics
    - `turns`: assistant messages.
    - `tool_calls`, and `calls_<tool>` for each tool that was called.
    - `tool_errors`: calls answered with an error.
    - `pages_opened`: different pages that were opened.
    - `support_pages`: pages that support the answer; `support_opened`: those of them that were opened.
    - `grounded`: whether all of them were opened. A right answer that is not grounded was guessed.

    ## Version History
    - v0: first version.
    """

    system_prompt = "Search the pages. Then reply with only the answer."
    results_shown = 5
    max_query_chars = 200
    max_searches = 6
    max_pages = 12

    async def setup(self) -> None:
        """Find the encyclopedia of the task. Raises :class:`TaskError` when target or metadata are out of shape."""
        if not isinstance(self.task.target, str) or not _plain(self.task.target):
            raise TaskError(f"the target of the task must be a text, such as 'Ada Fox', got {self.task.target!r:.80}")
        number, path = self.task.metadata.get("encyclopedia"), self.task.metadata.get("path")
        if not isinstance(number, int) or not 0 <= number < ENCYCLOPEDIAS:
            raise TaskError(
                f"metadata['encyclopedia'] must be a number from 0 to {ENCYCLOPEDIAS - 1}, got {number!r:.80}"
            )
        book = encyclopedia(number)
        if not isinstance(path, list) or not all(title in book.numbers for title in path):
            raise TaskError(f"metadata['path'] must list titles of encyclopedia {number}, got {path!r:.80}")
        self._pages, self._index = book.pages, index_of(number)
        self._target = _plain(self.task.target)
        self._support = {book.numbers[title] for title in path}
        self._opened: list[int] = []
        self._searches = 0

    @tool
    async def search(self, query: str, skip: int = 0) -> str | ToolResult:
        """Find pages. At most 6 searches."""
        self._searches += 1
        if self._searches > self.max_searches:
            return ToolResult("no searches left", should_stop=True)
        if len(query) > self.max_query_chars:
            raise ToolError(f"the query has {len(query)} characters; at most {self.max_query_chars} are allowed")
        if skip < 0:
            raise ToolError("skip must be 0 or more")
        found = self._index.search(query)
        end = skip + self.results_shown
        lines = [self._line(number) for number in found[skip:end]]
        if end < len(found):
            lines.append(f"{end} of {len(found)}, skip {end} for more")
        return "\n".join(lines) or "nothing found"

    @tool
    async def open_page(self, number: int) -> str:
        """Read a page. At most 12 pages."""
        if number not in self._pages:
            raise ToolError(f"no such page; they are 1 to {len(self._pages)}, and search shows the numbers")
        if len(self._opened) >= self.max_pages:
            raise ToolError(f"{self.max_pages} pages were opened, and no more are allowed; answer now")
        self._opened.append(number)
        return self._pages[number].text

    def _line(self, number: int) -> str:
        return f"{number} {self._pages[number].title}"

    async def score(self, message: Message) -> float:
        """1.0 or 0.0, see the class."""
        return float(self._searches <= self.max_searches and _plain(message["content"]) == self._target)

    def metrics(self) -> dict[str, Any]:
        """See the class's section Metrics."""
        opened = set(self._opened)
        return {
            **super().metrics(),
            "pages_opened": len(opened),
            "support_pages": len(self._support),
            "support_opened": len(self._support & opened),
            "grounded": self._support <= opened,
        }


def _plain(text: str) -> str:
    """The text without what does not count: capitals, blanks around it, one full stop."""
    return text.strip().removesuffix(".").casefold()

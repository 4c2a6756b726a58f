"""The BM25 search index of an encyclopedia."""

from __future__ import annotations

import functools

import numpy as np

from llmgym_environments.doc_search.encyclopedia import encyclopedia


class Index:
    """Ranks the pages of one encyclopedia: first those whose titles share words with the query, then by ``bm25s``.

    Of the first, more shared words go before fewer, and shorter titles before longer ones: further words of a query
    do not tell what a page that it names says of them. The second is Lucene's BM25. English stop words do not count,
    and a word counts once.

    It is never changed after it is made, so that any number of episodes may use it at once.
    """

    def __init__(self, number: int) -> None:
        import bm25s  # here, so that listing the environment and its tasks need not wait for it

        pages = encyclopedia(number).pages
        self._tokenize = functools.partial(bm25s.tokenize, return_ids=False, show_progress=False)
        self._numbers = list(pages)
        self._titles = [set(tokens) for tokens in self._tokenize([page.title for page in pages.values()])]
        self._lengths = np.array([len(title) for title in self._titles])
        self._ranker = bm25s.BM25()
        self._ranker.index(
            self._tokenize([f"{page.title} {page.text}" for page in pages.values()]), show_progress=False
        )

    def search(self, query: str) -> list[int]:
        """The numbers of all pages that share a word with ``query``, the best first; ties in the order of numbers."""
        tokens = set(self._tokenize([query])[0])
        if not tokens:
            return []
        scores = self._ranker.get_scores(sorted(tokens))
        named = np.array([len(title & tokens) for title in self._titles])
        order = np.lexsort((np.where(named, self._lengths, -scores), -named))
        return [self._numbers[place] for place in order if scores[place] > 0]


@functools.cache
def index_of(number: int) -> Index:
    """The index of the encyclopedia with a number, built once a process and shared by all episodes."""
    return Index(number)

"""A full-text search over short texts about drugs (SQLite FTS5), and a summariser that only quotes them.

There is no language model in here: the same question gets the same sentences, word by word.

Try it alone: `python -m flows.drug_library "aspirin and valproate"`.
"""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ABSTRACTS = Path(__file__).parent / "data" / "drug_abstracts.md"
MOST_WORDS = 60

# What a prompt says to its reader, and not about the drugs
# fmt: off
PROMPTING = frozenset({
    "a", "about", "an", "analyse", "analyze", "and", "are", "as", "assess", "be", "by", "combine",
    "drug", "drugs", "evidence", "find", "for", "from", "have", "how", "in", "is", "it", "its",
    "may", "no", "not", "of", "on", "or", "pubmed", "report", "results", "search", "summarise",
    "text", "than", "that", "the", "this", "to", "what", "when", "which", "with",
})
# fmt: on


@dataclass(frozen=True)
class Abstract:
    """One short text; `sentences` in their order."""

    title: str
    sentences: tuple[str, ...]


@lru_cache
def abstracts() -> tuple[Abstract, ...]:
    """All that were shipped."""
    _, *sections = ABSTRACTS.read_text(encoding="utf-8").split("\n## ")
    return tuple(_abstract(*section.split("\n", 1)) for section in sections)


def _abstract(title: str, text: str) -> Abstract:
    return Abstract(title, tuple(re.findall(r"[^.?]+[.?](?=\s|$)", " ".join(text.split()))))


def search(question: str, limit: int = 3) -> list[Abstract]:
    """The abstracts that fit best, by SQLite's BM25; a word in the title counts five times."""
    wanted = words(question)
    if not wanted:
        return []
    with closing(sqlite3.connect(":memory:")) as index:
        index.execute("CREATE VIRTUAL TABLE texts USING fts5(title, body, tokenize = 'porter unicode61')")
        index.executemany(
            "INSERT INTO texts VALUES (?, ?)", [(a.title, " ".join(a.sentences)) for a in abstracts()]
        )
        # Quoted, a word of the question is never an operator of FTS5
        matching = " OR ".join(f'"{word}"' for word in wanted)
        rows = index.execute(
            "SELECT rowid FROM texts WHERE texts MATCH ? ORDER BY bm25(texts, 5, 1), rowid LIMIT ?",
            (matching, limit),
        )
        return [abstracts()[rowid - 1] for (rowid,) in rows]


def summarise(question: str, found: Iterable[Abstract]) -> str:
    """From every abstract its title and the sentence that shares most words with the question."""
    asked = set(words(question))
    quoted = (
        (abstract.title, max(abstract.sentences, key=lambda sentence: len(asked & set(words(sentence)))))
        for abstract in found
    )
    return " ".join(f"{title}: {sentence.strip()}" for title, sentence in quoted)


def words(text: str) -> list[str]:
    """What a text is about: its words without those of prompting, each once, at most MOST_WORDS."""
    found = dict.fromkeys(re.findall(r"[^\W_]+", text.lower()))
    return [word for word in found if word not in PROMPTING and not word.isdigit()][:MOST_WORDS]


def main() -> None:
    question = " ".join(sys.argv[1:]) or "aspirin interactions"
    found = search(question)
    print(summarise(question, found) or "Nothing was found.")
    for abstract in found:
        print(f"  from: {abstract.title}")


if __name__ == "__main__":
    main()

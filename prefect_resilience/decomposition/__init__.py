"""Work that is too big as it stands: split, done in parts, merged."""

from __future__ import annotations

from .mergers import concat, join
from .model import Decompose
from .splitters import ListSplit, TextSplit, split_list, split_text

__all__ = ["Decompose", "ListSplit", "TextSplit", "concat", "join", "split_list", "split_text"]

"""Secrets by the name of their key: `password=...`, `"api_key": "..."`, `--token ...`.

A value is not masked when it has no content (`null`, `missing`), when it is a type (`password: str`), and
when it is source code that names the origin of the secret (`password=config.password`).
"""

from __future__ import annotations

import re

from prefect_resilience.errors.secrets.forms import MASK, piece


def mask_pairs(text: str) -> str:
    """The text with the values masked of all keys that are named like a secret."""
    parts: list[str] = []
    done = position = 0
    while (match := piece("PAIR").search(text, position)) is not None:
        if not _is_secret(match):
            position = match.end("key")  # the supposed value may itself be a key
            continue
        start, end = match.span(match.lastgroup or 0)  # the group of the value, which closes last
        parts += (text[done:start], MASK)
        done = position = end
    return "".join((*parts, text[done:])) if parts else text


def _is_secret(match: re.Match[str]) -> bool:
    key, gap, kind = match["key"].lower(), match["gap"], match.lastgroup or ""
    before = match.string[max(0, match.start() - 44) : match.start()]
    if key == "pass" and not _is_pass_a_word(match["key"], before, gap, kind):
        return False
    if (key == "token" and piece("PAGING_KEY").search(before)) or (
        key == "secret" and piece("ARN").search(before)
    ):
        return False
    if "=" not in gap and ":" not in gap and not _stands_beside(key, gap, kind, before):
        return False
    return not _says_nothing(key, gap, kind, match[kind]) and not (kind == "bare" and _is_code(match, before))


def _is_pass_a_word(key: str, before: str, gap: str, kind: str) -> bool:
    """Whether "pass" means a password: `SMTP_PASS`, `dbPass`, `"pass": "..."`; "pass: 3" counts tests."""
    if before.endswith(("_", "-")) or (key == "Pass" and before[-1:].islower()):
        return True
    return kind != "bare" and before.endswith(("'", '"')) and gap.startswith(("'", '"', "\\"))


def _is_code(match: re.Match[str], before: str) -> bool:
    """Whether the value is a type, the name of a variable or function, or a directory in the shell's PWD."""
    key, gap, value = match["key"], match["gap"], match["bare"]
    if ":" in gap and "=" not in gap and piece("TYPES").fullmatch(value):
        return True
    if key == "PWD" and value.startswith(("/", "~")) and not before.endswith(("_", ";")):
        return True
    if piece("NAMED").fullmatch(value) or ("==" in gap and piece("COMPARED").fullmatch(value)):
        return True
    word = piece("WORD_BEFORE").search(before)
    whole = f"{word[0] if word else ''}{key}".lstrip("_").lower()
    if value.lower() == whole or (gap[-1].isspace() and value.lower() == key.lower()):
        return True
    return match.string.startswith(("(", "["), match.end()) and piece("CALLED").fullmatch(value) is not None


def _stands_beside(key: str, gap: str, kind: str, before: str) -> bool:
    if gap.isspace() and kind in ("single", "double") and key.startswith(("password", "identified")):
        return True  # SQL's PASSWORD '...'
    opening = piece("BESIDE").search(before)
    return opening is not None and (opening[0].startswith("-") or '"' in gap or "'" in gap)


def _says_nothing(key: str, gap: str, kind: str, value: str) -> bool:
    stripped = value.strip("*.…-")
    if not any(map(str.isalnum, stripped)):
        return kind == "bare" or not stripped
    if piece("NOTHING").fullmatch(stripped) or piece("PLACEHOLDER").fullmatch(value):
        return True
    if kind != "bare":
        return False
    if gap[-1].isspace() and piece("PROSE").fullmatch(value):
        return True
    # "Unexpected token: foo" and "token: 512" are prose and counts; `token=abc` and "token": "abc" are not.
    return (
        key == "token" and (":" in gap or value.isdigit()) and bool(piece("ORDINARY_TOKEN").fullmatch(value))
    )

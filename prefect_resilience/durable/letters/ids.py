"""The ids of dead letters, which tell their age, and the keys under which a store lists the newest first."""

from __future__ import annotations

from uuid import UUID

ENTRY = "dead-letter:"
CONTENTS = "dead-letter-contents:"
SAME_WORK = "dead-letter-same:"

_ALL = (1 << 128) - 1
_RANDOM_BITS = 62


def new_id(now: float, chance: int) -> str:
    """A UUID of version 7 (RFC 9562, method 3): the time in milliseconds and 4096ths of one, then chance.

    `now` is in seconds since the epoch, `chance` any integer, of which 62 bits are used.
    """
    ticks = max(0, int(now * 1000 * 4096))
    milliseconds, fraction = (ticks >> 12) & ((1 << 48) - 1), ticks & 0xFFF
    number = milliseconds << 80 | 0x7 << 76 | fraction << 64 | 0b10 << _RANDOM_BITS
    return str(UUID(int=number | chance & ((1 << _RANDOM_BITS) - 1)))


def first_id_at(now: float) -> str:
    """The smallest id that a letter of this moment may have."""
    return new_id(now, 0)


def is_id(text: str) -> bool:
    """Whether this is an id as `new_id` writes them."""
    try:
        return str(UUID(text)) == text
    except (ValueError, AttributeError, TypeError):
        return False


def entry_key(letter_id: str) -> str:
    """Where the letter's entry is. Stores scan upwards: the id is turned round, so new ones come first."""
    return f"{ENTRY}{_ALL ^ UUID(letter_id).int:032x}"


def contents_key(letter_id: str) -> str:
    """Where its parameters and its error are kept, which a listing does not read."""
    return f"{CONTENTS}{letter_id}"


def same_work_prefix(identity: str) -> str:
    """Below this stand the letters that failed over one and the same piece of work."""
    return f"{SAME_WORK}{identity}:"


def batch_prefix(batch: str) -> str:
    """Below this stand those of every call of a batch: identities begin with its digest and a dot."""
    return f"{SAME_WORK}{batch}."


def identity_in(key: str) -> str:
    """The identity that a key below `batch_prefix` names."""
    return key.removeprefix(SAME_WORK).rpartition(":")[0]

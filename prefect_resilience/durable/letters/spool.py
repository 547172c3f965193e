"""Letters on this host while the store is unavailable."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

from prefect_resilience.base.naming import digest
from prefect_resilience.durable.letters.model import Contents, DeadLetter, as_stored, from_stored
from prefect_resilience.durable.letters.queue import DeadLetterQueue, with_id

ENDING = ".letter.json"


class Spool:
    """A folder that holds the letters of one store while the store is unavailable."""

    def __init__(self, folder: Path, store_url: str) -> None:
        self.folder: Path = folder / digest(store_url)

    def keep(self, letter: DeadLetter, contents: Contents, now: datetime) -> DeadLetter:
        """Write a letter and sync it to the disk; only this user can read it. May raise OSError."""
        letter = with_id(letter, now)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = self.folder / f"{letter.id}.part"
        written = {"letter": as_stored(letter), "contents": contents.model_dump(mode="json")}
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(written, file)
            file.flush()
            os.fsync(file.fileno())
        part.rename(self.folder / f"{letter.id}{ENDING}")
        return letter

    def flush(self, queue: DeadLetterQueue) -> int:
        """Move the letters to the store and return their number. May raise StoreUnavailable and OSError.

        Two processes may do this at once, and one may be cut off. A letter keeps the id that it got in the
        folder, so it is stored once.
        """
        if not self.folder.is_dir():
            return 0
        waiting = sorted(self.folder.glob(f"*{ENDING}"))
        for path in waiting:
            try:
                written = json.loads(path.read_text())
            except FileNotFoundError:
                continue  # another process was first
            queue.put(from_stored(written["letter"]), Contents.model_validate(written["contents"]))
            path.unlink(missing_ok=True)
        return len(waiting)

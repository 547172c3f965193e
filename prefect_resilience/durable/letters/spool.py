"""Letters that could not be stored wait in files of this host until the store is back."""

from __future__ import annotations

import json
import os
import random
from datetime import datetime
from pathlib import Path

from prefect_resilience.base.naming import digest
from prefect_resilience.durable.letters.claims import new_id
from prefect_resilience.durable.letters.model import Contents, DeadLetter, as_stored, from_stored
from prefect_resilience.durable.letters.queue import DeadLetterQueue

ENDING = ".letter.json"


class Spool:
    """A folder for the letters of one store."""

    def __init__(self, folder: Path, store_url: str) -> None:
        self.folder: Path = folder / digest(store_url)

    def keep(self, letter: DeadLetter, contents: Contents, now: datetime) -> DeadLetter:
        """Write a letter, readable by this user alone, and see it on the disk. May raise OSError."""
        letter_id = new_id(now.timestamp(), random.getrandbits(64))
        letter = letter.model_copy(update={"id": letter_id, "created_at": now})
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        part = self.folder / f"{letter.id}.part"
        written = {"letter": as_stored(letter), "contents": contents.model_dump(mode="json")}
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(written, file)
            file.flush()
            os.fsync(file.fileno())
        part.rename(self.folder / f"{letter.id}{ENDING}")
        return letter

    def hand_in(self, queue: DeadLetterQueue) -> int:
        """Store what waits here; how many that were. May raise StoreUnavailable and OSError.

        Two processes may do it at once, and one may be cut off: a letter keeps the id it got here, so that it
        is stored once.
        """
        if not self.folder.is_dir():
            return 0
        waiting = sorted(self.folder.glob(f"*{ENDING}"))
        for path in waiting:
            try:
                written = json.loads(path.read_text())
            except FileNotFoundError:
                continue  # another process was first
            queue.bury(from_stored(written["letter"]), Contents.model_validate(written["contents"]))
            path.unlink(missing_ok=True)
        return len(waiting)

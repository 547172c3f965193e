"""Making a letter of a call that failed, without its secrets."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path, PurePath
from typing import Any

from prefect_resilience.base.naming import digest
from prefect_resilience.durable.letters.claims import new_id
from prefect_resilience.durable.letters.codec import LARGEST, encode_parameters
from prefect_resilience.durable.letters.model import (
    Contents,
    DeadLetter,
    Pass,
    Source,
    Starts,
    as_stored,
    from_stored,
)
from prefect_resilience.durable.letters.queue import DeadLetterQueue
from prefect_resilience.durable.sources import LOADED_BY_PREFECT
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.secrets.redact import redact, redact_data

MESSAGE = 300
_OF_A_PASS = ("task_run_id", "attempts", "category", "code", "message")


def letter_of(
    parameters: Mapping[str, Any],
    error: ErrorContext | None,
    *,
    now: datetime,
    largest: int = LARGEST,
    starts: Starts = (),
    **fields: Any,
) -> tuple[DeadLetter, Contents]:
    """The letter of a failed call and its contents; `fields` are others of `DeadLetter`.

    Of the parameters, secrets are left out and at most `largest` characters of JSON are kept. `starts` are
    the flow runs around the call; without them, its own is known at least.
    """
    encoded = encode_parameters(parameters, largest)
    told: dict[str, Any] = {}
    if error is not None:
        # Secrets may have become known since the error was described.
        error = ErrorContext.model_validate(redact_data(error.model_dump(mode="json")))
        lines = error.message.strip().splitlines() or [""]
        told = {"category": str(error.category), "code": error.code, "message": lines[0][:MESSAGE]}
    known: dict[str, Any] = {
        "created_at": now,
        "left_out": encoded.left_out,
        "size": encoded.size,
        "attempts": error.attempt if error else 1,
    }
    letter = DeadLetter.model_validate({**known, **told, **fields})
    if not starts and letter.flow_run_id is not None:
        starts = ((letter.flow_run_id, letter.run_count),)
    failed = {name: getattr(letter, name) for name in _OF_A_PASS}
    changes: dict[str, Any] = {
        "passes": (Pass(at=now, starts=starts, **failed),),
        "identity": identity_of(
            letter.batch_id, letter.kind, letter.name, letter.source, letter.key, encoded.parameters
        ),
    }
    return letter.model_copy(update=changes), Contents(parameters=encoded.parameters, error=error)


def identity_of(
    batch_id: str | None, kind: str, name: str, source: Source | None, key: str, parameters: Mapping[str, Any]
) -> str:
    """What the same call has in common in every pass: the batch, the function by its name and place, and the
    parameters as JSON without secrets.

    Not its code, which changes when the cause is mended: Prefect's key of a task ends with a digest of it.
    It begins with the batch, by which all letters of a batch are found.
    """
    where = [key.rpartition("-")[0] or key] if source is None else [_place(source), source.qualname]
    call = json.dumps([kind, name, where, parameters], sort_keys=True)
    return f"{batch_digest(batch_id)}.{_digest(call)}"


def batch_digest(batch_id: str | None) -> str:
    """What the identities of a batch's calls begin with."""
    return _digest(str(batch_id))


def _place(source: Source) -> str:
    """The module; where its name is made up anew for each process, the name of its file."""
    passing = source.module == "__main__" or source.module.startswith(LOADED_BY_PREFECT)
    return PurePath(source.file).name if passing and source.file else source.module


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:24]


def loss(letter: DeadLetter, error: BaseException) -> str:
    """What a log says of a letter that could not be kept, for a person who has to find the call again."""
    run = letter.task_run_id or letter.flow_run_id or "no run"
    return redact(
        f"The dead letter of {letter.kind} {letter.name!r} ({run}) is lost, since nothing could keep it: "
        f"{error!r}. The call failed with {letter.summary()}"
    )


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

    def flush(self, queue: DeadLetterQueue) -> int:
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
            queue.put(from_stored(written["letter"]), Contents.model_validate(written["contents"]))
            path.unlink(missing_ok=True)
        return len(waiting)

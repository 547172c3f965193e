"""Making a letter of a call that failed, without its secrets."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from prefect_resilience.dead_letters.codec import LARGEST, encode_parameters
from prefect_resilience.dead_letters.model import Contents, DeadLetter
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.redact import redact, redact_data

MESSAGE = 300


def letter_of(
    parameters: Mapping[str, Any],
    error: ErrorContext | None,
    *,
    now: datetime,
    largest: int = LARGEST,
    **fields: Any,
) -> tuple[DeadLetter, Contents]:
    """The letter of a failed call and its contents; `fields` are others of `DeadLetter`.

    Of the parameters, secrets are left out and at most `largest` characters of JSON are kept.
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
    identity = _identity(letter, encoded.parameters)
    return letter.model_copy(update={"identity": identity}), Contents(
        parameters=encoded.parameters, error=error
    )


def _identity(letter: DeadLetter, parameters: Mapping[str, Any]) -> str:
    """What the letters of the same call in the same batch share."""
    parts = [letter.batch_id, letter.kind, letter.key, parameters]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def loss(letter: DeadLetter, error: BaseException) -> str:
    """What a log says of a letter that could not be kept, for a person who has to find the call again."""
    run = letter.task_run_id or letter.flow_run_id or "no run"
    return redact(
        f"The dead letter of {letter.kind} {letter.name!r} ({run}) is lost, since nothing could keep it: "
        f"{error!r}. The call failed with {letter.summary()}"
    )

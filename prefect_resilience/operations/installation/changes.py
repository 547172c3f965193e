"""`Change`: what an installation did to one thing on the server, or would do."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

Action = Literal["created", "changed", "unchanged", "kept", "skipped", "removed"]


class Change(BaseModel):
    """What became of one thing.

    `action`: "kept" is what somebody changed by hand, so that it was left as it is; "skipped" is what is not
    there because something is missing, as `why` says.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    kind: Literal["block type", "block", "work pool", "deployment", "automation"]
    name: str
    action: Action
    why: str = ""

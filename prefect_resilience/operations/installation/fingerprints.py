"""Whether an automation is as it was installed: a fingerprint in its description, taken of all the rest.

In the description, because that survives when somebody edits the automation in the UI.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, cast

from prefect.events.schemas.automations import Automation, AutomationCore

MARK = re.compile(r"\n*Installed by prefect-resilience \(fingerprint ([0-9a-f]{12})\)\s*$")
NOT_MEANT = frozenset({"id", "created", "updated", "description", "enabled", "tags", "owner_resource"})
"""What a fingerprint leaves out: ids that the server gives, and what does not change what is done."""
UNORDERED = frozenset({"expect", "after", "for_each"})


def fingerprint(automation: AutomationCore) -> str:
    """The same for two automations that do the same."""
    meant = _meant(automation.model_dump(mode="json", exclude_defaults=True))
    return hashlib.sha256(json.dumps(meant, sort_keys=True).encode()).hexdigest()[:12]


def installed_as(automation: Automation) -> str | None:
    """The fingerprint that it was installed with; None when it says none."""
    found = MARK.search(automation.description)
    return found[1] if found else None


def marked(automation: AutomationCore) -> AutomationCore:
    """The automation with its own fingerprint at the end of its description."""
    text = MARK.sub("", automation.description)
    mark = f"Installed by prefect-resilience (fingerprint {fingerprint(automation)})"
    return automation.model_copy(update={"description": f"{text}\n\n{mark}"})


def _meant(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {name: _meant(item, name) for name, item in items if name not in NOT_MEANT}
    if isinstance(value, list):
        items = [_meant(item) for item in cast("list[Any]", value)]
        return sorted(items) if key in UNORDERED else items
    return value

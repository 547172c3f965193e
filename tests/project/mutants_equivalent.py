"""Mutants that no test can see, because they mean the same: by rule, or by name with the reason."""

from __future__ import annotations

import re

RULES: tuple[tuple[str, str, str], ...] = (
    (r"""cast\((?:"[^"]*"|'[^']*'|\w+), """, "cast(", "cast does nothing when it runs"),
    (r'in "(?:XX)?([sSfF]{2})(?:XX)?"', r'in "\1"', "an outcome is one of s, S, f, F, never an X"),
    (r"n=\d, ", "", "of the close matches only the closest is looked at"),
    (r"(self\._started) = (?:False|None)", r"\1 = False", "it is only asked whether it is true"),
    (r"\b(instants|is_key)=(?:False|None)", r"\1=False", "it is only asked whether it is true"),
    (r"value\[:6\d\]", "value[:60]", "no word that is known comes near that length"),
    (r"(^\s*|\()(?:title|None),", r"\1title,", "pydantic puts the title of the model in its place"),
    (r"_SCALARS (?:or|and) type", "_SCALARS or type", "a short way to the same answer"),
    (r"_Node\(.*\)", "_Node()", "only its value and its root are read"),
    (r"self [&|] other", "self & other", "both raise the same error"),
    (r"or \"\w*\"\)\.ljust", 'or "").ljust', "its first six characters are cut off"),
    (r",?\s*strict=(?:True|None|False)\b|,\s*(?=\))", "", "both sides are always as long as each other"),
)
"""A pattern, what it becomes, and why: a change that is gone after this is none."""

_CONDITIONS = "prefect_resilience.graphs.conditions."
EQUIVALENT: dict[str, str] = {
    f"{_CONDITIONS}compare.x__affordable__mutmut_11": "only the length of the literals counts",
    f"{_CONDITIONS}compare.x__affordable__mutmut_45": "an empty pattern is not too deep with 1 either",
    f"{_CONDITIONS}evaluate.x_masked__mutmut_21": "of a list within a list only its length is shown",
    f"{_CONDITIONS}jsonpaths.x__all__mutmut_7": "python-jsonpath 2 raises none while it follows a path",
    f"{_CONDITIONS}model.x_validation_error__mutmut_6": "pydantic takes None for an input that is missing",
    f"{_CONDITIONS}paths.x_follow__mutmut_4": "a copy of the mapping gives the same value",
    f"{_CONDITIONS}paths.x_follow__mutmut_6": "a copy of the mapping gives the same value",
    "prefect_resilience.graphs.plans.schedule.x__merge__mutmut_9": "a copy of the mapping has the same items",
    "prefect_resilience.graphs.plans.schedule.xǁNodeStateǁmay_lead_to__mutmut_2": "only the keys are read",
    f"{_CONDITIONS}reading.xǁReadingǁ__init____mutmut_2": "with a mistake the fields are not read",
    f"{_CONDITIONS}reading.xǁReadingǁ_operator__mutmut_29": "it is only asked whether it is true",
}
"""By mutmut's name: why."""


def means_the_same(key: str, difference: str) -> str | None:
    """Why a survivor is no gap in the tests; None when it is one."""
    if key in EQUIVALENT:
        return EQUIVALENT[key]
    lines = [line for line in difference.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    before = "\n".join(line[1:] for line in lines if line[0] == "-")
    after = "\n".join(line[1:] for line in lines if line[0] == "+")
    for pattern, becomes, why in RULES:
        if re.search(pattern, before) and re.sub(pattern, becomes, before) == re.sub(pattern, becomes, after):
            return why
    return None

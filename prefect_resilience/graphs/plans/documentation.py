"""What a docstring says of a function and its parameters, whichever style it is written in."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Documentation:
    """The text before the sections, and a description for each parameter that has one."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict[str, str])


def documentation_of(function: Callable[..., Any]) -> Documentation:
    """Read a docstring in Google's, numpy's or Sphinx's style."""
    text = inspect.getdoc(function)
    if not text:
        return Documentation()
    # Here and not above: only who asks for descriptions pays for the parser.
    import griffe

    logging.getLogger("griffe").setLevel(logging.CRITICAL)  # it warns of types that only the signature has
    sections = griffe.parse_auto(griffe.Docstring(text))
    described = ""
    parameters: dict[str, str] = {}
    for section in sections:
        if isinstance(section, griffe.DocstringSectionText):
            described = described or section.value.strip()
        elif isinstance(section, griffe.DocstringSectionParameters):
            parameters |= {one.name: " ".join(one.description.split()) for one in section.value}
    return Documentation(described, parameters)

"""docs/licences.md: what is installed with this package, and under which licence.

python -m docs.making.licences
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = Path(__file__).parents[1] / "licences.md"
HEAD = """# Licences

prefect-resilience has the licence [Apache-2.0](https://www.apache.org/licenses/LICENSE-2.0), like Prefect.
These packages are installed with it; most of them come with Prefect. Each licence is taken from the package's
metadata.

| package | licence |
|---|---|
"""


def needed(name: str, extras: set[str], seen: set[str]) -> Iterator[str]:
    """The packages that one needs here, and those that they need, each once."""
    for line in requires(name) or []:
        one = Requirement(line)
        wanted = any(one.marker is None or one.marker.evaluate({"extra": extra}) for extra in {"", *extras})
        key = canonicalize_name(one.name)
        if not wanted or key in seen:
            continue
        seen.add(key)
        try:
            metadata(key)
        except PackageNotFoundError:
            continue
        yield key
        yield from needed(key, one.extras, seen)


def licence(name: str) -> str:
    told = metadata(name)
    classifiers = [line for line in told.get_all("Classifier") or [] if line.startswith("License ::")]
    said = told.get("License-Expression") or (told.get("License") or "").strip().partition("\n")[0]
    if said and said not in ("Dual License", "BSD"):
        return said
    return ", ".join(line.rpartition(" :: ")[2] for line in classifiers) or said or "not stated"


def page() -> str:
    names = sorted(needed("prefect-resilience", set(), set()))
    return HEAD + "".join(f"| {name} | {licence(name)} |\n" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

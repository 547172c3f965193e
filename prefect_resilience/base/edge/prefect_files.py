"""The settings that Prefect's files give, by Prefect's own rules, without importing Prefect.

Its import takes a second, and a guard needs only the folder in which the default store lies. What cannot be
read with certainty raises Unclear: then Prefect itself is asked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

Values = Mapping[str, Any]
TEST_MODES = ("TEST_MODE", "UNIT_TEST_MODE", "TESTING_UNIT_TEST_MODE", "TESTING_TEST_MODE")


BUILT_IN = {"local": {"PREFECT_API_URL": "http://127.0.0.1:4200/api"}}
"""Of the profiles that Prefect brings along, the one that sets an address or a folder."""


class Unclear(Exception):
    """A file that only Prefect may judge, because it is damaged or holds something unexpected."""


def value_of(name: str, *tables: str) -> Any:
    """The value of a setting such as "HOME"; None if nothing sets it.

    `tables`: the tables above it in a TOML file, as in `[resilience]`. The order is Prefect's: environment
    (names in any case), `.env`, `prefect.toml`, `pyproject.toml`, profile. Files are read once per process.
    """
    variable = "_".join(("PREFECT", *map(str.upper, tables), name))
    exact, loose = os.environ.get(variable), _in_any_case().get(variable)
    if exact is not None and loose is not None:
        raise Unclear(f"{variable} is set twice")
    if exact is not None or loose is not None:
        return loose if exact is None else exact
    dotenv, prefect_toml, pyproject, profile = _sources()
    for value in (
        dotenv.get(variable),
        _inside(prefect_toml, *tables).get(name.lower()),
        _inside(pyproject, "tool", "prefect", *tables).get(name.lower()),
        profile.get(variable),
    ):
        if value is not None:
            return value
    return None


@cache
def _in_any_case() -> Values:
    """The variables of the environment whose names have small letters."""
    return {name.upper(): value for name, value in os.environ.items() if not name.isupper()}


@cache
def _sources() -> tuple[Values, Values, Values, Values]:
    dotenv, prefect_toml = _dotenv(), _toml(Path("prefect.toml"))
    pyproject = _toml(Path("pyproject.toml"), _KEY)
    return dotenv[1], prefect_toml, pyproject, _profile(dotenv[0], prefect_toml, pyproject)


def _dotenv() -> tuple[Values, Values]:
    """The variables of `.env`, and the same under names in upper case."""
    if not Path(".env").is_file():
        return {}, {}
    from dotenv import dotenv_values

    values = dotenv_values(".env", encoding="utf8")
    return values, {name.upper(): value for name, value in values.items()}


_KEY = re.compile(r"""prefect["']?[ \t]*(?:\.|\]|=(?!=))""")
"""Prefect's name as a key or table. Only a file that has one is parsed, which takes some 50 ms."""


def _toml(path: Path, key: re.Pattern[str] | None = None) -> Values:
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        if key is not None and key.search(text) is None:
            return {}
        import tomllib

        return tomllib.loads(text)
    except (ValueError, OSError) as error:
        raise Unclear(path) from error


def _inside(values: Any, *tables: str) -> Values:
    for table in tables:
        values = cast("Values", values).get(table, {})
        if not isinstance(values, dict):
            raise Unclear(table)
    return cast("Values", values)


def _profile(dotenv: Values, prefect_toml: Values, pyproject: Values) -> Values:
    """The settings of the active profile."""
    if any(os.environ.get(f"PREFECT_{mode}") for mode in TEST_MODES):
        return {}
    home = os.environ.get("PREFECT_HOME")
    path = (
        os.environ.get("PREFECT_PROFILES_PATH")
        or dotenv.get("PREFECT_PROFILES_PATH")
        or prefect_toml.get("profiles_path")
        or _inside(pyproject, "tool", "prefect").get("profiles_path")
        or (Path(home) if home else Path.home() / ".prefect") / "profiles.toml"
    )
    profiles = _toml(Path(path))
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    return _inside({**BUILT_IN, **_inside(profiles, "profiles")}, active) if active else {}

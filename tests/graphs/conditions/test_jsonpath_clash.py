"""jsonpath-python installs a `jsonpath/__init__.py` of its own over that of python-jsonpath."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from prefect_resilience import path
assert path("$.name").matches("x").evaluate({"name": "x"})
import jsonpath
assert not hasattr(jsonpath, "NodeList")
from prefect_resilience.graphs.conditions.jsonpaths import found
assert found("$.shops[?@.open == true].name", {"shops": [{"open": True, "name": "x"}]}) == ["x"]
"""


def test_a_path_is_read_although_the_package_was_overwritten(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("jsonpath")
    assert spec is not None
    assert spec.origin is not None
    shutil.copytree(Path(spec.origin).parent, tmp_path / "jsonpath")
    (tmp_path / "jsonpath" / "__init__.py").write_text("def search(path, data): ...\n")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr

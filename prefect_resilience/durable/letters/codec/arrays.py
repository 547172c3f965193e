"""numpy's arrays and scalars of numbers and times, bit for bit. Who does not use numpy does not import it."""

from __future__ import annotations

import importlib
import sys
from base64 import b64decode, b64encode
from typing import Any

_KINDS = "biufcmM"
"""Truth values, numbers and times: what else an array may hold is not kept, as texts may be secret."""


def is_array(value: Any) -> bool:
    """Whether this is an array, or one number out of an array."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or not (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        return False
    return value.dtype.kind in _KINDS


def write_array(value: Any) -> list[Any]:
    """The type of the elements, the shape (None: one number alone), and the bytes."""
    numpy: Any = sys.modules["numpy"]
    shape = None if isinstance(value, numpy.generic) else list(value.shape)
    return [value.dtype.str, shape, b64encode(value.tobytes()).decode()]


def read_array(written: Any) -> Any:
    numpy: Any = importlib.import_module("numpy")
    kind, shape, data = written
    flat = numpy.frombuffer(b64decode(data), numpy.dtype(kind))
    return flat[0] if shape is None else flat.reshape(shape).copy()

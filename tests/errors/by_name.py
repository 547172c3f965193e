"""Exceptions of libraries that are not installed, made by their dotted names."""

from __future__ import annotations


def made(
    dotted: str, *args: object, base: type[BaseException] = Exception, **fields: object
) -> BaseException:
    """An instance of a new class with this name; `fields` are its attributes."""
    module, _, name = dotted.rpartition(".")
    error = type(name, (base,), {"__module__": module})(*args)
    for field, value in fields.items():
        setattr(error, field, value)
    return error

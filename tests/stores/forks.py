"""A store that a forked child uses beside its parent."""

import os

from prefect_resilience.stores import Store, open_store


def use_in_forked_child(store: Store, url: str) -> None:
    """Parent and child write, each over connections of its own."""
    version = store.swap("parent", 0, 1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            found = store.load("parent")
            same = open_store(url) is store
            ok = found is not None and same and store.swap("child", 0, "written") > 0
            store.close()
            os.write(writing, b"ok" if ok else b"no")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 2) == b"ok"
    found = store.load("child")
    assert found is not None
    assert found.value == "written"
    assert store.swap("parent", version, 2)

"""A program for a race of many processes, on any store."""

COUNT = """
import os, random, sys, time, traceback
from prefect_resilience.stores import open_store

def count(store):
    done = lost = 0
    while done < int(sys.argv[3]):
        found = store.load("count")
        if store.swap("count", found.version if found else 0, (found.value if found else 0) + 1):
            done, lost = done + 1, 0
        else:
            lost += 1
            time.sleep(random.uniform(0, min(0.2, 0.005 * 2**lost)))

def race(url):
    children = []
    for _ in range(int(sys.argv[2])):
        child = os.fork()
        if child == 0:
            try:
                count(open_store(url))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)

sys.exit(race(sys.argv[1]))
"""
"""Arguments: a URL, how many processes, how far each counts."""

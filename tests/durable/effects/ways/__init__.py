"""Every way in which one function sends, tried against real receivers: what was taken, and how it ended.

`python -m tests.durable.effects.ways` prints the table, `--write` puts it into docs/effects_ways.md.
"""

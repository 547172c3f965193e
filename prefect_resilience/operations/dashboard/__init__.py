"""The live screen: one page on loopback that shows the fleet, and does what the command line can do.

The files here are pure: documents of the fleet in, JSON for the page out. `edge/` reads the stores and the
Prefect API, carries orders out and speaks HTTP; `static/` is the page.
"""

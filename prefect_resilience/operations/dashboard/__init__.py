"""The dashboard: a page on loopback that shows the fleet live, with buttons for the most frequent commands.

`desk` reads the stores as rows of the page and carries out the orders of its buttons, and `page` serves HTTP.
The page itself is in `static/`.
"""

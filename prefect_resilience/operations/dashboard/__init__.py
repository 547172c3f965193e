"""The dashboard: a page on loopback that shows the fleet live, with buttons for the most frequent commands.

`rows` turns documents into rows of the page, `reading` reads the stores and the Prefect API, `orders` carries
out the orders of the buttons, and `app` serves HTTP. The page itself is in `static/`.
"""

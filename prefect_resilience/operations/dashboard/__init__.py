"""The dashboard: a page on loopback that shows the fleet live, with buttons for the most frequent commands.

`reading` reads the stores as rows of the page, `orders` carries out the orders of the buttons, and `page`
serves HTTP. The page itself is in `static/`.
"""

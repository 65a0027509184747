"""Runs in the background: accepted by a web service, executed once, and followed, cancelled and answered in a browser.

Start with `graph.py`, the graph whose runs are executed, then `app.py`, which accepts them. `page.html` is the inbox.
"""

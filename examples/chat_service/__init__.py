"""A chat in the browser: tokens as they come, a tool that asks first, reloads and restarts that lose nothing.

Start reading with `graph.py`, which says what happens, then `app.py`, which serves it. `model.py` is who speaks,
`chats.py` whose conversation is whose, `page.html` the page.
"""

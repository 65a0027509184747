"""A chat in the browser: tokens as they come, a tool that asks before it acts, reloads and restarts that lose nothing.

Start with `graph.py`, the conversation as a graph, then `app.py`, which serves it. `model.py` is the language model,
`chats.py` says which user owns which conversation, `page.html` is the page.
"""

"""Three versions of one graph, and threads that live through them: `python -m examples.upgrades`."""

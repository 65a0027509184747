"""The documentation as a site: what `nox -s docs` has built is complete, leads somewhere, and needs no network."""

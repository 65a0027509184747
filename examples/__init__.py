"""Programs to read and to run. Each works offline, and the tests run all of them."""

"""The promises of savers for upkeep, as tests: listing, copying, pruning and erasing threads."""

"""What savers promise of upkeep, as tests: listing, copying, pruning and erasing threads."""

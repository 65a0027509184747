"""Looking after what is stored, over the verbs of any saver:

threads     listing, copying, erasing and pinning them
export      writing them to a file, and reading them from one
retention   what of a thread may go, and what stays because something that stays needs it
mending     rows that stay, made so that they are read without those that go
pruning     the three together: taking checkpoints out of threads
"""

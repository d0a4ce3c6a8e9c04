"""The life of an adapter in the cluster, from its source to its last byte.

    addresses.py     what a caller's name means, and whether it may change it
    staging.py       folders for adapters on their way in, and no leftovers
    registration.py  source or upload -> validated -> store -> registry
    deletions.py     from the registry's list of what is to go to nothing left anywhere
    pins.py          what is pinned is sent to GPUs again and again, since GPUs come and go
    sweep.py         files and copies that no row names
    warden.py        the task that does the last three, over and over
    lifecycle.py     all of these, put together
    bodies.py        what clients send
    cards.py         adapters as the API shows them
    whereabouts.py   where they are, as far as the scheduler can be reached
    vllm_words.py    what vLLM says of adapters, word for word

What is deleted or pinned is a fact of the registry, and whoever is alive makes it true: each frontend has a warden, all
do the same, and doing it twice changes nothing.
"""

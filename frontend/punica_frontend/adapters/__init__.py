"""The life of an adapter in the cluster, from registration to deletion.

    addresses.py          callers' names for adapters, and what a caller may change
    staging.py            temporary folders for adapters that are being registered
    registration.py       source or upload -> validated -> store -> registry
    deletions.py          deleted adapters leave GPUs, hosts, disks and the store
    pins.py               sends pins to the cluster, since GPUs come and go
    garbage_collector.py  removes files and copies that no row names
    reconciler.py         the background task that repeats the last three
    lifecycle.py          creates all of these
    bodies.py             clients' bodies
    cards.py              adapters as the API shows them
    residency.py          where adapters are
    vllm_answers.py       vLLM's answers, word for word

Deletions and pins are rows of the registry, and every frontend's reconciler makes the cluster match them. All do the
same, and repeating it changes nothing.
"""

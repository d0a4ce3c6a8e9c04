"""Where adapters' files come from and are kept: everything between a stranger's upload and a runner's disk. No torch.

    config.py         `store:` of the config file, with secrets.py for what is elsewhere
    adapter_files.py  which files make an adapter, and how large they may be
    threads.py        calls that may hang, on threads that can be given up
    filesystems.py    URLs -> file systems, and their failures -> StoreUnavailable

Coming in, at a frontend:

    upload.py         a request's body -> a folder: form.py (parts), sinks.py, archive.py and unpack.py (zip, tar)
    sources.py        a URI -> a folder: source_policy.py (who may what), credentials.py (by whose leave),
                      web_source.py, object_source.py (fsspec), source_errors.py (to be mended, or an outage)
    intake.py         a folder -> what the registry keeps of the adapter in it, or a refusal

Kept, by the cluster:

    adapter_store.py  adapters by digest behind async calls with deadlines: what a frontend writes to
    directory.py      in a folder
    objects.py        at any other fsspec URL, such as s3://

Read, by a runner:

    host_cache.py     the adapters on a host's disk behind async calls with deadlines
    cache_folder.py   their folder, which the host's processes share; locked_folder.py says how
    download.py       an adapter of the store -> a folder of this host, checked by its digest

An adapter in a store is named by its digest and never changes; half of one is never seen.
"""

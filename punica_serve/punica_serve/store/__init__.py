"""Where adapter files come from and where they are kept, from an upload to a runner's disk. No torch.

    secrets.py        options from the environment or from files
    adapter_files.py  the files of an adapter, and their size limits
    threads.py        calls that may hang, on threads that can be abandoned
    filesystems.py    URLs -> file systems, and their failures -> StoreUnavailable
    failure_log.py    lines about failures that last

Incoming, at a frontend:

    upload.py         a request's body -> a folder: form.py (parts), sinks.py, file_sink.py, archive.py and unpack.py
    sources.py        a URI -> a folder: source_policy.py (permissions), credentials.py, web_source.py,
                      object_source.py (fsspec), source_errors.py (caller's mistake, or outage)
    pace.py           minimum transfer rate of both
    validator.py      a folder -> what the registry keeps of the adapter, or an error

Stored, by the cluster:

    adapter_store.py  adapters by digest behind async calls with deadlines; frontends write to it
    directory.py      a store in a folder
    objects.py        a store at any other fsspec URL, such as s3://

Read, by a runner:

    disk_cache.py     the adapters on a host's disk behind async calls with deadlines
    cache_folder.py   their folder, shared by the host's processes, with locks from locked_folder.py; cache_room.py
                      makes room in it
    download.py       an adapter of the store -> a folder of this host, checked by its digest; ranged_read.py
                      reads over several connections, synced_file.py writes
    incoming_adapter.py  a download as workers read it while it comes
    checksum_file.py  what later reads of a download check instead of its digest

An adapter in a store is named by its digest and never changes. Readers never see part of an adapter.
"""

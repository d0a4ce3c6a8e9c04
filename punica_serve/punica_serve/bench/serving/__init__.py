"""Measures a whole serving stack through its API: `punica-serve bench serving`.

serving_settings.py   the options of a run
serving_workloads.py  the requests of each workload and population
load_loops.py         when requests are sent: a closed loop, or Poisson arrivals
http_stream.py        a client of server-sent events
socket_stream.py      a client of this project's websocket
served_times.py       times of each request, and what is computed from them
listed_model.py       what a server calls its base model
serving_cluster.py    a cluster of our own to measure, with as many dummy adapters as the workloads need
bare_engine.py        the same closed loop on an engine without the stack
serving_peer.py       files and a command for measuring vLLM
serving_run.py        the run; serving_report.py its report; serving_goals.py the goals in it
"""

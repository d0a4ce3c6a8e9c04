"""Measures the hops of a request from its client to its first token: `punica-serve bench hops`.

otlp_collector.py  takes the spans that the cluster's processes export
hop_times.py       from the spans and the client's times to the times of hops; pure
hops_run.py        the run; hops_report.py its report
"""

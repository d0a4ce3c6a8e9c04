"""The figures of a simulation that bears out all claims of the paper."""

from punica_scheduler.simulator.summary import Summary

GOOD = Summary(
    num_requests=10,
    num_failed=0,
    num_tokens=1000,
    duration_s=100.0,
    gpu_time_s=500.0,
    num_unused_gpus=2,
    mean_batch_size=11.0,
    busy_share=0.5,
    full_share=0.8,
    releasable_share=0.3,
    long_idle_share=0.9,
    tokens_per_busy_s=500.0,
    evictions=3,
    migrations=4,
    consolidations=1,
    queue_delay_mean_s=0.0,
    queue_delay_p50_s=0.0,
    queue_delay_p99_s=0.0,
    first_token_p50_s=0.1,
    first_token_p99_s=1.0,
    time_per_token_mean_s=0.03,
    time_per_token_p50_s=0.03,
    time_per_token_p99_s=0.05,
    attained=None,
)

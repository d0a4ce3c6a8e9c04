"""Every metric, under its Prometheus name.

Names begin with `vllm:` where the meaning is vLLM's, so that dashboards and gateways made for vLLM work. Such metrics
are summed over instances, so a frontend reports only its own requests, or a GPU's values with the GPU in ``engine``.
`http_requests_total` is the counter that vLLM's server has too. All others begin with `punica_`.
"""

from typing import Literal

from punica_frontend.metrics.text import Metric

_MODEL = ("model_name",)
_ENGINE = ("model_name", "engine")
_GPU = ("gpu", "gpu_name", "runner")

# ------------------------------------------------------------------ a frontend's own requests

RUNNING = Metric("vllm:num_requests_running", "gauge", "Requests that generate tokens.", _MODEL)
WAITING = Metric(
    "vllm:num_requests_waiting",
    "gauge",
    "Requests without a token yet: they wait for a GPU, their adapter or their prefill.",
    _MODEL,
)
SUCCESS = Metric(
    "vllm:request_success_total",
    "counter",
    "Requests that ended without an error; abort counts those cancelled by their clients.",
    (*_MODEL, "finished_reason"),
)
PROMPT_TOKENS = Metric("vllm:prompt_tokens_total", "counter", "Tokens of the prompts of requests.", _MODEL)
GENERATION_TOKENS = Metric("vllm:generation_tokens_total", "counter", "Tokens generated for requests.", _MODEL)
PREEMPTIONS = Metric(
    "vllm:num_preemptions_total",
    "counter",
    "Preemptions of requests for lack of GPU memory, counted at the request's end.",
    _MODEL,
)
FIRST_TOKEN = Metric(
    "vllm:time_to_first_token_seconds", "histogram", "Time from a request's arrival to its first token.", _MODEL
)
INTER_TOKEN = Metric("vllm:inter_token_latency_seconds", "histogram", "Time between two tokens of a request.", _MODEL)
E2E = Metric(
    "vllm:e2e_request_latency_seconds",
    "histogram",
    "Time from arrival to end, of requests that were completed.",
    _MODEL,
)
QUEUE_TIME = Metric(
    "vllm:request_queue_time_seconds",
    "histogram",
    "Total time that a request waited for a GPU.",
    _MODEL,
)
REQUEST_PROMPT = Metric(
    "vllm:request_prompt_tokens", "histogram", "Tokens of a prompt, of requests that were completed.", _MODEL
)
REQUEST_GENERATION = Metric(
    "vllm:request_generation_tokens", "histogram", "Tokens of an answer, of requests that were completed.", _MODEL
)
TIME_PER_TOKEN = Metric(
    "vllm:request_time_per_output_token_seconds",
    "histogram",
    "Mean time between two tokens of a request, of requests that were completed with two tokens or more.",
    _MODEL,
)
PREFILL_TIME = Metric(
    "vllm:request_prefill_time_seconds",
    "histogram",
    "Time from a request's first placement on a GPU to its first token, by the scheduler's clock, of requests that "
    "were completed. Loading the adapter is part of it, and so is a wait after a preemption.",
    _MODEL,
)
DECODE_TIME = Metric(
    "vllm:request_decode_time_seconds",
    "histogram",
    "Time from a request's first token to its last, of requests that were completed.",
    _MODEL,
)
INFERENCE_TIME = Metric(
    "vllm:request_inference_time_seconds",
    "histogram",
    "Prefill and decode time of a request together, of requests that were completed.",
    _MODEL,
)
PARAMS_N = Metric(
    "vllm:request_params_n",
    "histogram",
    "Choices that a prompt's request asked for (n), of requests whose first choice was completed.",
    _MODEL,
)
PARAMS_MAX_TOKENS = Metric(
    "vllm:request_params_max_tokens",
    "histogram",
    "Most tokens that an answer could have: max_tokens, or the default, of requests that were completed.",
    _MODEL,
)

HTTP_REQUESTS = Metric(
    "http_requests_total",
    "counter",
    "HTTP requests that were answered, by route (none for a path without one), method and class of the status. A "
    "websocket counts at its handshake: 1xx if it was opened.",
    ("handler", "method", "status"),
)
FAILED = Metric("punica_requests_failed_total", "counter", "Requests that ended with an error, by its code.", ("code",))
CUT = Metric(
    "punica_connections_cut_total",
    "counter",
    "Connections that the frontend ended: the head (header_timeout) or the rest of a refused body (body_late) "
    "came too slowly, the client took nothing (stalled), or there were too many (too_many_connections).",
    ("reason",),
)
UNKNOWN_FIELDS = Metric(
    "punica_unknown_fields_total",
    "counter",
    "Requests of OpenAI's and TGI's APIs with an unsupported field, by field: refused for it, or answered "
    "without it (ignored, where `frontend.unknown_fields` is `warn`).",
    ("field", "outcome"),
)
WEBSOCKETS = Metric("punica_websockets", "gauge", "Open websockets of /v1/generate/stream.")
CONNECTED = Metric("punica_scheduler_connected", "gauge", "1 while the link to the scheduler is up.")
DRAINING = Metric(
    "punica_draining", "gauge", "1 while this frontend drains: it finishes its requests and accepts no new ones."
)


def _use(of: str) -> tuple[Metric, ...]:
    """Returns the metrics of each adapter or tenant, in the order of ``own``."""
    ends = "counted at their end"
    return (
        Metric(f"punica_{of}_requests_total", "counter", f"Requests by {of}, {ends}.", (of,)),
        Metric(f"punica_{of}_prompt_tokens_total", "counter", f"Tokens of prompts by {of}, {ends}.", (of,)),
        Metric(
            f"punica_{of}_cached_tokens_total",
            "counter",
            f"Tokens of prompts that were found in a KvCache, by {of}, {ends}.",
            (of,),
        ),
        Metric(f"punica_{of}_generation_tokens_total", "counter", f"Tokens generated by {of}, {ends}.", (of,)),
        Metric(
            f"punica_{of}_time_to_first_token_seconds", "histogram", f"From arrival to first token, by {of}.", (of,)
        ),
        Metric(
            f"punica_{of}_time_per_output_token_seconds",
            "histogram",
            f"Mean time between two tokens of a request, by {of}.",
            (of,),
        ),
    )


ADAPTER = _use("adapter")
TENANT = _use("tenant")
PROMISES = Metric(
    "punica_tenant_promises_total",
    "counter",
    "Promised latencies (`slo`) by tenant, judged at the request's end. promise: first_token or time_per_token; "
    "outcome: kept or broken.",
    ("tenant", "promise", "outcome"),
)

# ------------------------------------------------------------------ adapters, by the names of the most used


LORA_INFO = Metric(
    "vllm:lora_requests_info",
    "gauge",
    "Seconds since 1970. Labels: batch rows of all GPUs, adapters in GPU memory, adapters with waiting requests; "
    "only adapters with labels of their own.",
    (*_MODEL, "max_lora", "running_lora_adapters", "waiting_lora_adapters"),
)
LORA_LOADED = Metric(
    "vllm:lora_adapter_loaded",
    "gauge",
    "1 for an adapter in the memory of a GPU (gpu) or of a worker's host (cpu).",
    (*_MODEL, "adapter_name", "level", "pinned"),
)

# ------------------------------------------------------------------ the cluster, as its scheduler sees it

CACHE_CONFIG = Metric(
    "vllm:cache_config_info",
    "gauge",
    "1 for each GPU. Labels: tokens in a page of its KvCache, its pages, their data type, and whether requests share "
    "them.",
    ("engine", "block_size", "num_gpu_blocks", "cache_dtype", "enable_prefix_caching"),
    False,
)
ITERATION_TOKENS = Metric(
    "vllm:iteration_tokens_total",
    "histogram",
    "Tokens that a step of any GPU computed: prompt tokens of its prefill, and one for each request that decoded.",
    _MODEL,
    False,
)
KV_USAGE = Metric("vllm:kv_cache_usage_perc", "gauge", "Fraction of the KvCache in use, 0 to 1.", _ENGINE, False)
PREFIX_QUERIES = Metric(
    "vllm:prefix_cache_queries_total",
    "counter",
    "Tokens of requests that began on the GPU, where `engine.prefix_caching` is on; each stay counts.",
    _ENGINE,
    False,
)
PREFIX_HITS = Metric(
    "vllm:prefix_cache_hits_total",
    "counter",
    "Those of them that were found in the KvCache, and so not computed.",
    _ENGINE,
    False,
)
GPU_LORAS = Metric("vllm:num_gpu_loaded_lora_adapters", "gauge", "Adapters in the GPU's memory.", _ENGINE, False)
CPU_LORAS = Metric(
    "vllm:num_cpu_loaded_lora_adapters", "gauge", "Adapters in the host memory of the GPU's worker.", _ENGINE, False
)


def _cluster(name: str, help: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"punica_cluster_{name}", "gauge", help, labels, is_own=False)


QUEUE_LENGTH = _cluster("queue_length", "Requests that wait for a GPU.")
GPUS = _cluster("gpus", "GPUs that have joined.")
RUNNERS = _cluster("runners", "Runners connected to the scheduler.")
FRONTENDS = _cluster("frontends", "Frontends connected to the scheduler.")
MORE_GPUS = _cluster("advised_more_gpus", "GPUs to add, by the scheduler's advice.")
RELEASABLE = _cluster("advised_releasable_runners", "Runners that may be released: all their GPUs are idle.")
RUNNER_RELEASABLE = _cluster("runner_releasable", "1 for a runner that may be released.", ("runner",))


def _counter(name: str, help: str) -> Metric:
    return Metric(f"punica_cluster_{name}_total", "counter", help, is_own=False)


#: Metrics by the scheduler's names of its counters.
COUNTERS = {
    "arrived": _counter("requests_arrived", "Requests that reached the scheduler."),
    "finished": _counter("requests_finished", "Requests that were completed."),
    "cancelled": _counter("requests_cancelled", "Requests cancelled by their clients or frontends."),
    "failed": _counter("requests_failed", "Requests that the scheduler ended with an error."),
    "tokens": _counter("tokens", "Tokens delivered to frontends."),
    "evictions": _counter("evictions", "Preemptions of requests on GPUs that ran out of KvCache pages."),
    "migrations": _counter("migrations", "Requests moved to another GPU."),
    "consolidations": _counter("consolidations", "Consolidations: lightly loaded GPUs that were emptied."),
    "gpus_lost": _counter(
        "gpus_lost", "GPUs lost with their workers or runners, except those that were empty when their runner stopped."
    ),
}


def _gpu(name: str, help: str) -> Metric:
    kind: Literal["counter", "gauge"] = "counter" if name.endswith("_total") else "gauge"
    return Metric(f"punica_gpu_{name}", kind, help, _GPU, is_own=False)


#: In the order of ``cluster``.
GPU = (
    _gpu("working_set", "Requests placed on the GPU and not stopped."),
    _gpu("batch_size", "Requests in a step, the mean over the steps of the last second; 0 if it ran none."),
    _gpu("batch_size_max", "The most requests in a step of the last second."),
    _gpu("max_batch_size", "Requests that a step can hold."),
    _gpu("free_kv_pages", "Free pages of the KvCache."),
    _gpu("kv_pages", "Pages of the KvCache."),
    _gpu("known_kv_pages", "Pages of the KvCache whose contents a request could find; free ones count as free too."),
    _gpu("adapters", "The most different adapters in a step of the last second."),
    _gpu("draining", "1 while the GPU drains: nothing new is placed there, and its requests move."),
    _gpu("steps_total", "Model invocations."),
    _gpu("tokens_total", "Tokens generated."),
)
STEP_TIME_RATIO = _gpu(
    "step_time_ratio",
    "Measured time of steps over the time that `scheduler.profile` predicts, a moving mean over steps of decodes "
    "alone; only with a profile, and once enough steps were compared.",
)

#: All metrics, in the order of docs/metrics.md.
OWN = (
    *(RUNNING, WAITING, SUCCESS, PROMPT_TOKENS, GENERATION_TOKENS, PREEMPTIONS, FIRST_TOKEN, INTER_TOKEN, E2E),
    *(QUEUE_TIME, PREFILL_TIME, DECODE_TIME, INFERENCE_TIME, TIME_PER_TOKEN, REQUEST_PROMPT, REQUEST_GENERATION),
    *(PARAMS_N, PARAMS_MAX_TOKENS, LORA_INFO, LORA_LOADED),
    *(HTTP_REQUESTS, FAILED, CUT, UNKNOWN_FIELDS, WEBSOCKETS, CONNECTED, DRAINING, *ADAPTER, *TENANT, PROMISES),
)
CLUSTER = (
    *(
        CACHE_CONFIG,
        ITERATION_TOKENS,
        KV_USAGE,
        PREFIX_QUERIES,
        PREFIX_HITS,
        GPU_LORAS,
        CPU_LORAS,
        QUEUE_LENGTH,
        GPUS,
        RUNNERS,
        FRONTENDS,
    ),
    *(MORE_GPUS, RELEASABLE, RUNNER_RELEASABLE, *COUNTERS.values(), *GPU, STEP_TIME_RATIO),
)

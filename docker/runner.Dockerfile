# A runner and its workers, for CPUs or for NVIDIA GPUs. Built from the root of the repository:
#
#     docker build -f docker/runner.Dockerfile -t punica-serve-runner .
#     docker build -f docker/runner.Dockerfile -t punica-serve-runner:cuda --build-arg DEVICE=cuda .
#
# The package index has one build of torch. For another one, set TORCH_INDEX to an index from torch's own page, which has
# one for each CUDA version and one for CPUs.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ARG DEVICE=cpu
ARG TORCH_INDEX=
WORKDIR /src
RUN python -m venv /opt/punica-serve
COPY constraints.txt ./
# Install torch first and alone, so that pip takes the CPU build where there is one, whatever other packages ask for.
RUN /opt/punica-serve/bin/pip install --no-cache-dir --constraint constraints.txt \
        ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY pyproject.toml ./
COPY punica_serve/punica_serve/version.py punica_serve/punica_serve/version.py
RUN case "$DEVICE" in cpu|cuda) ;; *) echo "DEVICE is cpu or cuda" >&2; exit 2 ;; esac \
    && mkdir -p kernels/punica_kernels scheduler/punica_scheduler runner/punica_runner frontend/punica_frontend configs \
    && touch README.md LICENSE \
    && extra=$(if [ "$DEVICE" = cuda ]; then echo gpu; else echo engine; fi) \
    && /opt/punica-serve/bin/pip install --no-cache-dir --constraint constraints.txt ".[$extra,s3,hf,otel]" \
    && /opt/punica-serve/bin/pip uninstall --yes --quiet punica-serve
COPY README.md LICENSE ./
COPY kernels kernels
COPY punica_serve punica_serve
COPY scheduler scheduler
COPY runner runner
COPY frontend frontend
COPY configs configs
RUN /opt/punica-serve/bin/pip install --no-cache-dir --no-deps . \
    && /opt/punica-serve/bin/pip uninstall --yes --quiet pip

FROM ${BASE}
ARG DEVICE=cpu
# On a GPU, Triton compiles kernels at the first start, and needs a C compiler for their launchers.
RUN if [ "$DEVICE" = cuda ]; then \
        apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; fi
# A new volume mounted on one of these folders takes over its owner.
RUN groupadd --system --gid 10001 punica \
    && useradd --system --uid 10001 --gid punica --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin punica \
    && install -d -o punica -g punica -m 0700 /run/punica /var/lib/punica-token /var/cache/punica-serve \
        /var/lib/punica-serve /var/lib/punica-serve/store /var/lib/punica-serve/cache
COPY --from=build /opt/punica-serve /opt/punica-serve
COPY docker/alive /usr/local/bin/punica-alive
# Compiled kernels are stored in HOME.
ENV PATH=/opt/punica-serve/bin:$PATH PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PUNICA_ALIVE_FILE=/run/punica/alive \
    HOME=/var/cache/punica-serve
USER 10001:10001
WORKDIR /var/lib/punica-serve
HEALTHCHECK --interval=5s --timeout=5s --start-period=300s --retries=3 CMD ["punica-alive"]
ENTRYPOINT ["punica-serve"]
CMD ["runner", "--help"]

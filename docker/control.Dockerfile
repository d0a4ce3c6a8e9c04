# The control plane: scheduler, frontend and the command line. No torch. Built from the root of the repository:
#
#     docker build -f docker/control.Dockerfile -t punica-serve-control .
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /src
RUN python -m venv /opt/punica-serve
# Layers that rarely change come first: only the project's list of dependencies.
COPY pyproject.toml constraints.txt ./
COPY punica_serve/punica_serve/version.py punica_serve/punica_serve/version.py
RUN mkdir -p kernels/punica_kernels scheduler/punica_scheduler runner/punica_runner frontend/punica_frontend configs \
    && touch README.md LICENSE \
    && /opt/punica-serve/bin/pip install --no-cache-dir --constraint constraints.txt '.[postgres,s3,hf,otel]' \
    && /opt/punica-serve/bin/pip uninstall --yes --quiet punica-serve
COPY README.md LICENSE ./
COPY kernels kernels
COPY punica_serve punica_serve
COPY scheduler scheduler
COPY runner runner
COPY frontend frontend
COPY configs configs
# Leave out unused files: other packages' tests, pip, and all AWS services except S3 and those for credentials.
RUN /opt/punica-serve/bin/pip install --no-cache-dir --no-deps . \
    && cd /opt/punica-serve/lib/python3*/site-packages \
    && find . -depth -type d -name tests -exec rm -r {} + \
    && find botocore/data -mindepth 1 -maxdepth 1 -type d ! -name s3 ! -name 'sso*' ! -name sts -exec rm -r {} + \
    && /opt/punica-serve/bin/pip uninstall --yes --quiet setuptools pip

FROM ${BASE}
# A new volume mounted on one of these folders takes over its owner.
RUN groupadd --system --gid 10001 punica \
    && useradd --system --uid 10001 --gid punica --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin punica \
    && install -d -o punica -g punica -m 0700 \
        /run/punica /var/lib/punica-token /var/lib/punica-serve /var/lib/punica-serve/store
COPY --from=build /opt/punica-serve /opt/punica-serve
COPY docker/alive /usr/local/bin/punica-alive
ENV PATH=/opt/punica-serve/bin:$PATH PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PUNICA_ALIVE_FILE=/run/punica/alive
USER 10001:10001
WORKDIR /var/lib/punica-serve
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=3 CMD ["punica-alive"]
ENTRYPOINT ["punica-serve"]
CMD ["--help"]

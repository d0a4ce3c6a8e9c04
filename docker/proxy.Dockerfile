# HAProxy, the common address of all frontends. Built from the root of the repository:
#
#     docker build -f docker/proxy.Dockerfile -t punica-serve-proxy .
ARG BASE=python:3.11-slim
FROM ${BASE}
RUN apt-get update && apt-get install --yes --no-install-recommends haproxy && rm -rf /var/lib/apt/lists/*
COPY docker/haproxy /etc/haproxy/punica
RUN chmod -R a+rX /etc/haproxy/punica \
    && haproxy -c -f /etc/haproxy/punica/common.cfg -f /etc/haproxy/punica/plain.cfg
USER haproxy
# SIGUSR1 lets open connections finish; SIGTERM would cut them.
STOPSIGNAL SIGUSR1
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python3", "-c", "import urllib.request as http; http.urlopen('http://127.0.0.1:8404/up', timeout=4)"]
ENTRYPOINT ["haproxy", "-W", "-db", "-f", "/etc/haproxy/punica/common.cfg"]
CMD ["-f", "/etc/haproxy/punica/plain.cfg"]

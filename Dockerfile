# syntax=docker/dockerfile:1.7
# Four images from one file: `streams` (pool worker, synthesizer, archiver, dashboards), `trainer-cpu`, `trainer` (CUDA).
# Packages come before our code and from requirements.lock alone, so a change of code rebuilds the last layers only.
# Health checks ask `rods health`: /healthz of the process in the container (RODS_METRICS_PORT).

ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm
# https://hub.docker.com/r/nvidia/cuda : the runtime flavour carries the CUDA libraries; the driver comes from the host.
ARG CUDA_IMAGE=nvidia/cuda:13.0.1-runtime-ubuntu24.04

FROM ${PYTHON_IMAGE} AS python-builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /build
COPY requirements.lock pyproject.toml ./

FROM python-builder AS streams-builder
COPY deploy/install.sh ./
RUN ./install.sh streams
COPY . .
RUN pip install --no-deps .

FROM python-builder AS trainer-cpu-builder
COPY deploy/install.sh ./
RUN PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu ./install.sh train
COPY . .
RUN pip install --no-deps .

FROM ${CUDA_IMAGE} AS trainer-builder
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
WORKDIR /build
COPY requirements.lock pyproject.toml deploy/install.sh ./
RUN ./install.sh train
COPY . .
RUN pip install --no-deps .

FROM ${PYTHON_IMAGE} AS slim
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin rods \
    && install --directory --owner=rods --group=rods /data /data/archive /data/runs /data/worker
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 RODS_METRICS_PORT=9464
WORKDIR /data
USER 10001
HEALTHCHECK --interval=15s --timeout=10s --retries=4 --start-period=90s CMD ["rods", "health"]
ENTRYPOINT ["rods"]

FROM slim AS streams
COPY --from=streams-builder /opt/venv /opt/venv
CMD ["--help"]

FROM slim AS trainer-cpu
COPY --from=trainer-cpu-builder /opt/venv /opt/venv
ENV OMP_NUM_THREADS=1
CMD ["train", "--help"]

FROM ${CUDA_IMAGE} AS trainer
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends python3 && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin rods \
    && install --directory --owner=rods --group=rods /data /data/runs
COPY --from=trainer-builder /opt/venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 RODS_METRICS_PORT=9464
WORKDIR /data
USER 10001
HEALTHCHECK --interval=15s --timeout=10s --retries=4 --start-period=300s CMD ["rods", "health"]
ENTRYPOINT ["rods"]
CMD ["train", "--help"]

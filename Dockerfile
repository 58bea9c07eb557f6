# For machines with NVIDIA GPUs and the NVIDIA Container Toolkit:
#   docker build -t tp-transformer .
#   docker run --rm --gpus all -v "$PWD":/workspace tp-transformer solve "Is 7 prime?"
# The folder of the host is /workspace, where stores and runs are read and written. For several GPUs:
#   docker run --rm --gpus all --ipc=host -v "$PWD":/workspace --entrypoint torchrun tp-transformer \
#     --standalone --nproc-per-node=gpu -m -- tp_transformer train --config tp-transformer --data math --run runs/tp
# PyPI's torch for Linux contains the CUDA libraries; the driver comes from the host.
FROM python:3.11-slim-bookworm

ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

# The C kernels of the package and torch.compile need a compiler.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc g++ libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/tp-transformer
COPY pyproject.toml hatch_build.py constraints.txt README.md LICENSE NOTICE ./
COPY src ./src
RUN pip install --no-cache-dir -c constraints.txt ".[all]" && tpt --version

# Files that a run writes to /workspace belong to this user; --user "$(id -u)" makes them yours.
RUN useradd --create-home --uid 1000 user && mkdir /workspace && chown 1000 /workspace
USER 1000
WORKDIR /workspace
ENTRYPOINT ["tpt"]
CMD ["--help"]

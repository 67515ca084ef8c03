# One image for each trainer: docker build --build-arg TRAINER=text -t trainer-text .   (docs/image.md)
# The torch wheel brings CUDA's libraries along, so the base stays slim: CUDA's own base would carry them twice,
# and refuses to start on an old driver before anybody could say 78.
# ROCm: --build-arg ACCELERATOR=rocm --build-arg BASE=rocm/pytorch:...; the base's torch is left as it is.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

# Files of all trainers, each held against its hash before anything of it runs. Nothing else is installed below.
FROM ${BASE} AS wheels
ARG ACCELERATOR=cuda
ARG PIP_FIND_LINKS=""
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY requirements/image-${ACCELERATOR}.txt /lock.txt
RUN python3 -m venv /pip && /pip/bin/pip download --require-hashes --no-deps --only-binary :all: \
    --requirement /lock.txt --dest /locked

FROM ${BASE}

# gcc and headers: torch.compile builds kernels at run time.
RUN if ! command -v gcc; then apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev ca-certificates \
    && rm -rf /var/lib/apt/lists/*; fi

# torch in a layer of its own, equal for all trainers: nothing above names one.
ENV PATH=/opt/trainer/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN --mount=type=bind,from=wheels,source=/locked,target=/locked \
    python3 -m venv --system-site-packages /opt/trainer \
    && if ! python -c 'import torch'; then pip install --no-index --find-links /locked torch; fi

# The rest: the extra is called like the trainer, with - for _. No weights inside.
ARG TRAINER=text
COPY pyproject.toml README.md LICENSE /build/
COPY app_trainer_sdk /build/app_trainer_sdk
COPY trainer_images /build/trainer_images
RUN --mount=type=bind,from=wheels,source=/locked,target=/locked \
    pip install --no-index --find-links /locked "/build[$(echo "$TRAINER" | tr _ -)]" && rm -r /build

# What the image is, for those who read it without starting it, and for preflight. Folders may be written by the
# group of whatever user the platform picks; the root need not be writable. The revision stands in a command, since
# some builders take a label from their cache whatever an argument says.
ARG REVISION=""
RUN useradd --uid 10001 --gid 0 --home-dir /cache/home --no-create-home trainer \
    && mkdir --parents /job /cache /run/trainer && chown 10001:0 /job /cache && chmod 2775 /job /cache \
    && app-trainer describe "$TRAINER" > /describe.json \
    && python -m app_trainer_sdk.training.image_facts "$REVISION" > /image.json

ARG BASE
ARG BASE_DIGEST=""
ARG VERSION=""
# 1 where processors must never train in place of a GPU that is not there; an image for the CPU says 0.
ARG REQUIRE_GPU=1
# pydantic would read every package there is for plugins, at each start.
ENV APP_TRAINER_JOB_DIR=/job APP_TRAINER_CACHE_DIR=/cache HOME=/cache/home PYTHONUNBUFFERED=1 \
    PYDANTIC_DISABLE_PLUGINS=__all__ \
    APP_TRAINER_REVISION=$REVISION APP_TRAINER_REQUIRE_GPU=$REQUIRE_GPU \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
LABEL org.opencontainers.image.title="trainer-$TRAINER" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.base.name="$BASE" \
      org.opencontainers.image.base.digest="$BASE_DIGEST"
WORKDIR /job
USER 10001:0

ENTRYPOINT ["app-trainer"]
CMD ["run"]

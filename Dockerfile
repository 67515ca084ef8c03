# One image for each trainer: docker build --build-arg TRAINER=text -t trainer-text .
# First version: the CUDA form. The torch wheel brings CUDA's libraries along, so the base stays slim.
FROM python:3.11-slim-bookworm

ARG TRAINER=text
ARG REVISION=unknown
LABEL org.opencontainers.image.revision=$REVISION \
      org.opencontainers.image.title="trainer-$TRAINER" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11-slim-bookworm"

# gcc and headers: torch.compile builds kernels at run time.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev ca-certificates \
    && rm -rf /var/lib/apt/lists/*

# torch in a layer of its own, byte-identical for all trainers.
COPY constraints.txt /build/constraints.txt
RUN pip install --no-cache-dir --constraint /build/constraints.txt torch

COPY pyproject.toml README.md LICENSE /build/
COPY app_trainer_sdk /build/app_trainer_sdk
COPY trainer_images /build/trainer_images
RUN pip install --no-cache-dir --constraint /build/constraints.txt "/build[$TRAINER]"

# No weights inside; what the image offers lies in /describe.json; caches are writable by the group of whatever user the platform picks.
RUN useradd --uid 10001 --gid 0 --create-home trainer \
    && mkdir -p /job /cache /run/trainer && chown 10001:0 /job /cache && chmod 2775 /job /cache \
    && app-trainer describe "$TRAINER" > /describe.json
ENV APP_TRAINER_JOB_DIR=/job APP_TRAINER_CACHE_DIR=/cache HF_HOME=/cache/hub XDG_CACHE_HOME=/cache/xdg \
    TORCHINDUCTOR_CACHE_DIR=/cache/compile TRITON_CACHE_DIR=/cache/triton PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 10001:0

ENTRYPOINT ["app-trainer"]
CMD ["run"]

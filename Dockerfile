# psruntime and what its processes need, for a user without rights and a root that cannot be written.
#
#     DIGEST=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' python:3.11-slim-bookworm)
#     docker build -t psruntime --build-arg BASE_DIGEST=$DIGEST .     for models of your own
#     docker build -t psruntime --build-arg BASE_DIGEST=$DIGEST --build-arg EXTRAS='[examples]' .     for the digits example
#     docker run --rm --read-only --tmpfs /tmp psruntime run --ps 1 --workers 2
#
# An image of a job adds its model, which is imported from /job:
#
#     FROM psruntime
#     COPY my_model.py /job/
#
# The base image is named by a digest, since a tag can be moved: an image without BASE_DIGEST is refused.  For a release, keep
# the digest with it: the same digest gives the same base again, on every platform.  To renew it, ask for it anew, as above;
# images have theirs as the label org.opencontainers.image.base.digest.
ARG BASE_DIGEST
FROM python:3.11-slim-bookworm@${BASE_DIGEST} AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY tools/constraints.py tools/
COPY psruntime psruntime
ARG EXTRAS=
RUN python -m venv /opt/psruntime && \
    python tools/constraints.py list build "psruntime$EXTRAS" > requirements.txt && \
    /opt/psruntime/bin/pip install --no-cache-dir --require-hashes --only-binary :all: -r requirements.txt && \
    /opt/psruntime/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11-slim-bookworm@${BASE_DIGEST}
ARG BASE_DIGEST
LABEL org.opencontainers.image.base.name=python:3.11-slim-bookworm org.opencontainers.image.base.digest=$BASE_DIGEST
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends tini && \
    rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/psruntime /opt/psruntime
# /tmp is all that can be written: Python leaves no .pyc elsewhere, and caches of libraries go there.
ENV PATH=/opt/psruntime/bin:$PATH HOME=/tmp PYTHONDONTWRITEBYTECODE=1
WORKDIR /job
USER 10001:10001
# tini passes signals on and reaps; a process that is PID 1 itself ends by no signal that it does not handle.
ENTRYPOINT ["tini", "--", "psruntime"]
CMD ["--help"]

# psruntime and what its processes need, for a user without rights and a root that cannot be written.
#
#     docker build -t psruntime .                                     for models of your own
#     docker build -t psruntime --build-arg EXTRAS='[examples]' .     with scikit-learn, for the digits example
#     docker run --rm --read-only --tmpfs /tmp psruntime run --ps 1 --workers 2
#
# An image of a job adds its model, which is imported from /job:
#
#     FROM psruntime
#     COPY my_model.py /job/
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY psruntime psruntime
ARG EXTRAS=
RUN python -m venv /opt/psruntime && \
    /opt/psruntime/bin/pip install --no-cache-dir --constraint constraints.txt ".$EXTRAS"

FROM python:3.11-slim-bookworm
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

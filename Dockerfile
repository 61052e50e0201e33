# The two commands of the README in a container, on Debian with its own Python:
#
#     docker build --target train -t agentenv . && docker run --rm -v "$PWD/runs:/agentenv/runs" agentenv
#     docker build -t agentenv-test . && docker run --rm agentenv-test
#
# The tests skip what a container without privileges does not have: the jails of bubblewrap, and an engine of containers.
FROM debian:bookworm-slim AS train
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates git make python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /agentenv
COPY . .
RUN make .venv/bin/.trains
CMD ["make", "train"]

FROM train AS test
RUN apt-get update \
    && apt-get install -y --no-install-recommends chromium-headless-shell gcc libseccomp2 \
    && rm -rf /var/lib/apt/lists/*
RUN make venv
CMD ["make", "test"]

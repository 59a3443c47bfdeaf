# docker build -f dockerfiles/cpu.Dockerfile -t agentgym:cpu . && docker run --shm-size 1g agentgym:cpu train --env math
FROM python:3.12-slim-bookworm
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN pip install --index-url https://download.pytorch.org/whl/cpu torch==2.13.0
WORKDIR /src
COPY . .
# hadolint ignore=DL3013
RUN pip install ".[train,docker,monty,data,gym,tools,math,serve]" && rm -rf /src/*
RUN useradd --create-home --uid 10001 gym
USER 10001
WORKDIR /home/gym
ENTRYPOINT ["agentgym"]
CMD ["doctor"]

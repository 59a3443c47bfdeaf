# docker build -f dockerfiles/cuda.Dockerfile -t agentgym:cuda . && docker run --gpus all --shm-size 16g agentgym:cuda doctor
# torch and vLLM as tested; their wheels bring CUDA's libraries, and the base a compiler for kernels that are made here.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/agentgym/bin:$PATH
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3.12-dev python3.12-venv gcc \
    && rm -rf /var/lib/apt/lists/* \
    && python3.12 -m venv /opt/agentgym
RUN pip install torch==2.13.0 vllm==0.32.0
WORKDIR /src
COPY . .
# hadolint ignore=DL3013
RUN pip install ".[train,docker,monty,data,gym,tools,math,serve]" && rm -rf /src/*
RUN useradd --create-home --uid 10001 gym
USER 10001
WORKDIR /home/gym
ENTRYPOINT ["agentgym"]
CMD ["doctor"]

# syntax=docker/dockerfile:1
# The commands of the library, with JAX for CUDA 13: docs/install.md. Never built so far: no registry was at hand.
FROM python:3.13-slim

# First the dependencies, around empty packages: a change of the code does not install CUDA again.
WORKDIR /build
COPY pyproject.toml ./
# pyproject.toml bounds the versions.
# hadolint ignore=DL3013
RUN --mount=type=cache,target=/root/.cache/pip \
    mkdir based_jax pallas_kernels \
    && touch README.md pallas_kernels/__init__.py \
    && echo '__version__ = "0"' > based_jax/__init__.py \
    && pip install '.[gpu]'

COPY README.md LICENSE ./
COPY based_jax based_jax
COPY pallas_kernels pallas_kernels
RUN pip install --no-cache-dir --no-deps --force-reinstall .

# Mount a directory over /work for what commands read and write.
RUN useradd --create-home --uid 1000 based && mkdir /work && chown based /work
USER 1000
WORKDIR /work
ENTRYPOINT ["based-jax"]
CMD ["--help"]

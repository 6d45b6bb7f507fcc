# syntax=docker/dockerfile:1
# The training image: Ubuntu 24.04 (glibc 2.39, Python 3.12), EFA user space with its NCCL plugin, the packages of
# trainer/requirements.lock (torch brings CUDA, cuDNN and NCCL), and our code. Built for x86_64 only:
#
#     docker build --platform linux/amd64 -t REGISTRY/holdfast-trainer:VERSION .
#
# The driver comes from the node (AL2023_x86_64_NVIDIA). It was not built where it was written: docs/deploy.md has what to
# look at.

ARG CUDA_VERSION=13.0.2
ARG UBUNTU_VERSION=24.04
FROM nvidia/cuda:${CUDA_VERSION}-base-ubuntu${UBUNTU_VERSION}

ARG PYTHON_VERSION=3.12
ARG EFA_INSTALLER_VERSION=1.49.0
# Of the key that signs the installer (docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html).
ARG EFA_KEY_FINGERPRINT=4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC

SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# numactl: NVRx binds ranks to memory with it. g++ and Python's headers: training.compile calls a compiler at run time.
# The versions are those of the Ubuntu release.
# hadolint ignore=DL3008
RUN apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
      ca-certificates curl g++ gnupg numactl \
      "python${PYTHON_VERSION}" "python${PYTHON_VERSION}-dev" "python${PYTHON_VERSION}-venv" \
 && rm -rf /var/lib/apt/lists/*

# libfabric, rdma-core and aws-ofi-nccl in the versions that AWS ships together; signed by the key named above. The kernel
# module is the node's, limits are the container runtime's, and there is no device to verify during a build.
WORKDIR /tmp/efa
RUN from=https://efa-installer.amazonaws.com \
 && installer="aws-efa-installer-${EFA_INSTALLER_VERSION}.tar.gz" \
 && curl --fail --silent --show-error --location --remote-name "${from}/{${installer},${installer}.sig,aws-efa-installer.key}" \
 && export GNUPGHOME=/tmp/efa/keys && mkdir --mode 700 keys \
 && gpg --batch --import aws-efa-installer.key \
 && gpg --batch --status-fd 1 --verify "${installer}.sig" "${installer}" > verified \
 && grep --quiet "VALIDSIG.*${EFA_KEY_FINGERPRINT}" verified \
 && tar --extract --file "${installer}" --strip-components 1 \
 && apt-get update \
 && ./efa_installer.sh -y --skip-kmod --skip-limit-conf --no-verify \
 && rm -rf /tmp/efa /var/lib/apt/lists/*

# Exactly the locked packages, each compared with its hash. pip's cache would double the layer.
COPY trainer/requirements.lock /tmp/requirements.lock
RUN "python${PYTHON_VERSION}" -m venv /opt/venv \
 && /opt/venv/bin/pip install --no-cache-dir --no-deps --only-binary :all: \
      --require-hashes --requirement /tmp/requirements.lock \
 && rm /tmp/requirements.lock

WORKDIR /opt/holdfast
COPY holdfast holdfast
COPY trainer trainer

# ft_launcher, nvrx-control and torchrun are found on PATH. NCCL looks for its network plugin on LD_LIBRARY_PATH only; the
# installer has changed its place between versions, so both are there.
ENV PATH=/opt/venv/bin:/opt/amazon/efa/bin:$PATH \
    PYTHONPATH=/opt/holdfast \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu:/opt/amazon/ofi-nccl/lib:/opt/amazon/efa/lib

# Compiled here, where the folder can be written, and the one thing that can be tried without a GPU.
RUN python -m compileall -q holdfast trainer \
 && python -m trainer.supervisor --help > /dev/null

# Nobody in particular by default. Pods on GPU nodes say runAsUser: 0 instead (k8s/pods.py): EFA registers memory, which
# needs IPC_LOCK, and Linux gives a capability that was added to a container to root only.
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin trainer
USER 10001:10001

# The pod names the role and its folders: worker|control --config FILE --run-dir FOLDER. Python is PID 1 and reaps.
ENTRYPOINT []
CMD ["python", "-m", "trainer.supervisor", "--help"]

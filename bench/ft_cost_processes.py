"""The processes of bench.ft_cost: nvrx-control and ft_launcher with the ranks of the side that is on, and those of the
side that is off. Each is a tree that ends as a whole, also when the driver is killed."""

from __future__ import annotations

import argparse
import os
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.demo import ROOT
from bench.ft_cost_spec import OFF, ON, STALL_S, Spec
from holdfast import launch
from holdfast.config import RunConfig, dump, names
from holdfast.config.metrics import served_ports
from holdfast.local.addresses import Addresses
from holdfast.local.processes import TOKEN_VARIABLE, PodProcess
from holdfast.run_directory import Owner, RunDirectory

HERE = "127.0.0.1"
RANK = "bench.arms.ft_cost_rank"
NOT_OFF = (
    "TORCH_FR_BUFFER_SIZE",
    "TORCH_NCCL_DUMP_ON_TIMEOUT",
    "NCCL_NVLS_ENABLE",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS",
)
"""What our manifest sets for fault tolerance only: the side that is off does without."""
SCRAPE_S = 15.0
"""How often a Prometheus asks, as a rule."""
SCRAPE_LIMIT_S = 5.0
END_S = 5.0
TAIL_BYTES = 2000


class Died(Exception):
    """A process ended, or nothing moves any more."""


class Sides:
    """Both sides, from `with` to its end."""

    def __init__(self, config: RunConfig, folder: Path, run: str, arguments: argparse.Namespace) -> None:
        """folder: short, new and empty."""
        self._config = config
        self._folder = folder
        self._token = os.urandom(8).hex()
        self._stack = ExitStack()
        addresses = Addresses()
        self._stack.callback(addresses.close)
        wanted = ["store", "group", *(f"metrics{index}" for index in range(len(served_ports(config))))]
        self._ports = {name: port for (name, _), port in addresses.ports([(w, 0) for w in wanted], None).items()}
        self._run = RunDirectory(folder / "run")
        (folder / "storage").mkdir()
        self._spec = Spec(
            run=run,
            raw=str(arguments.raw),
            store=f"{HERE}:{self._ports['store']}",
            config=str(folder / "config.yaml"),
            run_dir=str(self._run.path),
            storage=str(folder / "storage"),
            world=config.world_size,
            steps=arguments.steps,
            settle=arguments.settle,
        )
        self._pods: dict[str, PodProcess] = {}
        self._turns = 0
        self._moved = self._scraped = time.monotonic()

    def __enter__(self) -> Sides:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def look_after(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """See that all is well, and scrape if it is time. lines: of this run, so far. Raises Died."""
        for line in lines:
            if line["kind"] == "failed":
                raise Died(f"side {line['side']}, rank {line['rank']}: {line['why']}\n{self._tails()}")
        for name, pod in self._pods.items():
            pod.messages()
            if (code := pod.exit_code()) is not None:
                raise Died(f"{name} ended with {code}\n{self._tails()}")
        turns = sum(line["kind"] == "turn" for line in lines)
        if turns != self._turns:
            self._turns, self._moved = turns, time.monotonic()
        elif time.monotonic() - self._moved > STALL_S:
            raise Died(f"no turn has ended for {STALL_S:.0f} s\n{self._tails()}")
        if turns and time.monotonic() - self._scraped > SCRAPE_S:
            self._scraped = time.monotonic()
            self._scrape()

    def _start(self) -> None:
        config = self._config
        Path(self._spec.config).write_text(dump(config), encoding="utf-8")
        owner = self._run.take(
            nodes=1, job="bench", jobset_attempt=0, pod="bench", lease_s=config.recovery.owner_lease_s
        )
        port = self._ports["store"]
        control = launch.control_argv(config, generation=owner.generation, nodes=1, port=port)
        self._pod("control", control, self._environment("control"))
        self._pod(ON, self._launcher(owner), self._environment(ON) | self._of_the_launcher(owner))
        for rank in range(config.world_size):
            command = [sys.executable, "-u", "-m", RANK, OFF, self._spec.to_json()]
            self._pod(f"{OFF}{rank}", command, self._environment(f"{OFF}{rank}") | self._of_a_bare_rank(rank))

    def _pod(self, name: str, argv: list[str], environment: dict[str, str]) -> None:
        pod = PodProcess(name, argv, environment, self._folder / name, self._folder / f"{name}.log", [])
        self._pods[name] = pod
        self._stack.callback(pod.wait, END_S)
        self._stack.callback(pod.close)  # first: its tree is killed

    def _environment(self, name: str) -> dict[str, str]:
        (self._folder / name).mkdir()
        path = [str(Path(sys.prefix) / "bin"), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        return dict(os.environ) | {
            "PATH": os.pathsep.join(dict.fromkeys(path)),
            "PYTHONPATH": str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(self._folder / name),
            "OMP_NUM_THREADS": "1",
            TOKEN_VARIABLE: f"{self._token}.{name}",
        }

    def _launcher(self, owner: Owner) -> list[str]:
        argv = launch.launcher_argv(
            self._config,
            generation=owner.generation,
            nodes=1,
            store=self._spec.store,
            local_addr=HERE,
            group_rank=0,
            master=HERE,
            rank_args=[],
            log_dir=str(self._folder / ON / "ranks"),
        )
        # The last -m is the ranks'; the launcher itself may be a module too.
        return [*argv[: len(argv) - argv[::-1].index("-m")], RANK, ON, self._spec.to_json()]

    def _of_the_launcher(self, owner: Owner) -> dict[str, str]:
        """The worker pod's environment as the manifest has it, and what a kubelet would fill in."""
        places = [port for name, port in self._ports.items() if name.startswith("metrics")]
        return {
            **_written(self._config),
            **launch.rank_environment(self._config, generation=owner.generation, token=owner.token),
            names.ENV_STORAGE: self._spec.storage,
            names.ENV_SCRATCH: str(self._folder / ON),
            "TMPDIR": str(self._folder / ON),
            names.ENV_POD: "bench",
            names.ENV_NODE: "bench",
            names.ENV_POD_IP: HERE,
            names.ENV_STORE: self._spec.store,
            names.ENV_JOB: "bench",
            names.ENV_JOBSET_ATTEMPT: "0",
            names.ENV_GROUP_RANK: "0",
            names.ENV_MASTER: HERE,
            names.ENV_TERMINATION_MESSAGE: str(self._folder / ON / "last-words"),
            names.ENV_METRICS: ",".join(f"{HERE}:{port}" for port in places),
            "GLOO_SOCKET_IFNAME": "lo",
        }

    def _of_a_bare_rank(self, rank: int) -> dict[str, str]:
        torch = {name: value for name, value in _written(self._config).items() if not name.startswith("HOLDFAST_")}
        return {name: value for name, value in torch.items() if name not in NOT_OFF} | {
            "TMPDIR": str(self._folder / f"{OFF}{rank}"),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(self._spec.world),
            "MASTER_ADDR": HERE,
            "MASTER_PORT": str(self._ports["group"]),
            "GLOO_SOCKET_IFNAME": "lo",
        }

    def _scrape(self) -> None:
        for name, port in self._ports.items():
            if name.startswith("metrics"):
                try:
                    with urllib.request.urlopen(f"http://{HERE}:{port}/metrics", timeout=SCRAPE_LIMIT_S) as answer:
                        answer.read()
                except OSError as error:
                    raise Died(f"metrics are not served at port {port}: {error}\n{self._tails()}") from None

    def _tails(self) -> str:
        found = []
        for path in sorted(self._folder.glob("*.log")):
            text = path.read_bytes()[-TAIL_BYTES:].decode(errors="replace").strip()
            found.append(f"--- {path.name}\n{text}")
        return "\n".join(found)


def _written(config: RunConfig) -> dict[str, str]:
    """Variables of a worker pod whose values the manifest itself has."""
    variables = launch.pod_environment(config, "bench", "worker")
    return {variable.name: variable.value for variable in variables if variable.value is not None}

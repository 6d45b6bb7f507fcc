"""The loop. Everything built inside train() is rebuilt on a restart; everything that survives one is an argument."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.config import ConfigError, Problem, RunConfig, names
from holdfast.goodput.events import EventLog
from holdfast.run_directory import RunDirectory
from trainer.faults import Faults
from trainer.restart.bad_loss import Losses
from trainer.restart.heartbeat import Pulse
from trainer.runtime import Attempt, Identity, device_of, process_group

if TYPE_CHECKING:
    import torch

    from trainer.checkpoint import Checkpoints
    from trainer.checkpoint.near import Hands
    from trainer.checkpoint.stage import Stage
    from trainer.checkpoint.writer import Writer
    from trainer.data import Dataset
    from trainer.restart.in_process import HangWatch
    from trainer.stragglers.own_time import OwnTime


@dataclass
class Survivors:
    """What lives on from one attempt to the next in the same process."""

    config: RunConfig
    identity: Identity
    run: RunDirectory
    storage: Path
    log: EventLog
    pulse: Pulse
    writer: Writer
    stage: Stage
    local: Hands | None = None
    """The same for the local tier, where there is one."""
    step: int = 0
    """Last step that this process finished or began; names the place of a failure."""
    finished: int = 0
    """Steps that this process has finished, in all its attempts."""
    faults: Faults = field(init=False)
    """What is broken on purpose."""

    def __post_init__(self) -> None:
        self.faults = Faults(self.config.faults, self.run, self.identity.rank, self.log, lambda: self.writer.pid)


def train(attempt: Attempt, survivors: Survivors, watch: HangWatch) -> None:
    """Train from the newest committed step to the last, or raise. Returns after the final commit. Raises Leaving if all
    ranks were asked to leave before. watch: is told when the first steps are over.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.distributed_c10d import _get_default_store

    from trainer import evaluation, weights_load
    from trainer import optimizer as optimizers
    from trainer.checkpoint import Checkpoints
    from trainer.model import build
    from trainer.parallel import blocks
    from trainer.stragglers.exchange import Stragglers
    from trainer.stragglers.own_time import OwnTime
    from trainer.urgent import Urgent

    config, identity, log, pulse = survivors.config, survivors.identity, survivors.log, survivors.pulse
    faults = survivors.faults
    pulse.restart(watch.atomic)
    survivors.step = 0
    survivors.stage.forget()
    if survivors.local is not None:
        survivors.local.stage.forget()
    device = device_of(config, identity.local_rank)
    faults.strike("start_up")
    with process_group(config, faults.resolved(identity), attempt, log):
        with log.span("build"):
            mesh = init_device_mesh(device.type, (identity.world_size,))
            model = build(config, device, mesh)
            optimizer = optimizers.build_optimizer(model, config)
        with log.span("data_open"):
            dataset = open_agreed_dataset(survivors)
        checkpoints = Checkpoints(survivors, attempt, model, optimizer, dataset.fingerprint)
        own = OwnTime(blocks(model), device)
        parts = Parts(model, optimizer, dataset, checkpoints, faults, Losses(survivors, attempt), device, own)
        stragglers = Stragglers(config, identity, log, _get_default_store())
        with pulse.section(names.SECTION_RESTORE):
            faults.strike("restore")
            first = checkpoints.restore() + 1
            weights_load.begin(first - 1, model, survivors)
            parts.losses.begin(first - 1)
        survivors.step = first - 1
        with Urgent(survivors, checkpoints) as urgent:
            for step in range(first, config.training.steps + 1):
                survivors.step = step
                # The first steps build what later ones reuse (lazy initialization, compilation): init's limit.
                warm = step - first >= config.recovery.warmup_steps
                if step - first == config.recovery.warmup_steps:
                    watch.started()
                section = names.SECTION_STEP if warm else names.SECTION_INIT
                with pulse.section(section), log.span("step", step=step) as span, own.step():
                    faults.strike("forward", step)
                    span["loss"] = train_step(step, survivors, parts)
                survivors.finished += 1
                if step == first:
                    log.point("first_step", step=step)
                if warm:
                    stragglers.after_step(step, own.last)
                with pulse.section(names.SECTION_CHECKPOINT):
                    checkpoints.after_step(step)
                    urgent.after_step(step)
                # Behind the save, which is written meanwhile, and behind the word to leave, which has no time for it.
                if evaluation.is_due(config, step):
                    with watch.off():  # the first one of a process compiles the blocks anew
                        evaluation.after_step(step, survivors, model, dataset, device, checkpoints.look_after)
            watch.started()  # it may not have come to so many steps
            with pulse.section(names.SECTION_CHECKPOINT):
                checkpoints.finish()


@dataclass(frozen=True)
class Parts:
    """What one attempt has built and every step uses."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    dataset: Dataset
    checkpoints: Checkpoints
    faults: Faults
    losses: Losses
    device: torch.device
    own: OwnTime


def train_step(step: int, survivors: Survivors, parts: Parts) -> float:
    """One optimizer update over the global batch; returns this rank's mean loss. Raises BadLoss, on all ranks alike."""
    import torch

    from trainer import optimizer as optimizers
    from trainer.model import loss_of
    from trainer.parallel import reduce_at

    config, identity = survivors.config, survivors.identity
    model, optimizer, checkpoints, own = parts.model, parts.optimizer, parts.checkpoints, parts.own
    start = time.monotonic()
    optimizers.seed_step(config, step, identity.rank)
    optimizers.set_learning_rate(optimizer, optimizers.learning_rate(config, step))
    losses = []
    passes = config.accumulation_at(identity.world_size)
    for micro in range(passes):
        with survivors.log.span("data", step=step):
            tokens = on_device(parts.dataset.batch(step, identity.rank, identity.world_size, micro=micro), parts.device)
            positions = parts.dataset.positions(step, identity.rank, identity.world_size, micro=micro)
            positions = None if positions is None else on_device(positions, parts.device)
        with own.apart():
            reduce_at(model, config, micro, passes)
            loss = loss_of(model, tokens, positions) / passes
        loss = parts.faults.on_loss(step, loss)
        with own.apart():
            checkpoints.between()
            torch.autograd.backward(loss)
        losses.append(loss.detach())
    parts.faults.strike("collective", step)
    with own.apart():
        clipped = optimizers.clip(model, config.training.clip_norm, torch.stack(losses).sum())
        checkpoints.before_update()
    parts.faults.strike("optimizer", step)
    optimizers.update(optimizer, clipped, parts.losses.ceiling(step))
    optimizer.zero_grad(set_to_none=True)
    with own.apart():
        numbers = clipped.read()  # the device may still be at the update, and a save is launched behind it
        parts.losses.accepts(step, numbers.norm, numbers.loss, numbers.own_loss)
    time.sleep(max(0.0, config.training.min_step_s - (time.monotonic() - start)))
    return numbers.own_loss


def on_device(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Values of the host on the device, without a wait of the host."""
    if device.type == "cuda":
        values = values.pin_memory()  # else the host waits for the update before it can launch the next step
    return values.to(device, non_blocking=True)


def open_agreed_dataset(survivors: Survivors) -> Dataset:
    """The dataset, the same on every rank. Raises ConfigError where nodes see different data."""
    import torch.distributed as dist

    from trainer.data import open_dataset

    storage = survivors.storage
    dataset = open_dataset(survivors.config, storage, storage / names.TOKEN_CACHE)
    seen: list[str] = [""] * survivors.identity.world_size
    dist.all_gather_object(seen, dataset.fingerprint)
    if len(set(seen)) > 1:
        why = f"ranks see different data: {', '.join(f'rank {rank}: {found[:12]}' for rank, found in enumerate(seen))}"
        raise ConfigError([Problem("data.path", survivors.config.data.path, why, "give all nodes the same files")])
    return dataset

"""The predicted peak of GPU memory: its parts, what changes it, and what is refused."""

from __future__ import annotations

import pytest

from holdfast.commands.check import summary
from holdfast.config import ConfigError, RunConfig, load_profile, sizing
from holdfast.config.gpu_memory import Peak, block_parameters, needed_bytes, peak, problem
from holdfast.config.instances import CATALOG
from holdfast.config.sizing import GIB

P5X2 = "llama3-8b-p5x2"
RENTED = ["llama3-8b-p5x2", "llama3-8b-p5x8", "gpt2-g5x2"]
LONG = "data.sequence_length=16384"


def of(profile: str, *sets: str) -> Peak:
    found = peak(load_profile(profile, sets))
    assert found is not None
    return found


@pytest.mark.parametrize("profile", [*RENTED, "gpu-local"])
def test_the_state_that_lies_there_all_the_time_is_in_every_peak(profile: str) -> None:
    config = load_profile(profile)
    parts = of(profile).parts
    assert parts["weights and moments"] == sizing.checkpoint_bytes(config) // config.world_size
    assert sum(parts.values()) == of(profile).bytes and min(parts.values()) >= 0


def test_a_block_has_the_parameters_that_one_more_layer_adds() -> None:
    model = load_profile(P5X2).model
    assert block_parameters(model) == 4096 * (4096 * 2 + 1024 * 2 + 3 * 14336 + 2)
    assert block_parameters(model.model_copy(update={"parameters": 8_030_261_248})) == block_parameters(model)


def test_what_backward_computes_again_is_not_kept() -> None:
    none, selective, full = (
        of("gpu-local", f"training.activation_checkpointing={policy}").parts["activations"]
        for policy in ("none", "selective", "full")
    )
    assert full * 5 < selective < 0.6 * none


def test_logits_in_pieces_take_a_part_of_whole_ones() -> None:
    sets = ["data.sequence_length=8192"]
    whole, pieces = (of(P5X2, *sets, f"training.loss_chunk_tokens={chunk}") for chunk in ("null", "1024"))
    assert whole.parts["logits and loss"] == 12 * 8192 * 128256
    assert whole.bytes - pieces.bytes > 0.65 * whole.parts["logits and loss"]


@pytest.mark.parametrize("samples", [1, 2, 4])
def test_activations_grow_with_the_samples_of_a_pass_and_state_does_not(samples: int) -> None:
    sets = [f"training.micro_batch_size={samples}", "training.global_batch_size=64", "training.loss_chunk_tokens=512"]
    parts = of("llama3-8b-p5x2", *sets).parts
    one = of("llama3-8b-p5x2", "training.micro_batch_size=1", *sets[1:]).parts
    assert parts["activations"] == samples * one["activations"]
    assert parts["weights and moments"] == one["weights and moments"]


def test_gradients_lie_beside_a_pass_only_after_an_earlier_one_of_the_same_step() -> None:
    once, twice = (of(P5X2, f"training.global_batch_size={batch}") for batch in (16, 32))
    assert once.parts["gradients"] == 0
    assert twice.parts["gradients"] == 4 * sizing.parameters(load_profile(P5X2).model) // 16
    assert twice.bytes - once.bytes == twice.parts["gradients"]


def test_the_fewest_nodes_that_the_job_goes_on_with_have_the_largest_shards() -> None:
    sets = ["recovery.min_nodes=4"]
    assert peak(load_profile("llama3-8b-p5x8", sets)) == peak(load_profile("llama3-8b-p5x8"), 32)
    assert of("llama3-8b-p5x8", *sets).bytes > of("llama3-8b-p5x8").bytes


@pytest.mark.parametrize("profile", RENTED)
def test_a_profile_fits_and_check_shows_by_how_much(profile: str) -> None:
    config = load_profile(profile)
    assert needed_bytes(of(profile)) < config.instance.gpu_memory_gib * GIB
    shown = dict(summary(config))["GPU memory"]
    assert f"{of(profile).gib:.1f} GiB" in shown and f"of {config.instance.gpu_memory_gib:g} GiB" in shown
    assert "activations" in shown and "not modelled" in shown


def test_a_cpu_has_no_line_about_gpus() -> None:
    assert "GPU memory" not in dict(summary(load_profile("cpu-demo")))


REFUSED = [
    (
        P5X2,
        [LONG, "training.activation_checkpointing=none"],
        "use training.activation_checkpointing: full, or more GPUs",
    ),
    ("gpt2-g5x2", ["training.micro_batch_size=32"], "use less (the global batch stays the same), or"),
    (P5X2, ["data.sequence_length=8192", "training.loss_chunk_tokens=null", "cluster.instance_type=p4d.24xlarge"], ""),
]


@pytest.mark.parametrize(("profile", "sets", "fix"), REFUSED, ids=[case[1][0] for case in REFUSED])
def test_what_cannot_fit_is_refused_before_it_starts_with_both_ends(profile: str, sets: list[str], fix: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        load_profile(profile, sets)
    (found,) = refusal.value.problems
    assert found.key == "training.micro_batch_size" and found.fix.startswith(fix)
    for name in (
        "cluster.instance_type=",
        "data.sequence_length=",
        "training.activation_checkpointing=",
        "training.loss_chunk_tokens=",
        "cluster.nodes=",
        "cluster.ranks_per_node=",
        "activations",
        "not modelled",
    ):
        assert name in found.why


def test_the_remedy_that_is_named_is_one() -> None:
    load_profile(P5X2, [LONG, "training.activation_checkpointing=full"])


def test_what_just_fits_is_accepted_and_a_byte_less_is_not() -> None:
    config = load_profile("gpu-local")
    room = needed_bytes(of("gpu-local"))
    assert problem(config, room, "It") is None
    assert problem(config, room - 1, "It") is not None


def test_a_machines_own_gpu_is_not_judged_before_it_is_there() -> None:
    large = load_profile("gpu-local", ["training.micro_batch_size=16", "data.sequence_length=4096"])
    assert needed_bytes(_peak(large)) > 80 * GIB


def _peak(config: RunConfig) -> Peak:
    found = peak(config)
    assert found is not None
    return found


def test_every_rented_gpu_has_a_memory() -> None:
    for instance in CATALOG.values():
        assert (instance.gpu_memory_gib > 0) == (instance.ec2 and instance.gpus > 0), instance.name


def test_a_model_without_formulas_is_not_predicted_and_not_refused() -> None:
    sets = [
        "model.family=other",
        "model.config=/models/x",
        "model.parameters=500000000000",
        "training.loss_chunk_tokens=null",
    ]
    config = load_profile("gpu-local", sets)
    assert peak(config) is None and problem(config, 1, "It") is None
    assert "no formula" in dict(summary(config))["GPU memory"]

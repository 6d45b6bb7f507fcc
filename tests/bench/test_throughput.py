"""The bench of throughput: what is folded and how, what is run again, and each arm on a CPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from bench import json_lines, throughput
from bench.arms.throughput_holdfast import settings
from bench.arms.throughput_trace import IDLE, KINDS, NCCL, kind, partition, summary
from bench.rank_processes import run_ranks
from bench.throughput import parse
from bench.throughput_results import PEAK_TFLOPS, alike, fold, missing, to_do
from bench.throughput_spec import CPU_SHAPES, EAGER, GOALS, HOLDFAST, SHAPES, TITAN, TRIALS, Sizes, Spec, Trial
from holdfast.config import gpu_memory
from holdfast.config.flops import flops_per_token
from holdfast.config.sizing import GIB
from tests.bench.throughput_lines import (
    GUESS,
    NO_ROOM,
    OURS,
    PLAIN,
    SIZES,
    failed_line,
    folded,
    row_of,
    run_line,
    steps_line,
)

LIMIT_S = 150.0
CPU_SIZES = Sizes(False, 1, 4)
H200_GIB = 139


def test_the_eight_billion_model_has_the_published_operations_per_token() -> None:
    shape = SHAPES["8b"]
    assert flops_per_token(shape.model, shape.sequence) == pytest.approx(57.9e9, rel=2e-3)


def test_the_goal_is_the_tokens_per_second_that_the_issue_names() -> None:
    shape = SHAPES["8b"]
    goal_s = shape.samples * shape.sequence / shape.gpus / 7690.0
    row = row_of(folded(steps_line(OURS, goal_s)), OURS)
    assert row["tokens_per_s_per_gpu"] == pytest.approx(7690.0)
    assert row["mfu"] == pytest.approx(GOALS["8b"], rel=2e-3)


def test_causal_mfu_counts_half_of_attention() -> None:
    shape, row = SHAPES["8b"], row_of(folded(steps_line(OURS, 2.0)), OURS)
    attention = 12.0 * shape.layers * shape.hidden * shape.sequence
    per_token = 1e12 * PEAK_TFLOPS / row["tokens_per_s_per_gpu"]
    assert (row["mfu"] - row["mfu_causal"]) * per_token == pytest.approx(attention / 2)


def test_a_row_says_what_was_agreed_on() -> None:
    row = row_of(folded(steps_line(OURS, 2.0)), OURS)
    agreed = {"arm", "model", "gpus", "seq_len", "precision", "tokens_per_s_per_gpu", "mfu", "mfu_causal", "peak_gib"}
    assert agreed | {"steps", "step_s"} <= row.keys()
    assert (row["arm"], row["precision"], row["steps"]) == ("holdfast", "bf16", 10) and "8b" in row["model"]


def test_the_best_setting_of_each_arm_is_marked_and_a_wrong_loss_is_never_the_best() -> None:
    second = next(trial for trial in TRIALS if trial.arm == HOLDFAST and trial.model == "8b" and trial != OURS)
    result = folded(
        steps_line(OURS, 2.0), steps_line(second, 1.0, first_loss=GUESS + 3), steps_line(PLAIN, 3.0)
    )  # fmt: skip
    marked = {row["trial"] for row in result["rows"] if row["best_of_arm"]}
    assert marked == {OURS.name, PLAIN.name}
    assert not row_of(result, second)["loss_is_sane"]


def test_a_loss_that_is_no_number_is_wrong() -> None:
    assert not row_of(folded(steps_line(OURS, 2.0, last_loss=math.nan)), OURS)["loss_is_sane"]


def test_what_failed_and_what_could_not_run_have_rows_with_the_reason() -> None:
    titan = next(trial for trial in TRIALS if trial.arm == TITAN and trial.model == "8b")
    skipped = {"kind": "skipped", "trial": titan.name, "run": "r", "reason": "not installed", **SIZES.of("8b")}
    result = folded(failed_line(OURS, "it broke"), skipped)
    assert row_of(result, OURS)["error"] == "it broke" and row_of(result, titan)["skipped"] == "not installed"


@pytest.mark.parametrize("other", [Sizes(False, 4, 10), Sizes(True, 4, 9), Sizes(True, 3, 10)])
def test_what_was_measured_on_a_cpu_or_with_other_steps_is_not_done(other: Sizes) -> None:
    line = steps_line(OURS, 2.0) | other.of(OURS.model)
    assert folded(line)["rows"] == [] and folded(line)["versions"] == {}
    assert missing(OURS.name, alike([line], SIZES), trace=False) == {"steps"}
    assert missing(OURS.name, alike([line], other), trace=False) == set()
    assert row_of(fold([run_line(), line], other), OURS)["step_s"] == 2.0
    assert alike([steps_line(OURS, 2.0, cuda=False)], SIZES) == []


@pytest.mark.parametrize(
    ("lines", "trace", "wanted"),
    [
        ([], False, {"steps"}),
        ([], True, {"steps", "trace"}),
        ([{"kind": "steps"}], False, set()),
        ([{"kind": "steps"}], True, {"trace"}),
        ([{"kind": "failed", "error": "killed"}], False, {"steps"}),
        ([{"kind": "failed", "error": "killed"}] * 2, False, set()),
        ([{"kind": "failed", "error": "the limit passed", "cut": True}] * 3, False, {"steps"}),
        ([{"kind": "failed", "error": "killed"}, {"kind": "steps"}, {"kind": "failed", "error": "x"}], True, {"trace"}),
        ([{"kind": "failed", "error": f"rank 0: {NO_ROOM}"}], True, set()),
        ([{"kind": "skipped", "reason": "not installed"}], False, {"steps"}),
    ],
)
def test_only_what_is_missing_runs_again_and_not_what_does_not_fit(
    lines: list[dict[str, Any]], trace: bool, wanted: set[str]
) -> None:
    assert missing(OURS.name, [{"trial": OURS.name, **line} for line in lines], trace=trace) == wanted


def test_what_was_never_tried_runs_before_what_has_failed() -> None:
    order = [trial for trial, _ in to_do(TRIALS, alike([failed_line(TRIALS[0], "killed")], SIZES), trace=False)]
    assert order == [*TRIALS[1:], TRIALS[0]]


def test_a_row_says_that_its_trial_is_given_up_and_numbers_say_that_they_have_no_trace() -> None:
    twice = [failed_line(OURS, "it broke")] * 2
    assert row_of(folded(*twice), OURS)["error"].startswith("given up after 2 failures")
    row = row_of(folded(*twice, steps_line(OURS, 2.0), failed_line(OURS, "no profiler")), OURS)
    assert row["step_s"] == 2.0 and row["trace_error"] == "no profiler" and "error" not in row
    assert "trace_error" not in row_of(folded(*twice, steps_line(OURS, 2.0)), OURS)


def test_the_others_try_all_that_computes_nothing_again_and_may_fit() -> None:
    for arm, compiled in ((EAGER, False), (TITAN, True)):
        for model, shape in SHAPES.items():
            for samples in (1, 2, 4):
                if shape.samples % (shape.gpus * samples):
                    continue
                trial = Trial(arm, model, samples, "none", compiled)
                found = gpu_memory.peak(settings(Spec(trial, SIZES, "", "", "", True, 0)))
                assert found is not None
                needed = gpu_memory.needed_bytes(found) / GIB
                assert trial in TRIALS or needed > 1.1 * H200_GIB, f"{trial.name} needs {needed:.0f} GiB"


def test_the_goals_come_first_and_a_table_has_one_model_after_the_other() -> None:
    assert [(trial.arm, trial.model) for trial in TRIALS[: len(GOALS)]] == [(HOLDFAST, model) for model in GOALS]
    assert TRIALS[len(GOALS)].arm == HOLDFAST
    rows = folded(*(steps_line(trial, 2.0) for trial in TRIALS))["rows"]
    assert [row["shape"] for row in rows] == sorted((trial.model for trial in TRIALS), key=list(SHAPES).index)


def test_every_trial_has_a_name_of_its_own_and_divides_the_batch() -> None:
    assert len({trial.name for trial in TRIALS}) == len(TRIALS)
    for trial in TRIALS:
        for shapes in (SHAPES, CPU_SHAPES):
            shape = shapes[trial.model]
            assert shape.samples % (shape.gpus * trial.micro_batch) == 0


@pytest.mark.parametrize(
    "words", [["--trial", "no-such"], ["--models", "70b"], ["--arms", "megatron"], ["--steps", "0"]]
)  # fmt: skip
def test_words_that_name_nothing_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([*words, "--commit", "x"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "there is no no-such" in said or "no trial has such" in said or "at least 1" in said


# --- traces ---


def test_every_instant_of_a_trace_belongs_to_one_kind() -> None:
    shares = partition([(0, 10, "gemm"), (5, 20, NCCL), (30, 40, "loss")])
    assert shares == {"gemm": 10, NCCL: 10, IDLE: 10, "loss": 10}


def test_a_summary_adds_up_and_leaves_named_stretches_of_time_out() -> None:
    events = [("nvjet_tst_128x256", 0, 2_000_000), ("ncclDevKernel_ReduceScatter", 1_000_000, 3_000_000)]
    made = summary([*events, ("FSDP::all_gather", 0, 100_000_000)], steps=2)
    assert made["step_ms"] == pytest.approx(2.0) == pytest.approx(sum(made["ms"].values()))
    assert made["ms"]["gemm"] == 1.0 and made["ms"][NCCL] == 1.0 and made["nccl_in_all_ms"] == 1.5
    assert set(made["ms"]) == {*KINDS, IDLE}


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT", "gemm"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "gemm"),
        ("void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64>>", "attention_forward"),
        ("void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel", "attention_backward"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention_forward"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_3", "attention_backward"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", NCCL),
        ("Memcpy DtoD (Device -> Device)", "copies"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<bf16, float>>", "copies"),
        ("void multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor>", "optimizer"),
        ("void cunn_SoftMaxForward<4, c10::BFloat16, float, float>", "loss"),
        ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_0", "norms_and_elementwise"),
        ("triton_poi_fused_mul_silu_1", "norms_and_elementwise"),
    ],
)
def test_a_kernel_is_known_by_its_name(name: str, wanted: str) -> None:
    assert kind(name) == wanted


# --- arms on a CPU ---


def order(tmp_path: Path, trial: Trial) -> Spec:
    raw = str(tmp_path / "raw.jsonl")
    return Spec(trial, CPU_SIZES, "r", raw, str(tmp_path), timed=True, trace_steps=1)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "trial",
    [Trial(HOLDFAST, "8b", 1, "selective", False, 2048), Trial(EAGER, "8b", 2, "full", False)],
    ids=lambda trial: trial.arm,
)
def test_an_arm_trains_on_two_ranks_and_reports_steps_and_a_trace(tmp_path: Path, trial: Trial) -> None:
    spec = order(tmp_path, trial)
    ended, said = run_ranks(throughput.RANK, spec.to_json(), spec.world, LIMIT_S, cuda=False)
    assert ended.well, ended.why
    assert trial.name in said
    steps, trace = json_lines.read([Path(spec.raw)])
    assert (steps["kind"], trace["kind"]) == ("steps", "trace")
    assert all(CPU_SIZES.of(trial.model).items() <= line.items() for line in (steps, trace))
    assert len(steps["each_s"]) == 4 and min(steps["each_s"]) > 0
    assert steps["first_loss"] == pytest.approx(math.log(spec.shape.vocabulary), abs=0.5)
    assert steps["last_loss"] < steps["first_loss"], "the fifth step has the tokens of the first"
    assert trace["step_ms"] == pytest.approx(sum(trace["ms"].values()))

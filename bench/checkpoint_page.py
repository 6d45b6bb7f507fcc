"""The page on what a save costs, made from the kept result of `make bench`; no number in it is typed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from bench.checkpoint_spec import FIRST_BLOCKED_GOAL_S, GOAL, WRITE_GOAL
from bench.demo import ROOT

KEPT = ROOT / "bench" / "results" / "h200x2" / "checkpoint.json"
WORDS = {
    "holdfast": "**Holdfast**",
    "holdfast_short_step": "**Holdfast**, at a step shorter than the copy",
    "holdfast_tight_step": "**Holdfast**, at a step that the copy just fits into",
    "nvrx_dcp": "NVRx, its writer of DCP checkpoints (plan, metadata and handles cached, processes started ahead)",
    "nvrx_torch": "NVRx, `TorchAsyncCheckpoint` of local shards",
    "dcp_async_thread": "torch DCP, `async_save` by a thread, pinned buffers kept",
    "dcp_async_process": "torch DCP, `async_save` by a process, pinned shared buffers kept",
    "dcp_sync": "torch DCP, `save`",
    "torch_save": "`torch.save` of local shards",
}
SHORT = {
    "nvrx_dcp": "NVRx's DCP writer",
    "nvrx_torch": "NVRx's `TorchAsyncCheckpoint`",
    "dcp_async_thread": "torch's `async_save`",
    "dcp_sync": "torch's synchronous `save`",
}
"""Methods of the headline, in its words."""
COLUMNS = (
    "method", "<saves", "<step", "<blocked", "<hidden", "<total", "<95 % of total", "<of a step", "<first save blocked",
    "<written after", "<host memory per rank",
)  # fmt: skip
COMPUTED = (
    "How it is computed: each save has {blocks} steps without a save before and after it; the mean of all such steps "
    "of an arm is its baseline. Blocked is what the step of the save took longer than that: the call itself and what "
    "the optimizer had to wait for. Hidden is the sum of what all steps after it took longer until the write was over "
    "(ours: until what retention deletes was gone too). Total is both. Medians over the saves, without the first where "
    "a first save sets something up; 95 % intervals of the median by a seeded bootstrap. All write the same state with "
    "as many threads to the same target, fsynced. Of each arm's last save a weight and its moments were read back and "
    "compared."
)


def read() -> dict[str, Any] | None:
    """The kept result, if there is one."""
    if not KEPT.exists():
        return None
    result: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    return result


def table_rows(result: dict[str, Any]) -> list[list[str]]:
    """One row per method, in the order of the result."""
    return [_row(row) for row in result["rows"]]


def _row(row: dict[str, Any]) -> list[str]:
    name = WORDS[row["method"]]
    if "total_s" not in row:
        why = row.get("skipped") or row.get("error", "")
        return [f"{name}: {' '.join(str(why).split())[:200]}", *[""] * (len(COLUMNS) - 1)]
    low, high = row["total_ci95_s"]
    return [
        name,
        str(row["saves"]),
        ms(row["step_s"]),
        ms(row["blocked_s"]),
        ms(row["hidden_s"]),
        f"**{ms(row['total_s'])}**",
        f"{ms(low)} to {ms(high)}",
        f"{row['total_s'] / row['step_s']:.1%}",
        ms(row["first_blocked_s"]),
        f"{row['background_s']:.1f} s",
        "-" if row["host_bytes"] is None else f"{row['host_bytes'] / 1e9:.1f} GB",
    ]


def ms(seconds: float) -> str:
    """Milliseconds; seconds from one second on."""
    return f"{seconds:.1f} s" if abs(seconds) >= 1 else f"{1000 * seconds:.1f} ms"


def source(result: dict[str, Any], folder: Path) -> str:
    """On what it was measured."""
    hardware, versions, gpus = result["hardware"], result["versions"], result["hardware"]["gpus"]
    where = f"{len(gpus)} x {gpus[0]}" if gpus else hardware["cpu"]
    size, target = result["model"]["parameters"] / 1e9, result["target"]
    return (
        f"Measured on {where}, {hardware['cores']} cores, torch {versions['torch']}, "
        f"NVRx {versions['nvidia-resiliency-ext']}, commit {result['commit']} "
        f"([raw numbers]({os.path.relpath(KEPT, folder)})). Llama blocks with {size:.2f} billion parameters under "
        f"FSDP2, {result['shard_bytes'] / 1e9:.1f} GB of state on each of {result['ranks']} ranks, saved to "
        f"{target['file_system']} by {target['threads']} threads per rank. A step takes {ms(result['step_s'])}, the "
        f"copy of a shard to pinned memory {ms(result['copy_s'])} ({result['copy_gb_s']:.1f} GB/s)."
    )


def headline(result: dict[str, Any], page: str) -> str:
    """The result in two sentences. page: where the rest stands."""
    rows = {row["method"]: row for row in result["rows"] if "total_s" in row and not row.get("incomplete")}
    ours, gpus = rows["holdfast"], result["hardware"]["gpus"]
    others = [f"{ms(rows[name]['total_s'])} with {words}" for name, words in SHORT.items() if name in rows]
    return (
        f"On {len(gpus)} x {gpus[0]}, with {result['shard_bytes'] / 1e9:.1f} GB of state per GPU and steps of "
        f"{ms(ours['step_s'])}, a save costs a run {ms(ours['total_s'])} in all, "
        f"{ours['total_s'] / ours['step_s']:.1%} of a step where {GOAL:.0%} is aimed at; it holds a step up for "
        f"{ms(ours['blocked_s'])}, and its background write costs the steps beside it {ms(ours['hidden_s'])} (medians, "
        f"each of its own). The first one costs {ms(ours['first_total_s'])} in all. "
        f"The same state on such a machine costs {', '.join(others)} ([all numbers, with intervals]({page}))."
    )


def computed(result: dict[str, Any]) -> str:
    """How the numbers of the table came about."""
    blocks = sorted({row["block"] for row in result["rows"]})
    return COMPUTED.format(blocks=" to ".join(str(block) for block in {blocks[0]: 0, blocks[-1]: 0}))


def other_commits(result: dict[str, Any]) -> list[str]:
    """Rows that are not of the commit that the table is of."""
    later: dict[str, list[str]] = {}
    for row in result["rows"]:
        if row["commit"] != result["commit"]:
            later.setdefault(row["commit"], []).append(WORDS[row["method"]])
    return [
        f"Of commit {commit}, which changes these rows alone, on another machine of the kind: {'; '.join(names)}."
        for commit, names in later.items()
    ]


def verdicts(result: dict[str, Any]) -> list[str]:
    """What was aimed at and what came out; where noise is larger than the goal, that too."""
    rows = {row["method"]: row for row in result["rows"] if "total_s" in row}
    said = [*other_commits(result), *(_ours(rows["holdfast"]) if "holdfast" in rows else [])]
    if short := rows.get("holdfast_short_step"):
        said.append(
            f"At a step of {ms(short['step_s'])}, shorter than the copy, a save costs {ms(short['total_s'])} (the host "
            f"runs ahead of the device, so that the wait of the update shows in the step after, as hidden). The copy "
            f"does not fit under forward and backward ({ms(short['gradients_s'])}), so no overlap can cost less than "
            f"{ms(short['bound_s'])}. {_beside_the_write(short)}"
        )
    if profile := result.get("profile"):
        said.append(_why(profile))
    if write := result["write"]:
        said.append(
            f"The background write of all ranks reaches {write['ours_gb_s']:.2f} GB/s, plain threads with the same "
            f"bytes and no checksums {write['plain_gb_s']:.2f} GB/s: {write['ratio']:.0%}, "
            f"{_met(write['ratio'] >= WRITE_GOAL, f'at least {WRITE_GOAL:.0%}')}."
        )
    wrong = [WORDS[name] for name, row in rows.items() if row["content_is_right"] is False]
    return said + [f"Not what had been saved was read back: {', '.join(wrong)}."] * bool(wrong)


def _beside_the_write(row: dict[str, Any]) -> str:
    """What the steps after the save's own lose while the writer works."""
    slower = row["slower_by_position_s"][1 : 1 + round(row["background_s"] / row["step_s"])]
    mean = sum(slower) / len(slower)
    return f"The {len(slower)} steps after it, until the write is durable, take {ms(mean)} longer each."


def _ours(row: dict[str, Any]) -> list[str]:
    low, high = row["total_ci95_s"]
    goal_s = GOAL * row["step_s"]
    first = row["first_blocked_s"]
    said = [
        f"A save of ours costs {row['total_s'] / row['step_s']:.2%} of one step, "
        f"{_met(row['total_s'] <= goal_s, f'at most {GOAL:.0%}')}; the first one holds the step up for {ms(first)}, "
        f"{_met(first <= FIRST_BLOCKED_GOAL_S, f'at most {ms(FIRST_BLOCKED_GOAL_S)}')}."
    ]
    if high - low > goal_s:
        said.append(
            f"The interval ({ms(high - low)}) is wider than that goal ({ms(goal_s)}): the median alone does not show "
            "that it is met."
        )
    if row["null_ci95_s"]:
        least, most = row["null_ci95_s"]
        said.append(
            f"As many steps without any save give {ms(row['null_s'])} by the same sum ({ms(least)} to {ms(most)}): "
            "less than that is noise."
        )
    return said


def _why(profile: dict[str, dict[str, float]]) -> str:
    """Where the step of a save loses its time, by the traces of some with and some without one."""
    quiet, save = profile["quiet"], profile["save"]
    more = {key: 1000 * (save.get(key, 0.0) - quiet.get(key, 0.0)) for key in {*quiet, *save}}
    return (
        f"Where it goes, by traces of the device (which themselves slow it down): beside the copy "
        f"({ms(save['copy_to_host'])}) matrix products run {more['gemm']:.1f} ms longer "
        f"({more['gemm'] / 10 / quiet['gemm']:.1f}%), attention {more.get('attention', 0.0):.1f} ms, kernels bound by "
        f"memory {more['memory_bound']:.1f} ms, and the stream of the model idles {more['idle_s']:.1f} ms longer."
    )


def _met(met: bool, goal: str) -> str:
    return f"as was aimed at ({goal})" if met else f"MISSING the goal ({goal})"

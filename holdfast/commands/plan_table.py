"""Plans as text: tables by rich, without colour where the output is not a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.config import prices
from holdfast.goodput.planner import Inputs, Outlook, Plan, Setting, planned_batch
from holdfast.goodput.planner.judge import Simulated
from holdfast.goodput.planner.money import Cost, gpu_or_rank, node_usd
from holdfast.goodput.planner.summary import choice_summary
from holdfast.goodput.report import console_for_report

NONE = "-"


def print_plans(plans: Sequence[Plan], *, explain: bool) -> None:
    """One plan in full, or several as a row each; then what they rest on."""
    console = console_for_report()
    if len(plans) == 1:
        _print_plan(plans[0], console)
    else:
        _print_sizes(plans, console)
    _print_footer(plans, console)
    if explain:
        _print_inputs(plans[0].setting.inputs, console)


def _print_plan(plan: Plan, console: Console) -> None:
    setting = plan.setting
    console.print(
        f"[bold]{escape(setting.config.name)}[/bold] on {setting.nodes} nodes, {plan.failures_per_day:.3g} failures a "
        f"day ({escape(setting.rate.name)})\n",
    )
    columns = {"as configured": plan.configured}
    if plan.recommended:
        columns["recommended"] = plan.recommended
    table = _table("The plan", "", *(f"<{name}" for name in columns))
    facts = [dict(_facts(plan, outlook)) for outlook in columns.values()]
    for name in facts[0]:
        cells = [fact[name] for fact in facts]
        changed = len(set(cells)) > 1 and name in _CHOSEN
        table.add_row(name, *(f"[bold]{cell}[/bold]" if changed and i else cell for i, cell in enumerate(cells)))
    console.print(table)
    if plan.changes:
        _print_changes(plan, console)


_CHOSEN = {
    *("shared save every", "local save every", "spares", "file system"),
    *("in process (layer 1)", "in job (layer 2)", "standby"),
}
"""Rows that a plan decides about."""


def _facts(plan: Plan, outlook: Outlook) -> list[tuple[str, str]]:
    choice = choice_summary(plan.setting, outlook.judged.choice)
    spread, cost = outlook.simulated, outlook.cost
    local = choice["local_interval_steps"]
    facts = [
        ("shared save every", f"{choice['shared_interval_steps']} steps, {_seconds(choice['shared_interval_s'])}"),
        ("local save every", "off" if local is None else f"{local} steps, {_seconds(choice['local_interval_s'])}"),
        ("background write takes", _seconds(choice["background_write_s"])),
        ("spares", str(choice["spares"])),
        ("in process (layer 1)", _switch(choice["in_process"])),
        ("in job (layer 2)", _switch(choice["in_job"])),
        ("standby", _switch(choice["standby"])),
    ]
    if choice["storage"]:
        storage = choice["storage"]
        speed = storage["throughput_mbps_per_tib"]
        kind = storage["deployment_type"] + (f", {speed} MB/s per TiB" if speed else "")
        facts.append(("file system", f"{storage['capacity_gib']} GiB {kind}"))
    facts += [
        ("goodput", f"{_percent(outlook.judged.goodput)} ({outlook.judged.how})"),
        ("nine of ten runs", _band(spread)),
        ("lost per month", NONE if cost is None else _lost(plan, cost)),
        ("spares per month", NONE if cost is None else _usd(cost.spares_usd)),
        ("file system per month", NONE if cost is None else _usd(cost.storage_usd)),
    ]
    if spread:
        facts.append(("simulated", f"{spread.goodput.count} runs of {spread.days:.3g} days"))
    else:
        facts.append(("simulated", NONE))
    return facts


def _print_changes(plan: Plan, console: Console) -> None:
    unit = gpu_or_rank(plan.setting)
    table = _table(
        "What each single change of the profile would buy",
        *("change", "<goodput", "<nine of ten runs", "<points", f"<{unit} hours", "<dollars"),
    )
    for change in plan.changes:
        gain = NONE if change.gain is None else f"{100 * change.gain:+.2f}"
        number = _percent(change.judged.goodput)
        mark = " *" if change.judged.how == "simulated" else ""
        hours = NONE if change.saved_gpu_hours is None else _hours(change.saved_gpu_hours)
        band = _band(change.simulated)
        table.add_row(escape(change.name), f"{number}{mark}", band, gain, hours, _usd(change.saved_usd))
    console.print(table)
    if any(change.judged.how == "simulated" for change in plan.changes):
        console.print("* simulated, and compared with the profile simulated: the closed form does not hold there")
    console.print(
        f"{unit} hours and dollars: saved per month for the same work, spares and (in dollars) the file system "
        "counted; below 0 it costs more\n"
    )


def _print_sizes(plans: Sequence[Plan], console: Console) -> None:
    table = _table(
        "The recommended plan by size",
        "<nodes", "<failures a day", "<shared save", "<local save", "<spares", "layers", "<goodput as is",
        "<goodput", "<nine of ten runs", "<hours lost", "<$ lost",
    )  # fmt: skip
    for plan in plans:
        outlook = plan.recommended
        rate = f"{plan.failures_per_day:.3g}"
        if outlook is None:
            table.add_row(str(plan.setting.nodes), rate, *[NONE] * 9)
            continue
        choice = choice_summary(plan.setting, outlook.judged.choice)
        local = choice["local_interval_s"]
        cost = outlook.cost
        table.add_row(
            str(plan.setting.nodes),
            rate,
            _seconds(choice["shared_interval_s"]),
            NONE if local is None else _seconds(local),
            str(choice["spares"]),
            ", ".join(name for name in ("in_process", "in_job", "standby") if choice[name]) or NONE,
            _percent(plan.configured.judged.goodput),
            _percent(outlook.judged.goodput),
            _band(outlook.simulated),
            NONE if cost is None else f"{cost.lost_gpu_hours:,.0f}",
            NONE if cost is None else _usd(cost.lost_usd),
        )
    console.print(table)
    console.print(
        "hours (of GPUs; on a CPU, of ranks) and dollars lost are those of a month; goodput as is: the profile's\n"
    )


def _print_footer(plans: Sequence[Plan], console: Console) -> None:
    notes: dict[str, list[int]] = {}
    for plan in plans:
        outlooks = {
            "as configured": plan.configured.judged,
            "recommended": plan.recommended.judged if plan.recommended else plan.configured.judged,
        }
        reasons = [f"{name}: {why}" for name, judged in outlooks.items() for why in judged.reasons]
        for note in [*plan.notes, *(reasons if plan.recommended else [])]:
            notes.setdefault(note, []).append(plan.setting.nodes)
    for note, sizes in notes.items():
        where = f" ({', '.join(map(str, sizes))} nodes)" if len(plans) > 1 else ""
        _line(console, f"note: {note}{where}")
    _print_batches([plan.setting for plan in plans], console)
    setting = plans[0].setting
    price = node_usd(setting)
    if price is None:
        _line(console, "prices: none for this machine; the same work on the fewest nodes is recommended")
    else:
        _line(console, f"prices: ${price:,.2f} per node and hour; estimates of {prices.AS_OF}, or cost.node_hourly_usd")
    _line(console, f"failures: {setting.rate.source}; per node of 8 GPUs")
    inputs = setting.inputs
    if inputs.kept:
        _line(console, f"the run did not show, so defaults stand for: {', '.join(inputs.kept)}")
    _line(console, "durations: `--explain` lists each with what it rests on; `--from RUN` takes them from a real run")


def _print_batches(settings: Sequence[Setting], console: Console) -> None:
    """Nothing else of the profile follows the batch: whether that is right for the model is not for a plan to say."""
    profile = settings[0].config
    at, samples = profile.cluster.nodes, profile.training.global_batch_size
    others = ", ".join(f"{planned_batch(one):,} on {one.nodes}" for one in settings if one.nodes != at)
    if others:
        kept = "training.learning_rate and training.steps as they are"
        goes = f"the batch goes with the nodes, {samples:,} samples a step on the profile's {at}, {others}"
        _line(console, f"note: {goes}; `--write` writes that, and leaves {kept}")


def _print_inputs(inputs: Inputs, console: Console) -> None:
    table = _table("What the plan rests on", "duration", "<value", "basis")
    for name, one in inputs.by_name.items():
        unit = "s" if name.endswith("_s") else "of cases"
        table.add_row(name, f"{one.value:.4g} {unit}", escape(one.basis))
    console.print(table)


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE)
    for column in columns:
        right = column.startswith("<")
        table.add_column(
            column.removeprefix("<"), justify="right" if right else "left", no_wrap=right and len(column) < 12
        )
    return table


def _band(spread: Simulated | None) -> str:
    return NONE if spread is None else f"{100 * spread.goodput.low:.1f} - {spread.goodput.high:.1%}"


def _lost(plan: Plan, cost: Cost) -> str:
    return f"{cost.lost_gpu_hours:,.0f} {gpu_or_rank(plan.setting)} hours, {_usd(cost.lost_usd)}"


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{share:.2%}"


def _hours(saved: float) -> str:
    return f"{round(saved):+,}" if round(saved) else "0"


def _usd(dollars: float | None) -> str:
    if dollars is None:
        return NONE
    return f"-${-dollars:,.0f}" if dollars <= -0.5 else f"${max(0.0, dollars):,.0f}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"


def _switch(on: bool) -> str:
    return "on" if on else "off"

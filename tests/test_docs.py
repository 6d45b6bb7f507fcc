"""README.md and docs/ say what is so: their numbers are the generator's, and whatever they name exists."""

from __future__ import annotations

import ast
import re
import signal
import tomllib
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from bench import demo_page, document, record, timeouts_page
from bench.demo import FAULTS
from holdfast import cli
from holdfast.commands.run import read_config
from holdfast.config import ConfigError, RunConfig, names
from holdfast.config.fields import field_at
from holdfast.goodput.failures import PARTS

ROOT = Path(__file__).parents[1]
DOCUMENTS = {str(path.relative_to(ROOT)): path for path in document.documents()}
OPERATIONS = ROOT / "docs" / "operations.md"
BUG_CASES = ROOT / "docs" / "bug-cases.md"
CASES = [f"case-{number:02}" for number in (*range(1, 20), 27, 29, 30, 32, 33)]
OUR_FOLDERS = {"bench", "bootstrap", "docs", "holdfast", "infra", "k8s", "tests", "trainer"}

each_document = pytest.mark.parametrize("name", DOCUMENTS)


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def spans(text: str) -> list[str]:
    """Inline code."""
    return re.findall(r"`([^`\n]+)`", prose(text))


def blocks(text: str) -> list[str]:
    """Lines of code blocks, fenced and indented."""
    fenced = chain.from_iterable(
        block.splitlines() for block in re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    )
    return [*fenced, *(line[4:] for line in prose(text).splitlines() if line.startswith("    "))]


def code(text: str) -> list[str]:
    """Everything that is set as code."""
    return [*spans(text), *blocks(text)]


@cache
def functions(path: Path) -> set[str]:
    """Names of the functions in a Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@cache
def said_by_the_code() -> tuple[str, ...]:
    """Every piece of text in our programs, f-strings in their parts."""
    files = chain.from_iterable((ROOT / folder).rglob("*.py") for folder in ("holdfast", "trainer", "k8s"))
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    nodes = chain.from_iterable(ast.walk(tree) for tree in trees)
    return tuple(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


# --- numbers ---


@each_document
def test_generated_parts_are_what_the_kept_measurement_makes(name: str) -> None:
    path = DOCUMENTS[name]
    assert path.read_text(encoding="utf-8") == document.rewritten(path, record.read()), "run `python -m bench.document`"


def test_every_generated_part_is_used() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in DOCUMENTS.values())
    assert {name for name in document.BLOCKS if f"<!-- generated: {name} -->" not in text} == set()


@pytest.mark.parametrize("text", ["<!-- generated: demo -->\nno end\n", "<!-- generated: nothing -->\n<!-- end -->\n"])
def test_a_part_without_an_end_or_a_maker_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "page.md"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"page\.md: "):
        document.rewritten(path, record.read())


def test_the_kept_measurement_is_of_the_demo_as_it_is() -> None:
    measured = record.read()
    planned = {(fault["kind"], fault["step"]) for fault in FAULTS}
    assert {(fault["kind"], fault["step"]) for fault in measured.summary["faults"]} == planned
    assert measured.summary["weights_identical"] is measured.comparison["identical"] is True
    assert sum(measured.summary["buckets"].values()) == pytest.approx(measured.broken["wall_s"])
    assert set(demo_page.DOING) == set(PARTS)


def test_all_limits_of_the_config_are_in_the_table_of_timeouts() -> None:
    fields = RunConfig.model_fields["recovery"].annotation
    assert fields is not None
    limits = {name for name in fields.model_fields if name.endswith("_s")}
    assert limits - set(timeouts_page.TIMEOUTS) == {"monitor_interval_s"}, "how often the launcher looks is no limit"


def test_a_demo_that_did_not_finish_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no summary\.json in it: the demo has not finished"):
        record.record(tmp_path, tmp_path / "kept.json")
    assert not (tmp_path / "kept.json").exists()


# --- things that are named ---


def anchors(path: Path) -> set[str]:
    """The anchors that a Markdown page has on GitHub."""
    heads = re.findall(r"^#+ (.+)$", prose(path.read_text(encoding="utf-8")), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@each_document
def test_every_relative_link_leads_somewhere(name: str) -> None:
    path = DOCUMENTS[name]
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        leads_to = (path.parent / place).resolve() if place else path
        if not leads_to.exists() or (anchor and anchor not in anchors(leads_to)):
            broken.append(target)
    assert broken == []


@each_document
def test_every_make_target_exists(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    doors = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))
    text = DOCUMENTS[name].read_text(encoding="utf-8")
    for piece in code(text):
        for words in re.findall(r"(?:^|\s)make((?: [A-Za-z_-]+(?:=\S+)?)+)", piece):
            for word in words.split():
                variable, is_set, _ = word.partition("=")
                assert f"$({variable})" in makefile if is_set else word in doors, piece


@each_document
def test_every_holdfast_command_and_option_exists(name: str) -> None:
    text = DOCUMENTS[name].read_text(encoding="utf-8")
    pattern = re.compile(r"(?:^|[\s/])holdfast ([a-z]+)([^|;&]*)")
    for piece in code(text):
        for command, rest in pattern.findall(piece):
            assert command in cli.COMMANDS, piece
            offered = (ROOT / "holdfast" / "commands" / f"{command}.py").read_text(encoding="utf-8")
            offered += (ROOT / "holdfast" / "commands" / "run.py").read_text(encoding="utf-8") * (command == "resume")
            offered += '"--set"' * ("add_set(" in offered)
            missing = [option for option in re.findall(r"--[a-z-]+", rest) if f'"{option}"' not in offered]
            assert missing == [], piece
    for line in blocks(text):
        if found := re.match(r"(?:\.venv/bin/)?holdfast (.+)", line):
            parser, _ = cli._parser(found[1].split())
            parser.parse_args(found[1].split())


@each_document
def test_every_other_option_and_module_exists(name: str) -> None:
    text = DOCUMENTS[name].read_text(encoding="utf-8")
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("bench", "holdfast", "trainer")
        for path in (ROOT / folder).rglob("*.py")
    )
    for piece in code(text):
        for module in re.findall(r"python -m ([\w.]+)", piece):
            place = ROOT / module.replace(".", "/")
            assert place.with_suffix(".py").exists() or (place / "__main__.py").exists(), piece
        if re.fullmatch(r"--(?!ft-)[a-z-]+(=.*)?", piece):  # --ft-... is NVRx's
            assert piece.partition("=")[0] in sources, piece


@each_document
def test_every_config_key_exists(name: str) -> None:
    sections = "|".join(RunConfig.model_fields)
    pattern = re.compile(rf"(?<![\w./-])(?:{sections})\.[a-z_0-9]+(?:\.[a-z_0-9]+)*(?![\w(/])")
    for piece in code(DOCUMENTS[name].read_text(encoding="utf-8")):
        for key in pattern.findall(piece):
            is_file = key.rpartition(".")[2] in ("py", "yaml", "json", "md")
            assert is_file or field_at(key.split(".")) is not None, piece


@each_document
def test_every_path_of_this_repository_exists(name: str) -> None:
    for span in spans(DOCUMENTS[name].read_text(encoding="utf-8")):
        path = span.partition("::")[0]
        if path.split("/")[0] in OUR_FOLDERS and re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", path) and "/" in path:
            assert (ROOT / path).exists(), span


def test_the_map_of_the_tree_names_what_is_there() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^## The tree\n+```\n(.*?)^```", readme, flags=re.DOTALL | re.MULTILINE)
    assert found is not None
    parents: dict[int, Path] = {0: ROOT}
    named = set()
    for line in found[1].splitlines():
        depth = len(line) - len(line.lstrip())
        folder = parents[depth]
        for word in re.split(r" {2,}", line.strip())[0].split():
            assert (folder / word).exists(), line
            named.add((folder / word).resolve())
            parents[depth + 2] = folder / word
    assert {ROOT / folder for folder in OUR_FOLDERS} <= named


def test_fault_files_that_are_quoted_are_accepted(tmp_path: Path) -> None:
    quoted = re.findall(r"echo '(faults: .+)' >", (ROOT / "README.md").read_text(encoding="utf-8"))
    quoted += re.findall(r"^```yaml\n(.*?)^```", OPERATIONS.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    assert len(quoted) == 2
    for text in quoted:
        (tmp_path / "faults.yaml").write_text(text)
        assert read_config("cpu-demo", [], tmp_path / "faults.yaml").faults


# --- single pages ---


def test_the_table_of_the_run_directory_names_every_record() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    records = (
        names.COMPLETE, names.TERMINAL, names.GENERATION, f"{names.GENERATIONS}/", names.RUN_YAML, names.CHECKPOINTS,
        names.COMMITTED, names.LATEST, f"{names.EVENTS}/", f"{names.ATTEMPTS}/", f"{names.FAULTS}/", names.TOKEN_CACHE,
        names.PARTIAL_SUFFIX, names.step_folder(30),
    )  # fmt: skip
    assert [record for record in records if record not in text] == []


def test_operations_explains_every_exit_code() -> None:
    rows = {
        row.strip() for row in re.findall(r"^\| ([\d, ]+) \|", OPERATIONS.read_text(encoding="utf-8"), re.MULTILINE)
    }
    codes = {int(code) for row in rows for code in row.split(",")}
    ours = {value for name, value in vars(names).items() if name.startswith("EXIT_")}
    assert codes == ours | {2, cli.EXIT_INTERRUPTED, 128 + signal.SIGKILL, 128 + signal.SIGTERM}


def test_operations_quotes_only_messages_that_the_code_has() -> None:
    quoted = [span for span in spans(OPERATIONS.read_text(encoding="utf-8")) if " " in span.strip() or "..." in span]
    messages = [
        span for span in quoted if not re.match(r"holdfast |kubectl |aws |python|--|[a-z]+\.[a-z_]+:|[\w.<>-]+/", span)
    ]
    assert len(messages) > 15
    pieces = {piece for message in messages for piece in message.split("...") if len(piece.strip()) > 3}
    assert {piece for piece in pieces if not any(piece.strip(":") in text for text in said_by_the_code())} == set()


def test_every_public_case_is_told_with_its_thread_and_its_tests() -> None:
    parts = re.split(r"^### (case-\d\d) ", BUG_CASES.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    cases = dict(zip(parts[::2], parts[1::2], strict=True))
    assert list(cases) == CASES
    for case, text in cases.items():
        tests = re.findall(r"^- `(tests/[\w/]+\.py)::(\w+)`$", text, flags=re.MULTILINE)
        assert "**Seen:**" in text and "https://" in text and "**Here:**" in text and tests, case
        missing = [f"{file}::{test}" for file, test in tests if test not in functions(ROOT / file)]
        assert missing == [], case


def test_the_python_versions_of_the_readme_are_those_that_are_supported() -> None:
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    assert asked == ">=3.11,<3.13"
    assert "Python 3.11 or 3.12" in (ROOT / "README.md").read_text(encoding="utf-8")

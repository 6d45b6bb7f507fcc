"""An export that cannot be right leaves nothing behind, says why, and needs little memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from holdfast.checkpoint_folder import DCP_METADATA, STATE
from holdfast.config import ConfigError, RunConfig, names
from holdfast.leases import held_steps
from tests.trainer.committed import Evil, write_marker
from tests.trainer.exports import ROOT, commit, exported, saved, step_folder
from tests.trainer.test_model import model_config
from trainer.checkpoint.export import export, main
from trainer.checkpoint.plan import nested
from trainer.model import on_meta

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("name", [DCP_METADATA, STATE, "__0_0.distcp"])
def test_one_flipped_bit_is_found_and_nothing_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    _, folder = saved(tmp_path, model_config("llama"))
    flip(folder / name, (folder / name).stat().st_size // 3)
    assert main([str(folder), "--to", str(tmp_path / "out" / "hf")]) == 1
    assert f"step-00000030/{name}: block 0 (from byte 0) has another checksum" in capsys.readouterr().err
    assert list(tmp_path.glob("out/*")) == []


def test_a_pickle_that_was_not_committed_is_never_unpickled(tmp_path: Path) -> None:
    import pickle

    _, folder = saved(tmp_path, model_config("llama"))
    (folder / DCP_METADATA).write_bytes(pickle.dumps(Evil(tmp_path / "trace")))
    assert main([str(folder), "--to", str(tmp_path / "hf")]) == 1
    assert not (tmp_path / "trace").exists()


def test_a_step_without_marker_is_refused(tmp_path: Path) -> None:
    _, folder = saved(tmp_path, model_config("llama"))
    (folder / names.COMMITTED).unlink()
    with pytest.raises(ConfigError, match="it is not a committed step"):
        exported(folder, tmp_path / "hf")


def test_a_target_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    _, folder = saved(tmp_path, model_config("llama"))
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "mine").write_text("mine")
    with pytest.raises(ConfigError, match=r"--to = .*hf': it exists"):
        exported(folder, tmp_path / "hf")
    assert [path.name for path in (tmp_path / "hf").iterdir()] == ["mine"]


def test_too_little_room_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = saved(tmp_path, model_config("llama"))
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("trainer.checkpoint.export.shutil.disk_usage", lambda path: usage)
    with pytest.raises(ConfigError, match=r"it needs 0\.1 GB, and 0\.0 GB are free there"):
        exported(folder, tmp_path / "out" / "hf")
    assert list(tmp_path.glob("out/*")) == []


def test_a_write_that_fails_is_one_message_and_leaves_nothing(tmp_path: Path) -> None:
    _, folder = saved(tmp_path, model_config("llama"))
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))  # noqa: E731
    command = [sys.executable, "-m", "trainer.checkpoint.export", str(folder), "--to", str(tmp_path / "out" / "hf")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, preexec_fn=limit)
    assert (done.returncode, done.stderr.count("\n")) == (2, 2), done.stderr
    assert "writing failed: " in done.stderr and "File too large" in done.stderr
    assert list(tmp_path.glob("out/*")) == []


def test_weights_that_the_model_does_not_have_room_for_are_named(tmp_path: Path) -> None:
    config = model_config("llama")
    _, folder = saved(tmp_path, config)
    (folder / names.COMMITTED).unlink()
    commit(folder, model_config("llama", False, "model.intermediate_size=256", "model.layers=3"))
    with pytest.raises(ConfigError) as caught:
        exported(folder, tmp_path / "hf")
    text = str(caught.value)
    assert "model.layers.0.mlp.up_proj.weight = (128, 64): the model's has the shape (256, 64)" in text
    assert "model.layers.2.self_attn.q_proj.weight = None: the checkpoint has no such weight" in text


def test_a_model_that_this_version_does_not_know_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, folder = saved(tmp_path, model_config("llama"))
    text = (folder / STATE).read_text().replace('"family": "llama"', '"family": "mamba9"')
    (folder / STATE).write_text(text)
    write_marker(folder, 1 << 23)
    assert main([str(folder), "--to", str(tmp_path / "hf")]) == 2
    error = capsys.readouterr().err
    assert "state.json': " in error and "mamba9" in error and "version of Holdfast" in error


def test_the_step_is_leased_while_it_is_exported_and_not_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = saved(tmp_path, model_config("llama"))
    held: list[set[int]] = []

    def look_first(*arguments: Any) -> dict[str, Any]:
        held.append(held_steps(folder.parent, {}))
        return export(*arguments)

    monkeypatch.setattr("trainer.checkpoint.export.export", look_first)
    assert main([str(folder), "--to", str(tmp_path / "hf")]) == 0
    assert [*held, held_steps(folder.parent, {})] == [{30}, set()]


# --- memory ---

MEASURE = """
import sys, torch
from pathlib import Path
from typing import Any
from trainer.checkpoint.export import Target, export
def peak(): return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
def run(folder, to): export(Path(folder), Target(Path(to), torch.float32, 20_000_000), lambda record: None)
run(sys.argv[1], sys.argv[2])
before = peak()
run(sys.argv[3], sys.argv[4])
print(peak() - before)
"""


def save_weights_only(storage: Path, config: RunConfig) -> Path:
    shapes = {name: tensor.shape for name, tensor in on_meta(config.model).state_dict().items()}
    folder = step_folder(storage)
    weights = {f"model.{name}": torch.full(shape, 0.5) for name, shape in shapes.items()}
    dcp.save(nested(weights), checkpoint_id=folder, no_dist=True)
    return commit(folder, config)


def test_memory_is_that_of_one_shard_and_not_of_the_model(tmp_path: Path) -> None:
    small = save_weights_only(tmp_path / "small", model_config("llama"))
    wide = ("model.hidden_size=512", "model.intermediate_size=1376", "model.layers=20")
    large = save_weights_only(tmp_path / "large", model_config("llama", False, *wide))
    arguments = [str(path) for path in (small, tmp_path / "hf small", large, tmp_path / "hf large")]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    weights = sum(path.stat().st_size for path in (tmp_path / "hf large").glob("*.safetensors"))
    assert weights > 230e6
    assert int(done.stdout) < 100e6, "one shard, one batch and one block are below 60 MB"

"""Write manifests: `HOLDFAST_PROFILE=cpu-demo python k8s/main.py` -> dist/k8s/cpu-demo/{platform,job}/*.yaml.

HOLDFAST_PROFILE  name of a profile, or path of a YAML file (required)
HOLDFAST_SET      overrides, one `key=value` per line
HOLDFAST_OUTPUTS  what `cdk deploy` has written; by default cdk-outputs.json here, if there is one. EC2 types only. The
                  end of a Capacity Block becomes cluster.capacity_ends_at, unless the config has one
HOLDFAST_DIST     output root instead of dist/ of the repository; under `cdk8s synth` it is the CLI's own output folder

job/ is what starts training; data/, where the config has data.prepare, makes its tokens before. platform/ is what
`cdk deploy` applies by itself unless aws.apply_manifests is false.
Prints one path per file, and a line on standard error about what is left out. Bad input, or a manifest that breaks a
rule, ends with exit code 2 and nothing written.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if __name__ == "__main__":
    # Python puts this folder first; the packages start one above it.
    sys.path[0] = str(ROOT)
    if missing := [name for name in ("pydantic", "yaml", "cdk8s") if importlib.util.find_spec(name) is None]:
        print(
            f"{sys.executable} lacks {', '.join(missing)}: run `make venv`, then use .venv/bin/python", file=sys.stderr
        )
        sys.exit(2)

from holdfast.config import EXIT_BAD_CONFIG, ConfigError, Problem, RunConfig, load_profile, profile_names, validate  # noqa: E402

DEFAULT_IMAGE: str = RunConfig.model_fields["image"].default


def main(environ: Mapping[str, str]) -> int:
    """Synthesize what the environment asks for; the exit code. Complaints go to stderr."""
    try:
        profile, config = read_config(environ)
        use_bundled_node()
        for path in synthesize(config, profile, environ):
            print(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return EXIT_BAD_CONFIG
    return 0


def synthesize(config: RunConfig, profile: str, environ: Mapping[str, str]) -> list[Path]:
    """Write platform/ and job/; their paths. Raises ConfigError."""
    # Not before: cdk8s starts Node when it is imported.
    from k8s import data_job, job, output, outputs, rules
    from k8s.charts import rendered
    from k8s.platform import platform_charts
    from k8s.readme import platform_readme

    deployed = outputs.read(environ, config.name) if config.instance.ec2 else outputs.Outputs()
    if config.image == DEFAULT_IMAGE and deployed.image:
        config = config.model_copy(update={"image": deployed.image})
    if deployed.capacity_ends_at and config.cluster.capacity_ends_at is None:
        config = ending_at(config, deployed.capacity_ends_at)
    platform = rendered(platform_charts(config, file_system=deployed.file_system).values())
    objects = job.manifests(config)
    data = data_job.manifests(config)
    if problems := rules.check([*platform.values(), *objects.values(), *data.values()]):
        raise ConfigError(problems, source=f"profile {profile}")
    if deployed.why:
        print(f"platform/ has no storage: {deployed.why}", file=sys.stderr)
    end = config.cluster.capacity_ends_at
    if end is not None and end < datetime.now(UTC):
        fix = "deploy other capacity, or override it"
        print(f"cluster.capacity_ends_at = {end.isoformat()}: it is over, no pod will start. {fix}", file=sys.stderr)
    if config.image == DEFAULT_IMAGE and config.instance.ec2:
        fix = "Before you apply job/, name one by digest: HOLDFAST_SET='image=<uri>@sha256:<digest>'"
        print(f"image = {config.image!r}: no node can pull it. {fix}", file=sys.stderr)
    folder = output_root(environ) / Path(profile).stem
    written = output.write(platform, folder / "platform", platform_readme(config, left_out=deployed.why))
    if data or (folder / "data").exists():
        written += output.write(data, folder / "data")
    return written + output.write(objects, folder / "job")


def ending_at(config: RunConfig, moment: str) -> RunConfig:
    """The config of a run that leaves before its Capacity Block ends. Raises ConfigError."""
    plain = config.model_dump(mode="json")
    plain["cluster"]["capacity_ends_at"] = moment
    return validate(plain, source="deployment outputs")


def read_config(environ: Mapping[str, str]) -> tuple[str, RunConfig]:
    """The profile's name or path, and the config. Raises ConfigError."""
    profile = environ.get("HOLDFAST_PROFILE", "")
    if not profile:
        fix = f"set it to one of: {', '.join(profile_names())}, or to the path of a YAML file"
        raise ConfigError([Problem("HOLDFAST_PROFILE", None, "it names what to synthesize", fix)], source="environment")
    overrides = [line.strip() for line in environ.get("HOLDFAST_SET", "").splitlines() if line.strip()]
    return profile, load_profile(profile, overrides)


def output_root(environ: Mapping[str, str]) -> Path:
    """Folder that holds one folder per profile."""
    if environ.get("HOLDFAST_DIST"):
        return Path(environ["HOLDFAST_DIST"]).resolve() / "k8s"
    # `cdk8s synth` sets CDK8S_OUTDIR, empties it, and fails if the app writes elsewhere.
    return Path(environ.get("CDK8S_OUTDIR") or ROOT / "dist" / "k8s").resolve()


def use_bundled_node() -> None:
    """Let jsii, under cdk8s, use the Node.js that set-up put beside this Python. Raises ConfigError without one."""
    bundled = Path(sys.prefix) / "bin" / "node"
    if "JSII_NODE" not in os.environ and bundled.exists():
        os.environ["JSII_NODE"] = str(bundled)
    # Otherwise jsii writes a page about the end of life of a Node.js that the user did not choose.
    os.environ.setdefault("JSII_SILENCE_WARNING_END_OF_LIFE_NODE_VERSION", "1")
    os.environ.setdefault("JSII_SILENCE_WARNING_UNTESTED_NODE_VERSION", "1")
    node = os.environ.get("JSII_NODE", "node")
    if shutil.which(node) is None:
        why = "cdk8s needs Node.js and it cannot be run"
        fix = "run `make venv`, and use its Python, or install Node.js"
        raise ConfigError([Problem("JSII_NODE", node, why, fix)], source="environment")


if __name__ == "__main__":
    sys.exit(main(os.environ))

"""The two profiles for AWS, synthesized once in this process; and synthesis of variants, which tests may break."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.infra.assembly import Assembly

PROFILES = ("llama3-8b-p5x2", "gpt2-g5x2")
Synth = Callable[..., Assembly]


@pytest.fixture(scope="session")
def synth(tmp_path_factory: pytest.TempPathFactory) -> Synth:
    """(profile, "dotted.key=value", ...) -> assembly. Without rules and cdk-nag: other tests have those."""
    from app import build, context_of_the_app
    from infra.deployment import read
    from k8s.main import use_bundled_node

    use_bundled_node()
    import aws_cdk as cdk

    # Assets are 60 MB of zip files, which no test reads.
    base = {**context_of_the_app(), "aws:cdk:disable-asset-staging": True}

    def synthesized(profile: str, *settings: str) -> Assembly:
        folder = tmp_path_factory.mktemp(profile)
        context = dict(setting.split("=", 1) for setting in settings)
        app = cdk.App(
            context={**base, "profile": profile, **context},
            outdir=str(folder),
            analytics_reporting=False,
            # It takes seconds for each app; `make check` runs it, with --strict.
            builtin_cloud_formation_validation=False,
        )
        config, deployment = read(app.node.get_all_context())
        build(app, config, deployment)
        app.synth()
        return Assembly(folder, config)

    return synthesized


@pytest.fixture(scope="session")
def assemblies(synth: Synth) -> dict[str, Assembly]:
    """Profile -> its assembly, for tests that only look."""
    return {profile: synth(profile) for profile in PROFILES}


@pytest.fixture(scope="session")
def p5(assemblies: dict[str, Assembly]) -> Assembly:
    """The article's profile."""
    return assemblies["llama3-8b-p5x2"]


@pytest.fixture(params=PROFILES)
def assembly(request: pytest.FixtureRequest, assemblies: dict[str, Assembly]) -> Assembly:
    """Each profile in turn."""
    found: Assembly = assemblies[request.param]
    return found


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return Path(__file__).parents[2]

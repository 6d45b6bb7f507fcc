"""The training image, built and pushed by `cdk deploy`. An option: it takes docker on the machine that deploys."""

from __future__ import annotations

from pathlib import Path

from aws_cdk.aws_ecr_assets import DockerImageAsset, Platform
from constructs import Construct


class TrainerImage(Construct):
    """Image of the Dockerfile in a folder. `uri` is a token; the tag is a hash of what goes into the build."""

    def __init__(self, scope: Construct, construct_id: str, *, folder: Path) -> None:
        super().__init__(scope, construct_id)
        # Synthesis only reads the files (those that .dockerignore lets through); docker runs at deployment.
        asset = DockerImageAsset(self, "Asset", directory=str(folder), platform=Platform.LINUX_AMD64)
        self.uri = asset.image_uri

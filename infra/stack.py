"""What our stacks have in common: name, region, tags, protection, and zones that need no call to AWS."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import Construct

from holdfast.config import RunConfig, names


def node_tags(config: RunConfig) -> dict[str, str]:
    """Tags that launch templates give to instances and volumes, since node groups do not pass theirs on.

    Not the one that changes while nodes run: EKS refuses an update of a node group's tags together with one of its
    launch template (github.com/aws/aws-cdk/issues/16644), and the deployment would be rolled back.
    """
    return {"Project": config.name, "Owner": config.cost.owner}


def tags(config: RunConfig) -> dict[str, str]:
    """Tags of everything else that costs money."""
    return node_tags(config) | ({"ExpiresAt": config.cost.expires_at} if config.cost.expires_at else {})


class HoldfastStack(cdk.Stack):
    """A stack of the run, in its region and in whatever account the credentials at deployment belong to."""

    def __init__(
        self, scope: Construct, construct_id: str, *, config: RunConfig, stack: str, purpose: str, keep: bool = False
    ) -> None:
        """`stack` is one of names.STACK_*. `keep`: cannot be deleted while aws.production is on."""
        self._zones = list(config.aws.zones)
        super().__init__(
            scope,
            construct_id,
            stack_name=names.stack_name(config.name, stack),
            description=f"Holdfast {config.name}: {purpose}",
            env=cdk.Environment(region=config.aws.region),
            termination_protection=keep and config.aws.production,
            analytics_reporting=False,
            tags=tags(config),
        )
        for key, value in tags(config).items():
            cdk.Tags.of(self).add(key, value)

    @property
    def availability_zones(self) -> list[str]:
        """The config's zones. The CDK would look them up in the account."""
        return self._zones

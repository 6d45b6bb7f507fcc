"""Says why a finding of cdk-nag is accepted, beside the construct that causes it."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import IConstruct


def acknowledge(construct: IConstruct, rule: str, reason: str) -> None:
    """Accept one finding (like AwsSolutions-IAM4[Policy::...]) on a construct and on what it contains."""
    cdk.Validations.of(construct).acknowledge(cdk.Acknowledgment(id=rule, reason=reason))


def managed_policy(name: str) -> str:
    """Id of the finding that a role uses this policy of AWS."""
    return f"AwsSolutions-IAM4[Policy::arn:<AWS::Partition>:iam::aws:policy/{name}]"

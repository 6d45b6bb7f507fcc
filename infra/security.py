"""Security group rules as separate L1 resources: each is really in the template, and others can wait for it."""

from __future__ import annotations

from aws_cdk import aws_ec2 as ec2
from constructs import Construct

ALL = "-1"


def allow_in(
    scope: Construct, construct_id: str, *, group_id: str, peer_id: str, ports: tuple[int, int] | None = None
) -> ec2.CfnSecurityGroupIngress:
    """Let a group (it may be the same one) reach the interfaces of `group_id`: TCP ports, or everything."""
    return ec2.CfnSecurityGroupIngress(
        scope,
        construct_id,
        group_id=group_id,
        source_security_group_id=peer_id,
        ip_protocol="tcp" if ports else ALL,
        from_port=ports[0] if ports else None,
        to_port=ports[1] if ports else None,
    )


def allow_out(scope: Construct, construct_id: str, *, group_id: str, peer_id: str) -> ec2.CfnSecurityGroupEgress:
    """Let interfaces of `group_id` reach a group with everything.

    EC2's own rule to 0.0.0.0/0 is no substitute: EFA traffic passes only by a rule that names a group. The L2
    SecurityGroup drops this rule in silence where it allows all outbound traffic.
    """
    return ec2.CfnSecurityGroupEgress(
        scope, construct_id, group_id=group_id, destination_security_group_id=peer_id, ip_protocol=ALL
    )

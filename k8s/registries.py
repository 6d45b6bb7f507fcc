"""Where a region's nodes pull EKS images from.

Source: docs.aws.amazon.com/eks/latest/userguide/add-ons-images.html, in a stored copy of 2026.
"""

from __future__ import annotations

from holdfast.config import ConfigError, Problem

_MOST = "602401143452"
_ACCOUNTS = {
    "af-south-1": "877085696533",
    "ap-east-1": "800184023465",
    "ap-northeast-1": _MOST,
    "ap-northeast-2": _MOST,
    "ap-northeast-3": _MOST,
    "ap-south-1": _MOST,
    "ap-south-2": "900889452093",
    "ap-southeast-1": _MOST,
    "ap-southeast-2": _MOST,
    "ap-southeast-3": "296578399912",
    "ap-southeast-4": "491585149902",
    "ap-southeast-5": "151610086707",
    "ap-southeast-7": "121268973566",
    "ca-central-1": _MOST,
    "ca-west-1": "761377655185",
    "eu-central-1": _MOST,
    "eu-central-2": "900612956339",
    "eu-north-1": _MOST,
    "eu-south-1": "590381155156",
    "eu-south-2": "455263428931",
    "eu-west-1": _MOST,
    "eu-west-2": _MOST,
    "eu-west-3": _MOST,
    "il-central-1": "066635153087",
    "me-central-1": "759879836304",
    "me-south-1": "558608220178",
    "mx-central-1": "730335286997",
    "sa-east-1": _MOST,
    "us-east-1": _MOST,
    "us-east-2": _MOST,
    "us-gov-east-1": "151742754352",
    "us-gov-west-1": "013241004608",
    "us-west-1": _MOST,
    "us-west-2": _MOST,
}
"""Region -> account of the EKS images."""


def eks_registry(region: str) -> str:
    """Host name of the region's registry. Raises ConfigError for a region that is not in the table."""
    if region not in _ACCOUNTS:
        fix = f"use one of {', '.join(_ACCOUNTS)}, or add its account to k8s/registries.py"
        raise ConfigError([Problem("aws.region", region, "its registry of EKS images is not known here", fix)])
    return f"{_ACCOUNTS[region]}.dkr.ecr.{region}.amazonaws.com"

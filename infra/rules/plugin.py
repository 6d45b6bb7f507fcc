"""The rules as a validation plugin of the CDK: `Validations.of(app).add_plugins(HoldfastRules())`.

It reads synthesized templates, so that escape hatches and overrides are judged too. A finding fails `cdk synth` and is
printed with the rule's id and the construct's path.
"""

from __future__ import annotations

import aws_cdk as cdk
import jsii

from infra.rules.catalog import RULES, findings
from infra.rules.reading import read_assembly, stack_of
from infra.rules.rule import Finding, Rule


@jsii.implements(cdk.IPolicyValidationPlugin)
class HoldfastRules:
    """Rules HF001 and following."""

    @property
    def name(self) -> str:
        """Heads the section of the report."""
        return "Holdfast"

    @property
    def version(self) -> str:
        """Of the set of rules: its size."""
        return str(len(RULES))

    @property
    def rule_ids(self) -> list[str]:
        """Every id."""
        return [rule.id for rule in RULES]

    def validate(self, context: cdk.IPolicyValidationContext) -> cdk.PolicyValidationPluginReport:
        """Judge all templates of the app together."""
        paths = {stack_of(path): path for path in context.template_paths}
        violations = [
            _violation(rule, finding, paths) for rule, finding in findings(read_assembly(context.template_paths))
        ]
        return cdk.PolicyValidationPluginReport(success=not violations, violations=violations)


def _violation(rule: Rule, finding: Finding, paths: dict[str, str]) -> cdk.PolicyViolation:
    return cdk.PolicyViolation(
        rule_name=rule.id,
        description=f"{finding.wrong}. {finding.why[:1].upper()}{finding.why[1:]}",
        fix=finding.write,
        severity="error",
        violating_resources=[
            cdk.PolicyViolatingResource(
                resource_logical_id=finding.resource.logical_id,
                template_path=paths[finding.resource.stack],
                locations=[finding.resource.path],
            )
        ],
    )

"""An AWS Budget that sends mail before the money is gone."""

from __future__ import annotations

from aws_cdk import aws_budgets as budgets
from constructs import Construct


class Budget(Construct):
    """Monthly cost budget of the whole account: a filter on our tags shows nothing until somebody activates them."""

    def __init__(self, scope: Construct, construct_id: str, *, monthly_usd: float, email: str) -> None:
        super().__init__(scope, construct_id)
        self.budget = budgets.CfnBudget(
            self,
            "Resource",
            budget={
                "budgetType": "COST",
                "timeUnit": "MONTHLY",
                "budgetLimit": {"amount": monthly_usd, "unit": "USD"},
            },
            notifications_with_subscribers=[
                {
                    "notification": {
                        "notificationType": kind,
                        "comparisonOperator": "GREATER_THAN",
                        "threshold": percent,
                        "thresholdType": "PERCENTAGE",
                    },
                    "subscribers": [{"subscriptionType": "EMAIL", "address": email}],
                }
                for kind, percent in (("ACTUAL", 80), ("FORECASTED", 100))
            ],
        )

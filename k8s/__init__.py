"""What is applied to the cluster: plain Kubernetes objects built from a RunConfig. Imports holdfast and cdk8s only."""

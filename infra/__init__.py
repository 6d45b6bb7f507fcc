"""What exists on AWS, as a CDK app of five stacks. app.py puts them together; nothing here reads CDK context."""

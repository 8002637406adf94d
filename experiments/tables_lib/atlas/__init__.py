"""The coefficient that each estimator gives one token, over ratio and advantage."""

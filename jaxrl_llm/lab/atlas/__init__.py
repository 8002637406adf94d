"""What each estimator does with one token: its coefficient over ratio and advantage."""

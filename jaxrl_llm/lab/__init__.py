"""The laboratory: what estimators and advantages do, measured where the truth is known."""

"""What every backend shares on our side: grading, verdicts in words, limits and metering."""

"""Process of a payload: limits, output, result, and the cause of a crash."""

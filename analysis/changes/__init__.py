"""Change points: steps in daily series, their causes and attribution."""

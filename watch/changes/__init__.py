"""Change points: steps in daily series, their causes and attribution."""

#: Days that are searched.
WINDOW_DAYS = 90

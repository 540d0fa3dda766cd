"""Commands of the collectors package."""

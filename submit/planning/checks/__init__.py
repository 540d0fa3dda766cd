"""Checks of a plan and its test before anything is stored or sent."""

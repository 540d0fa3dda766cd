"""Searches, counts and reads of single files that run beside campaigns."""

#: Placeholder of a build's folder in the value of the root axis.
FOLDER_PLACEHOLDER = "{build}"

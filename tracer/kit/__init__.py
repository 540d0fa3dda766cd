"""Recorder of any command's processes and reads, which travels to nodes with the payload kit."""

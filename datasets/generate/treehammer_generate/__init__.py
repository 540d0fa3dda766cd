"""What is done in a process that has ROOT: files are written, compared and measured."""

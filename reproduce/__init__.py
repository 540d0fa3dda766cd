"""Published results measured again: definitions, runs, judgement, command and page."""

"""The store: recording, roll-ups, quality flags, retention and uploaded campaigns."""
